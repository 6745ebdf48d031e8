"""Following a run: its events as a stream, and its end for those who wait for nothing else.

A stream ends with `end` when the run is over, and only then: a client whose connection breaks before goes on behind the
last event it saw. Whoever leaves changes nothing, unless it asked that its leaving cancels the run.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from typing import Any

from starlette.responses import Response, StreamingResponse

from everstep.checkpoints import events, runs
from everstep.checkpoints.events import Event
from everstep.checkpoints.runs import Run
from everstep.errors import RunNotFound
from everstep.server.context import Served
from everstep.server.langgraph.frames import Frames
from everstep.server.reading import Reading
from everstep.server.watch import Watch

HEARTBEAT_S = 4.0
SOON_S = 0.2
"""Who waits for a run hears after this time at the latest that it has begun, and where it is."""
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
Leave = Callable[[], Awaitable[None]]
"""What happens when a client leaves before the end."""


def stream(
    served: Served,
    watch: Watch,
    run: Run,
    *,
    modes: tuple[str, ...],
    after: int,
    leave: Leave | None,
    reader: str | None = None,
    headers: dict[str, str] | None = None,
) -> StreamingResponse:
    """A run's events as they come.

    Args:
        served: What is served.
        watch: Wakes it.
        run: The run.
        modes: The stream modes the client asked for.
        after: The event behind which it begins.
        leave: What happens when the client leaves before the end.
        reader: By which name it was noted that this client reads; None: it is not yet.
        headers: Further headers of the answer.
    """
    body = _frames(served, watch, run, modes, after, reader)
    return StreamingResponse(
        _or_leave(served, body, leave), media_type="text/event-stream", headers={**_HEADERS, **(headers or {})}
    )


async def wait(
    served: Served, watch: Watch, run: Run, *, leave: Leave | None, headers: dict[str, str] | None = None
) -> Response:
    """A run's output, when it is over; until then an empty line now and then keeps the connection."""
    run = await ended(served, watch, run, SOON_S)
    if run.ended_at is not None:  # in one piece: each costs as much as the whole
        answered = {**_HEADERS, **(headers or {})}
        return Response(json.dumps(output(run)), media_type="application/json", headers=answered)
    body = _output(served, watch, run)
    return StreamingResponse(
        _or_leave(served, body, leave), media_type="application/json", headers={**_HEADERS, **(headers or {})}
    )


async def ended(served: Served, watch: Watch, run: Run, most_s: float) -> Run:
    """The run when it is over, or as it is after so many seconds."""
    clock = asyncio.get_running_loop().time
    until = clock() + most_s
    async with watch.waiting_for_end(run.thread_id) as waiter:
        while True:
            waiter.look()
            run = await _now(served, watch, run)
            left = until - clock()
            if run.ended_at is not None or left <= 0:
                return run
            await waiter.wait(left)


def output(run: Run) -> Any:
    """What a run that is over came to, as `wait` and `join` answer."""
    if run.status in ("error", "timeout", "interrupted") and run.error_json is not None:
        return {"__error__": json.loads(run.error_json)}
    return json.loads(run.values_json or "null")


async def _frames(
    served: Served, watch: Watch, run: Run, modes: tuple[str, ...], after: int, reader: str | None
) -> AsyncGenerator[bytes]:
    frames = Frames(modes)
    if after and "messages" in modes:  # whole messages so far are told again with every part
        async for event in _seen(watch, run, after):
            frames.pass_over(event)
    place = after
    async with watch.waiting(run.thread_id) as waiter, Reading(served, reader) as reading:
        await reading.attend({run.run_id}, place)
        while True:
            waiter.look()
            found = await _behind(watch, run, place)
            for event in found:
                place = event.id
                size = 0
                for frame in frames.of(event):
                    yield frame
                    size += len(frame)
                over = run.run_id if event.method == events.END else None
                reading.took(event.id, event.at, size, over=over)
                if over is not None:
                    return
            if events.is_full(found):
                continue
            is_over = not found and (await _now(served, watch, run)).ended_at is not None
            if is_over and not await _behind(watch, run, place):
                yield b"event: end\ndata: null\n\n"  # its events are gone, or it has seen them all
                return
            while not await waiter.wait(HEARTBEAT_S):
                yield b": heartbeat\n\n"


async def _seen(watch: Watch, run: Run, until: int) -> AsyncGenerator[Event]:
    place = 0
    while found := await _behind(watch, run, place):
        for event in found:
            if event.id > until:
                return
            place = event.id
            yield event


async def _behind(watch: Watch, run: Run, place: int) -> list[Event]:
    return await watch.reads.read(lambda connection: events.of_run(connection, run.run_id, after=place))


async def _output(served: Served, watch: Watch, run: Run) -> AsyncGenerator[bytes]:
    yield b"\n"
    while True:
        run = await ended(served, watch, run, HEARTBEAT_S)
        if run.ended_at is not None:
            yield json.dumps(output(run)).encode()
            return
        yield b"\n"


async def _now(served: Served, watch: Watch, run: Run) -> Run:
    """The run as it is; one that was deleted meanwhile is over."""
    try:
        return await watch.reads.read(lambda connection: runs.find(connection, run.run_id))
    except RunNotFound:
        if run.ended_at is not None:
            return run
        gone = json.dumps({"error": RunNotFound.code, "message": "the run was deleted"})
        return replace(run, status="interrupted", error_json=gone, ended_at=served.store.clock.now_ms())


async def _or_leave(served: Served, body: AsyncGenerator[bytes], leave: Leave | None) -> AsyncGenerator[bytes]:
    over = False
    try:
        async for part in body:
            yield part
        over = True
    finally:
        await body.aclose()
        if not over and leave is not None and not served.stopping.is_set():
            leaving = asyncio.ensure_future(leave())
            _leaving.add(leaving)
            leaving.add_done_callback(_leaving.discard)


_leaving: set[asyncio.Future[None]] = set()
"""Kept until they are done: whose client is gone waits for nobody."""
