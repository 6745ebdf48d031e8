"""Acceptance: a graph that finished is not done before what its job must pass has passed.

Commands are run, then the changed paths are looked at. What fails goes back to the graph as often as the policy
allows, and then to a person; a change of high-risk paths always does. Nothing is written here: `settle` writes what
came out, in one transaction with what becomes of the job.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args, get_origin

from langgraph.pregel import Pregel
from langgraph.runtime import RunControl
from sqlalchemy import Connection

from everstep import crash
from everstep.checkpoints import effects, reviews
from everstep.checkpoints.jobs import Job, loose_digest
from everstep.checkpoints.payload import without_secrets
from everstep.checkpoints.policy import Acceptance, FeedbackForm, feedback
from everstep.checkpoints.reviews import Question, Review
from everstep.checkpoints.store import Store
from everstep.counts import counted
from everstep.errors import EverstepError
from everstep.graphs.changed_paths import changed_paths
from everstep.nodes.high_risk import HIGH_RISK_PATHS, high_risk
from everstep.nodes.verify import CommandResult, Stopped, Verification, run_commands

LOOK_EVERY_S = 0.1
"""How often a worker that drains is noticed while commands run."""
STOPPING_S = 10.0
"""How long commands that were told to stop are waited for."""
FEEDBACK_CHARACTERS = 4000
PATHS_SHOWN = 200
_NAME = re.compile(r"\{([A-Za-z_]\w*)\}")


@dataclass(frozen=True)
class Finished:
    """A graph that finished.

    Attributes:
        state: Its final state.
        checkpoint_id: The checkpoint it finished with.
        form: How the channel of the policy takes feedback; None: the graph's input has no such channel.
    """

    state: Any
    checkpoint_id: str | None
    form: FeedbackForm | None


@dataclass(frozen=True)
class Judgement:
    """What becomes of a job whose graph finished.

    Attributes:
        kind: `done`; `returned`, with the `next_input` of its graph; or `review`, with a `question`.
        evidence: What is kept of it; empty if nothing was judged.
        reason: In a few words.
    """

    kind: Literal["done", "returned", "review"]
    evidence: dict[str, Any]
    reason: str
    next_input: dict[str, Any] | None = None
    question: Question | None = None


def feedback_form(graph: Pregel[Any, Any, Any, Any], channel: str) -> FeedbackForm | None:
    """How a channel of a graph's input takes a text; None if the input has no such channel."""
    builder = getattr(graph, "builder", None)
    if builder is None:
        return None
    taken = builder.schemas[builder.input_schema].get(channel)
    if taken is None:
        return None
    if channel == "messages":
        return "message"
    kind = getattr(taken, "typ", None)
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return "list" if (get_origin(kind) or kind) in (list, Sequence) else "text"


async def judge(store: Store, job: Job, finished: Finished, control: RunControl) -> Judgement | None:
    """Run what a job must pass, in a thread; cancelling this kills the commands with their children.

    Args:
        store: The record.
        job: The job, with its `acceptance_json`.
        finished: What its graph finished with.
        control: Tells that the worker drains: then the commands are stopped.

    Returns:
        The judgement; None if the worker drains.
    """

    def of_job(connection: Connection) -> tuple[list[Review], bool]:
        return reviews.of_job(connection, job.id), bool(effects.unsettled(connection, job.id))

    asked, in_doubt = await store.aread(of_job)
    if in_doubt:  # a person is asked about them first; what they say may change what is verified
        return Judgement("done", {}, "finished")
    if control.drain_requested:
        return None
    stop = threading.Event()
    examination = _Examination(job, finished, asked, stop)
    crash.point("acceptance.before", job.graph)
    work = asyncio.get_running_loop().run_in_executor(None, examination.judgement)
    try:
        while not work.done():
            await asyncio.wait({work}, timeout=LOOK_EVERY_S)
            if control.drain_requested:
                stop.set()
        judgement = work.result()
    except Stopped:
        return None
    except asyncio.CancelledError:
        stop.set()
        work.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # nobody else asks
        await asyncio.wait({work}, timeout=STOPPING_S)
        raise
    crash.point("acceptance.verified", job.graph)
    return judgement


@dataclass(frozen=True)
class _Changes:
    """High-risk paths that changed, or `why` nobody can tell; the digest is what an approval is bound to."""

    paths: list[str]
    digest: str
    base: str
    why: str | None = None


class _Examination:
    """Everything about one finished graph that may block."""

    def __init__(self, job: Job, finished: Finished, asked: Sequence[Review], stop: threading.Event) -> None:
        self._job = job
        self._finished = finished
        self._policy = Acceptance.of(job.acceptance)
        self._asked = [review for review in asked if review.kind == "policy"]
        self._stop = stop
        approved = [review for review in self._asked if review.decision == "approve"]
        self._seen = {review.value["digest"]: review.public_id for review in approved if review.value.get("digest")}
        self._as_it_is = next((review.public_id for review in approved if review.subject == self._subject), None)

    @property
    def _subject(self) -> str:
        return f"checkpoint {self._finished.checkpoint_id}"

    def judgement(self) -> Judgement:
        """What becomes of the job.

        Raises:
            Stopped: The commands were told to stop.
        """
        workdir, unknown = self._workdir()
        if unknown is not None and self._as_it_is is None:
            return self._failed(workdir, None, f"workdir names {{{unknown}}}, which the final state does not have")
        verification = None
        if self._as_it_is is None and not self._approved_before(workdir):
            verification = run_commands(
                self._policy.verify, cwd=Path(workdir), timeout=self._policy.timeout, stop=self._stop
            )
            if not verification.passed:
                return self._failed(workdir, verification)
        changes = None if unknown is not None else self._changes(workdir)
        if changes is None or changes.digest in self._seen:
            by = self._as_it_is or (changes and self._seen[changes.digest])
            reason = f"accepted by review {by}" if by else "finished and accepted"
            return Judgement("done", self._evidence("accepted", workdir, verification, changes, review=by), reason)
        return self._high_risk(workdir, verification, changes)

    def _workdir(self) -> tuple[str, str | None]:
        """The folder, and the first name in it that the final state does not have."""
        state: Any = self._finished.state
        values = cast("dict[str, Any]", state) if isinstance(state, dict) else {}
        unknown: list[str] = []

        def fill(name: re.Match[str]) -> str:
            value = values.get(name[1])
            if isinstance(value, str | int | os.PathLike) and not isinstance(value, bool):
                return os.fspath(cast("os.PathLike[str]", value)) if isinstance(value, os.PathLike) else str(value)
            unknown.append(name[1])
            return name[0]

        return _NAME.sub(fill, self._policy.workdir), unknown[0] if unknown else None

    def _approved_before(self, workdir: str) -> bool:
        """Whether a person has approved just what is there now: it passed the commands then."""
        if not self._seen:
            return False
        changes = self._changes(workdir)
        return changes is not None and changes.digest in self._seen

    def _changes(self, workdir: str) -> _Changes | None:
        """What a person has to look at; None if there is nothing."""
        base = self._policy.base
        patterns = HIGH_RISK_PATHS if self._policy.high_risk is None else self._policy.high_risk
        if base is None or not patterns:
            return None
        try:
            changed = changed_paths(Path(workdir), base)
        except (EverstepError, OSError, ValueError) as error:  # ValueError: NUL bytes in the folder's name
            why = without_secrets(error.message if isinstance(error, EverstepError) else str(error))
            return _Changes([], loose_digest([base, why]), base, why)
        paths = high_risk(changed.paths, patterns)
        return _Changes(paths, changed.digest(paths), changed.base) if paths else None

    def _failed(self, workdir: str, verification: Verification | None, problem: str = "") -> Judgement:
        policy, job = self._policy, self._job
        failed = verification.results[-1] if verification else None
        if failed is not None and self._finished.form is not None and job.returns < policy.returns:
            number = f"return {job.returns + 1} of {policy.returns}"
            return Judgement(
                "returned",
                self._evidence("returned", workdir, verification, None, returns=job.returns + 1),
                f"not accepted: {failed.command} exited with {failed.exit_code}; back to the graph ({number})",
                next_input=feedback(policy.feedback, self._finished.form, _words(failed)),
            )
        why = problem or f"the graph was given the output of a failing command {counted(policy.returns, 'time')}"
        if self._finished.form is None:
            why = problem or f"the graph's input has no channel {policy.feedback!r} that could take the output"
        changes = self._changes(workdir) if failed is not None else None
        value = {
            "question": "The result was not accepted. Accept it as it is?",
            "code": "acceptance_failed",
            "why": why,
            "command": failed and failed.command,
            "exit_code": failed and failed.exit_code,
            "output": failed.output if failed else problem,
            "returns": job.returns,
        }
        evidence = self._evidence("review", workdir, verification, changes, why=why)
        return self._asking(evidence, self._subject, value, changes)

    def _high_risk(self, workdir: str, verification: Verification | None, changes: _Changes) -> Judgement:
        unknown = changes.why is not None
        value = {
            "question": "Nobody can tell which paths changed. Accept the result all the same?"
            if unknown
            else "High-risk paths changed. Accept the result?",
            "code": "high_risk_unknown" if unknown else "high_risk_paths",
            "verified": verification and verification.digest,
        }
        evidence = self._evidence("review", workdir, verification, changes)
        return self._asking(evidence, f"changes {changes.digest}", value, changes)

    def _asking(
        self, evidence: dict[str, Any], subject: str, value: dict[str, Any], changes: _Changes | None
    ) -> Judgement:
        if changes is not None:
            value |= _shown(changes)
        value |= {"workdir": evidence["workdir"]}
        if self._finished.form is not None:
            value["feedback"] = {"channel": self._policy.feedback, "form": self._finished.form}
        # One that was rejected, of a job that was then retried, is asked again.
        answered = sum(review.subject == subject and review.status == "answered" for review in self._asked)
        question = Question("policy", subject, value, occurrence=answered)
        return Judgement("review", evidence, str(value["code"]), question=question)

    def _evidence(
        self, outcome: str, workdir: str, verification: Verification | None, changes: _Changes | None, **more: Any
    ) -> dict[str, Any]:
        return {
            "outcome": outcome,
            "checkpoint_id": self._finished.checkpoint_id,
            "workdir": workdir,
            **(asdict(verification) if verification else {}),
            **({"changes": _shown(changes)} if changes else {}),
            **{name: value for name, value in more.items() if value is not None},
        }


def _shown(changes: _Changes) -> dict[str, Any]:
    shown: dict[str, Any] = {"base": changes.base, "digest": changes.digest}
    if changes.why is not None:
        return {**shown, "why_unknown": changes.why}
    return {**shown, "number_of_paths": len(changes.paths), "paths": changes.paths[:PATHS_SHOWN]}


def _words(failed: CommandResult) -> str:
    said = failed.output.strip()[-FEEDBACK_CHARACTERS:]
    return (
        f"The work is not accepted yet: `{failed.command}` exited with {failed.exit_code}."
        f" The end of its output:\n\n{said}\n\nMend the cause, and finish again."
    )
