"""Paths of a thread's state: what it is, was, and how a client changes it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from langchain_core.runnables import RunnableConfig
from langgraph.errors import InvalidUpdateError
from pydantic import Field
from sqlalchemy import Connection
from starlette.responses import Response

from everstep.checkpoints import conversations, payload, rollback, thread_updates
from everstep.checkpoints.idle_saver import IdleSaver
from everstep.checkpoints.json_filters import check_json
from everstep.checkpoints.saver import StepSaver
from everstep.checkpoints.thread import Thread
from everstep.errors import CheckpointNotFound, RequestInvalid, ThreadHasNoGraph
from everstep.graphs.opening import Graph, Purpose
from everstep.runtime.results import json_ready
from everstep.server.bodies import JsonRoute, apart
from everstep.server.context import CalledBy, Served, ServedBy
from everstep.server.langgraph import snapshots
from everstep.server.langgraph.body import Body, answer
from everstep.server.langgraph.permitted import found_thread

router = APIRouter(prefix="/threads/{thread_id}", tags=["threads"], route_class=JsonRoute)

Select = Annotated[list[str] | None, Query()]
HistoryLimit = Annotated[int, Field(ge=1, le=1000)]


class Place(Body):
    """A checkpoint."""

    thread_id: str | None = None
    checkpoint_ns: str | None = None
    checkpoint_id: str | None = None
    checkpoint_map: dict[str, str] | None = None


class StateAt(Body):
    """Which state is wanted."""

    checkpoint: Place
    subgraphs: bool = False
    select: list[str] | None = None


class StateUpdate(Body):
    """What is changed in a state."""

    values: Any = None
    checkpoint_id: str | None = None
    checkpoint: Place | None = None
    as_node: str | None = None


class MetadataPatch(Body):
    """What is laid over a thread's metadata."""

    metadata: dict[str, Any]


class HistorySearch(Body):
    """Which states are wanted."""

    limit: HistoryLimit = 10
    before: str | Place | None = None
    metadata: dict[str, Any] | None = None
    checkpoint: Place | None = None
    select: list[str] | None = None


@router.get("/state")
async def current(
    thread_id: str, request: Request, served: ServedBy, caller: CalledBy, subgraphs: bool = False, select: Select = None
) -> Response:
    """Where a thread stands; with empty values, if nothing ever ran on it."""
    thread = await found_thread(request, served, caller, thread_id, "read")
    return await _state(served, thread, Place(), subgraphs, select)


@router.get("/state/{checkpoint_id}")
async def at_checkpoint(
    thread_id: str,
    checkpoint_id: str,
    request: Request,
    served: ServedBy,
    caller: CalledBy,
    subgraphs: bool = False,
    select: Select = None,
) -> Response:
    """Where a thread stood at a checkpoint."""
    thread = await found_thread(request, served, caller, thread_id, "read")
    return await _state(served, thread, Place(checkpoint_id=checkpoint_id), subgraphs, select)


@router.post("/state/checkpoint")
async def at_place(thread_id: str, body: StateAt, request: Request, served: ServedBy, caller: CalledBy) -> Response:
    """Where a thread, or a subgraph of it, stood at a checkpoint, or stands."""
    thread = await found_thread(request, served, caller, thread_id, "read")
    return await _state(served, thread, body.checkpoint, body.subgraphs, body.select, names_place=True)


@router.post("/state")
async def change(
    thread_id: str, body: StateUpdate, request: Request, served: ServedBy, caller: CalledBy
) -> dict[str, Any]:
    """Change a thread's state as if a node had; a new checkpoint on top of the newest, or of the one that is named.

    A thread that is brought to its end so no longer waits for a person.
    """
    await apart(payload.check_payload, body.values)
    await apart(check_json, body.values, "values")
    at = body.checkpoint or Place()
    if body.checkpoint_id is not None:
        if at.checkpoint_id not in (None, body.checkpoint_id):
            raise RequestInvalid("checkpoint and checkpoint_id name two places", next_step="give one of them")
        at = at.model_copy(update={"checkpoint_id": body.checkpoint_id})
    thread = await found_thread(request, served, caller, thread_id, "update", {"values": body.values})
    config = _config(thread, at)
    if at.checkpoint_id is not None:
        place = thread.thread_id, at.checkpoint_id, at.checkpoint_ns or ""
        await served.store.aread(lambda connection: conversations.require_checkpoint(connection, *place))
    await served.store.aread(partial(conversations.require_idle, thread_id=thread.thread_id, writing=False))
    await rollback.take_away(served.store, thread.thread_id)
    async with opened(served, thread, "threads.update", IdleSaver(served.store)) as graph:
        try:
            changed = await graph.aupdate_state(config, body.values, as_node=body.as_node)
        except (InvalidUpdateError, ValueError) as error:
            raise RequestInvalid(f"the state cannot be updated so: {error}") from error
        await note_state(served, thread, graph, caller.identity)
    return {"checkpoint": snapshots.place(changed)}


@router.patch("/state", status_code=204)
async def patch(thread_id: str, body: MetadataPatch, request: Request, served: ServedBy, caller: CalledBy) -> None:
    """Lay metadata over a thread's."""
    await apart(payload.check_payload, body.metadata)
    value = {"metadata": body.metadata}
    thread = await found_thread(request, served, caller, thread_id, "update", value)
    now = served.store.clock.now_ms()
    await served.store.awrite(
        lambda connection: conversations.change(connection, thread.thread_id, now=now, metadata=value["metadata"])
    )


@router.post("/history")
async def history(
    thread_id: str, body: HistorySearch, request: Request, served: ServedBy, caller: CalledBy
) -> Response:
    """The states of a thread, newest first."""
    thread = await found_thread(request, served, caller, thread_id, "read")
    return await _history(served, thread, body)


@router.get("/history")
async def history_by_query(
    thread_id: str,
    request: Request,
    served: ServedBy,
    caller: CalledBy,
    limit: HistoryLimit = 10,
    before: str | None = None,
) -> Response:
    """As `history`."""
    thread = await found_thread(request, served, caller, thread_id, "read")
    return await _history(served, thread, HistorySearch(limit=limit, before=before))


async def _state(
    served: Served,
    thread: Thread,
    at: Place,
    subgraphs: bool,
    select: Sequence[str] | None,
    *,
    names_place: bool = False,
) -> Response:
    snapshots.check_selection(select)
    config = _config(thread, at)
    state = snapshots.empty()
    if thread.graph is not None:
        async with opened(served, thread, "threads.read", StepSaver(served.store)) as graph:
            try:
                snapshot = await graph.aget_state(config, subgraphs=subgraphs)
            except ValueError as error:
                raise _no_checkpoint(thread, at) from error
        if snapshot.created_at is not None:
            state = snapshots.view(snapshot)
    if state["checkpoint"] is None:
        if at.checkpoint_id is not None:
            raise _no_checkpoint(thread, at)
        if names_place:  # RemoteGraph asks so, and reads the thread's id from what it gets
            state["checkpoint"] = {
                "thread_id": thread.thread_id,
                "checkpoint_ns": at.checkpoint_ns or "",
                "checkpoint_id": None,
            }
    return await answer(served.store, snapshots.selected(state, select))


async def _history(served: Served, thread: Thread, body: HistorySearch) -> Response:
    snapshots.check_selection(body.select)
    at = body.checkpoint or Place()
    config = _config(thread, at)
    before: RunnableConfig | None = None
    if body.before is not None:
        earlier = Place(checkpoint_id=body.before) if isinstance(body.before, str) else body.before
        before = _config(thread, earlier) if earlier.checkpoint_id else None
    found: list[dict[str, Any]] = []
    if thread.graph is not None:
        async with opened(served, thread, "threads.read", StepSaver(served.store)) as graph:
            states = graph.aget_state_history(config, filter=body.metadata, before=before, limit=body.limit)
            try:
                found = [snapshots.selected(snapshots.view(one), body.select) async for one in states]
            except ValueError as error:
                raise RequestInvalid(f"the history cannot be searched so: {error}") from error
    return await answer(served.store, found)


def _config(thread: Thread, at: Place) -> RunnableConfig:
    if at.thread_id not in (None, thread.thread_id):
        raise RequestInvalid("the checkpoint is another thread's", field="checkpoint.thread_id")
    named = at.model_dump(exclude_none=True)
    return {"configurable": {**named, "thread_id": thread.thread_id}}


@asynccontextmanager
async def opened(served: Served, thread: Thread, purpose: Purpose, saver: StepSaver) -> AsyncGenerator[Graph]:
    """The graph of a thread.

    Raises:
        ThreadHasNoGraph: It has none.
    """
    if thread.graph is None:
        raise ThreadHasNoGraph(
            f"thread {thread.thread_id} has no graph",
            next_step='run it first, or PATCH it with {"metadata": {"graph_id": …}}',
            thread_id=thread.thread_id,
        )
    config: Any = {"configurable": {**thread.config.get("configurable", {}), "thread_id": thread.thread_id}}
    items = served.graphs.items_of(served.store, thread.owner)
    async with served.graphs.open(thread.graph, config, checkpointer=saver, items=items, purpose=purpose) as graph:
        yield graph


async def note_state(served: Served, thread: Thread, graph: Graph, actor: str) -> None:
    """Note where a thread stands after a client changed its state."""
    after = await graph.aget_state({"configurable": {"thread_id": thread.thread_id}})
    values = await served.store.in_thread(json_ready, after.values)
    interrupts = snapshots.interrupts_by_task(after)
    now = served.store.clock.now_ms()

    def note(connection: Connection) -> None:
        conversations.ensure(connection, thread.thread_id, owner=thread.owner, now=now, make=False)
        status: Any = "interrupted" if after.next else "idle"
        conversations.refresh(
            connection, thread.thread_id, now=now, status=status, values=values, interrupts=interrupts, error=None
        )
        if not after.next:
            thread_updates.end_waiting(connection, thread.thread_id, now=now, actor=actor)

    await served.store.awrite(note)


def _no_checkpoint(thread: Thread, at: Place) -> CheckpointNotFound:
    named = at.checkpoint_id if at.checkpoint_id is not None else f"at {at.checkpoint_ns}"
    return CheckpointNotFound(
        f"thread {thread.thread_id} has no checkpoint {named}",
        next_step="list those it has: POST /threads/{id}/history",
        thread_id=thread.thread_id,
    )
