"""LangGraph's runs: start, watch, wait for, cancel and list them; on a thread, or on one made for a single run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, cast

from fastapi import APIRouter, Body, Header, Query, Request, Response
from pydantic import BaseModel, ConfigDict
from sqlalchemy import Connection
from starlette.responses import JSONResponse

from everstep.checkpoints import assistants, conversations, runs
from everstep.checkpoints.replies import Reply
from everstep.checkpoints.runs import Run, RunRequest
from everstep.checkpoints.thread import Thread
from everstep.clock import rfc3339, uuid7
from everstep.errors import RequestInvalid, RunNotFound, ThreadNotFound
from everstep.runtime.addresses import Guard
from everstep.server import access, configurable
from everstep.server.context import CalledBy, Caller, Served, ServedBy
from everstep.server.langgraph import following
from everstep.server.langgraph.frames import after
from everstep.server.langgraph.run_requests import BatchedRun, RunCreate
from everstep.server.once import Answered, AskedOnce, Once
from everstep.server.watch import Watch

router = APIRouter(tags=["runs"])
Status = Literal["pending", "running", "error", "success", "timeout", "interrupted"]
LONGEST_CANCEL_S = 60.0
_PREFER_WAIT = "wait="
AsStands = Callable[[Connection, str, RunRequest], RunRequest]
"""Gives the request by how its thread stands."""


class RunContext:
    """What the path functions of runs share: the request, what is served, who asks."""

    def __init__(self, request: Request, served: Served, caller: Caller) -> None:
        self.request, self.served, self.caller = request, served, caller
        state = request.app.state
        if not hasattr(state, "watch"):
            state.watch = Watch(served.store)
        self.watch = cast(Watch, state.watch)

    async def start(
        self, body: RunCreate, once: Once, thread_id: str | None, ending: str = "", as_stands: AsStands | None = None
    ) -> tuple[Run, Answered]:
        """Admit a run; its answer tells where it is, and where to ask for what follows.

        Args:
            body: What is asked for.
            once: Creates it once.
            thread_id: Its thread; None: one of its own.
            ending: What of the run's path tells what follows.
            as_stands: Changes the request by how the thread stands, in the transaction that admits it.
        """
        store, caller, now = self.served.store, self.caller, self.served.store.clock.now_ms()
        if body.command is not None and body.command.resume is not None:
            access.require(caller, "review")
        if body.webhook is not None and not self.served.http.webhooks:
            raise RequestInvalid("webhook is not supported: http.disable_webhooks of langgraph.json says so")
        if body.webhook is not None:
            Guard.of(self.served.policies.webhooks.allow).require(body.webhook)
        assistant = await store.aread(
            lambda connection: assistants.resolve(connection, body.assistant_id, owner=caller.owner)
        )
        self.served.graphs.require(assistant.graph)
        value: dict[str, Any] = {"thread_id": thread_id, "assistant_id": assistant.assistant_id, **body.model_dump()}
        filters = await access.allow(self.request, "threads", "create_run", value)
        told = configurable.of_request(self.request)
        request = body.as_request(assistant, told, stateless=thread_id is None)
        request = replace(request, metadata={**request.metadata, **(value.get("metadata") or {})})
        policy = self.served.policies.of_graph(assistant.graph)

        def create(connection: Connection) -> Reply:
            thread = self._thread(connection, body, request, thread_id, filters, now)
            run = runs.create(
                connection,
                request if as_stands is None else as_stands(connection, thread.thread_id, request),
                thread_id=thread.thread_id,
                owner=thread.owner,
                now=now,
                actor=caller.identity,
                policy=policy,
            )
            place = f"/runs/{run.run_id}" if thread_id is None else f"/threads/{run.thread_id}/runs/{run.run_id}"
            where = {"Content-Location": place, **({"Location": place + ending} if ending else {})}
            return Reply(200, view(run), where)

        answered = await once.write(create)
        run_id = str(cast("Mapping[str, Any]", answered.reply.body)["run_id"])
        return await store.aread(lambda connection: runs.find(connection, run_id)), answered

    def _thread(
        self,
        connection: Connection,
        body: RunCreate,
        request: RunRequest,
        thread_id: str | None,
        filters: access.Filters,
        now: int,
    ) -> Thread:
        if thread_id is not None:
            try:
                found = conversations.find(connection, thread_id, owner=self.caller.owner)
            except ThreadNotFound:
                if body.if_not_exists != "create":
                    raise
            else:
                if not access.matches(filters, found.metadata):
                    raise ThreadNotFound(f"there is no thread {thread_id}", thread_id=thread_id)
        owner = self.caller.makes_for
        metadata = {name: one for name, one in filters.items() if isinstance(one, str)}
        thread = conversations.ensure(
            connection,
            thread_id or uuid7(now),
            owner=owner,
            now=now,
            graph=request.graph,
            assistant_id=request.assistant_id,
            metadata=metadata,
        )
        if not self.caller.sees(thread.owner):
            raise ThreadNotFound(f"there is no thread {thread_id}", thread_id=thread_id)
        return thread

    async def run(self, run_id: str, thread_id: str | None, action: str = "read") -> Run:
        """The run, if the caller may see it.

        Raises:
            RunNotFound: There is none for this caller.
        """
        filters = await access.allow(self.request, "threads", action, {"thread_id": thread_id, "run_id": run_id})

        def look(connection: Connection) -> Run:
            run = runs.find(connection, run_id.lower())
            owner, metadata = _owner_of(connection, run)
            fits = thread_id is None or run.thread_id == thread_id.lower()
            if not fits or not self.caller.sees(owner) or not access.matches(filters, metadata):
                raise RunNotFound(f"there is no run {run_id}", run=run_id)
            return run

        return await self.served.store.aread(look)

    async def cancel(self, run: Run, *, rollback: bool = False) -> None:
        """Ask for a run's end."""
        store, actor = self.served.store, self.caller.identity
        now = store.clock.now_ms()
        await store.awrite(lambda c: runs.cancel(c, runs.find(c, run.run_id), now=now, actor=actor, rollback=rollback))

    def leave(self, run: Run, cancels: bool) -> following.Leave | None:
        """What the client's leaving does to the run."""

        async def cancel() -> None:
            await self.cancel(run)

        return cancel if cancels else None


def _owner_of(connection: Connection, run: Run) -> tuple[str, dict[str, Any]]:
    from everstep.checkpoints import jobs

    try:
        thread = conversations.find(connection, run.thread_id)
    except ThreadNotFound:  # it was made for this run, and is gone
        return jobs.get(connection, run.job_id).owner, {}
    return thread.owner, thread.metadata


def view(run: Run) -> dict[str, Any]:
    """A run as LangGraph's clients read it."""
    return {
        "run_id": run.run_id,
        "thread_id": run.thread_id,
        "assistant_id": run.assistant_id,
        "created_at": rfc3339(run.created_at),
        "updated_at": rfc3339(run.updated_at),
        "status": run.status,
        "metadata": json.loads(run.metadata_json),
        "kwargs": json.loads(run.kwargs_json),
        "multitask_strategy": run.multitask_strategy,
    }


# ---- start


@router.post("/threads/{thread_id}/runs")
async def create_run(
    thread_id: str, body: RunCreate, request: Request, served: ServedBy, caller: CalledBy, once: AskedOnce
) -> Response:
    """Start a run on a thread, and go on at once."""
    _, answered = await RunContext(request, served, caller).start(body, once, thread_id)
    return answered.response()


@router.post("/runs")
async def create_stateless_run(
    body: RunCreate, request: Request, served: ServedBy, caller: CalledBy, once: AskedOnce
) -> Response:
    """Start a run on a thread of its own, and go on at once."""
    _, answered = await RunContext(request, served, caller).start(body, once, None)
    return answered.response()


@router.post("/runs/batch")
async def create_runs(
    bodies: Annotated[list[BatchedRun], Body(max_length=1000)],
    request: Request,
    served: ServedBy,
    caller: CalledBy,
) -> list[dict[str, Any]]:
    """Start several runs, each on a thread of its own."""
    context = RunContext(request, served, caller)
    return [view((await context.start(body, Once(served.store, None), None))[0]) for body in bodies]


@router.post("/threads/{thread_id}/runs/stream")
async def stream_new_run(
    thread_id: str, body: RunCreate, request: Request, served: ServedBy, caller: CalledBy, once: AskedOnce
) -> Response:
    """Start a run on a thread and stream its events."""
    return await _stream_new(RunContext(request, served, caller), body, once, thread_id)


@router.post("/runs/stream")
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
        leave=context.leave(run, body.on_disconnect == "cancel"),
        headers=answered.headers,
    )


@router.post("/threads/{thread_id}/runs/wait")
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


@router.post("/runs/wait")
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
        return following.wait(context.served, context.watch, run, leave=leave, headers=answered.headers)
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
        return runs.of_thread(connection, thread.thread_id, status=status, limit=limit, offset=offset)

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
    run = await context.run(run_id, thread_id)
    return following.wait(context.served, context.watch, run, leave=context.leave(run, cancels))


@router.get("/threads/{thread_id}/runs/{run_id}/stream")
async def stream_run(
    thread_id: str,
    run_id: str,
    request: Request,
    served: ServedBy,
    caller: CalledBy,
    stream_mode: Annotated[list[str] | None, Query()] = None,
    cancel_on_disconnect: bool = False,
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
    run = await context.run(run_id, thread_id)
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


# ---- end


class CancelMany(BaseModel):
    """Which runs to cancel."""

    model_config = ConfigDict(extra="forbid")

    thread_id: str | None = None
    run_ids: list[str] | None = None
    status: Literal["pending", "running", "all"] | None = None


Action = Literal["interrupt", "rollback"]


@router.post(
    "/threads/{thread_id}/runs/{run_id}/cancel",
    status_code=202,
    response_class=Response,
    responses={204: {"description": "It is over."}},
)
async def cancel_run(
    thread_id: str,
    run_id: str,
    request: Request,
    served: ServedBy,
    caller: CalledBy,
    wait: bool = False,
    action: Action = "interrupt",
) -> Response:
    """Cancel a run; `rollback` takes its steps away, too. With `wait` answered when it is over."""
    context = RunContext(request, served, caller)
    run = await context.run(run_id, thread_id, "update")
    await context.cancel(run, rollback=action == "rollback")
    if not wait:
        return Response(status_code=202)
    await following.ended(served, context.watch, run, LONGEST_CANCEL_S)
    return Response(status_code=204)


@router.post("/runs/cancel", status_code=204)
async def cancel_runs(
    body: CancelMany, request: Request, served: ServedBy, caller: CalledBy, action: Action = "interrupt"
) -> Response:
    """Cancel several runs: those named, or all of a status, of one thread or of every one the caller sees."""
    if (body.run_ids is None) == (body.status is None):
        raise RequestInvalid("give either run_ids or status", next_step='such as {"status": "pending"}')
    context = RunContext(request, served, caller)
    if body.run_ids is not None:
        found = [await context.run(run_id, body.thread_id, "update") for run_id in body.run_ids]
    else:
        status = None if body.status == "all" else body.status
        found = await served.store.aread(
            lambda c: runs.going(c, status=status, thread_id=body.thread_id, owner=caller.owner)
        )
        found = [await context.run(run.run_id, None, "update") for run in found]
    for run in found:
        await context.cancel(run, rollback=action == "rollback")
    return Response(status_code=204)


@router.delete("/threads/{thread_id}/runs/{run_id}", status_code=204)
async def delete_run(thread_id: str, run_id: str, request: Request, served: ServedBy, caller: CalledBy) -> Response:
    """Forget a run that is over: it and its events. Its steps stay a part of the thread."""
    context = RunContext(request, served, caller)
    run = await context.run(run_id, thread_id, "delete")
    await served.store.awrite(lambda connection: runs.forget(connection, run))
    return Response(status_code=204)
