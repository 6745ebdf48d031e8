"""Who asks a provider for a task, and when: due times and leases in the task's row, for any number of processes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, func, select, update

from everstep.checkpoints.json_filters import storable
from everstep.checkpoints.provider_task import ProviderTask
from everstep.checkpoints.schema import provider_tasks as table
from everstep.credentials import without_secrets

ERROR_LENGTH = 500


def due(connection: Connection, provider: str, *, now: int, limit: int) -> int:
    """How many tasks are due to be asked for, up to a limit: so much of the rate is wanted."""
    first = select(table.c.id).where(table.c.provider == provider, table.c.next_poll_at <= now).limit(limit)
    return connection.execute(select(func.count()).select_from(first.subquery())).scalar_one()


def take_due(
    connection: Connection, provider: str, *, holder: str, now: int, lease_ms: int, limit: int
) -> list[ProviderTask]:
    """Take tasks that are due to be asked for, the longest due first; nobody else takes them before the lease ends.

    Args:
        connection: The write transaction.
        provider: The provider's name.
        holder: Who asks.
        now: UTC milliseconds.
        lease_ms: How long they are the holder's, milliseconds.
        limit: Most of them.
    """
    due = (table.c.provider == provider, table.c.next_poll_at <= now)
    query = select(table.c.id).where(*due).order_by(table.c.next_poll_at, table.c.id).limit(limit)
    ids = list(connection.execute(query.with_for_update(skip_locked=True)).scalars())
    held = {"leased_by": holder, "lease_until": now + lease_ms, "next_poll_at": now + lease_ms}
    connection.execute(update(table).where(table.c.id.in_(ids)).values(**held, polls=table.c.polls + 1))
    rows = connection.execute(select(table).where(table.c.id.in_(ids))).mappings()
    by_id = {row["id"]: ProviderTask(**row) for row in rows}
    return [by_id[task_id] for task_id in ids]


def holders(connection: Connection, provider: str) -> list[str]:
    """Who is asking this provider for tasks."""
    waits = (table.c.provider == provider, table.c.next_poll_at.is_not(None))  # whom the index has
    query = select(table.c.leased_by).where(*waits, table.c.leased_by.is_not(None)).distinct()
    return list(connection.execute(query).scalars())


def free(connection: Connection, *, provider: str, holders: Collection[str], now: int) -> int:
    """Let others ask at once for what these were asking for: they are surely dead; how many tasks that is.

    Args:
        connection: The write transaction.
        provider: The provider's name.
        holders: Who is dead.
        now: UTC milliseconds.
    """
    theirs = (table.c.provider == provider, table.c.leased_by.in_(holders), table.c.next_poll_at.is_not(None))
    freed = {"leased_by": None, "lease_until": None, "next_poll_at": now}
    return connection.execute(update(table).where(*theirs).values(**freed)).rowcount


def polled(
    connection: Connection, task: ProviderTask, *, holder: str, now: int, next_poll_at: int, failure: str | None = None
) -> bool:
    """The provider was asked for a task that is not at its end.

    Args:
        connection: The write transaction.
        task: The task as it was taken.
        holder: Who asked.
        now: UTC milliseconds.
        next_poll_at: When it is asked again, UTC milliseconds.
        failure: Why there was no answer; None: there was one.

    Returns:
        Whether it was still the holder's; otherwise nothing was written.
    """
    mine = (table.c.id == task.id, table.c.leased_by == holder, table.c.polls == task.polls)
    freed: dict[str, Any] = {"leased_by": None, "lease_until": None, "next_poll_at": next_poll_at, "updated_at": now}
    if failure is None:
        freed |= {"poll_failures": 0, "poll_error": None}
    else:
        error = storable(without_secrets(failure))[:ERROR_LENGTH]
        freed |= {"poll_failures": table.c.poll_failures + 1, "poll_error": error}
    return connection.execute(update(table).where(*mine).values(**freed)).rowcount == 1


def next_poll(connection: Connection, *, providers: Collection[str], now: int) -> int | None:
    """When the first task of these providers is due, UTC milliseconds, not before now; None if none waits."""
    query = select(func.min(table.c.next_poll_at)).where(table.c.provider.in_(providers))
    due = connection.execute(query.where(table.c.next_poll_at.is_not(None))).scalar_one()
    return None if due is None else max(due, now)
