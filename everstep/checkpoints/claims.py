"""Claims: bounded ownership of a job by a worker, and the fence that makes every later write of a lost one void.

Every function runs inside a write transaction it is given.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, exists, or_, select, update

from everstep.checkpoints.admission import WAITING, Admission, Limits
from everstep.checkpoints.jobs import Job, LostClaim, end, fail, job_of, transition
from everstep.checkpoints.schema import agent_jobs


def claim(
    connection: Connection,
    *,
    now: int,
    worker: str,
    lease_ms: int,
    limit: int,
    dead_workers: Collection[str] = (),
    graphs: Collection[str] | None = None,
    running: Collection[int] = (),
    limits: Limits | None = None,
) -> list[Job]:
    """Take up to `limit` jobs that are ready, by priority and how long they have been due (`jobs.rank`).

    Ready is: pending or retry and due; or running under a lease that has expired, or whose worker is proven dead.
    Starts are counted here, before anything runs. A job whose workers vanish `max_attempts` times in a row, without
    progress between, goes to `failed` instead.

    Args:
        connection: The write transaction.
        now: UTC milliseconds.
        worker: Id of the claiming worker.
        lease_ms: Length of the lease, milliseconds.
        limit: Most jobs to take.
        dead_workers: Worker ids that are proven dead, so that their leases need not run out.
        graphs: Only jobs of these graphs; all when None.
        running: Row ids of jobs this worker still runs; it does not take over from itself.
        limits: How many jobs may run at once, over all workers.
    """
    admission = Admission.read(connection, limits or Limits(), now=now, graphs=graphs, dead_workers=dead_workers)
    query = (
        select(agent_jobs)
        .where(_ready(now, graphs, dead_workers), agent_jobs.c.id.not_in(tuple(running)))
        .order_by(agent_jobs.c.due_rank, agent_jobs.c.id)
        .with_for_update(skip_locked=True)
    )
    claimed: list[Job] = []
    while len(claimed) < limit:
        rows = connection.execute(query.where(admission.clause()).limit(limit - len(claimed))).mappings()
        found = [job_of(row) for row in rows]
        needed = admission.needs(connection, found)
        for job in found:
            services = needed.get(job.id, ())
            if admission.admits(job, services) and (started := _take(connection, job, now, worker, lease_ms)):
                admission.start(connection, started, services, now=now)
                claimed.append(started)
        if not found:
            break
    return claimed


def anything_ready(
    connection: Connection, *, now: int, graphs: Collection[str] | None, limits: Limits | None = None
) -> bool:
    """Whether a claim would find anything; a look that locks nothing."""
    admission = Admission.read(connection, limits or Limits(), now=now, graphs=graphs, lock=False)
    return bool(connection.execute(select(exists().where(_ready(now, graphs, ()), admission.clause()))).scalar_one())


def _ready(now: int, graphs: Collection[str] | None, dead_workers: Collection[str]) -> ColumnElement[bool]:
    ready = or_(
        and_(agent_jobs.c.status.in_(WAITING), agent_jobs.c.next_run_at <= now),
        and_(
            agent_jobs.c.status == "running",
            or_(agent_jobs.c.lease_until <= now, agent_jobs.c.leased_by.in_(tuple(dead_workers))),
        ),
    )
    return ready if graphs is None else and_(ready, agent_jobs.c.graph.in_(graphs))


def _take(connection: Connection, job: Job, now: int, worker: str, lease_ms: int) -> Job | None:
    """The job as it is claimed; None if it is not to run again."""
    if job.status != "running":
        return _start(connection, job, "claimed", now, worker, lease_ms)
    if job.cancel_requested_at is not None:
        end(connection, job, now=now, actor=worker)
        return None
    count = job.with_another_failure()
    if count["failures"] >= job.max_attempts:
        _give_up(connection, job, count, now, worker)
        return None
    reason = f"taken over from {job.leased_by}, which is gone, at step {job.step}"
    return _start(connection, job, reason, now, worker, lease_ms, **count)


def _start(connection: Connection, job: Job, reason: str, now: int, worker: str, lease_ms: int, **changes: int) -> Job:
    lease = {"claim_no": job.claim_no + 1, "leased_by": worker, "lease_until": now + lease_ms}
    attempts = job.attempts + 1
    return transition(
        connection, job, "running", now=now, actor=worker, reason=reason, attempts=attempts, **lease, **changes
    )


def _give_up(connection: Connection, job: Job, count: dict[str, int], now: int, worker: str) -> None:
    error = {
        "code": "worker_died",
        "message": f"the worker {job.leased_by} vanished at step {job.step};"
        f" {count['failures']} starts in a row ended there",
        "step": job.step,
        "attempt": job.attempts,
        "next_step": f"find what kills the worker, then: everstep retry {job.public_id}",
    }
    why = f"workers died {count['failures']} times without progress"
    fail(connection, job, now=now, actor=worker, reason=why, error_json=json.dumps(error), **count)


def heartbeat(
    connection: Connection, *, now: int, worker: str, lease_ms: int, running: Collection[int]
) -> dict[int, tuple[int, bool]]:
    """Extend the leases this worker still holds, all at once; a job that is being written this moment at the next beat.

    Args:
        connection: The write transaction.
        now: UTC milliseconds.
        worker: Id of the worker.
        lease_ms: Length of the lease from now, milliseconds.
        running: Row ids of the jobs it runs; the lease of one it no longer runs, and could not settle, expires.

    Returns:
        For each job still held: row id → (claim number, whether its cancellation was requested).
    """
    held = and_(agent_jobs.c.status == "running", agent_jobs.c.leased_by == worker, agent_jobs.c.id.in_(tuple(running)))
    query = select(agent_jobs.c.id, agent_jobs.c.claim_no, agent_jobs.c.cancel_requested_at).where(held)
    rows = connection.execute(query.with_for_update(skip_locked=True)).all()
    mine = and_(held, agent_jobs.c.id.in_([row.id for row in rows]))
    connection.execute(update(agent_jobs).where(mine).values(lease_until=now + lease_ms))
    return {row.id: (row.claim_no, row.cancel_requested_at is not None) for row in rows}


def fence(connection: Connection, job_id: int, claim_no: int, *, writing: bool = True) -> None:
    """Check that the claim is still the job's, and keep it so until this transaction ends.

    Args:
        connection: The transaction.
        job_id: Row id of the job.
        claim_no: The claim.
        writing: Whether the transaction may write; one that only looks cannot keep anything so.

    Raises:
        LostClaim: It is not; the caller must write nothing.
    """
    held = select(agent_jobs.c.id).where(
        agent_jobs.c.id == job_id, agent_jobs.c.claim_no == claim_no, agent_jobs.c.status == "running"
    )
    held = held.with_for_update() if writing else held
    if connection.execute(held).first() is None:
        raise LostClaim(f"claim {claim_no} of job row {job_id} is no longer its claim")


def advance(
    connection: Connection, job_id: int, claim_no: int, *, now: int, progressed: bool = True, **columns: Any
) -> None:
    """Note, under the fence, where a job is, and that its input is now part of its thread.

    Args:
        connection: The write transaction.
        job_id: Row id of the job.
        claim_no: The claim that writes.
        now: UTC milliseconds.
        progressed: Whether it brings the job further: a checkpoint or a finished task does, an error does not.
        **columns: What else to keep current: step, node, tokens.

    Raises:
        LostClaim: The claim is no longer the job's.
    """
    held = and_(agent_jobs.c.id == job_id, agent_jobs.c.claim_no == claim_no, agent_jobs.c.status == "running")
    changed = connection.execute(
        update(agent_jobs)
        .where(held)
        .values(input_applied=1, progress=agent_jobs.c.progress + int(progressed), updated_at=now, **columns)
    )
    if changed.rowcount == 0:
        raise LostClaim(f"claim {claim_no} of job row {job_id} is no longer its claim")
