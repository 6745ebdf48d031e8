"""When work becomes ready by time alone: a backoff ends, a lease runs out, a service may be tried again."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, func, select, union_all

from everstep.checkpoints.job_statements import WAITING
from everstep.checkpoints.schema import agent_jobs, services


def next_moment(
    connection: Connection, *, now: int, until: int, worker: str, graphs: Collection[str] | None = None
) -> int | None:
    """The first moment at which it is worth looking for work again, though nobody tells of any.

    It reads only what lies between the two times, so it stays quick however much waits.

    Args:
        connection: A snapshot.
        now: UTC milliseconds; what is due by then is not meant.
        until: How far to look ahead, UTC milliseconds.
        worker: Who asks; its own leases do not run out.
        graphs: The graphs it has; None: all.

    Returns:
        UTC milliseconds; None if there is none before `until`.
    """
    jobs, gates = agent_jobs.c, services.c
    due = [
        select(func.min(jobs.next_run_at).label("at")).where(
            jobs.status == status, jobs.next_run_at > now, jobs.next_run_at < until
        )
        for status in WAITING
    ]
    lost = select(func.min(jobs.lease_until).label("at")).where(
        jobs.status == "running", jobs.lease_until > now, jobs.lease_until < until, jobs.leased_by != worker
    )
    mine = [part if graphs is None else part.where(jobs.graph.in_(graphs)) for part in (*due, lost)]
    opens = select(func.min(gates.opens_at).label("at")).where(
        gates.gate == "closed", gates.opens_at > now, gates.opens_at < until
    )
    moments = union_all(*mine, opens).subquery()
    return connection.execute(select(func.min(moments.c.at))).scalar_one()
