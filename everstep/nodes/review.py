"""`review`: ask a person, inside a node; LangGraph's `interrupt` with the payload that Agent Inbox reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from langgraph.types import interrupt

from everstep.checkpoints import answers
from everstep.checkpoints.jobs import loose_digest
from everstep.errors import ReviewAnswerInvalid
from everstep.nodes.edited_arguments import NotUsable

DecisionType = Literal["approve", "edit", "respond", "reject"]


@dataclass(frozen=True)
class Decision:
    """What a person decided.

    Attributes:
        type: `approve`, `edit`, `respond` or `reject`.
        args: The arguments to act with: the asked ones, or the edited ones.
        message: The person's words: the reason of a rejection, or the response.
    """

    type: DecisionType
    args: dict[str, Any]
    message: str | None

    @property
    def approved(self) -> bool:
        """Whether to act (with `args`)."""
        return self.type in ("approve", "edit")


def review(
    question: str,
    *,
    action: str = "continue",
    args: Mapping[str, Any] | None = None,
    allow: Sequence[DecisionType] = ("approve", "edit", "respond", "reject"),
) -> Decision:
    """Pause until a person decided. The job goes to `review`; nothing but an answer resumes it.

    The node's body runs again up to here when the answer comes, so ask before you act, and keep effects in `effect`.

    Args:
        question: What the person reads.
        action: Name of what would be done.
        args: Its exact arguments; JSON data. The answer is bound to them: other arguments are asked about anew.
        allow: The decisions offered.
    """
    arguments = dict(args or {})
    request = {
        "action_requests": [{"name": action, "args": arguments, "description": question}],
        "review_configs": [{"action_name": action, "allowed_decisions": list(allow)}],
    }
    digest = loose_digest(request)
    note: dict[str, str] = {}
    while True:
        answer: Any = interrupt({**request, "argument_digest": digest, **note})
        try:
            return _decision(answer, digest, action, arguments, allow)
        except NotUsable as error:
            note = {"note": f"asked anew: an earlier answer {error}"}


def _decision(answer: Any, digest: str, action: str, asked: dict[str, Any], allow: Sequence[DecisionType]) -> Decision:
    if isinstance(answer, Mapping) and cast("Mapping[str, Any]", answer).get("argument_digest", digest) != digest:
        raise NotUsable("was given for other arguments")
    try:
        said, value, words = answers.decision_of(answer)
    except ReviewAnswerInvalid:
        raise NotUsable("was no decision about it") from None
    decision = cast("DecisionType", said)
    if decision not in allow:
        raise NotUsable(f"was {decision!r}, which was not offered")
    message = answers.single(answer).get("message", words)
    if decision == "edit":
        edited = answers.edited_arguments(value, action)
        if edited is None:
            raise NotUsable("was an edit without arguments of this action")
        return Decision(decision, dict(edited), message)
    if decision != "approve" and message is None and value is not answers.MISSING:
        message = value  # as Agent Inbox answers
    return Decision(decision, asked, message)
