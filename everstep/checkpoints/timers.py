"""When work becomes ready by time alone: a backoff ends, a lease runs out, a service may be tried again."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from sqlalchemy import Connection, bindparam, false, func, select, true, union_all

from everstep.checkpoints.job_statements import WAITING
from everstep.checkpoints.schema import agent_jobs, services
from everstep.checkpoints.statements import Statement


def next_moment(
    connection: Connection, *, now: int, until: int, worker: str, graphs: Sequence[str] | None = None
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
    values = {"now": now, "until": until, "leased_by": worker}
    named = {f"graph_{number}": name for number, name in enumerate(graphs or ())}
    return _moments(None if graphs is None else len(graphs)).run(connection, {**values, **named}).fetchone()[0]


@cache
def _moments(graphs: int | None) -> Statement:
    jobs, gates = agent_jobs.c, services.c
    now, until = (bindparam(name, type_=jobs.next_run_at.type) for name in ("now", "until"))
    mine = true() if graphs is None else false()
    if graphs:
        mine = jobs.graph.in_([bindparam(f"graph_{number}") for number in range(graphs)])
    due = [
        select(func.min(jobs.next_run_at).label("at")).where(
            jobs.status == status, jobs.next_run_at > now, jobs.next_run_at < until, mine
        )
        for status in WAITING
    ]
    others = jobs.leased_by != bindparam("leased_by")
    lost = select(func.min(jobs.lease_until).label("at")).where(
        jobs.status == "running", jobs.lease_until > now, jobs.lease_until < until, others, mine
    )
    opens = select(func.min(gates.opens_at).label("at")).where(
        gates.gate == "closed", gates.opens_at > now, gates.opens_at < until
    )
    moments = union_all(*due, lost, opens).subquery()
    return Statement(select(func.min(moments.c.at)))
