"""LangGraph's runs: start, watch, wait for and list them; on a thread, or on one made for a single run."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Header, Query, Request, Response
from sqlalchemy import Connection
from starlette.responses import JSONResponse

from everstep.checkpoints import conversations, runs
from everstep.checkpoints.replies import Reply
from everstep.checkpoints.runs import Run
from everstep.errors import RequestInvalid, ThreadNotFound
from everstep.server import access
from everstep.server.bodies import JsonRoute
from everstep.server.context import CalledBy, ServedBy
from everstep.server.langgraph import following, slow_client
from everstep.server.langgraph.frames import after
from everstep.server.langgraph.run_context import RunContext, view
from everstep.server.langgraph.run_requests import BatchedRun, RunCreate
from everstep.server.once import AskedOnce, Once

router = APIRouter(tags=["runs"], route_class=JsonRoute)
Status = Literal["pending", "running", "error", "success", "timeout", "interrupted"]
WithoutEffect = Annotated[str | None, Query(description="Sent by some clients; taken, without effect.")]
_PREFER_WAIT = "wait="


@router.post("/threads/{thread_id}/runs", dependencies=slow_client.TAKES)
async def create_run(
    thread_id: str, body: RunCreate, request: Request, served: ServedBy, caller: CalledBy, once: AskedOnce
) -> Response:
    """Start a run on a thread, and go on at once."""
    _, answered = await RunContext(request, served, caller).start(body, once, thread_id)
    return answered.response()


@router.post("/runs", dependencies=slow_client.TAKES)
async def create_stateless_run(
    body: RunCreate, request: Request, served: ServedBy, caller: CalledBy, once: AskedOnce
) -> Response:
    """Start a run on a thread of its own, and go on at once."""
    _, answered = await RunContext(request, served, caller).start(body, once, None)
    return answered.response()


@router.post("/runs/batch", dependencies=slow_client.TAKES)
async def create_runs(
    bodies: Annotated[list[BatchedRun], Body(max_length=1000)],
    request: Request,
    served: ServedBy,
    caller: CalledBy,
    once: AskedOnce,
) -> Response:
    """Start several runs, each on a thread of its own: all of them, or none if one is refused."""
    context = RunContext(request, served, caller)
    created = [await context.prepared(body, None) for body in bodies]
    answered = await once.write(lambda connection: Reply(200, [create(connection).body for create in created], {}))
    return answered.response()


@router.post("/threads/{thread_id}/runs/stream", dependencies=slow_client.TAKES)
async def stream_new_run(
    thread_id: str, body: RunCreate, request: Request, served: ServedBy, caller: CalledBy, once: AskedOnce
) -> Response:
    """Start a run on a thread and stream its events."""
    return await _stream_new(RunContext(request, served, caller), body, once, thread_id)


@router.post("/runs/stream", dependencies=slow_client.TAKES)
async def stream_new_stateless_run(
    body: RunCreate, request: Request, served: ServedBy, caller: CalledBy, once: AskedOnce
) -> Response:
    """Start a run on a thread of its own and stream its events."""
    return await _stream_new(RunContext(request, served, caller), body, once, None)


async def _stream_new(context: RunContext, body: RunCreate, once: Once, thread_id: str | None) -> Response:
    run, answered = await context.start(body, once, thread_id, "/stream")
    return following.stream(
        context.served,
        context.watch,
        run,
        modes=tuple(body.stream_mode),
        after=0,
        reader=run.run_id,
        leave=context.leave(run, body.on_disconnect == "cancel"),
        headers=answered.headers,
    )


@router.post("/threads/{thread_id}/runs/wait", dependencies=slow_client.TAKES)
async def wait_for_new_run(
    thread_id: str,
    body: RunCreate,
    request: Request,
    served: ServedBy,
    caller: CalledBy,
    once: AskedOnce,
    prefer: Annotated[str, Header()] = "",
) -> Response:
    """Start a run on a thread and wait for its output; with `Prefer: wait=SECONDS` for so long at most, then 202."""
    return await _wait_for_new(RunContext(request, served, caller), body, once, thread_id, prefer)


@router.post("/runs/wait", dependencies=slow_client.TAKES)
async def wait_for_new_stateless_run(
    body: RunCreate,
    request: Request,
    served: ServedBy,
    caller: CalledBy,
    once: AskedOnce,
    prefer: Annotated[str, Header()] = "",
) -> Response:
    """Start a run on a thread of its own and wait for its output; see `/threads/{thread_id}/runs/wait`."""
    return await _wait_for_new(RunContext(request, served, caller), body, once, None, prefer)


async def _wait_for_new(
    context: RunContext, body: RunCreate, once: Once, thread_id: str | None, prefer: str
) -> Response:
    run, answered = await context.start(body, once, thread_id, "/join")
    leave = context.leave(run, body.on_disconnect == "cancel")
    seconds = _seconds(prefer)
    if seconds is None:
        return await following.wait(context.served, context.watch, run, leave=leave, headers=answered.headers)
    run = await following.ended(context.served, context.watch, run, seconds)
    if run.ended_at is None:
        return JSONResponse(view(run), status_code=202, headers={**answered.headers, "Retry-After": "1"})
    return JSONResponse(following.output(run), headers=answered.headers)


def _seconds(prefer: str) -> float | None:
    """How long `Prefer: wait=…` (RFC 7240) waits at most, seconds; None without one."""
    asked = next((part.strip() for part in prefer.split(",") if part.strip().startswith(_PREFER_WAIT)), None)
    if asked is None:
        return None
    given = asked.removeprefix(_PREFER_WAIT)
    if not given.isascii() or not given.isdigit():
        raise RequestInvalid(f"Prefer: {asked} names no number of seconds", next_step="send Prefer: wait=30")
    return min(float(given), 3600.0)


# ---- look


@router.get("/threads/{thread_id}/runs")
async def list_runs(
    thread_id: str,
    request: Request,
    served: ServedBy,
    caller: CalledBy,
    limit: Annotated[int, Query(ge=1, le=1000)] = 10,
    offset: Annotated[int, Query(ge=0, lt=2**31)] = 0,
    status: Status | None = None,
    select: Annotated[list[str] | None, Query()] = None,
) -> list[dict[str, Any]]:
    """A thread's runs, newest first."""
    filters = await access.allow(request, "threads", "read", {"thread_id": thread_id})

    def look(connection: Connection) -> list[Run]:
        thread = conversations.find(connection, thread_id, owner=caller.owner)
        if not access.matches(filters, thread.metadata):
            raise ThreadNotFound(f"there is no thread {thread_id}", thread_id=thread_id)
        return runs.of_thread(
            connection, thread.thread_id, status=status, limit=limit, offset=offset, with_values=False
        )

    found = [view(run) for run in await served.store.aread(look)]
    if select is None:
        return found
    names = set(select)
    if unknown := names - {
        "run_id",
        "thread_id",
        "assistant_id",
        "created_at",
        "updated_at",
        "status",
        "metadata",
        "kwargs",
        "multitask_strategy",
    }:
        raise RequestInvalid(f"select: {sorted(unknown)[0]} is no field of a run")
    return [{name: one[name] for name in one if name in names} for one in found]


@router.get("/threads/{thread_id}/runs/{run_id}")
async def get_run(thread_id: str, run_id: str, request: Request, served: ServedBy, caller: CalledBy) -> dict[str, Any]:
    """A run."""
    return view(await RunContext(request, served, caller).run(run_id, thread_id))


@router.get("/runs/{run_id}")
async def get_stateless_run(run_id: str, request: Request, served: ServedBy, caller: CalledBy) -> dict[str, Any]:
    """A run, whatever its thread."""
    return view(await RunContext(request, served, caller).run(run_id, None))


@router.get("/threads/{thread_id}/runs/{run_id}/join")
async def join_run(
    thread_id: str,
    run_id: str,
    request: Request,
    served: ServedBy,
    caller: CalledBy,
    cancel_on_disconnect: bool = False,
) -> Response:
    """Wait for a run's output."""
    return await _join(RunContext(request, served, caller), run_id, thread_id, cancel_on_disconnect)


@router.get("/runs/{run_id}/join")
async def join_stateless_run(
    run_id: str, request: Request, served: ServedBy, caller: CalledBy, cancel_on_disconnect: bool = False
) -> Response:
    """Wait for the output of a run, whatever its thread."""
    return await _join(RunContext(request, served, caller), run_id, None, cancel_on_disconnect)


async def _join(context: RunContext, run_id: str, thread_id: str | None, cancels: bool) -> Response:
    run = await context.run_to_follow(run_id, thread_id, cancels)
    return await following.wait(context.served, context.watch, run, leave=context.leave(run, cancels))


@router.get("/threads/{thread_id}/runs/{run_id}/stream")
async def stream_run(
    thread_id: str,
    run_id: str,
    request: Request,
    served: ServedBy,
    caller: CalledBy,
    stream_mode: Annotated[list[str] | None, Query()] = None,
    cancel_on_disconnect: bool = False,
    checkpoint_id: WithoutEffect = None,
    namespace: WithoutEffect = None,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """A run's events, from the first, or from behind `Last-Event-ID`."""
    context = RunContext(request, served, caller)
    return await _stream(context, run_id, thread_id, stream_mode, cancel_on_disconnect, last_event_id)


@router.get("/runs/{run_id}/stream")
async def stream_stateless_run(
    run_id: str,
    request: Request,
    served: ServedBy,
    caller: CalledBy,
    stream_mode: Annotated[list[str] | None, Query()] = None,
    cancel_on_disconnect: bool = False,
    checkpoint_id: WithoutEffect = None,
    namespace: WithoutEffect = None,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """The events of a run, whatever its thread; see `/threads/{thread_id}/runs/{run_id}/stream`."""
    context = RunContext(request, served, caller)
    return await _stream(context, run_id, None, stream_mode, cancel_on_disconnect, last_event_id)


async def _stream(
    context: RunContext,
    run_id: str,
    thread_id: str | None,
    modes: list[str] | None,
    cancels: bool,
    last_event_id: str | None,
) -> Response:
    run = await context.run_to_follow(run_id, thread_id, cancels)
    asked = [mode for given in modes or () for mode in given.split(",") if mode]
    chosen = asked or json.loads(run.kwargs_json).get("stream_mode") or ["values"]
    return following.stream(
        context.served,
        context.watch,
        run,
        modes=tuple(chosen),
        after=after(last_event_id),
        leave=context.leave(run, cancels),
    )
