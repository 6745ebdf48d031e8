"""Whether an effect may happen: what a person is asked, and what the answer permits.

The question has the form that `review()` asks in. Its id is made of the call, its exact arguments and the shape of the
graph (`checkpoints.approvals`), so that an answer cannot be found by anything else: whatever changes is asked anew.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from langgraph.errors import GraphInterrupt
from langgraph.types import Interrupt
from sqlalchemy import Connection

from everstep.checkpoints import answers, approvals, payload
from everstep.checkpoints.approvals import Given, Standing
from everstep.checkpoints.jobs import loose_digest
from everstep.errors import ApprovalRejected, EffectInvalid, JobStateConflict, ReviewAnswerInvalid
from everstep.nodes import arguments
from everstep.nodes.attempt import Attempt
from everstep.nodes.edited_arguments import UNCHANGED, Changes, NotUsable, changes
from everstep.nodes.effect_drivers import Step, Write
from everstep.nodes.effect_identity import Declaration, Wording
from everstep.nodes.review import DecisionType, review

DECISIONS: tuple[DecisionType, ...] = ("approve", "edit", "respond", "reject")
LONGEST_QUESTION = 4000


@dataclass(frozen=True)
class Call:
    """A call that needs an approval.

    Attributes:
        name: The effect's name.
        wording: What the person is asked.
        given: The arguments, by name.
        exact: The same in canonical form.
        types: Tells the types of the parameters.
    """

    name: str
    wording: Wording
    given: Mapping[str, Any]
    exact: dict[str, Any]
    types: Callable[[], Changes]

    @classmethod
    def of(cls, declaration: Declaration, given: dict[str, Any], types: Callable[[], Changes]) -> Call | None:
        """The call, if its effect is declared to need an approval."""
        if not declaration.approval:
            return None
        return cls(declaration.name, declaration.approval, given, arguments.canonical(declaration.name, given), types)

    def digest(self, changed: Changes = UNCHANGED) -> str:
        """The digest of the arguments it is about to be made with."""
        return loose_digest({**self.exact, **arguments.canonical(self.name, changed)})

    def text(self) -> str:
        """What the person is asked, in words."""
        wording = self.wording
        if callable(wording):
            wording = wording(**self.given)
        text = wording if isinstance(wording, str) else f"Let {self.name} happen?"
        return payload.without_secrets(text[:LONGEST_QUESTION])

    def shown(self) -> dict[str, Any]:
        """Its exact arguments, but for what looks like a credential."""
        return arguments.without_credentials(self.exact)

    def allowed(self) -> tuple[DecisionType, ...]:
        """What the person may decide; arguments that are not shown whole cannot be edited."""
        return DECISIONS if self.shown() == self.exact else tuple(one for one in DECISIONS if one != "edit")


@dataclass(frozen=True)
class Permit:
    """The effect may happen.

    Attributes:
        review_id: Row id of the answer that says so.
        changed: The arguments the person edited, by name.
        digest: That of the arguments it may be called with.
        fingerprint: That of the graph the answer was given for.
    """

    review_id: int
    changed: Changes
    digest: str
    fingerprint: str | None


@dataclass(frozen=True)
class Refusal:
    """The effect may not be called now.

    Attributes:
        reason: What to raise: the question, or what the person said.
        changed: The edited arguments it was called with before, if it was.
    """

    reason: GraphInterrupt | ApprovalRejected
    changed: Changes


class NotPermitted(Exception):
    """Ends the life of an effect that may not be called now.

    Attributes:
        reason: What to raise in its place.
        state: `asked` or `refused`.
    """

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(str(refusal.reason))
        self.reason = refusal.reason
        self.state = "refused" if isinstance(refusal.reason, ApprovalRejected) else "asked"


def look(attempt: Attempt, key: str, call: Call) -> Callable[[Connection], Standing]:
    """What the record holds of the call; see `permission`."""
    digest = call.digest()
    return lambda connection: approvals.standing(
        connection,
        job_id=attempt.job_id,
        claim_no=attempt.claim_no,
        effect_key=key,
        argument_digest=digest,
        fingerprint=attempt.fingerprint,
    )


def permission(attempt: Attempt, key: str, call: Call, standing: Standing) -> Generator[Step, Any, Permit | Refusal]:
    """Whether the effect may be called now.

    Args:
        attempt: The attempt it is called in.
        key: The effect's key.
        call: The call.
        standing: What the record holds of it.
    """
    digest, fingerprint = call.digest(), attempt.fingerprint
    attempt.consulted.update(
        approvals.question_id(key, digest, fingerprint, number) for number in range(len(standing.given) + 1)
    )
    refused = ""
    for answer in standing.given:
        try:
            return _judged(call, key, digest, answer, fingerprint)
        except NotUsable as error:
            refused = f"an earlier answer {error}"
        except ApprovalRejected as error:
            return Refusal(error, _changed_before(call, key, standing))
    if not refused:
        unused = yield Write(lambda connection: approvals.unused(connection, attempt.job_id, call.name))
        earlier = [question for subject, question in unused.items() if subject not in attempt.consulted]
        if standing.held is not None:
            earlier.append(standing.held.question)
        refused = _what_changed(call, earlier[-1], fingerprint) if earlier else ""
    value = question(call, fingerprint, refused)
    asked = approvals.question_id(key, digest, fingerprint, len(standing.given))
    return Refusal(GraphInterrupt((Interrupt(value=value, id=asked),)), _changed_before(call, key, standing))


def reserve(connection: Connection, attempt: Attempt, key: str, call: Call, permit: Permit | Refusal | None) -> None:
    """Take the answer, in the transaction that writes the intent.

    Raises:
        JobStateConflict: It cannot be used (any more), or there is none.
    """
    if not isinstance(permit, Permit):
        raise JobStateConflict(f"the approval of {call.name} is missing", effect=key)
    approvals.reserve(
        connection,
        job_id=attempt.job_id,
        review_id=permit.review_id,
        action=call.name,
        argument_digest=permit.digest,
        fingerprint=permit.fingerprint,
        effect_key=key,
        now=attempt.store.clock.now_ms(),
    )


def question(call: Call, fingerprint: str | None, refused: str = "") -> dict[str, Any]:
    """What the person is asked: as `review` asks, with what the answer is bound to."""
    return {
        "action_requests": [{"name": call.name, "args": call.shown(), "description": call.text()}],
        "review_configs": [{"action_name": call.name, "allowed_decisions": list(call.allowed())}],
        "argument_digest": call.digest(),
        "approval": {"effect": call.name, "fingerprint": fingerprint},
        **({"note": f"asked anew: {refused}"} if refused else {}),
    }


def without_job(call: Call) -> Changes:
    """Ask in a graph that runs by itself, through LangGraph's own interrupt.

    Returns:
        The arguments the person edited, by name.

    Raises:
        ApprovalRejected: The person said no.
        EffectInvalid: The edited arguments are none the call takes.
    """
    decision = review(call.text(), action=call.name, args=call.shown(), allow=call.allowed())
    if not decision.approved:
        raise rejected(call, decision.type, decision.message)
    if decision.type == "approve":
        return UNCHANGED
    try:
        return changes(decision.args, call.exact, call.given, call.types())
    except NotUsable as error:
        raise EffectInvalid(f"effect {call.name}: the answer {error}", effect=call.name) from None


def rejected(call: Call, decision: str, words: str | None) -> ApprovalRejected:
    """The error a node gets in the place of the result."""
    said = "rejected by a person" if decision == "reject" else "answered by a person instead of approved"
    return ApprovalRejected(
        f"effect {call.name} was {said}",  # without the words: an error's text is on spans and in logs
        next_step="catch ApprovalRejected in the node to go another way",
        effect=call.name,
        decision=decision,
        words=words,
    )


def _judged(call: Call, key: str, digest: str, answer: Given, fingerprint: str | None) -> Permit:
    use = answer.use
    if use is not None and (use.effect_key != key or use.state != "reserved"):
        raise NotUsable("was used up")
    resume: Any = answer.resume
    if isinstance(resume, Mapping):
        told = cast("Mapping[str, Any]", resume).get("argument_digest", digest)
        if told != digest:
            raise NotUsable("was given for other arguments")
    try:
        decision, value, words = answers.decision_of(resume)
    except ReviewAnswerInvalid:
        raise NotUsable("was no decision about it") from None
    if decision not in call.allowed():
        raise NotUsable(f"was {decision!r}, which was not offered")
    if decision == "approve":
        return Permit(answer.review_id, UNCHANGED, digest, fingerprint)
    if decision == "edit":
        edited = answers.edited_arguments(value, call.name)
        if edited is None:
            raise NotUsable("was an edit without arguments of this action")
        changed = changes(edited, call.exact, call.given, call.types())
        return Permit(answer.review_id, changed, call.digest(changed), fingerprint)
    said = words if words is not None else None if value is answers.MISSING else value
    raise rejected(call, decision, said if isinstance(said, str) else None if said is None else repr(said))


def _changed_before(call: Call, key: str, standing: Standing) -> Changes:
    """The edited arguments with which the effect may have been called, for its probe."""
    held = standing.held
    if held is None or held.use is None:
        return UNCHANGED
    try:
        return _judged(call, key, str(held.question.get("argument_digest")), held, held.use.fingerprint).changed
    except (NotUsable, ApprovalRejected):
        return UNCHANGED


def _what_changed(call: Call, asked: Mapping[str, Any], fingerprint: str | None) -> str:
    """Why the answer to an earlier question about the same action counts for nothing."""
    if asked["approval"].get("fingerprint") != fingerprint:
        return "an earlier answer was given for the graph before it changed"
    shown, before = call.shown(), asked["action_requests"][0]["args"]
    names = [name for name in shown if loose_digest(shown[name]) != loose_digest(before.get(name))]
    what = f"other arguments ({', '.join(names)})" if names else "another call"
    return f"an earlier answer was given for {what}"
