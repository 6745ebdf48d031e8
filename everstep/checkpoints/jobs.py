"""Jobs: six states, one guarded transition, and what moves a job through them.

Every function runs inside a write transaction it is given, so that a change and its meaning commit together.
`transition` is the only code that writes `status`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from sqlalchemy import Connection, select, update
from sqlalchemy.exc import NoResultFound

from everstep.checkpoints import deliveries, job_statements, large_texts, together
from everstep.checkpoints.canonical import digest
from everstep.checkpoints.database import PAUSES, has_id, insert_or_ignore, notify, notify_if_free
from everstep.checkpoints.job import Job, from_row, inserted, job_of, with_columns
from everstep.checkpoints.job_statements import WAITING
from everstep.checkpoints.schema import agent_jobs
from everstep.errors import JobNotFound, JobStateConflict, PayloadInvalid

DEFAULT_LEASE_MS = 300_000
DEFAULT_MAX_ATTEMPTS = 3
DEFAULT_PRIORITY = 5
LEVEL_MS = 600_000
"""One level of priority is worth ten minutes of waiting."""

ALLOWED: Mapping[str, frozenset[str]] = {
    "pending": frozenset({"running", "review", "failed"}),
    "running": frozenset({"running", "pending", "retry", "review", "done", "failed"}),
    "retry": frozenset({"running", "pending", "review", "failed"}),
    "review": frozenset({"pending", "failed"}),
    "failed": frozenset({"pending"}),  # only by redrive, a person's explicit wish
    "done": frozenset(),
}

LEG_ENDS = ("retry", "review", "done", "failed")
"""What a running job becomes when its leg has ended; a leg that is given back has not."""
PAUSED = ("review", "done", "failed")
"""Where a job rests until a person moves it on, or for ever."""
_HELD = ("review", "failed")


class LostClaim(Exception):
    """The claim is no longer the job's: another worker has it, or it was settled. Nothing was written."""


def rank(priority: int, next_run_at: int) -> int:
    """The order in which ready jobs are taken, the lowest first: when one of priority 0 would have to be due.

    A job that waits rises by a level every ten minutes (`LEVEL_MS`), so none waits for ever: one of priority 0 goes
    before one of priority 10 that becomes due 100 minutes after it.
    """
    return next_run_at - priority * LEVEL_MS


def get(connection: Connection, job_id: int) -> Job:
    """The job by row id.

    Raises:
        NoResultFound: There is none.
    """
    row = job_statements.GET.run(connection, {"job": job_id}).fetchone()
    if row is None:
        raise NoResultFound(f"no job has the row id {job_id}")
    return whole(connection, from_row(row))


def whole(connection: Connection, job: Job) -> Job:
    """A job as it was read, with its result itself where the row keeps a reference to it."""
    if job.result_json is None or not job.result_json.startswith(large_texts.REFERENCE):
        return job
    return with_columns(job, {"result_json": large_texts.whole(connection, job.thread_id, job.result_json)})


def lock(connection: Connection, job_id: int) -> Job:
    """The job by row id, held until the transaction ends, so that what is decided by it stays true.

    Raises:
        JobNotFound: It was deleted, by retention, since the caller saw it.
    """
    return found(connection, job_statements.LOCK.run(connection, {"job": job_id}).fetchone())


def found(connection: Connection, row: Sequence[Any] | None) -> Job:
    """The job of a row that was looked for by id.

    Raises:
        JobNotFound: There is no row: it was deleted, by retention, since the caller saw it.
    """
    if not row:
        raise JobNotFound("the job was deleted a moment ago", next_step="list the others with: everstep jobs")
    return whole(connection, from_row(row))


def find(connection: Connection, public_id: str) -> Job:
    """The job by public id, or by a prefix of it that fits one job only.

    Raises:
        JobNotFound: No job, or more than one, fits.
    """
    rows = connection.execute(select(agent_jobs).where(has_id(agent_jobs.c.public_id, public_id)).limit(3)).mappings()
    found = [job_of(row) for row in rows.all()] if public_id else []
    if len(found) != 1:
        problem = (
            f"no job has the id {public_id!r}" if not found else f"several jobs have ids that start with {public_id!r}"
        )
        raise JobNotFound(problem, next_step="list them with: everstep jobs", job=public_id)
    return whole(connection, found[0])


class Move(NamedTuple):
    """What a job is to become.

    Attributes:
        job: The job as its caller saw it.
        to: The new status.
        reason: Why, in a few words.
        changes: Further columns to set in the same statement.
    """

    job: Job
    to: str
    reason: str
    changes: Mapping[str, Any] = MappingProxyType({})


def transition(connection: Connection, job: Job, to: str, *, now: int, actor: str, reason: str, **changes: Any) -> Job:
    """Change a job's status: compare-and-set on `(id, status, claim_no)`, and a row in `job_events`.

    Args:
        connection: The write transaction.
        job: The job as its caller saw it.
        to: The new status.
        now: UTC milliseconds.
        actor: Who does it: a worker id, `cli`, a person.
        reason: Why, in a few words.
        **changes: Further columns to set in the same statement.

    Returns:
        The job as its caller saw it, with what was written.

    Raises:
        LostClaim: The job changed since the caller saw it; nothing was written.
        JobStateConflict: No such transition exists.
    """
    return transition_all(connection, [Move(job, to, reason, changes)], now=now, actor=actor)[0]


def transition_all(connection: Connection, moves: Sequence[Move], *, now: int, actor: str) -> list[Job]:
    """As `transition`, for several jobs at once.

    Raises:
        LostClaim: One of several jobs changed since the caller saw it; the caller's transaction must not commit.
        JobStateConflict: No such transition exists.
    """
    together.of(connection).moved = True
    alike: dict[tuple[str, tuple[str, ...]], list[dict[str, Any]]] = {}
    moved: list[Job] = []
    statuses: set[str] = set()
    for job, to, reason, changes in moves:
        written = _written(job, to, changes, now)
        after = with_columns(job, written)
        if job.run_json is not None and written.get("result_json"):  # its thread's next job comes to it and more
            written["result_json"] = large_texts.kept(connection, job.thread_id, written["result_json"])
        row = {**written, **_event(after, job.status, now, actor, reason), "job": job.id, "claim": job.claim_no}
        alike.setdefault((job.status, tuple(written)), []).append(row)
        moved.append(after)
        statuses.add(to)
    for (was, columns), rows in alike.items():
        if not job_statements.move(connection, was, columns, rows):
            what = ", ".join(f"job {move.job.public_id}: claim {move.job.claim_no}" for move in moves)
            raise LostClaim(f"{what} is no longer its claim")
    for move, after in zip(moves, moved, strict=True):
        follow(connection, move.job, after, now=now, actor=actor)
    if not statuses.isdisjoint(WAITING):  # and who waits for a moment learns of another one
        notify(connection)
    if not statuses.isdisjoint(PAUSED):
        notify_if_free(connection, PAUSES)
    return moved


def follow(connection: Connection, before: Job, after: Job, *, now: int, actor: str) -> None:
    """What a transition means for the job's run and thread, and for its webhook."""
    if after.run_json is not None:  # it may share its thread
        from everstep.checkpoints import turns

        turns.moved(connection, after, now=now, actor=actor)
    elif before.status in _HELD or after.status in _HELD or (after.status == "done" and after.claim_no > 1):
        from everstep.checkpoints import conversations

        conversations.follow(connection, before, after, now=now)
    if after.webhook is not None:
        deliveries.tell(connection, after, now=now)


def _written(job: Job, to: str, changes: Mapping[str, Any], now: int) -> dict[str, Any]:
    """The columns that a transition sets."""
    if to not in ALLOWED[job.status]:
        raise JobStateConflict(
            f"job {job.public_id} is {job.status}; it cannot become {to}",
            next_step=f"look at it with: everstep show {job.public_id}",
            job=job.public_id,
            status=job.status,
        )
    written: dict[str, Any] = {"status": to, "updated_at": now}
    if to != "running":
        written["leased_by"] = written["lease_until"] = None
    if job.status == "running" and to in LEG_ENDS:  # and its process lives
        written["suspect"] = written["worker_deaths"] = 0
    written.update(changes)
    if "next_run_at" in changes:
        written["due_rank"] = rank(job.priority, changes["next_run_at"])
    return written


def add(connection: Connection, values: Mapping[str, Any], *, actor: str) -> Job | None:
    """Add a job that waits, with its first row in `job_events`, and wake who looks for work.

    Args:
        connection: The write transaction.
        values: Its columns; those that are not named are as the table has them at first.
        actor: Who enqueued it.

    Returns:
        The job; None if there is one with its key: the unique constraint decides, never a look before.
    """
    if connection.dialect.name == "postgresql":  # in one message to the server
        row = job_statements.add(tuple(values)).run(connection, {**values, "actor": actor}).fetchone()
        return None if row is None else inserted(row[0], values)
    row_id = insert_or_ignore(connection, agent_jobs, values)
    if row_id is None:
        return None
    job = inserted(row_id, values)
    event = _event(job, None, job.created_at, actor, job_statements.ENQUEUED)
    job_statements.NOTE_EVENT.run(connection, event)
    notify(connection)
    return job


def _event(after: Job, was: str | None, now: int, actor: str, reason: str) -> dict[str, Any]:
    who = {"job_id": after.id, "claim_no": after.claim_no, "from_status": was, "to_status": after.status}
    return {**who, "at": now, "actor": actor, "reason": reason}


def cancel(connection: Connection, job: Job, *, now: int, actor: str) -> Job:
    """Cancel a job: at once when nothing runs it, otherwise as a request its worker acknowledges.

    Raises:
        JobStateConflict: The job has ended already.
    """
    if job.status in ("done", "failed"):
        raise JobStateConflict(
            f"job {job.public_id} is {job.status}; there is nothing to cancel", job=job.public_id, status=job.status
        )
    if job.status != "running":
        if job.run_json is not None:
            from everstep.checkpoints import turns

            turns.hold_running(connection, job.thread_id)
        return end(connection, job, now=now, actor=actor)
    connection.execute(
        update(agent_jobs)
        .where(agent_jobs.c.id == job.id, agent_jobs.c.claim_no == job.claim_no, agent_jobs.c.status == "running")
        .values(cancel_requested_at=now, updated_at=now)
    )
    return get(connection, job.id)


def end(
    connection: Connection,
    job: Job,
    *,
    now: int,
    actor: str,
    why: str = "cancelled",
    error: Mapping[str, Any] | None = None,
) -> Job:
    """End a job on a person's wish; what became of effects in flight is settled by a person first.

    Args:
        connection: The write transaction.
        job: The job.
        now: UTC milliseconds.
        actor: Who does it.
        why: What happens to the job.
        error: What is kept as its error; that of a cancellation when omitted.
    """
    last_words = json.dumps(error) if error is not None else job.error_json
    wish: dict[str, Any] = {"cancel_requested_at": job.cancel_requested_at or now, "error_json": last_words}
    if _asked_about_effects(connection, job, now, f"the job was {why} while this effect was in flight"):
        if job.status != "review":
            reason = f"{why} with an effect in flight"
            return transition(connection, job, "review", now=now, actor=actor, reason=reason, **wish)
        connection.execute(update(agent_jobs).where(agent_jobs.c.id == job.id).values(**wish))
        return get(connection, job.id)
    said = json.loads(last_words or "{}").get("code")
    if said == "rejected":
        why = "rejected"
    elif said != "superseded":
        wish["error_json"] = json.dumps({"code": "cancelled", "message": f"cancelled by {actor}", "step": job.step})
    ended = fail(connection, job, now=now, actor=actor, reason=why, **wish)
    if ended.status == "failed":
        from everstep.checkpoints import cancelled_tasks

        cancelled_tasks.let_go(connection, ended, now=now, actor=actor)
    return ended


def fail(connection: Connection, job: Job, *, now: int, actor: str, reason: str, **changes: Any) -> Job:
    """Move a job to `failed`; or to `review`, as long as nobody can say whether an effect of it happened."""
    from everstep.checkpoints import reviews

    if _asked_about_effects(connection, job, now, None):
        reason = f"{reason}; an effect's outcome is unknown"
        return transition(connection, job, "review", now=now, actor=actor, reason=reason, **changes)
    reviews.close_all(connection, job.id, now=now)
    return transition(connection, job, "failed", now=now, actor=actor, reason=reason, **changes)


def _asked_about_effects(connection: Connection, job: Job, now: int, why: str | None) -> bool:
    """Ask a person about each effect of the job that may or may not have happened; whether there are any."""
    from everstep.checkpoints import effects, reviews

    unsettled = effects.unsettled(connection, job.id)
    for effect in unsettled:
        effects.mark_unknown(connection, effect, now=now)
        reviews.open_for_effect(connection, job, effect, now=now, why=why)
    return bool(unsettled)


def redrive(connection: Connection, job: Job, *, now: int, actor: str) -> Job:
    """Let a failed job, or one in backoff, run now from its last checkpoint, with its failures forgotten.

    Raises:
        JobStateConflict: The job is in no state to be retried.
    """
    if job.status == "review":
        raise JobStateConflict(
            f"job {job.public_id} waits for a person's answer, not for another attempt",
            next_step="list the open questions with: everstep review",
            job=job.public_id,
            status=job.status,
        )
    if job.status not in ("failed", "retry"):
        raise JobStateConflict(
            f"job {job.public_id} is {job.status}; only a failed job, or one in backoff, can be retried",
            next_step=f"look at it with: everstep show {job.public_id}",
            job=job.public_id,
            status=job.status,
        )
    from everstep.checkpoints import turns

    turns.require_last(connection, job)
    fresh = {"failures": 0, "worker_deaths": 0, "cancel_requested_at": None, "announced_at": None}
    return transition(
        connection, job, "pending", now=now, actor=actor, reason="redriven", next_run_at=now, error_json=None, **fresh
    )


def set_due(connection: Connection, job: Job, due: int) -> None:
    """Let a waiting job start at another moment, UTC milliseconds."""
    changes = {"next_run_at": due, "due_rank": rank(job.priority, due)}
    connection.execute(update(agent_jobs).where(agent_jobs.c.id == job.id).values(**changes))
    notify(connection)


def loose_digest(value: Any) -> str:
    """SHA-256 of a JSON-ready value: canonical by RFC 8785, or of its sorted JSON text where that has no form."""
    try:
        return digest(value)
    except PayloadInvalid:
        return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
