"""Starts: what a claim makes of a ready job; and those that nothing but the order of what is ready decides.

Where more does (a closed gate, a limit, a lease that has expired, a suspect), `claims` judges each job.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import Connection

from everstep.checkpoints import job_statements, together
from everstep.checkpoints.jobs import Job, Move, follow, from_row, transition_all
from everstep.checkpoints.statements import NOTHING

CLAIMED = "claimed"
"""Why a ready job is running now."""


def start(job: Job, reason: str, *, now: int, worker: str, lease_ms: int, count: Mapping[str, int] = NOTHING) -> Move:
    """What starts a job under a new claim."""
    lease = {"claim_no": job.claim_no + 1, "leased_by": worker, "lease_until": now + lease_ms}
    return Move(job, "running", reason, {"attempts": job.attempts + 1, **lease, **count})


def start_first(
    connection: Connection,
    *,
    now: int,
    worker: str,
    lease_ms: int,
    limit: int,
    graphs: Sequence[str] | None,
    running: Collection[int],
) -> list[Job] | None:
    """Transitions of the first ready jobs to `running`, where one statement can find them; on PostgreSQL it makes them.

    Args:
        connection: The write transaction.
        now: UTC milliseconds.
        worker: Who holds them from now on.
        lease_ms: Length of the lease, milliseconds.
        limit: Most jobs to start.
        graphs: Only jobs of these graphs; all when None.
        running: Row ids of jobs that the worker still runs.

    Returns:
        The jobs as they are; None if more than their order decides which may start, or, on SQLite, if none is ready.
    """
    number, names = None if graphs is None else len(graphs), job_statements.numbered(graphs)
    if connection.dialect.name != "postgresql":
        rows = job_statements.first_pending(number).run(connection, {"now": now, "most": limit, **names}).fetchall()
        found = [from_row(row) for row in rows]
        if not found or any(job.suspect or job.worker_deaths or job.id in running for job in found):
            return None
        starts = [start(job, CLAIMED, now=now, worker=worker, lease_ms=lease_ms) for job in found]
        return transition_all(connection, starts, now=now, actor=worker)
    together.of(connection).moved = True
    mine = f"{{{','.join(map(str, running))}}}"
    values = {"now": now, "leased_by": worker, "lease_until": now + lease_ms, "reason": CLAIMED, "mine": mine, **names}
    rows = job_statements.start_first(number, limit).run(connection, values).fetchall()
    if not rows[0][0]:
        return None
    started = [from_row(row[1:]) for row in rows if row[1] is not None]
    for job in started:  # nothing but its run and its thread hear of a start
        follow(connection, job, job, now=now, actor=worker)
    return sorted(started, key=in_order)


def in_order(job: Job) -> tuple[int, int]:
    """By what ready jobs are sorted; see `rank`."""
    return job.due_rank, job.id
