"""How paid provider tasks are: what is unfinished, what nobody asks for, and events that no task answers to.

A part of `health`, which metrics and `everstep doctor` tell. Finished tasks are kept for ever and not counted here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlalchemy import ColumnElement, Connection, and_, exists, func, or_, select

from everstep.checkpoints.provider_task import UNFINISHED
from everstep.checkpoints.schema import agent_jobs, provider_events, provider_tasks

UNPOLLED_MS = 15 * 60_000
"""How long after its time a poll is overdue: longer than the longest wait of a rate or a lease should be."""
NAMED = 5


@dataclass(frozen=True)
class ProviderHealth:
    """The tasks at one moment. Times are milliseconds.

    Attributes:
        tasks: Unfinished tasks by provider and state.
        oldest_ms: Age of the oldest of them; None if there is none.
        unknown: Ids of the first few of which nobody knows whether the provider took them.
        abandoned: Tasks that were charged and never submitted, and whose job has ended.
        abandoned_tasks: Ids of the first few.
        unpolled: Accepted tasks that nobody has asked for though it was due a quarter of an hour ago, or ever will.
        unpolled_tasks: Ids of the first few.
        parked: Events of providers that no task answers to.
        oldest_parked_ms: Age of the oldest of them; None if there is none.
    """

    tasks: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    oldest_ms: int | None = None
    unknown: tuple[str, ...] = ()
    abandoned: int = 0
    abandoned_tasks: tuple[str, ...] = ()
    unpolled: int = 0
    unpolled_tasks: tuple[str, ...] = ()
    parked: int = 0
    oldest_parked_ms: int | None = None

    def in_state(self, state: str) -> int:
        """How many tasks are in a state, over all providers."""
        return sum(number for (_, one), number in self.tasks.items() if one == state)


def look(connection: Connection, now: int) -> ProviderHealth:
    """How the tasks are.

    Args:
        connection: A snapshot.
        now: UTC milliseconds.
    """
    task, event = provider_tasks.c, provider_events.c
    unfinished = task.state.in_(UNFINISHED)
    counts = select(task.provider, task.state, func.count()).where(unfinished).group_by(task.provider, task.state)
    tasks = {(str(row[0]), str(row[1])): int(row[2]) for row in connection.execute(counts)}
    if not tasks:
        oldest, unknown, unpolled, unpolled_tasks = None, (), 0, ()
        abandoned, abandoned_tasks = 0, ()
    else:
        oldest = connection.execute(select(func.min(task.created_at)).where(unfinished)).scalar_one()
        late = or_(task.next_poll_at.is_(None), task.next_poll_at <= now - UNPOLLED_MS)
        waiting = and_(task.state == "pending", late, task.updated_at <= now - UNPOLLED_MS)
        unknown = _ids(connection, task.state == "submission_unknown")
        unpolled = int(connection.execute(select(func.count()).where(waiting)).scalar_one())
        unpolled_tasks = _ids(connection, waiting) if unpolled else ()
        job = agent_jobs.c
        going = exists().where(job.public_id == task.job, job.status.not_in(("done", "failed")))
        left = and_(task.state == "created", task.amount > 0, ~going)
        abandoned = int(connection.execute(select(func.count()).where(left)).scalar_one())
        abandoned_tasks = _ids(connection, left) if abandoned else ()
    parked = select(func.count(), func.min(event.received_at)).where(event.state == "parked")
    (number, first) = connection.execute(parked).one()
    return ProviderHealth(
        tasks,
        None if oldest is None else max(now - oldest, 0),
        unknown,
        abandoned,
        abandoned_tasks,
        unpolled,
        unpolled_tasks,
        int(number),
        None if first is None else max(now - first, 0),
    )


def _ids(connection: Connection, condition: ColumnElement[bool]) -> tuple[str, ...]:
    query = select(provider_tasks.c.public_id).where(condition).order_by(provider_tasks.c.id).limit(NAMED)
    return tuple(connection.execute(query).scalars())
