"""Schedules: what is to run when, as rows that files, commands and the API make. What becomes of a slot is in `slots`.

`next_slot_at` is the first slot that nobody looked at yet, `next_fire_at` that slot and its jitter: both are None while
the schedule is off, or when it is over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, delete, func, or_, select, update

from everstep.checkpoints import cron as times
from everstep.checkpoints.database import has_id, insert_or_ignore
from everstep.checkpoints.schedule import Definition, Off, Schedule, of_row
from everstep.checkpoints.schema import schedule_slots, schedules
from everstep.clock import uuid7
from everstep.errors import ScheduleExists, ScheduleNotFound


def _columns(definition: Definition, off: Off | None) -> dict[str, Any]:
    options: dict[str, Any] = {"job": asdict(definition.job), "run": dict(definition.run), "off": off}
    return {
        "graph": definition.graph,
        "cron": definition.cron,
        "timezone": definition.timezone,
        "input_json": json.dumps(definition.input),
        "overlap": definition.overlap,
        "missed": definition.missed,
        "jitter_s": definition.jitter_s,
        "ends_at": definition.ends_at,
        "metadata_json": json.dumps(dict(definition.metadata)),
        "assistant_id": definition.assistant_id,
        "thread_id": definition.thread_id,
        "options_json": json.dumps({name: value for name, value in options.items() if value}),
        "enabled": int(off is None),
    }


def due(public_id: str, definition: Definition, *, after: int) -> dict[str, int | None]:
    """The columns that tell the first slot after a moment, and when it begins."""
    slot = times.next_slot(definition.cron, definition.timezone, after=after)
    if slot is None or (definition.ends_at is not None and slot > definition.ends_at):
        return {"next_slot_at": None, "next_fire_at": None}
    return {"next_slot_at": slot, "next_fire_at": slot + times.jitter_ms(public_id, slot, definition.jitter_s)}


def create(
    connection: Connection,
    definition: Definition,
    *,
    now: int,
    origin: str,
    name: str | None = None,
    owner: str = "default",
    off: Off | None = None,
    public_id: str | None = None,
) -> Schedule:
    """Make a schedule; `Definition.check` it before.

    Raises:
        ScheduleExists: There is one of this name.
    """
    public_id = public_id or uuid7(now)
    values = {
        "public_id": public_id,
        "name": name,
        "origin": origin,
        "owner": owner,
        "created_at": now,
        "updated_at": now,
        **_columns(definition, off),
        **(due(public_id, definition, after=now) if off is None else {"next_slot_at": None, "next_fire_at": None}),
    }
    row = insert_or_ignore(connection, schedules, values)
    if row is None:
        raise ScheduleExists(
            f"there is a schedule {name!r} already",
            next_step=f"give another name, or remove it: everstep schedules remove {name}",
            schedule=name,
        )
    return get(connection, public_id)


def redefine(
    connection: Connection, schedule: Schedule, definition: Definition, *, now: int, off: Off | None, **changes: Any
) -> Schedule:
    """Change what a schedule is to do, or whether it is on; `lock` it before.

    Where the times stay what they were and it was on, slots that wait to be handled stay due; else the next is the
    first after now.
    """
    before = schedule.definition
    same_times = (before.cron, before.timezone, before.jitter_s) == (
        definition.cron,
        definition.timezone,
        definition.jitter_s,
    )
    values: dict[str, Any] = {**_columns(definition, off), "updated_at": now, **changes}
    if off is not None:
        values |= {"next_slot_at": None, "next_fire_at": None}
    else:
        waiting = schedule.next_slot_at if same_times and schedule.enabled else None
        after = now if waiting is None else waiting - 1
        values |= due(schedule.public_id, definition, after=after)
    connection.execute(update(schedules).where(schedules.c.id == schedule.id).values(**values))
    return get(connection, schedule.public_id)


def switch(connection: Connection, schedule: Schedule, *, on: bool, now: int) -> Schedule:
    """Pause a schedule, or let it go on with the first slot after now; what it missed while paused is not made up."""
    if on == schedule.enabled:
        return schedule
    return redefine(connection, schedule, schedule.definition, now=now, off=None if on else "paused")


def require_removable(schedule: Schedule) -> None:
    """Refuse to delete what its file would make again.

    Raises:
        ScheduleExists: An `everstep.toml` keeps it.
    """
    if schedule.origin.startswith("file:") and schedule.off != "removed":
        path = schedule.origin.removeprefix("file:")
        raise ScheduleExists(
            f"{schedule.label} is kept by {path}, which would make it again",
            next_step=f"take it out there, or: everstep schedules pause {schedule.label}",
            schedule=schedule.label,
        )


def remove(connection: Connection, schedule: Schedule) -> None:
    """Delete a schedule and the history of its slots; its jobs stay."""
    connection.execute(delete(schedule_slots).where(schedule_slots.c.schedule_id == schedule.id))
    connection.execute(delete(schedules).where(schedules.c.id == schedule.id))


# ---- finding


def get(connection: Connection, public_id: str) -> Schedule:
    """The schedule of this id.

    Raises:
        ScheduleNotFound: There is none.
    """
    row = connection.execute(select(schedules).where(schedules.c.public_id == public_id)).mappings().first()
    if row is None:
        raise _unknown(public_id)
    return of_row(row)


def find(connection: Connection, given: str) -> Schedule:
    """The schedule of this name, or whose id it is, or begins with it.

    Raises:
        ScheduleNotFound: None, or more than one, fits.
    """
    rows = connection.execute(select(schedules).where(schedules.c.name == given)).mappings().all()
    if not rows and given:
        with_id = select(schedules).where(has_id(schedules.c.public_id, given)).limit(2)
        rows = connection.execute(with_id).mappings().all()
    if len(rows) != 1:
        raise _unknown(given)
    return of_row(rows[0])


def lock(connection: Connection, schedule_id: int) -> Schedule | None:
    """The schedule by row id, held until the transaction ends; None if it was deleted."""
    query = select(schedules).where(schedules.c.id == schedule_id).with_for_update()
    row = connection.execute(query).mappings().first()
    return None if row is None else of_row(row)


def locked(connection: Connection, given: str) -> Schedule:
    """As `find`, held until the transaction ends.

    Raises:
        ScheduleNotFound: None, or more than one, fits.
    """
    schedule = lock(connection, find(connection, given).id)
    if schedule is None:
        raise _unknown(given)
    return schedule


def every(connection: Connection, *conditions: ColumnElement[bool]) -> list[Schedule]:
    """All schedules, or those that meet conditions, by name."""
    query = select(schedules).where(*conditions).order_by(schedules.c.name, schedules.c.id)
    return [of_row(row) for row in connection.execute(query).mappings()]


def next_fire(connection: Connection) -> int | None:
    """When the first schedule is due; None if none ever is."""
    return connection.execute(select(func.min(schedules.c.next_fire_at))).scalar_one()


def overdue(connection: Connection, *, before: int) -> list[Schedule]:
    """Schedules that should have begun at or before a moment, the longest overdue first."""
    query: Select[Any] = select(schedules).where(schedules.c.next_fire_at <= before)
    return [of_row(row) for row in connection.execute(query.order_by(schedules.c.next_fire_at)).mappings()]


def _unknown(given: str) -> ScheduleNotFound:
    return ScheduleNotFound(
        f"there is no schedule {given!r}", next_step="list them with: everstep schedules", schedule=given
    )


# ---- those of a file


def take_over(
    connection: Connection, sections: Mapping[str, tuple[str, bool, Definition]], *, origin: str, now: int
) -> list[tuple[str, str]]:
    """Bring the record in line with a file: what is new is made, what changed is changed, what is gone is switched off.

    A schedule that a person paused stays paused. One of the same name that a command or another file made becomes this
    file's.

    Args:
        connection: The write transaction.
        sections: By name: the owner, whether it is on, and what it is to do.
        origin: Which file it is.
        now: UTC milliseconds.

    Returns:
        What was done: names with `added`, `changed`, `removed`, `taken over` or `paused` (and so left).
    """
    done: list[tuple[str, str]] = []
    mine = or_(schedules.c.origin == origin, schedules.c.name.in_(list(sections)))
    query = select(schedules).where(mine).order_by(schedules.c.id).with_for_update()
    known = {row["name"]: of_row(row) for row in connection.execute(query).mappings()}
    for name, (owner, is_on, definition) in sections.items():
        schedule = known.pop(name, None)
        off: Off | None = None if is_on else "file"
        if schedule is None:
            try:
                create(connection, definition, now=now, origin=origin, name=name, owner=owner, off=off)
            except ScheduleExists:  # another process took the same file over just now
                schedule = find(connection, name)
            else:
                done.append((name, "added"))
                continue
        if schedule.off == "paused" and is_on:
            off = "paused"
            done.append((name, "paused"))
        if (schedule.definition, schedule.owner, schedule.off, schedule.origin) != (definition, owner, off, origin):
            redefine(connection, schedule, definition, now=now, off=off, origin=origin, owner=owner)
            done.append((name, "changed" if schedule.origin == origin else "taken over"))
    for name, schedule in known.items():
        if schedule.off != "removed":
            redefine(connection, schedule, schedule.definition, now=now, off="removed")
            done.append((name, "removed"))
    return done
