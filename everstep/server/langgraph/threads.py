"""Paths of threads: make, find, change, copy and delete them. Their state has a module of its own."""

from __future__ import annotations

import re
from functools import partial
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Header, Request
from langgraph.errors import InvalidUpdateError
from langgraph.types import Command
from langgraph.types import StateUpdate as EngineUpdate
from pydantic import Field
from sqlalchemy import Connection
from starlette.responses import Response

from everstep.checkpoints import conversation_search, conversations, payload, runs, thread_removal
from everstep.checkpoints.conversation_search import SortBy, Wanted
from everstep.checkpoints.conversations import KEEP
from everstep.checkpoints.replies import Reply
from everstep.checkpoints.saver import StepSaver
from everstep.checkpoints.thread import Status, Thread, Ttl
from everstep.clock import rfc3339, uuid7
from everstep.errors import RequestInvalid, ThreadNotFound
from everstep.server import access
from everstep.server.bodies import JsonRoute, apart
from everstep.server.context import CalledBy, Caller, Served, ServedBy
from everstep.server.langgraph import following
from everstep.server.langgraph.body import Body, Order, Page, page_headers, selected
from everstep.server.langgraph.extracts import MOST_PATHS, extract, parsed
from everstep.server.langgraph.permitted import as_metadata, found_thread
from everstep.server.langgraph.run_context import RunContext
from everstep.server.langgraph.run_ends import LONGEST_CANCEL_S
from everstep.server.langgraph.thread_states import note_state, opened
from everstep.server.once import AskedOnce

router = APIRouter(prefix="/threads", tags=["threads"], route_class=JsonRoute)

MOST_MINUTES = 60 * 24 * 366 * 100
MOST_IDS = 1000
MOST_SUPERSTEPS = 10_000
MINIMAL = re.compile(r"(^|,)\s*return=minimal\s*(,|$)")
Minutes = Annotated[float, Field(gt=0, le=MOST_MINUTES)]
SelectField = Literal[
    "thread_id",
    "created_at",
    "updated_at",
    "state_updated_at",
    "metadata",
    "config",
    "context",
    "status",
    "values",
    "interrupts",
]


class TimeToLive(Body):
    """How long a thread is kept after something last happened on it."""

    ttl: Minutes
    strategy: Literal["delete", "keep_latest"] = "delete"


class CommandBody(Body):
    """LangGraph's `Command`, as far as a state can be updated by it."""

    update: dict[str, Any] | list[tuple[str, Any]] | None = None
    goto: str | list[str] | None = None
    resume: Any = None


class Update(Body):
    """What one node did in a superstep."""

    values: Any = None
    command: CommandBody | None = None
    as_node: str | None = None


class Superstep(Body):
    """What the nodes of a superstep did."""

    updates: Annotated[list[Update], Field(min_length=1)]


class NewThread(Body):
    """What a thread is made from."""

    thread_id: UUID | None = None
    metadata: dict[str, Any] | None = None
    if_exists: Literal["raise", "do_nothing"] | None = None
    supersteps: Annotated[list[Superstep], Field(max_length=MOST_SUPERSTEPS)] | None = None
    ttl: TimeToLive | Minutes | None = None


class ThreadChange(Body):
    """What is changed about a thread."""

    metadata: dict[str, Any] | None = None
    ttl: TimeToLive | Minutes | None = None


class ThreadFilter(Body):
    """Which threads are looked for."""

    metadata: dict[str, Any] | None = None
    values: dict[str, Any] | None = None
    status: Status | None = None


class ThreadSearch(ThreadFilter, Page):
    """Which threads are wanted, and how."""

    ids: Annotated[list[str], Field(max_length=MOST_IDS)] | None = None
    sort_by: SortBy | None = None
    sort_order: Order | None = None
    select: list[SelectField] | None = None
    extract: Annotated[dict[str, str], Field(max_length=MOST_PATHS)] | None = None


class Pruning(Body):
    """Which threads are deleted, or cut to their newest state."""

    thread_ids: Annotated[list[str], Field(max_length=MOST_IDS)]
    strategy: Literal["delete", "keep_latest"] = "delete"


@router.post("")
async def create(body: NewThread, request: Request, served: ServedBy, caller: CalledBy, once: AskedOnce) -> Response:
    """Make a thread; with `supersteps` it gets a state, as if its graph had run so."""
    value: dict[str, Any] = {"metadata": body.metadata or {}, "if_exists": body.if_exists or "raise"}
    if body.thread_id is not None:
        value["thread_id"] = str(body.thread_id)
    await access.allow(request, "threads", "create", value)
    metadata: dict[str, Any] = value["metadata"]
    await apart(payload.check_payload, metadata)
    if body.supersteps:
        await apart(payload.check_payload, body.model_dump()["supersteps"])
        served.graphs.require(str(metadata.get("graph_id")))
    now = served.store.clock.now_ms()
    thread_id = str(body.thread_id) if body.thread_id else uuid7(now)
    ttl = _ttl(body.ttl) or served.graphs.storage.thread_ttl

    def make(connection: Connection) -> Reply:
        thread = conversations.create(
            connection,
            thread_id,
            owner=caller.makes_for,
            now=now,
            metadata=metadata,
            ttl=ttl,
            keep_existing=body.if_exists == "do_nothing",
        )
        return Reply(200, thread.as_dict(), {"Content-Location": f"/threads/{thread.thread_id}"})

    answered = await once.write(make)
    if body.supersteps and not answered.replayed:
        await _build(served, caller, thread_id, body.supersteps)
    return answered.response()


@router.post("/search")
async def search(
    body: ThreadSearch, request: Request, served: ServedBy, caller: CalledBy, response: Response
) -> list[dict[str, Any]]:
    """Find threads."""
    wanted, filters = await _wanted(body, request, caller)
    paths = {alias: parsed(path) for alias, path in (body.extract or {}).items()}
    with_values = not body.select or "values" in body.select or any(path[0] == "values" for path in paths.values())

    def look(connection: Connection) -> tuple[list[dict[str, Any]], int]:
        found = conversation_search.search(
            connection,
            wanted,
            limit=body.limit,
            offset=body.offset,
            sort_by=body.sort_by or "created_at",
            ascending=body.sort_order == "asc",
            with_values=with_values,
        )
        views: list[dict[str, Any]] = []
        for thread in found:
            view = thread.as_dict() if access.matches(filters, thread.metadata) else None
            if view is not None:
                shown = selected(view, body.select)
                views.append({**shown, "extracted": extract(view, paths)} if paths else shown)
        return views, conversation_search.count(connection, wanted)

    found, total = await served.store.aread(look)
    page_headers(response, body, found, total)
    return found


@router.post("/count")
async def count(body: ThreadFilter, request: Request, served: ServedBy, caller: CalledBy) -> int:
    """How many threads there are."""
    wanted, _ = await _wanted(body, request, caller)
    return await served.store.aread(partial(conversation_search.count, wanted=wanted))


@router.post("/prune")
async def prune(body: Pruning, request: Request, served: ServedBy, caller: CalledBy) -> dict[str, int]:
    """Delete threads, or all but the newest checkpoint of each; those that are not there are passed over."""
    found: list[Thread] = []
    for thread_id in dict.fromkeys(body.thread_ids):
        try:
            found.append(await found_thread(request, served, caller, thread_id, "delete"))
        except ThreadNotFound:
            continue
    if body.strategy == "keep_latest":
        await StepSaver(served.store).aprune([thread.thread_id for thread in found])
    else:
        await _remove(served, caller, found)
    return {"pruned_count": len(found)}


@router.get("/{thread_id}")
async def get(
    thread_id: str, request: Request, served: ServedBy, caller: CalledBy, include: str = ""
) -> dict[str, Any]:
    """A thread; with `include=ttl` also how long it is kept."""
    extras = [one for one in include.split(",") if one]
    if any(one != "ttl" for one in extras):
        raise RequestInvalid("include knows ttl alone", field="include")
    thread = await found_thread(request, served, caller, thread_id, "read")
    view = thread.as_dict()
    if extras:
        ttl = thread.ttl
        view["ttl"] = None if ttl is None else {**ttl.as_dict(), "expires_at": rfc3339(thread.expires_at)}
    return view


@router.patch("/{thread_id}", response_model=None)
async def change(
    thread_id: str,
    body: ThreadChange,
    request: Request,
    served: ServedBy,
    caller: CalledBy,
    prefer: Annotated[str, Header()] = "",
) -> Response | dict[str, Any]:
    """Lay metadata over a thread's, and set how long it is kept."""
    value: dict[str, Any] = {"metadata": body.metadata or {}}
    thread = await found_thread(request, served, caller, thread_id, "update", value)
    await apart(payload.check_payload, value["metadata"])
    ttl: Any = _ttl(body.ttl) if "ttl" in body.model_fields_set else KEEP
    operation = partial(
        conversations.change,
        thread_id=thread.thread_id,
        now=served.store.clock.now_ms(),
        metadata=value["metadata"],
        ttl=ttl,
    )
    changed = await served.store.awrite(operation)
    return Response(status_code=204) if MINIMAL.search(prefer) else changed.as_dict()


@router.delete("/{thread_id}", status_code=204)
async def remove(thread_id: str, request: Request, served: ServedBy, caller: CalledBy) -> None:
    """Delete a thread with its runs, checkpoints and events. Runs in flight are cancelled, and their end awaited."""
    thread = await found_thread(request, served, caller, thread_id, "delete")
    context = RunContext(request, served, caller)
    going = await served.store.aread(partial(runs.going, thread_id=thread.thread_id))
    for run in reversed(going):  # the one that runs comes last, so that none that waits takes its turn
        await context.cancel(run)
    for run in going:
        await following.ended(served, context.watch, run, LONGEST_CANCEL_S)
    await _remove(served, caller, [thread])


@router.post("/{thread_id}/copy")
async def copy(thread_id: str, request: Request, served: ServedBy, caller: CalledBy, once: AskedOnce) -> Response:
    """A new thread with the state and history of this one, and none of its runs."""
    source = await found_thread(request, served, caller, thread_id, "read")
    await access.allow(request, "threads", "create", {"metadata": dict(source.metadata)})
    now = served.store.clock.now_ms()
    copied_id = uuid7(now)

    def make(connection: Connection) -> Reply:
        copied = conversations.copy(connection, source, copied_id, owner=caller.makes_for, now=now)
        return Reply(200, copied.as_dict(), {"Content-Location": f"/threads/{copied_id}"})

    # The state first: a thread that can be found has its state.
    await StepSaver(served.store).acopy_thread(source.thread_id, copied_id)
    answered = await once.write(make)
    if answered.replayed:
        await StepSaver(served.store).adelete_thread(copied_id)
    return answered.response()


async def _wanted(body: ThreadFilter, request: Request, caller: Caller) -> tuple[Wanted, access.Filters]:
    value = body.model_dump(exclude_none=True)
    filters = await access.allow(request, "threads", "search", value)
    wanted = Wanted(
        caller.owner,
        metadata=value.get("metadata"),
        values=body.values,
        ids=body.ids if isinstance(body, ThreadSearch) else None,
        status=body.status,
        passing=as_metadata(filters),
    )
    return wanted, filters


async def _remove(served: Served, caller: Caller, found: list[Thread]) -> None:
    """All of them, or none."""
    now, tables = served.store.clock.now_ms(), served.store.database.checkpoint_tables

    def operation(connection: Connection) -> None:
        for thread in found:
            thread_removal.remove(connection, thread, now=now, actor=caller.identity, checkpoint_tables=tables)

    await served.store.awrite(operation)


async def _build(served: Served, caller: Caller, thread_id: str, supersteps: list[Superstep]) -> None:
    """Give a thread that was made a moment ago its state; if that fails, it is gone again."""
    thread = await served.store.aread(partial(conversations.find, thread_id=thread_id))
    steps = [[_engine_update(update) for update in step.updates] for step in supersteps]
    try:
        async with opened(served, thread, "threads.update", StepSaver(served.store)) as graph:
            try:
                await graph.abulk_update_state({"configurable": {"thread_id": thread_id}}, steps)
            except (InvalidUpdateError, ValueError) as error:
                raise RequestInvalid(f"the supersteps cannot be applied: {error}", field="supersteps") from error
            await note_state(served, thread, graph, caller.identity)
    except BaseException:
        await _remove(served, caller, [thread])
        raise


def _engine_update(update: Update) -> EngineUpdate:
    values: Any = update.values
    if update.command is not None:
        given = update.command.model_dump(exclude_none=True)
        values = Command(**given)
    return EngineUpdate(values, update.as_node)


def _ttl(given: TimeToLive | float | None) -> Ttl | None:
    if given is None:
        return None
    return Ttl(given.ttl, given.strategy) if isinstance(given, TimeToLive) else Ttl(given)
