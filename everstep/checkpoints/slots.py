"""What becomes of a schedule's slots: a job, and a row that says so, in one transaction.

The row's unique key is the schedule and the slot in UTC, so of any number of schedulers, whatever their clocks did, one
handles a slot, once.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, Final, Literal

from sqlalchemy import Connection, RowMapping, delete, exists, select, update

from everstep.checkpoints import cron as times
from everstep.checkpoints import crons, jobs, schedules, submission
from everstep.checkpoints.database import insert_or_ignore
from everstep.checkpoints.job import job_of
from everstep.checkpoints.job_statements import UNFINISHED
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.policy import JobPolicy
from everstep.checkpoints.schedule import Schedule, of_row
from everstep.checkpoints.schema import agent_jobs, schedule_slots
from everstep.checkpoints.schema import schedules as schedules_table
from everstep.clock import rfc3339
from everstep.errors import EverstepError, JobStateConflict, ThreadBusy

Outcome = Literal["fired", "resumed", "skipped", "missed", "failed"]
"""`fired`: a new job; `resumed`: an unfinished one goes on; `skipped`: one is under way, or waits for a person;
`missed`: nobody was there in time; `failed`: no job could be made."""

MOST_CAUGHT_UP: Final = 100
GRACE_MS: Final = 60_000
"""A slot that is handled so late was missed, if missed slots are to be skipped."""
MOST_IN_VAIN: Final = 3
"""So often in a row a failed run is resumed without storing anything more; then a new one starts."""

PolicyOf = Callable[[str], JobPolicy]
"""What is asked of each job of a graph, by the graph's name."""


@dataclass(frozen=True)
class Slot:
    """A slot that was handled.

    Attributes:
        schedule: Of which schedule.
        at: The slot, UTC milliseconds; of a run that a person began, when that was.
        fired_at: When it was handled.
        outcome: What became of it.
        job: Id of the job it is about, if there is one.
        detail: More of it.
    """

    schedule: str
    at: int
    fired_at: int
    outcome: Outcome
    job: str | None
    detail: dict[str, Any]

    @property
    def late_ms(self) -> int:
        """How long after its time it was handled; its jitter is part of that time."""
        return max(self.fired_at - self.at - int(self.detail.get("jitter_ms", 0)), 0)


def fire_due(connection: Connection, schedule_id: int, *, now: int, actor: str, policy_of: PolicyOf) -> list[Slot]:
    """Handle what is due of a schedule.

    Args:
        connection: The write transaction.
        schedule_id: Row id.
        now: UTC milliseconds.
        actor: Who does it.
        policy_of: What is asked of the jobs.

    Returns:
        The slots that this call handled, the earliest first.
    """
    schedule = schedules.lock(connection, schedule_id)
    if schedule is None or schedule.next_slot_at is None or (schedule.next_fire_at or 0) > now:
        return []
    definition = schedule.definition
    found = times.last_slots(
        definition.cron,
        definition.timezone,
        since=schedule.next_slot_at,
        until=min(now, definition.ends_at or now),
        most=MOST_CAUGHT_UP,
    )
    due = list(takewhile(lambda slot: slot + _jitter(schedule, slot) <= now, found))
    if found and not due:
        return []
    handled: list[Slot] = []
    if due and due[0] > schedule.next_slot_at:
        up_to = {"up_to": rfc3339(due[0] - 1)}
        handled += _note(connection, schedule, schedule.next_slot_at, now, "missed", up_to)
    for slot in due:
        if _is_wanted(schedule, slot, due[-1], now):
            handled += _handle(connection, schedule, slot, now=now, actor=actor, policy_of=policy_of)
        else:
            handled += _note(connection, schedule, slot, now, "missed")
    after = due[-1] if due else now
    values = {**schedules.due(schedule.public_id, definition, after=after), "updated_at": now}
    connection.execute(update(schedules_table).where(schedules_table.c.id == schedule.id).values(**values))
    return handled


def fire_now(connection: Connection, schedule: Schedule, *, now: int, actor: str, policy_of: PolicyOf) -> Slot:
    """Run a schedule now, by hand, by its own rule of overlap; its slots stay what they are. Lock it before.

    Returns:
        What became of it. Its slot is never one of the schedule's: those are whole minutes.
    """
    at = now
    while True:
        at += at % 60_000 == 0
        handled = _handle(
            connection, schedule, at, now=now, actor=actor, policy_of=policy_of, detail={"by_hand": True, "by": actor}
        )
        if handled:
            return handled[0]
        at += 1  # another person's, in the same millisecond


def set_back(connection: Connection, *, now: int) -> list[Schedule]:
    """Have schedules whose last change lies in the future wait for their next slot from now on: the clock was set back.

    Otherwise a schedule that a wrong clock took into next year would be silent until then. Slots that were handled stay
    handled.

    Returns:
        The schedules that are due earlier than they were.
    """
    moved: list[Schedule] = []
    ahead = (schedules_table.c.updated_at > now, schedules_table.c.enabled == 1)
    for row in connection.execute(select(schedules_table).where(*ahead).with_for_update()).mappings().all():
        schedule = of_row(row)
        after = schedules.due(schedule.public_id, schedule.definition, after=now)
        while (slot := after["next_slot_at"]) is not None and slot != schedule.next_slot_at:
            if not _is_handled(connection, schedule, slot):
                moved.append(schedule)
                break
            after = schedules.due(schedule.public_id, schedule.definition, after=slot)
        values = {**after, "updated_at": now}
        connection.execute(update(schedules_table).where(schedules_table.c.id == schedule.id).values(**values))
    return moved


def coming(schedule: Schedule, *, now: int, count: int) -> list[tuple[int, int]]:
    """The next slots of a schedule that is on, each with the moment it begins; UTC milliseconds."""
    if schedule.next_slot_at is None:
        return []
    definition = schedule.definition
    after = max(schedule.next_slot_at - 1, now - 1)
    found = times.following(definition.cron, definition.timezone, after=after, count=count)
    within = [slot for slot in found if definition.ends_at is None or slot <= definition.ends_at]
    return [(slot, slot + _jitter(schedule, slot)) for slot in within]


def history(connection: Connection, schedule: Schedule, *, limit: int) -> list[Slot]:
    """The slots of a schedule that were handled, the newest first."""
    query = (
        select(schedule_slots, agent_jobs.c.public_id.label("job"))
        .outerjoin(agent_jobs, agent_jobs.c.id == schedule_slots.c.job_id)
        .where(schedule_slots.c.schedule_id == schedule.id)
        .order_by(schedule_slots.c.id.desc())
    )
    return [_of_row(schedule, row) for row in connection.execute(query.limit(limit)).mappings()]


def forget(connection: Connection, *, before: int, limit: int = 500) -> int:
    """Delete some of the slots that were handled before a moment and have no job, as those with one go with it.

    Returns:
        How many.
    """
    old = select(schedule_slots.c.id).where(schedule_slots.c.job_id.is_(None), schedule_slots.c.fired_at < before)
    return connection.execute(delete(schedule_slots).where(schedule_slots.c.id.in_(old.limit(limit)))).rowcount


def _of_row(schedule: Schedule, row: RowMapping) -> Slot:
    detail = json.loads(row["detail"] or "{}")
    return Slot(schedule.public_id, row["slot_at"], row["fired_at"], row["outcome"], row["job"], detail)


def _jitter(schedule: Schedule, slot: int) -> int:
    return times.jitter_ms(schedule.public_id, slot, schedule.definition.jitter_s)


def _is_wanted(schedule: Schedule, slot: int, latest: int, now: int) -> bool:
    missed = schedule.definition.missed
    in_time = now - slot - _jitter(schedule, slot) < GRACE_MS
    return missed == "all" or (slot == latest and (missed == "latest" or in_time))


def _is_handled(connection: Connection, schedule: Schedule, slot: int) -> bool:
    mine = (schedule_slots.c.schedule_id == schedule.id, schedule_slots.c.slot_at == slot)
    return connection.execute(select(exists().where(*mine))).scalar_one()


def _note(
    connection: Connection,
    schedule: Schedule,
    slot: int,
    now: int,
    outcome: Outcome,
    detail: dict[str, Any] | None = None,
) -> list[Slot]:
    """Write a slot's row, unless there is one: then it was handled before, and nothing is to be done."""
    known = dict(detail or {})
    if jitter := _jitter(schedule, slot):
        known["jitter_ms"] = jitter
    values = {
        "schedule_id": schedule.id,
        "slot_at": slot,
        "fired_at": now,
        "outcome": outcome,
        "detail": json.dumps(known) if known else None,
    }
    row = insert_or_ignore(connection, schedule_slots, values)
    return [] if row is None else [Slot(schedule.public_id, slot, now, outcome, None, known)]


def _handle(
    connection: Connection,
    schedule: Schedule,
    slot: int,
    *,
    now: int,
    actor: str,
    policy_of: PolicyOf,
    detail: dict[str, Any] | None = None,
) -> list[Slot]:
    """Make a slot's job, or let an unfinished one go on, by the rule of overlap."""
    noted = _note(connection, schedule, slot, now, "fired", detail)
    if not noted:
        return []
    outcome, job, more = "fired", None, dict[str, Any]()
    try:
        with connection.begin_nested():  # what a refused job wrote is undone, and the slot is noted all the same
            outcome, job, more = _begin(connection, schedule, slot, now=now, actor=actor, policy_of=policy_of)
    except ThreadBusy as error:
        outcome, more = "skipped", {"because": error.message}
    except EverstepError as error:
        outcome, more = "failed", {"error": {"code": error.code, "message": error.message}}
    known = {**noted[0].detail, **more}
    values = {"outcome": outcome, "job_id": job and job.id, "detail": json.dumps(known) if known else None}
    mine = (schedule_slots.c.schedule_id == schedule.id, schedule_slots.c.slot_at == slot)
    connection.execute(update(schedule_slots).where(*mine).values(**values))
    return [replace(noted[0], outcome=outcome, job=job and job.public_id, detail=known)]


def _begin(
    connection: Connection, schedule: Schedule, slot: int, *, now: int, actor: str, policy_of: PolicyOf
) -> tuple[Outcome, Job | None, dict[str, Any]]:
    overlap, more = schedule.definition.overlap, dict[str, Any]()
    if overlap != "queue" and (running := _unfinished(connection, schedule)) is not None:
        return "skipped", running, {"because": f"job {running.public_id} is {running.status}"}
    if overlap == "resume" and (last := _last_run(connection, schedule)) is not None:
        last = jobs.lock(connection, last.id)
        if last.status in UNFINISHED:  # since the look
            return "skipped", last, {"because": f"job {last.public_id} is {last.status}"}
        if last.status == "failed" and last.cancel_requested_at is None:
            if not _resumed_in_vain(connection, schedule, last):
                with suppress(JobStateConflict):  # a client went on with its thread: it cannot be gone back to
                    job = jobs.redrive(connection, last, now=now, actor=actor)
                    return "resumed", job, {"progress": last.progress}
            more = {"given_up": last.public_id}
    return "fired", _start(connection, schedule, slot, now=now, actor=actor, policy_of=policy_of), more


def _start(connection: Connection, schedule: Schedule, slot: int, *, now: int, actor: str, policy_of: PolicyOf) -> Job:
    definition = schedule.definition
    policy, options, given = policy_of(definition.graph), definition.job, definition.input
    if definition.assistant_id is not None:
        return crons.start(connection, schedule, now=now, actor=actor, policy=policy)
    if definition.overlap == "queue" and policy.concurrency_key is None:
        policy = replace(policy, concurrency_key=f"schedule/{schedule.public_id}")
    if options.slot_field is not None:
        given = {**given, options.slot_field: rfc3339(slot)}
    return submission.enqueue(
        connection,
        now=now,
        graph=definition.graph,
        payload_json=json.dumps(given),
        payload_digest=submission.same_payload(definition.graph, given),
        key=f"schedule/{schedule.public_id}/{slot}",
        workflow_version=options.workflow_version,
        priority=options.priority,
        max_attempts=options.max_attempts,
        owner=schedule.owner,
        policy=policy,
    ).job


def _unfinished(connection: Connection, schedule: Schedule) -> Job | None:
    """A run of the schedule that is under way, or waits."""
    mine = exists().where(schedule_slots.c.job_id == agent_jobs.c.id, schedule_slots.c.schedule_id == schedule.id)
    query = select(agent_jobs).where(agent_jobs.c.status.in_(UNFINISHED), mine).order_by(agent_jobs.c.id.desc())
    row = connection.execute(query.limit(1)).mappings().first()
    return None if row is None else job_of(row)


def _last_run(connection: Connection, schedule: Schedule) -> Job | None:
    query = (
        select(agent_jobs)
        .join(schedule_slots, schedule_slots.c.job_id == agent_jobs.c.id)
        .where(schedule_slots.c.schedule_id == schedule.id)
        .order_by(schedule_slots.c.id.desc())
    )
    row = connection.execute(query.limit(1)).mappings().first()
    return None if row is None else job_of(row)


def _resumed_in_vain(connection: Connection, schedule: Schedule, job: Job) -> bool:
    """Whether the run was resumed several times, and stored nothing more since the first of them."""
    query = select(schedule_slots).where(
        schedule_slots.c.schedule_id == schedule.id,
        schedule_slots.c.job_id == job.id,
        schedule_slots.c.outcome == "resumed",
    )
    rows = connection.execute(query.order_by(schedule_slots.c.id.desc()).limit(MOST_IN_VAIN)).mappings().all()
    in_vain = [json.loads(row["detail"] or "{}").get("progress") == job.progress for row in rows]
    return len(rows) == MOST_IN_VAIN and all(in_vain)
