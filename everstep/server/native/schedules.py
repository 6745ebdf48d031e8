"""Schedules: what runs when: list, add, pause, fire by hand, look ahead and back, delete."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field
from sqlalchemy import Connection

from everstep.checkpoints import cron, jobs, schedule_view, slots
from everstep.checkpoints import schedules as kept
from everstep.checkpoints.replies import Reply
from everstep.checkpoints.schedule import MOST_JITTER_S, Definition, JobOptions, Missed, Overlap, Schedule
from everstep.checkpoints.schema import schedules as table
from everstep.clock import rfc3339
from everstep.errors import ScheduleNotFound
from everstep.graphs.policies import NAME
from everstep.server.bodies import JsonRoute
from everstep.server.context import CalledBy, Caller, ServedBy
from everstep.server.native import seen
from everstep.server.native.seen import Body, Limit, shows
from everstep.server.native.shown import Moment
from everstep.server.once import AskedOnce
from everstep.server.texts import Instant, Text

router = APIRouter(prefix="/everstep/schedules", tags=["schedules"], route_class=JsonRoute)
Outcome = Literal["fired", "resumed", "skipped", "missed", "failed"]


class SlotShown(BaseModel):
    """A slot of a schedule that was handled."""

    schedule: str
    slot: Moment
    handled_at: Moment
    late_ms: int
    outcome: Outcome
    job: str | None
    detail: dict[str, Any]


class ScheduleShown(BaseModel):
    """What runs when."""

    id: str
    name: str | None
    origin: str = Field(description="Who keeps it: `command`, `api`, `langgraph`, or `file:` and a path.")
    owner: str
    graph: str
    cron: str
    timezone: str
    overlap: Overlap
    missed: Missed
    jitter: int
    end: Moment | None
    enabled: bool
    off: str | None = Field(description="Why it is off: `paused`, `file` or `removed`.")
    next_slot: Moment | None
    begins_at: Moment | None
    input: Any
    priority: int
    max_attempts: int
    workflow_version: str
    slot_field: str | None
    last: SlotShown | None = Field(description="The last slot that was handled.")


class ScheduleList(BaseModel):
    """The schedules, by name."""

    schedules: list[ScheduleShown]


class ComingSlot(BaseModel):
    """A slot to come."""

    slot: Moment
    begins_at: Moment
    local: str = Field(description="The same, where the schedule's hours are.")


class ComingList(BaseModel):
    """The next slots."""

    slots: list[ComingSlot]


class SlotList(BaseModel):
    """What became of a schedule's slots, the newest first."""

    slots: list[SlotShown]


class ScheduleCreate(Body):
    """A schedule to add."""

    name: str = Field(pattern=NAME, description="Its name.")
    graph: Text = Field(description="Which graph runs.")
    cron: Text = Field(max_length=200, description="When: minute hour day-of-month month day-of-week.")
    overlap: Overlap = Field(
        description="While an earlier run is unfinished: run nothing, a new run behind it, or let it go on."
    )
    timezone: Text = Field("UTC", max_length=100, description="Where its hours are.")
    input: Any = Field(default_factory=dict[str, Any], description="What the graph starts with.")
    missed: Missed = Field("latest", description="Of slots at which nobody was there: run none, the latest, or all.")
    jitter: int = Field(0, ge=0, le=MOST_JITTER_S, description="Begin up to so many seconds after it.")
    end: Instant | None = Field(None, description="No slots after this.")
    priority: int = Field(jobs.DEFAULT_PRIORITY, ge=0, le=10, description="Of its jobs; 10 is the most urgent.")
    max_attempts: int = Field(jobs.DEFAULT_MAX_ATTEMPTS, ge=1, le=1000, description="Of its jobs.")
    workflow_version: Text = Field("1", max_length=200, description="Of its jobs.")
    slot_field: Text | None = Field(
        None, min_length=1, max_length=200, description="The field of the input that gets the slot's time."
    )


@router.get("", responses=shows(ScheduleList, "The schedules."))
async def list_schedules(served: ServedBy, caller: CalledBy) -> Response:
    """List the schedules: when each runs next, and what became of its last slot."""

    def look(connection: Connection) -> list[dict[str, Any]]:
        mine = () if caller.owner is None else (table.c.owner == caller.owner,)
        return [_shown(connection, schedule) for schedule in kept.every(connection, *mine)]

    return seen.answer({"schedules": await served.store.aread(look)})


@router.post("", responses=shows(ScheduleShown, "The schedule."))
async def create_schedule(body: ScheduleCreate, served: ServedBy, caller: CalledBy, once: AskedOnce) -> Response:
    """Add a schedule; a worker or `everstep up` fires it."""
    served.graphs.require(body.graph)
    definition = Definition(
        graph=body.graph,
        cron=body.cron,
        overlap=body.overlap,
        timezone=body.timezone,
        input=body.input,
        missed=body.missed,
        jitter_s=body.jitter,
        ends_at=seen.milliseconds(body.end),
        job=JobOptions(body.priority, body.max_attempts, body.workflow_version, body.slot_field),
    )
    definition.check()
    now = served.store.clock.now_ms()

    def create(connection: Connection) -> Reply:
        made = kept.create(connection, definition, now=now, origin="api", name=body.name, owner=caller.makes_for)
        where = {"Content-Location": f"/everstep/schedules/{made.public_id}"}
        return Reply(200, _shown(connection, made), where)

    return (await once.write(create)).response()


@router.get("/{schedule}", responses=shows(ScheduleShown, "The schedule."))
async def get_schedule(schedule: str, served: ServedBy, caller: CalledBy) -> Response:
    """Show a schedule, by its name or id."""
    return seen.answer(
        await served.store.aread(lambda connection: _shown(connection, _found(connection, caller, schedule)))
    )


@router.delete("/{schedule}", status_code=204, responses={204: {"description": "It is gone."}})
async def delete_schedule(schedule: str, served: ServedBy, caller: CalledBy) -> Response:
    """Delete a schedule and the history of its slots; its jobs stay."""

    def remove(connection: Connection) -> None:
        found = kept.locked(connection, _found(connection, caller, schedule).public_id)
        kept.require_removable(found)
        kept.remove(connection, found)

    await served.store.awrite(remove)
    return Response(status_code=204)


@router.post("/{schedule}/pause", responses=shows(ScheduleShown, "The schedule."))
async def pause_schedule(schedule: str, served: ServedBy, caller: CalledBy) -> Response:
    """Switch a schedule off; a restart does not switch it on."""
    return await _switch(schedule, served, caller, on=False)


@router.post("/{schedule}/resume", responses=shows(ScheduleShown, "The schedule."))
async def resume_schedule(schedule: str, served: ServedBy, caller: CalledBy) -> Response:
    """Switch a schedule on again; what it missed while it was off is not made up for."""
    return await _switch(schedule, served, caller, on=True)


async def _switch(given: str, served: ServedBy, caller: CalledBy, *, on: bool) -> Response:
    now = served.store.clock.now_ms()

    def switch(connection: Connection) -> dict[str, Any]:
        found = kept.locked(connection, _found(connection, caller, given).public_id)
        return _shown(connection, kept.switch(connection, found, on=on, now=now))

    return seen.answer(await served.store.awrite(switch))


@router.post("/{schedule}/fire", responses=shows(SlotShown, "What became of it."))
async def fire_schedule(schedule: str, served: ServedBy, caller: CalledBy, once: AskedOnce) -> Response:
    """Run a schedule now, by its own rule of overlap; its slots stay what they are."""
    now, policy_of = served.store.clock.now_ms(), served.policies.of_graph

    def fire(connection: Connection) -> Reply:
        found = kept.locked(connection, _found(connection, caller, schedule).public_id)
        slot = slots.fire_now(connection, found, now=now, actor=caller.identity, policy_of=policy_of)
        return Reply(200, schedule_view.slot(slot))

    return (await once.write(fire)).response()


@router.get("/{schedule}/next", responses=shows(ComingList, "The next slots."))
async def list_coming_slots(
    schedule: str, served: ServedBy, caller: CalledBy, count: Annotated[int, Query(ge=1, le=1000)] = 5
) -> Response:
    """Tell when a schedule runs next."""
    found = await served.store.aread(lambda connection: _found(connection, caller, schedule))
    coming = await served.store.in_thread(lambda: slots.coming(found, now=served.store.clock.now_ms(), count=count))
    zone = found.definition.timezone
    views = [
        {"slot": rfc3339(slot), "begins_at": rfc3339(begins), "local": cron.local(slot, zone)}
        for slot, begins in coming
    ]
    return seen.answer({"slots": views})


@router.get("/{schedule}/history", responses=shows(SlotList, "What became of its slots."))
async def list_slots(schedule: str, served: ServedBy, caller: CalledBy, limit: Limit = 20) -> Response:
    """Tell what became of a schedule's slots, the newest first."""

    def look(connection: Connection) -> list[dict[str, Any]]:
        found = _found(connection, caller, schedule)
        return [schedule_view.slot(slot) for slot in slots.history(connection, found, limit=limit)]

    return seen.answer({"slots": await served.store.aread(look)})


def _found(connection: Connection, caller: Caller, given: str) -> Schedule:
    found = kept.find(connection, given)
    if not caller.sees(found.owner):
        raise ScheduleNotFound(
            f"there is no schedule {given!r}", next_step="list them with: everstep schedules", schedule=given
        )
    return found


def _shown(connection: Connection, schedule: Schedule) -> dict[str, Any]:
    last = slots.history(connection, schedule, limit=1)
    return schedule_view.schedule(schedule, *last)
