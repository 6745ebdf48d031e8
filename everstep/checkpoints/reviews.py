"""Reviews: one row for each question only a person can answer, answered once, by id.

Answering is compare-and-set on the row, and moves the job on in the same transaction. No timer resumes a review.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, RowMapping, and_, bindparam, func, select, update

from everstep.checkpoints import answers, approvals, effects, jobs, policy, waits
from everstep.checkpoints.database import has_id, insert_or_ignore
from everstep.checkpoints.payload import without_secrets
from everstep.checkpoints.provider_status import SUBMIT, what_became_of_it
from everstep.checkpoints.schema import agent_jobs
from everstep.checkpoints.schema import reviews as table
from everstep.checkpoints.statements import Statement
from everstep.clock import rfc3339, uuid7
from everstep.errors import ReviewAnswered, ReviewAnswerInvalid, ReviewNotFound

ENDING = ("error", "fingerprint", "breakpoint", "policy", "budget")
"""Kinds of reviews that ask whether the job goes on; rejecting one ends it."""


@dataclass(frozen=True)
class Review:
    """A row of `reviews`.

    Attributes:
        kind: `interrupt`, `breakpoint`, `effect`, `error`, `fingerprint`, `policy` or `budget`.
        subject: What it is about: the interrupt's id, the effect's key, the checkpoint's id, ….
        occurrence: Tells several questions about one subject apart. For an interrupt: how many answers its task had
        used before.
        resume_json: The value the graph is resumed with, for an answered interrupt.
    """

    id: int
    public_id: str
    job_id: int
    kind: str
    subject: str
    occurrence: int
    status: str
    value_json: str
    value_digest: str
    decision: str | None
    answer_json: str | None
    resume_json: str | None
    reason: str | None
    answered_by: str | None
    created_at: int
    answered_at: int | None

    @property
    def value(self) -> Any:
        """What is asked."""
        return json.loads(self.value_json)


@dataclass(frozen=True)
class Question:
    """A review to be opened."""

    kind: str
    subject: str
    value: Any
    occurrence: int = 0


_OF_JOB = Statement(select(table).where(table.c.job_id == bindparam("job_id")).order_by(table.c.id))
_CLOSE_ALL = Statement(
    update(table)
    .where(table.c.job_id == bindparam("job_id"), table.c.status == "open")
    .values(status="closed", answered_at=bindparam("now"))
)


def _review(row: RowMapping) -> Review:
    return Review(**row)


def find(connection: Connection, public_id: str) -> Review:
    """The review by id, or by a prefix that fits one review only.

    Raises:
        ReviewNotFound: None, or more than one, fits.
    """
    query = select(table).where(has_id(table.c.public_id, public_id)).limit(3)
    found = [_review(row) for row in connection.execute(query).mappings()] if public_id else []
    if len(found) != 1:
        problem = (
            f"no review has the id {public_id!r}"
            if not found
            else f"several reviews have ids that start with {public_id!r}"
        )
        raise ReviewNotFound(problem, next_step="list the open ones with: everstep review", review=public_id)
    return found[0]


def of_job(connection: Connection, job_id: int) -> list[Review]:
    """A job's reviews, oldest first."""
    return [Review(**row) for row in _OF_JOB.rows(connection, {"job_id": job_id})]


def all_open(connection: Connection) -> list[Review]:
    """Every open review, oldest first."""
    return [
        _review(row)
        for row in connection.execute(select(table).where(table.c.status == "open").order_by(table.c.id)).mappings()
    ]


def open_all(connection: Connection, job: jobs.Job, questions: list[Question], *, now: int) -> list[Review]:
    """One open review for each question; a question asked before keeps its row, and its answer if it has one.

    One that was closed because the job had ended is open again, and one whose wording changed is shown as it is now.
    """
    opened: list[Review] = []
    for question in questions:
        values = {
            "public_id": uuid7(now),
            "job_id": job.id,
            "kind": question.kind,
            "subject": question.subject,
            "occurrence": question.occurrence,
            "status": "open",
            "value_json": json.dumps(question.value),
            "value_digest": jobs.loose_digest(question.value),
            "created_at": now,
        }
        row = and_(
            table.c.job_id == job.id,
            table.c.kind == question.kind,
            table.c.subject == question.subject,
            table.c.occurrence == question.occurrence,
        )
        if not insert_or_ignore(connection, table, values):
            asked = {name: values[name] for name in ("status", "value_json", "value_digest")}
            unanswered = and_(row, table.c.status != "answered")
            connection.execute(update(table).where(unanswered).values(answered_at=None, **asked))
        opened.append(_review(connection.execute(select(table).where(row)).mappings().one()))
    return opened


def open_for_effect(
    connection: Connection, job: jobs.Job, effect: effects.Effect, *, now: int, why: str | None = None
) -> Review:
    """Ask a person what became of an unknown effect; an open question about it is kept."""
    about = and_(table.c.job_id == job.id, table.c.kind == "effect", table.c.subject == effect.key)
    asked = connection.execute(select(func.count()).where(about, table.c.status != "open")).scalar_one()
    value = {
        "question": f"Did {effect.name} happen?",
        "why": why or effect.error or "it was interrupted between its call and its confirmation",
        "effect": effect.name,
        "key": effect.key,
        "arguments": json.loads(effect.arguments_json),
        "error": effect.error,
        "called_at": rfc3339(effect.updated_at),
    }
    return open_all(connection, job, [Question("effect", effect.key, value, occurrence=asked)], now=now)[0]


def close_others(connection: Connection, job: jobs.Job, asked: Sequence[Review], *, now: int) -> None:
    """The job's graph asks just this: what an earlier run asked and this one did not needs no answer any more."""
    mine = and_(table.c.job_id == job.id, table.c.kind == "interrupt", table.c.status == "open")
    others = and_(mine, table.c.id.not_in([review.id for review in asked]))
    connection.execute(update(table).where(others).values(status="closed", answered_at=now))


def close_all(connection: Connection, job_id: int, *, now: int) -> None:
    """The job ended: its open questions no longer need an answer."""
    _CLOSE_ALL.run(connection, {"job_id": job_id, "now": now})


def answer(
    connection: Connection,
    review: Review,
    *,
    decision: str,
    value: Any = answers.MISSING,
    reason: str | None = None,
    by: str,
    now: int,
    as_given: bool = False,
) -> tuple[Review, jobs.Job]:
    """Answer a review, once, and let its job go on.

    Args:
        connection: The write transaction.
        review: The review as its caller saw it.
        decision: `approve`, `edit`, `respond` or `reject`.
        value: The answer's value; `answers.MISSING` when there is none.
        reason: Why, in the person's words.
        by: Who answers.
        now: UTC milliseconds.
        as_given: The value is what the graph is resumed with, whatever the shape of its question.

    Raises:
        ReviewAnswered: It was answered before, or its job ended; the error shows the first answer.
        ReviewAnswerInvalid: This kind of review does not take this answer.
    """
    if not as_given and decision not in answers.choices(review.kind, review.value):
        raise ReviewAnswerInvalid(
            f"a review of kind {review.kind} does not take {decision!r}",
            next_step=f"it takes: {', '.join(answers.choices(review.kind, review.value))}",
            review=review.public_id,
        )
    if any("\ud800" <= letter <= "\udfff" for letter in f"{reason or ''}{by}"):
        raise ReviewAnswerInvalid(
            "the reason or the name of who answers is no text: it holds half of a character",
            next_step="give it as UTF-8",
            review=review.public_id,
        )
    if decision == "approve" and review.kind == "effect" and review.value.get("effect") == SUBMIT:
        _require_id(review, value)
    job = jobs.lock(connection, review.job_id)
    resume = value if as_given else None
    if review.kind == "interrupt" and not as_given:
        resume = answers.resume_value(review.value, decision, value, reason)
    back = answers.words(value, reason) if review.kind == "policy" and decision == "respond" else None
    changed = connection.execute(
        update(table)
        .where(table.c.id == review.id, table.c.status == "open")
        .values(
            status="answered",
            decision=decision,
            answer_json=None if value is answers.MISSING else _json(value, review),
            resume_json=json.dumps(resume) if review.kind == "interrupt" else None,
            reason=reason,
            answered_by=by,
            answered_at=now,
        )
    )
    if changed.rowcount == 0:
        raise _answered(find(connection, review.public_id))
    if review.kind == "effect":
        effects.settle_by_person(
            connection,
            review.subject,
            happened=decision == "approve",
            result=None if value is answers.MISSING else value,
            now=now,
        )
        approvals.settled(connection, review.subject, happened=decision == "approve", now=now)
    if review.kind == "budget" and decision == "approve":
        from everstep.checkpoints import budgets

        budgets.accept(connection, review, value, now=now, by=by)
    if back is not None:
        job = _give_back(connection, job, review, back, now)
    return find(connection, review.public_id), _move_on(connection, job, review, decision, reason, by, now)


def _require_id(review: Review, value: Any) -> None:
    """A submission that the provider took has an id there, by which its end is asked for.

    Raises:
        ReviewAnswerInvalid: The answer has none.
    """
    if not what_became_of_it(value):
        raise ReviewAnswerInvalid(
            "whoever says that the provider took the task must say under which id",
            next_step="give it: --value '\"ITS ID THERE\"'; or reject, if it is not there",
            review=review.public_id,
        )


def client_id(review: Review) -> str:
    """What a client names a question by: the interrupt's own id, or else the review's."""
    return review.subject if review.kind == "interrupt" else review.public_id


def answer_for_client(
    connection: Connection, review: Review, value: Any, *, by: str, now: int
) -> tuple[Review, jobs.Job]:
    """Answer with what a client resumes with: for an interrupt as it is, for other kinds as their decision.

    Raises:
        As `answer`.
    """
    if review.kind == "interrupt":
        return answer(connection, review, decision="respond", value=value, by=by, now=now, as_given=True)
    decision, given, reason = answers.decision_of(value)
    return answer(connection, review, decision=decision, value=given, reason=reason, by=by, now=now)


def _give_back(connection: Connection, job: jobs.Job, review: Review, words: str, now: int) -> jobs.Job:
    """What its graph, which had finished, is fed next: a person's words, once, whatever else is still asked."""
    feedback = answers.feedback_of(review.value)
    if feedback is None or job.status != "review":
        return job
    given = policy.feedback(feedback["channel"], feedback["form"], without_secrets(words))
    changes = {"next_input_json": json.dumps(given), "input_applied": 0, "returns": job.returns + 1, "updated_at": now}
    connection.execute(update(agent_jobs).where(agent_jobs.c.id == job.id).values(**changes))
    return jobs.get(connection, job.id)


def _json(value: Any, review: Review) -> str:
    if review.kind == "interrupt":
        answers.require_storable(value)
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ReviewAnswerInvalid(
            f"the answer is not JSON: {error}", next_step="answer with JSON data", review=review.public_id
        ) from error


def _move_on(
    connection: Connection, job: jobs.Job, review: Review, decision: str, reason: str | None, by: str, now: int
) -> jobs.Job:
    if job.status != "review":
        waits.wake(connection, job, now=now)
        return job
    if job.cancel_requested_at is not None:
        return job if effects.unsettled(connection, job.id) else jobs.end(connection, job, now=now, actor=by)
    if decision == "reject" and review.kind in ENDING:
        error = {
            "code": "rejected",
            "message": f"{by} rejected the {review.kind} review" + (f": {reason}" if reason else ""),
            "step": job.step,
            "review": review.public_id,
            "cause": review.value,
        }
        return jobs.end(connection, job, now=now, actor=by, why=f"{review.kind} review rejected", error=error)
    if any(other.status == "open" and other.kind in ENDING for other in of_job(connection, job.id)):
        return job  # whether the job goes on at all is still asked
    changes: dict[str, Any] = {"next_run_at": now, "error_json": None, "failures": 0, "worker_deaths": 0}
    if review.kind != "error":  # the start that paused goes on: it and its resumption are one attempt
        changes["attempts"] = max(job.attempts - 1, 0)
    if review.kind == "fingerprint":
        changes["fingerprint"] = review.subject
    return jobs.transition(
        connection, job, "pending", now=now, actor=by, reason=f"{review.kind} review: {decision}", **changes
    )


def _answered(review: Review) -> ReviewAnswered:
    if review.status == "closed":
        return ReviewAnswered(
            f"review {review.public_id} was closed: its job ended, its effect was settled without it, or its graph"
            " asks something else now",
            review=review.public_id,
            status=review.status,
        )
    first = {
        "decision": review.decision,
        "value": None if review.answer_json is None else json.loads(review.answer_json),
        "reason": review.reason,
        "by": review.answered_by,
        "at": rfc3339(review.answered_at),
    }
    return ReviewAnswered(
        f"review {review.public_id} was answered at {first['at']} by {first['by']}: {first['decision']}"
        + (f" {json.dumps(first['value'])}" if review.answer_json is not None else "")
        + (f" ({first['reason']})" if first["reason"] else ""),
        next_step="the first answer stands",
        review=review.public_id,
        first_answer=first,
    )
