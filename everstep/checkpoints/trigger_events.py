"""Events that triggers took: each is stored before its sender is answered, and handled once.

A row is `stored` until it is handled: then it `started` a job, was `filtered` out, or `failed` to become a job's input.
The trigger's name and the event's key are unique together, so an event that comes twice is one row.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import Connection, and_, delete, func, insert, select, update

from everstep.checkpoints.database import has_id, insert_or_ignore, notify
from everstep.checkpoints.payload import REDACTED, names_secret, without_secrets
from everstep.checkpoints.schema import agent_jobs, evidence, job_events
from everstep.checkpoints.schema import trigger_events as table
from everstep.clock import rfc3339, uuid7
from everstep.errors import EventNotFound

TOPIC = "everstep_triggers"
"""What those who handle events are woken by, when one is to be handled again."""
LOOKED_AT = 1000


@dataclass(frozen=True)
class Event:
    """A row of `trigger_events`. Times are UTC milliseconds.

    Attributes:
        public_id: Its id.
        trigger: The trigger's name.
        source: What kind of trigger that is.
        event_key: What tells it from other events of the trigger: the source's own id of it, where there is one.
        headers_json: What is kept of its headers.
        body: What it holds, as JSON.
        state: `stored`, `started`, `filtered` or `failed`.
        job: The public id of the job it started, or that was there already.
        error_json: Why it failed.
        occurred_at: When it happened, as its source says.
        received_at: When it came.
        handled_at: When it was handled.
    """

    id: int
    public_id: str
    trigger: str
    source: str
    event_key: str
    headers_json: str
    body: str
    state: str
    job: str | None
    error_json: str | None
    occurred_at: int | None
    received_at: int
    handled_at: int | None

    def document(self) -> dict[str, Any]:
        """What a filter and a mapping look at."""
        about = {
            "id": self.public_id,
            "key": self.event_key,
            "trigger": self.trigger,
            "source": self.source,
            "occurred_at": rfc3339(self.occurred_at),
            "received_at": rfc3339(self.received_at),
        }
        return {"event": about, "headers": json.loads(self.headers_json), "body": json.loads(self.body)}

    def view(self) -> dict[str, Any]:
        """The event as it is shown, without its body."""
        return {
            "id": self.public_id,
            "trigger": self.trigger,
            "source": self.source,
            "key": self.event_key,
            "state": self.state,
            "job": self.job,
            "error": None if self.error_json is None else json.loads(self.error_json),
            "occurred_at": rfc3339(self.occurred_at),
            "received_at": rfc3339(self.received_at),
            "handled_at": rfc3339(self.handled_at),
        }


_COLUMNS = [*(column for column in table.c if column.name != "job_id"), agent_jobs.c.public_id.label("job")]
_WITH_JOB = select(*_COLUMNS).outerjoin(agent_jobs, agent_jobs.c.id == table.c.job_id)


def store(
    connection: Connection,
    *,
    trigger: str,
    source: str,
    key: str,
    headers: Mapping[str, str],
    body: Any,
    occurred_at: int | None,
    now: int,
) -> tuple[Event, bool]:
    """Store an event, without what looks like a credential in it; or find that it came before.

    Args:
        connection: The write transaction.
        trigger: The trigger's name.
        source: Its kind.
        key: What tells the event from others.
        headers: What is to be kept of its headers.
        body: What it holds: JSON data.
        occurred_at: When it happened, UTC milliseconds.
        now: UTC milliseconds.

    Returns:
        The event, and whether it is new.
    """
    values = {
        "public_id": uuid7(now),
        "trigger": trigger,
        "source": source,
        "event_key": key,
        "headers_json": json.dumps(redacted(dict(headers))),
        "body": json.dumps(redacted(body)),
        "occurred_at": occurred_at,
        "received_at": now,
    }
    created = insert_or_ignore(connection, table, values) is not None
    same = and_(table.c.trigger == trigger, table.c.event_key == key)
    return Event(**connection.execute(_WITH_JOB.where(same)).mappings().one()), created


def redacted(value: Any) -> Any:
    """JSON data with what looks like a credential, by its name or form, replaced by `***`."""
    if isinstance(value, dict):
        return {name: _member(name, member) for name, member in cast(dict[str, Any], value).items()}
    if isinstance(value, list):
        return [redacted(member) for member in cast(list[Any], value)]
    return without_secrets(value) if isinstance(value, str) else value


def _member(name: str, member: Any) -> Any:
    if names_secret(name) and isinstance(member, str | list | dict):
        return REDACTED
    return redacted(member)


def get(connection: Connection, event_id: int) -> Event:
    """The event by row id."""
    return Event(**connection.execute(_WITH_JOB.where(table.c.id == event_id)).mappings().one())


def find(connection: Connection, public_id: str) -> Event:
    """The event by id, or by a prefix of it that fits one only.

    Raises:
        EventNotFound: None, or more than one, fits.
    """
    rows = connection.execute(_WITH_JOB.where(has_id(table.c.public_id, public_id)).limit(2)).mappings().all()
    if len(rows) != 1:
        what = "several events have ids that start with" if rows else "no event has the id"
        raise EventNotFound(
            f"{what} {public_id!r}", next_step="list them with: everstep triggers events", event=public_id
        )
    return Event(**rows[0])


def every(
    connection: Connection, *, trigger: str | None = None, state: str | None = None, limit: int = 100
) -> list[Event]:
    """Events, newest first.

    Args:
        connection: A snapshot.
        trigger: Only those of this trigger.
        state: Only those in this state.
        limit: Most of them.
    """
    query = _WITH_JOB.order_by(table.c.id.desc()).limit(limit)
    query = query if trigger is None else query.where(table.c.trigger == trigger)
    query = query if state is None else query.where(table.c.state == state)
    return [Event(**row) for row in connection.execute(query).mappings()]


def unhandled(connection: Connection, triggers: Collection[str], limit: int = 100) -> list[Event]:
    """Events of these triggers that are stored and not handled, oldest first."""
    mine = and_(table.c.state == "stored", table.c.trigger.in_(list(triggers)))
    return [
        Event(**row) for row in connection.execute(_WITH_JOB.where(mine).order_by(table.c.id).limit(limit)).mappings()
    ]


def known(connection: Connection, trigger: str, keys: Collection[str]) -> set[str]:
    """Which of these keys a trigger has events of."""
    found: set[str] = set()
    rest = list(keys)
    while rest:
        part, rest = rest[:LOOKED_AT], rest[LOOKED_AT:]
        query = select(table.c.event_key).where(table.c.trigger == trigger, table.c.event_key.in_(part))
        found.update(connection.execute(query).scalars())
    return found


def counts(connection: Connection) -> dict[str, dict[str, int]]:
    """By trigger and state: how many events there are."""
    query = select(table.c.trigger, table.c.state, func.count()).group_by(table.c.trigger, table.c.state)
    found: dict[str, dict[str, int]] = {}
    for trigger, state, number in connection.execute(query):
        found.setdefault(str(trigger), {})[str(state)] = int(number)
    return found


# ---- handling


def lock(connection: Connection, event: Event) -> Event:
    """The event as it is now, held until the transaction ends.

    Raises:
        EventNotFound: It was deleted, with its job, since the caller saw it.
    """
    held = select(table.c.id).where(table.c.id == event.id).with_for_update()
    if connection.execute(held).first() is None:
        raise EventNotFound("the event was deleted a moment ago", next_step="list the others: everstep triggers events")
    return get(connection, event.id)


def started(connection: Connection, event: Event, job_id: int, *, claim_no: int, now: int) -> Event:
    """It started a job, or one with its key was there already; the job's evidence tells of it."""
    _handled(connection, event, now, state="started", job_id=job_id, error_json=None)
    told = event.view() | {"handled_at": rfc3339(now)}
    detail = {
        name: told[name] for name in ("trigger", "source", "id", "key", "occurred_at", "received_at", "handled_at")
    }
    row = {"job_id": job_id, "claim_no": claim_no, "kind": "trigger", "detail_json": json.dumps(detail), "at": now}
    connection.execute(insert(evidence).values(**row))
    return get(connection, event.id)


def filtered(connection: Connection, event: Event, *, now: int) -> Event:
    """It is none that its trigger wants."""
    _handled(connection, event, now, state="filtered", job_id=None, error_json=None)
    return get(connection, event.id)


def failed(connection: Connection, event: Event, error: Mapping[str, Any], *, now: int) -> Event:
    """No job could be made of it."""
    _handled(connection, event, now, state="failed", error_json=json.dumps(error))
    return get(connection, event.id)


def _handled(connection: Connection, event: Event, now: int, **values: Any) -> None:
    connection.execute(update(table).where(table.c.id == event.id).values(handled_at=now, **values))


def set_stored(connection: Connection, event: Event) -> Event:
    """Have it handled again."""
    again = {"state": "stored", "error_json": None, "handled_at": None}
    connection.execute(update(table).where(table.c.id == event.id).values(**again))
    notify(connection, TOPIC)
    return get(connection, event.id)


def forget(connection: Connection, *, before: int, limit: int = 1000) -> int:
    """Delete events that started nothing and came before a moment, UTC milliseconds; how many."""
    over = and_(table.c.state.in_(("filtered", "failed")), table.c.job_id.is_(None), table.c.received_at < before)
    ids = select(table.c.id).where(over).limit(limit)
    return connection.execute(delete(table).where(table.c.id.in_(ids))).rowcount


# ---- how long it took


def start_of(connection: Connection, job_id: int) -> dict[str, Any] | None:
    """The event that started a job, and how long it was from the event to the job's first start; None: no event did."""
    row = connection.execute(_WITH_JOB.where(table.c.job_id == job_id).order_by(table.c.id).limit(1)).mappings().first()
    if row is None:
        return None
    event = Event(**row)
    began = connection.execute(_first_start(job_id)).scalar_one()
    waited = None if began is None else began - event.received_at
    told = event.view()
    del told["job"], told["error"]
    return {**told, "job_started_at": rfc3339(began), "event_to_start_ms": waited}


def _first_start(job_id: Any) -> Any:
    runs = and_(job_events.c.job_id == job_id, job_events.c.to_status == "running")
    return select(func.min(job_events.c.at)).where(runs)


def waits(connection: Connection, *, since: int) -> dict[str, list[int]]:
    """By source, how long each of the newest events took from coming to its job's first start, milliseconds.

    Args:
        connection: A snapshot.
        since: Only events that came at this moment or later, UTC milliseconds.
    """
    newest = select(table).where(table.c.state == "started").order_by(table.c.id.desc()).limit(LOOKED_AT).subquery()
    began = _first_start(newest.c.job_id).correlate(newest).scalar_subquery()
    found: dict[str, list[int]] = {}
    for source, received, start in connection.execute(
        select(newest.c.source, newest.c.received_at, began).where(newest.c.received_at >= since)
    ):
        if start is not None and start >= received:  # the job may have been there before the event
            found.setdefault(str(source), []).append(int(start) - int(received))
    return found


def recent(connection: Connection, *, since: int) -> dict[tuple[str, str], int]:
    """By source and state: how many events came since a moment (UTC milliseconds), of the newest thousand each."""
    found: dict[tuple[str, str], int] = {}
    for state in ("stored", "started", "filtered", "failed"):
        newest = select(table.c.source, table.c.received_at).where(table.c.state == state)
        part = newest.order_by(table.c.id.desc()).limit(LOOKED_AT).subquery()
        query = select(part.c.source, func.count()).where(part.c.received_at >= since).group_by(part.c.source)
        found |= {(str(row[0]), state): int(row[1]) for row in connection.execute(query)}
    return found
