"""A job's log as server-sent events, from any place in it, until the job is over."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

from fastapi import Request
from sqlalchemy import Connection
from starlette.responses import StreamingResponse

from everstep.checkpoints import events, job_log, jobs
from everstep.checkpoints.job import Job
from everstep.checkpoints.job_log import Entry, Place
from everstep.errors import JobNotFound
from everstep.server.context import Served
from everstep.server.langgraph.frames import frame
from everstep.server.native.waiting import watch_of
from everstep.server.reading import Reading
from everstep.server.waiters import Waiter
from everstep.server.watch import Watch

HEARTBEAT_S = 15.0
OVER = ("done", "failed")
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
DESCRIBED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Events `status` (`from`, `to`, `actor`, `reason`), what runs emit, and `end` with the job's"
        " `status`, `result` and `error`. A comment now and then keeps the connection.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}


def stream(request: Request, served: Served, job: Job, after: Place) -> StreamingResponse:
    """What happens to a job, as it happens.

    Args:
        request: The request.
        served: What is served.
        job: The job.
        after: How far the client has seen it.
    """
    return StreamingResponse(_frames(request, served, job, after), media_type="text/event-stream", headers=_HEADERS)


async def _frames(request: Request, served: Served, job: Job, place: Place) -> AsyncGenerator[bytes]:
    clock = asyncio.get_running_loop().time

    def look(connection: Connection) -> tuple[list[Entry], Job]:
        now = jobs.find(connection, job.public_id)
        return job_log.read(connection, now, place), now

    async with _woken(request, served, job) as waiter, Reading(served) as reading:
        quiet_since = clock()
        while True:
            waiter.look()
            try:
                found, now = await served.store.aread(look)
            except JobNotFound:  # deleted
                return
            await reading.attend({entry.run_id for entry in found if entry.run_id is not None}, place.event)
            for entry in found:
                told = _frame(entry)
                yield told
                place = entry.place
                over = entry.run_id if entry.name == events.END else None
                reading.took(place.event, entry.at, len(told), over=over)
            if found:  # there may be more
                quiet_since = clock()
                continue
            if now.status in OVER:
                yield _end(now, place)
                return
            await waiter.wait(max(quiet_since + HEARTBEAT_S - clock(), 0))
            if clock() - quiet_since >= HEARTBEAT_S:
                yield b": heartbeat\n\n"
                quiet_since = clock()


class _Both:
    """One who waits for either of two."""

    def __init__(self, first: Waiter, second: Waiter) -> None:
        self._first = first
        self._second = second

    def look(self) -> None:
        self._first.look()
        self._second.look()

    async def wait(self, most_s: float) -> None:
        waiting: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(self._first.wait(most_s)),
            asyncio.ensure_future(self._second.wait(most_s)),
        ]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)


@asynccontextmanager
async def _woken(request: Request, served: Served, job: Job) -> AsyncGenerator[Waiter | _Both]:
    """What wakes the stream: changes of status and, of a job that has runs, what those emit."""
    async with watch_of(request, served).waiting(job.id) as changes:
        if job.run_json is None:
            yield changes
            return
        state = request.app.state
        if not hasattr(state, "watch"):
            state.watch = Watch(served.store)
        async with cast(Watch, state.watch).waiting(job.thread_id) as emitted:
            yield _Both(changes, emitted)


def _frame(entry: Entry) -> bytes:
    """One event; those of runs are named as LangGraph's streams name them."""
    name = f"{entry.name}{events.SEPARATOR}{entry.namespace}" if entry.namespace else entry.name
    name = f"run.{name}" if entry.run_id is not None and entry.name == events.END else name
    return _with_id(name, entry.data, entry.place)


def _end(job: Job, place: Place) -> bytes:
    told = {
        "status": job.status,
        "result": None if job.result_json is None else json.loads(job.result_json),
        "error": None if job.error_json is None else json.loads(job.error_json),
    }
    return _with_id("end", told, place)


def _with_id(name: str, data: Any, place: Place) -> bytes:
    return frame(name, json.dumps(data), None)[:-1] + f"id: {place}\n\n".encode()
