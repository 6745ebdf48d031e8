"""LangGraph's crons: runs that are started at set times. They are schedules; see `checkpoints.crons`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from sqlalchemy import Connection

from everstep.checkpoints import assistants, crons, schedules
from everstep.checkpoints.crons import SortBy, Wanted
from everstep.checkpoints.json_filters import check_storable
from everstep.checkpoints.replies import Reply
from everstep.checkpoints.schedule import Definition, Schedule
from everstep.clock import rfc3339
from everstep.errors import AssistantNotFound, RequestInvalid, ScheduleNotFound
from everstep.server import access, configurable
from everstep.server.bodies import JsonRoute
from everstep.server.context import CalledBy, Caller, Served, ServedBy
from everstep.server.langgraph.body import Body, Order, Page, page_headers, selected
from everstep.server.langgraph.permitted import as_metadata, found_thread
from everstep.server.langgraph.run_requests import ConfigBody, Nodes, RunCreate, StreamMode
from everstep.server.once import AskedOnce, Once
from everstep.server.texts import Instant, Text

router = APIRouter(tags=["crons"], route_class=JsonRoute)

SelectField = Literal[
    "cron_id",
    "assistant_id",
    "thread_id",
    "end_time",
    "schedule",
    "timezone",
    "created_at",
    "updated_at",
    "user_id",
    "payload",
    "next_run_date",
    "metadata",
    "now",
    "on_run_completed",
    "enabled",
]
_OWN = ("schedule", "timezone", "end_time", "enabled", "on_run_completed")
"""What concerns the cron, and not its runs."""


class RunFields(Body):
    """What a cron's runs are like; see `run_requests` for what each field does."""

    input: Any = None
    config: ConfigBody | None = None
    context: Any = None
    metadata: dict[str, Any] | None = None
    interrupt_before: Nodes | None = None
    interrupt_after: Nodes | None = None
    stream_mode: list[StreamMode] | StreamMode | None = None
    stream_subgraphs: bool | None = None
    stream_resumable: bool | None = None
    durability: Literal["sync", "async", "exit"] | None = None
    checkpoint_during: bool | None = None
    webhook: str | None = None
    multitask_strategy: Literal["enqueue", "reject", "interrupt", "rollback"] | None = None


class CronOnThread(RunFields):
    """A cron to make, whose runs are on one thread."""

    assistant_id: Text
    schedule: str
    timezone: str | None = None
    end_time: Instant | None = None
    enabled: bool | None = None


class NewCron(CronOnThread):
    """A cron to make, each of whose runs has a thread of its own."""

    on_run_completed: Literal["delete", "keep"] | None = None


class CronChange(RunFields):
    """What to change of a cron; what is not named, or null, stays. `end_time` null: it has no end any more."""

    schedule: str | None = None
    timezone: str | None = None
    end_time: Instant | None = None
    enabled: bool | None = None
    on_run_completed: Literal["delete", "keep"] | None = None


class CronFilter(Body):
    """Which crons are looked for."""

    assistant_id: Text | None = None
    thread_id: str | None = None
    enabled: bool | None = None
    metadata: dict[str, Any] | None = None


class CronSearch(CronFilter, Page):
    """Which crons are wanted, and how."""

    sort_by: SortBy | None = None
    sort_order: Order | None = None
    select: list[SelectField] | None = None


def view(schedule: Schedule) -> dict[str, Any]:
    """A cron as LangGraph's clients read it."""
    definition = schedule.definition
    payload: dict[str, Any] = definition.run["payload"]
    return {
        "cron_id": schedule.public_id,
        "assistant_id": definition.assistant_id,
        "thread_id": definition.thread_id,
        "on_run_completed": None if definition.thread_id else payload.get("on_run_completed", "delete"),
        "end_time": rfc3339(definition.ends_at),
        "schedule": definition.cron,
        "timezone": payload.get("timezone"),
        "created_at": rfc3339(schedule.created_at),
        "updated_at": rfc3339(schedule.updated_at),
        "payload": {name: value for name, value in payload.items() if name not in _OWN},
        "user_id": schedule.owner,
        "next_run_date": rfc3339(schedule.next_fire_at),
        "metadata": dict(definition.metadata),
        "enabled": schedule.enabled,
    }


@router.post("/threads/{thread_id}/runs/crons")
async def create_for_thread(
    thread_id: str, body: CronOnThread, request: Request, served: ServedBy, caller: CalledBy, once: AskedOnce
) -> Response:
    """Make a cron whose runs are on this thread."""
    thread = await found_thread(request, served, caller, thread_id, "create_run")
    return await _create(body, request, served, caller, once, thread.thread_id)


@router.post("/runs/crons")
async def create(body: NewCron, request: Request, served: ServedBy, caller: CalledBy, once: AskedOnce) -> Response:
    """Make a cron each of whose runs has a thread of its own."""
    return await _create(body, request, served, caller, once, None)


async def _create(
    body: CronOnThread, request: Request, served: Served, caller: Caller, once: Once, thread_id: str | None
) -> Response:
    payload = body.model_dump(mode="json", exclude_none=True)
    filters = await access.allow(request, "crons", "create", payload)
    marks = {name: one for name, one in filters.items() if isinstance(one, str)}
    definition = await _definition(payload, _moment(body.end_time), request, served, caller, thread_id, marks)
    make = partial(
        schedules.create,
        definition=definition,
        now=served.store.clock.now_ms(),
        origin=crons.ORIGIN,
        owner=caller.makes_for,
        off="paused" if body.enabled is False else None,
    )
    answered = await once.write(lambda connection: Reply(200, view(make(connection)), {}))
    return answered.response()


@router.patch("/runs/crons/{cron_id}")
async def change(
    cron_id: str, body: CronChange, request: Request, served: ServedBy, caller: CalledBy
) -> dict[str, Any]:
    """Change a cron; runs that have started stay what they are."""
    changes = body.model_dump(mode="json", exclude_none=True)
    cron = await _found(cron_id, "update", {"cron_id": cron_id, **changes}, request, served, caller)
    before = cron.definition
    if body.on_run_completed is not None and before.thread_id is not None:
        raise RequestInvalid("on_run_completed is for crons without a thread", next_step="leave it out")
    ends_at = _moment(body.end_time) if "end_time" in body.model_fields_set else before.ends_at
    payload, marks = {**before.run["payload"], **changes}, before.run["thread_metadata"]
    definition = await _definition(payload, ends_at, request, served, caller, before.thread_id, marks)
    now = served.store.clock.now_ms()

    def write(connection: Connection) -> Schedule:
        current = schedules.locked(connection, cron.public_id)
        off = current.off if body.enabled is None else None if body.enabled else "paused"
        return schedules.redefine(connection, current, definition, now=now, off=off)

    return view(await served.store.awrite(write))


@router.delete("/runs/crons/{cron_id}")
async def remove(cron_id: str, request: Request, served: ServedBy, caller: CalledBy) -> dict[str, Any]:
    """Delete a cron; its runs stay."""
    cron = await _found(cron_id, "delete", {"cron_id": cron_id}, request, served, caller)
    await served.store.awrite(lambda c: schedules.remove(c, schedules.locked(c, cron.public_id)))
    return {}


@router.post("/runs/crons/search")
async def search(
    body: CronSearch, request: Request, served: ServedBy, caller: CalledBy, response: Response
) -> list[dict[str, Any]]:
    """Find crons."""
    filters = await access.allow(request, "crons", "search", body.model_dump(mode="json", exclude_none=True))

    def look(connection: Connection) -> tuple[list[Schedule], int]:
        wanted = _wanted(connection, body, caller, filters)
        found = crons.search(
            connection,
            wanted,
            limit=body.limit,
            offset=body.offset,
            sort_by=body.sort_by or "created_at",
            ascending=body.sort_order == "asc",
        )
        return found, crons.count(connection, wanted)

    found, total = await served.store.aread(look)
    page_headers(response, body, found, total)
    now = {"now": rfc3339(served.store.clock.now_ms())} if "now" in (body.select or ()) else {}
    return [selected(view(one) | now, body.select) for one in found]


@router.post("/runs/crons/count")
async def count(body: CronFilter, request: Request, served: ServedBy, caller: CalledBy) -> int:
    """How many crons there are."""
    filters = await access.allow(request, "crons", "search", body.model_dump(mode="json", exclude_none=True))
    return await served.store.aread(lambda c: crons.count(c, _wanted(c, body, caller, filters)))


def _wanted(connection: Connection, body: CronFilter, caller: Caller, filters: access.Filters) -> Wanted:
    assistant_id = body.assistant_id
    if assistant_id is not None:
        try:
            assistant_id = assistants.resolve(connection, assistant_id, owner=caller.owner).assistant_id
        except AssistantNotFound:  # and so no cron is of it
            assistant_id = ""
    return Wanted(
        owner=caller.owner,
        assistant_id=assistant_id,
        thread_id=None if body.thread_id is None else body.thread_id.lower(),
        enabled=body.enabled,
        metadata=(body.metadata, as_metadata(filters)),
    )


async def _found(
    cron_id: str, action: str, value: dict[str, Any], request: Request, served: Served, caller: Caller
) -> Schedule:
    """The cron, if the caller may see it.

    Raises:
        ScheduleNotFound: There is none for this caller.
    """
    filters = await access.allow(request, "crons", action, value)
    found = await served.store.aread(partial(schedules.get, public_id=cron_id.lower()))
    is_ours = found.origin == crons.ORIGIN and caller.sees(found.owner)
    if not is_ours or not access.matches(filters, dict(found.definition.metadata)):
        raise ScheduleNotFound(f"there is no cron {cron_id}", schedule=cron_id)
    return found


async def _definition(
    payload: Mapping[str, Any],
    ends_at: int | None,
    request: Request,
    served: Served,
    caller: Caller,
    thread_id: str | None,
    marks: Mapping[str, Any],
) -> Definition:
    """What a cron of this payload is to do.

    Raises:
        AssistantNotFound: There is no such assistant for the caller.
        RequestInvalid: A field cannot be honoured.
        ScheduleInvalid: Its times cannot.
    """
    run = RunCreate.model_validate({name: value for name, value in payload.items() if name not in _OWN})
    resolve = partial(assistants.resolve, id_or_name=run.assistant_id, owner=caller.owner)
    assistant = await served.store.aread(resolve)
    served.graphs.require(assistant.graph)
    bare = replace(assistant, config={}, context=None)  # its own is laid under when a run starts
    asked = run.as_request(bare, configurable.of_request(request), stateless=thread_id is None)
    keeps = thread_id is not None or payload.get("on_run_completed") == "keep"
    definition = crons.definition(
        replace(asked, delete_thread=not keeps, metadata={**asked.metadata, **marks}),
        cron=payload["schedule"],
        timezone=payload.get("timezone") or "UTC",
        ends_at=ends_at,
        thread_id=thread_id,
        payload={**payload, "assistant_id": assistant.assistant_id},
        thread_metadata=marks,
    )
    await served.store.in_thread(definition.check)
    check_storable(dict(definition.metadata), "metadata")
    return definition


def _moment(given: datetime | None) -> int | None:
    return None if given is None else round(given.timestamp() * 1000)
