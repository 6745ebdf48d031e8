"""What providers sent on their own: each event once, told to its task, or parked until its task is known.

An event is `parked` while no task answers to it, `applied` when its task was told, and `ignored` when its task had
ended before or it speaks of something else.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from sqlalchemy import Connection, and_, delete, exists, func, or_, select, update

from everstep.checkpoints import provider_settlement as settlement
from everstep.checkpoints import provider_task as tasks
from everstep.checkpoints.database import has_id, insert_or_ignore
from everstep.checkpoints.provider_status import ProviderEvent, ProviderStatus
from everstep.checkpoints.provider_task import ProviderTask
from everstep.checkpoints.schema import provider_events as table
from everstep.checkpoints.schema import provider_tasks
from everstep.clock import rfc3339, uuid7
from everstep.errors import ProviderEventNotFound

WEBHOOK = "webhook"


@dataclass(frozen=True)
class StoredEvent:
    """A row of `provider_events`. Times are UTC milliseconds.

    Attributes:
        event_id: The provider's id of it.
        task: Public id of the task it is for, once that is known.
        state: `parked`, `applied` or `ignored`.
        handled_at: When its task was told.
    """

    id: int
    public_id: str
    provider: str
    event_id: str
    provider_task_id: str | None
    provider_key: str | None
    task: str | None
    status_json: str
    state: str
    occurred_at: int | None
    received_at: int
    handled_at: int | None

    @property
    def status(self) -> ProviderStatus:
        """What it says."""
        return ProviderStatus.of(json.loads(self.status_json))

    def view(self) -> dict[str, object]:
        """The event as JSON data, without the provider's ids."""
        return {
            "id": self.public_id,
            "provider": self.provider,
            "task": self.task,
            "says": self.status.state,
            "state": self.state,
            "occurred_at": rfc3339(self.occurred_at),
            "received_at": rfc3339(self.received_at),
            "handled_at": rfc3339(self.handled_at),
        }


@dataclass(frozen=True)
class Taken:
    """What became of an event.

    Attributes:
        event: As it is kept.
        duplicate: It came before; nothing was done.
        task: The task it is for, as it is now; None: none is known.
        changed: Whether it changed the task.
    """

    event: StoredEvent
    duplicate: bool
    task: ProviderTask | None
    changed: bool = False

    @property
    def state(self) -> str:
        """`parked`, `applied` or `ignored`."""
        return self.event.state


_WITH_TASK = select(
    *(column for column in table.c if column.name != "task_id"), provider_tasks.c.public_id.label("task")
).outerjoin(provider_tasks, provider_tasks.c.id == table.c.task_id)


def take(connection: Connection, provider: str, event: ProviderEvent, *, now: int) -> Taken:
    """Keep an event that a provider sent, and tell its task, in one transaction.

    Args:
        connection: The write transaction.
        provider: The provider's name.
        event: What it sent, verified.
        now: UTC milliseconds.

    Returns:
        What became of it.
    """
    provider_task_id = event.provider_task_id or event.status.provider_task_id
    hold(connection, provider, provider_task_id)
    row = {
        "public_id": uuid7(now),
        "provider": provider,
        "event_id": event.event_id,
        "provider_task_id": provider_task_id,
        "provider_key": event.provider_key,
        "status_json": json.dumps(event.status.as_dict()),
        "state": "parked",
        "occurred_at": event.occurred_at,
        "received_at": now,
    }
    made = insert_or_ignore(connection, table, row)
    kept = _by_event_id(connection, provider, event.event_id)
    if made is None:
        task = None if kept.task is None else tasks.find(connection, kept.task)
        return Taken(kept, duplicate=True, task=task)
    return _apply(connection, kept, source=WEBHOOK, actor=f"{WEBHOOK}:{provider}", now=now)


def replay(connection: Connection, event: StoredEvent, *, actor: str, now: int) -> Taken:
    """Tell an event's task once more; of what was told before nothing comes.

    Args:
        connection: The write transaction.
        event: The event.
        actor: Who asks for it.
        now: UTC milliseconds.
    """
    hold(connection, event.provider, event.provider_task_id)
    return _apply(connection, get(connection, event.id), source=WEBHOOK, actor=actor, now=now)


def apply_parked(connection: Connection, task: ProviderTask, *, actor: str, now: int) -> ProviderTask:
    """Tell a task that is locked, and that its provider may have now, what was parked for it.

    Returns:
        The task as it is then.
    """
    its = table.c.provider_key == task.provider_key
    if task.provider_task_id is not None:
        its = or_(its, table.c.provider_task_id == task.provider_task_id)
    parked = (table.c.state == "parked", table.c.provider == task.provider, its)
    rows = connection.execute(_WITH_TASK.where(*parked).order_by(table.c.id)).mappings().all()
    for row in rows:
        _tell(connection, StoredEvent(**row), task, source=WEBHOOK, actor=actor, now=now)
    return tasks.get(connection, task.id) if rows else task


def get(connection: Connection, event_id: int) -> StoredEvent:
    """The event by row id."""
    return StoredEvent(**connection.execute(_WITH_TASK.where(table.c.id == event_id)).mappings().one())


def find(connection: Connection, public_id: str) -> StoredEvent:
    """The event by public id, or by a prefix of it that fits one only.

    Raises:
        ProviderEventNotFound: None, or more than one, fits.
    """
    rows = connection.execute(_WITH_TASK.where(has_id(table.c.public_id, public_id)).limit(2)).mappings().all()
    if len(rows) != 1:
        what = "several provider events have ids that start with" if rows else "no provider event has the id"
        raise ProviderEventNotFound(
            f"{what} {public_id!r}", next_step="list them with: everstep provider events", event=public_id
        )
    return StoredEvent(**rows[0])


def listed(
    connection: Connection,
    *,
    state: str | None = None,
    provider: str | None = None,
    task: str | None = None,
    before: int | None = None,
    limit: int = 100,
) -> list[StoredEvent]:
    """Events, newest first.

    Args:
        connection: A snapshot.
        state: Only in this state.
        provider: Only from this provider.
        task: Only for the task with this public id.
        before: Only those with a lower row id.
        limit: Most of them.
    """
    query = _WITH_TASK.order_by(table.c.id.desc()).limit(limit)
    query = query if state is None else query.where(table.c.state == state)
    query = query if provider is None else query.where(table.c.provider == provider)
    query = query if task is None else query.where(provider_tasks.c.public_id == task)
    query = query if before is None else query.where(table.c.id < before)
    return [StoredEvent(**row) for row in connection.execute(query).mappings()]


def counts(connection: Connection) -> dict[tuple[str, str], int]:
    """How many events there are, by provider and state."""
    query = select(table.c.provider, table.c.state, func.count()).group_by(table.c.provider, table.c.state)
    return {(str(row[0]), str(row[1])): int(row[2]) for row in connection.execute(query)}


def forget(connection: Connection, *, before: int, parked_before: int, limit: int = 1000) -> int:
    """Delete events that came long ago: of tasks that have ended, and those that no task answered to.

    One that comes again then finds its task ended, and changes nothing.

    Args:
        connection: The write transaction.
        before: Those that were handled go if they came before this moment, UTC milliseconds.
        parked_before: Those that are parked go if they came before this one.
        limit: Most of them.

    Returns:
        How many were deleted.
    """
    unfinished = exists().where(provider_tasks.c.id == table.c.task_id, provider_tasks.c.state.in_(tasks.UNFINISHED))
    parked = and_(table.c.state == "parked", table.c.received_at < parked_before)
    handled = and_(table.c.state != "parked", table.c.received_at < before)
    ids = select(table.c.id).where(or_(handled, parked), ~unfinished).limit(limit)
    return connection.execute(delete(table).where(table.c.id.in_(ids))).rowcount


def hold(connection: Connection, provider: str, provider_task_id: str | None) -> None:
    """Let no event of this task come, and no task learn this id, until the transaction ends (PostgreSQL).

    Otherwise an event that comes while its task learns the id would see no task, and the task no event. In SQLite one
    transaction writes at a time anyway.
    """
    if provider_task_id is not None and connection.dialect.name == "postgresql":
        name = f"provider task\n{provider}\n{provider_task_id}"
        number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], signed=True)
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({number})")


def _apply(connection: Connection, event: StoredEvent, *, source: str, actor: str, now: int) -> Taken:
    task = None
    if event.provider_task_id is not None:
        task = tasks.by_provider_id(connection, event.provider, event.provider_task_id)
    if task is None and event.provider_key is not None:
        task = tasks.by_provider_key(connection, event.provider, event.provider_key)
    if task is None:
        return Taken(event, duplicate=False, task=None)
    told = _tell(connection, event, task, source=source, actor=actor, now=now)
    if told.learned:
        apply_parked(connection, told.task, actor=actor, now=now)
    return Taken(get(connection, event.id), False, tasks.get(connection, task.id), told.changed)


def _tell(
    connection: Connection, event: StoredEvent, task: ProviderTask, *, source: str, actor: str, now: int
) -> settlement.Reconciled:
    """Tell a task what an event says, and note what became of the event."""
    status, task = event.status, tasks.lock(connection, task)
    if event.provider_task_id is not None and status.provider_task_id is None:
        status = ProviderStatus.of({**status.as_dict(), "provider_task_id": event.provider_task_id})
    told = settlement.settle(connection, task, status, source=source, actor=actor, now=now)
    waits = told.task.state == "created" and told.task.provider_task_id is None and not told.contradiction
    noted = {"task_id": task.id}
    if not waits:
        ignored = task.is_final or told.contradiction
        noted |= {"state": "ignored" if ignored else "applied", "handled_at": now}
    connection.execute(update(table).where(table.c.id == event.id).values(**noted))
    return told


def _by_event_id(connection: Connection, provider: str, event_id: str) -> StoredEvent:
    mine = _WITH_TASK.where(table.c.provider == provider, table.c.event_id == event_id)
    return StoredEvent(**connection.execute(mine).mappings().one())
