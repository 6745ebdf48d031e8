"""Jobs: six states, one guarded transition, and what moves a job through them.

Every function runs inside a write transaction it is given, so that a change and its meaning commit together.
`transition` is the only code that writes `status`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, RowMapping, and_, insert, select, update

from everstep.checkpoints.canonical import digest
from everstep.checkpoints.database import has_id, notify
from everstep.checkpoints.schema import agent_jobs, job_events
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


@dataclass(frozen=True)
class Job:
    """A row of `agent_jobs`. Times are UTC milliseconds; see `schema` for the columns.

    Attributes:
        attempts: Starts; one that pauses for a person and its resumption count once, one given back by draining not.
        max_attempts: Failures in a row, without progress between them, after which the job has failed.
        failures: How many there are so far; a worker that died is none (`worker_deaths`).
        progress: Grows with every checkpoint and every finished task that is stored.
        progress_at_failure: Its value at the last failure, or death of its worker.
        due_rank: By which ready jobs are taken, the lowest first; see `rank`.
        concurrency_key: Jobs of one key run at most so many at once.
        parent_id: Row id of the job that enqueued it, whose budget it shares.
        budget_json: What it may use (`policy.Budget`).
        run_ms: How long it ran so far, all legs together, milliseconds.
        cost_micros: What its model calls cost so far, millionths of a US dollar.
        acceptance_json: What must hold before it is done (`policy.Acceptance`).
        returns: How often it was given back to its graph because that did not hold.
        next_input_json: What its graph is fed next in place of its input; see `returns`.
        worker_deaths: Processes in a row that died while they ran it alone; see `deaths`.
        suspect: Workers in a row that died while they ran it beside others; see `deaths`.
        announced_at: When its arrival among the dead letters was told; see `dead_letters`.
    """

    id: int
    public_id: str
    idempotency_key: str
    payload_digest: str
    payload_json: str
    owner: str
    graph: str
    thread_id: str
    workflow_version: str
    status: str
    priority: int
    attempts: int
    max_attempts: int
    failures: int
    progress: int
    progress_at_failure: int
    claim_no: int
    leased_by: str | None
    lease_until: int | None
    next_run_at: int
    step: int
    node: str | None
    input_tokens: int
    output_tokens: int
    input_applied: int
    cancel_requested_at: int | None
    fingerprint: str | None
    fingerprint_json: str | None
    error_json: str | None
    result_json: str | None
    result_digest: str | None
    created_at: int
    updated_at: int
    due_rank: int
    concurrency_key: str | None
    parent_id: int | None
    budget_json: str | None
    run_ms: int
    cost_micros: int
    acceptance_json: str | None
    returns: int
    next_input_json: str | None
    worker_deaths: int
    suspect: int
    announced_at: int | None

    @property
    def payload(self) -> Any:
        """The input the graph starts with."""
        return json.loads(self.payload_json)

    @property
    def acceptance(self) -> Any:
        """What must hold before it is done, as `policy.Acceptance.of` takes it; None: nothing."""
        return None if self.acceptance_json is None else json.loads(self.acceptance_json)

    @property
    def next_input(self) -> Any:
        """What its graph is fed while nothing of that is part of its thread: its input, or what it was given back."""
        return json.loads(self.payload_json if self.next_input_json is None else self.next_input_json)

    def with_another_failure(self) -> dict[str, int]:
        """The columns to set when a start of this job fails now: progress since the last failure starts a new count."""
        stuck = self.progress <= self.progress_at_failure
        count = {"failures": self.failures + 1 if stuck else 1, "progress_at_failure": self.progress}
        return count if stuck else {**count, "worker_deaths": 0}


class LostClaim(Exception):
    """The claim is no longer the job's: another worker has it, or it was settled. Nothing was written."""


def rank(priority: int, next_run_at: int) -> int:
    """The order in which ready jobs are taken, the lowest first: when one of priority 0 would have to be due.

    A job that waits rises by a level every ten minutes (`LEVEL_MS`), so none waits for ever: one of priority 0 goes
    before one of priority 10 that becomes due 100 minutes after it.
    """
    return next_run_at - priority * LEVEL_MS


def job_of(row: RowMapping) -> Job:
    """The dataclass for a row."""
    return Job(**row)


def get(connection: Connection, job_id: int) -> Job:
    """The job by row id."""
    return job_of(connection.execute(select(agent_jobs).where(agent_jobs.c.id == job_id)).mappings().one())


def lock(connection: Connection, job_id: int) -> Job:
    """The job by row id, held until the transaction ends, so that what is decided by it stays true.

    Raises:
        JobNotFound: It was deleted, by retention, since the caller saw it.
    """
    query = select(agent_jobs).where(agent_jobs.c.id == job_id).with_for_update()
    row = connection.execute(query).mappings().first()
    if row is None:
        raise JobNotFound("the job was deleted a moment ago", next_step="list the others with: everstep jobs")
    return job_of(row)


def find(connection: Connection, public_id: str) -> Job:
    """The job by public id, or by a prefix of it that fits one job only.

    Raises:
        JobNotFound: No job, or more than one, fits.
    """
    rows = connection.execute(select(agent_jobs).where(has_id(agent_jobs.c.public_id, public_id)).limit(3)).mappings()
    found = [job_of(row) for row in rows] if public_id else []
    if len(found) != 1:
        problem = (
            f"no job has the id {public_id!r}" if not found else f"several jobs have ids that start with {public_id!r}"
        )
        raise JobNotFound(problem, next_step="list them with: everstep jobs", job=public_id)
    return found[0]


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

    Raises:
        LostClaim: The job changed since the caller saw it; nothing was written.
        JobStateConflict: No such transition exists.
    """
    if to not in ALLOWED[job.status]:
        raise JobStateConflict(
            f"job {job.public_id} is {job.status}; it cannot become {to}",
            next_step=f"look at it with: everstep show {job.public_id}",
            job=job.public_id,
            status=job.status,
        )
    released: dict[str, Any] = {} if to == "running" else {"leased_by": None, "lease_until": None}
    if job.status == "running" and to in LEG_ENDS:  # and its process lives
        released |= {"suspect": 0, "worker_deaths": 0}
    if "next_run_at" in changes:
        changes["due_rank"] = rank(job.priority, changes["next_run_at"])
    guard = and_(agent_jobs.c.id == job.id, agent_jobs.c.status == job.status, agent_jobs.c.claim_no == job.claim_no)
    changed = connection.execute(
        update(agent_jobs).where(guard).values(status=to, updated_at=now, **{**released, **changes})
    )
    if changed.rowcount == 0:
        raise LostClaim(f"job {job.public_id}: claim {job.claim_no} is no longer its claim")
    after = get(connection, job.id)
    note_event(connection, after, job.status, to, now, actor, reason)
    if to in ("pending", "retry"):  # and who waits for a moment learns of another one
        notify(connection)
    return after


def note_event(
    connection: Connection, job: Job, from_status: str | None, to_status: str, now: int, actor: str, reason: str
) -> None:
    """A row in `job_events`; for the one who changes a status, or makes the job."""
    connection.execute(
        insert(job_events).values(
            job_id=job.id,
            from_status=from_status,
            to_status=to_status,
            claim_no=job.claim_no,
            at=now,
            actor=actor,
            reason=reason,
        )
    )


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
    if json.loads(last_words or "{}").get("code") == "rejected":
        why = "rejected"
    else:
        wish["error_json"] = json.dumps({"code": "cancelled", "message": f"cancelled by {actor}", "step": job.step})
    return fail(connection, job, now=now, actor=actor, reason=why, **wish)


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
    fresh = {"failures": 0, "worker_deaths": 0, "cancel_requested_at": None, "announced_at": None}
    return transition(
        connection, job, "pending", now=now, actor=actor, reason="redriven", next_run_at=now, error_json=None, **fresh
    )


def loose_digest(value: Any) -> str:
    """SHA-256 of a JSON-ready value: canonical by RFC 8785, or of its sorted JSON text where that has no form."""
    try:
        return digest(value)
    except PayloadInvalid:
        return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
