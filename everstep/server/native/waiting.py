"""Waiting for a job within a request: it is answered when the job ended or waits for a person, or when time is up."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Annotated, Any, cast

from fastapi import Query, Request
from starlette.responses import Response

from everstep.checkpoints import jobs
from everstep.checkpoints.job import Job
from everstep.errors import JobNotFound, JobStateConflict
from everstep.server import access
from everstep.server.context import Caller, Served
from everstep.server.job_watch import JobWatch
from everstep.server.native import seen
from everstep.server.native.shown import JobDetail

LONGEST_S = 3600.0
Wait = Annotated[
    float | None,
    Query(ge=0, le=LONGEST_S, description="Seconds to wait for it; the server's own limit (30) if that is less."),
]
Leaving = Annotated[bool, Query(description="Cancel the job if this client leaves while it waits.")]
LATER: dict[int | str, dict[str, Any]] = {
    202: {
        "model": JobDetail,
        "description": "It goes on: ask at `Location`, not before `Retry-After` seconds.",
        "headers": {
            "Location": {"schema": {"type": "string"}, "description": "Where to ask."},
            "Retry-After": {"schema": {"type": "string"}, "description": "Seconds."},
        },
    }
}


def watch_of(request: Request, served: Served) -> JobWatch:
    """What wakes the requests of this application."""
    state = request.app.state
    if not hasattr(state, "job_watch"):
        state.job_watch = JobWatch(served.store)
    return cast(JobWatch, state.job_watch)


class Waited:
    """A request that waits.

    Args:
        served: What is served.
        caller: Who asks.
        request: The request.
        wait_s: Seconds it wants to wait; 0: not at all.
        cancels: Whether the job is cancelled when its client leaves meanwhile.

    Raises:
        NotPermitted: It would cancel, and the caller may look alone.
    """

    def __init__(self, served: Served, caller: Caller, request: Request, wait_s: float, *, cancels: bool) -> None:
        if cancels:
            access.require(caller, "run")
        self._served = served
        self._caller = caller
        self._request = request
        self._asked = wait_s > 0
        self._wait_s = min(wait_s, served.settings.wait_s)
        self._cancels = cancels

    async def answer(
        self, job_id: str, *, headers: dict[str, str] | None = None, more: dict[str, Any] | None = None
    ) -> Response:
        """The job when it ended or waits for a person; when time is up 202 and where to ask.

        Args:
            job_id: Its id.
            headers: Further headers of the answer.
            more: Further members of the answer.

        Raises:
            JobNotFound: There is none for this caller.
        """
        store, caller = self._served.store, self._caller
        job = await store.aread(lambda connection: seen.job(connection, caller, job_id))
        if self._wait_s and job.status not in jobs.PAUSED and not await self._stayed(self._until_paused(job)):
            await self._left(job)
            return Response(status_code=202)  # nobody reads it
        shown = {**await store.aread(lambda c: seen.detail(c, seen.job(c, caller, job.public_id))), **(more or {})}
        if not self._asked or shown["status"] in jobs.PAUSED:
            return seen.answer(shown, headers=headers)
        later = {"Location": f"/everstep/jobs/{job.public_id}", "Retry-After": "1"}
        return seen.answer(shown, 202, {**(headers or {}), **later})

    async def _until_paused(self, job: Job) -> None:
        clock = asyncio.get_running_loop().time
        until = clock() + self._wait_s
        async with watch_of(self._request, self._served).waiting(job.id) as waiter:
            while True:
                waiter.look()
                found = await self._served.store.aread(lambda connection: jobs.find(connection, job.public_id))
                left = until - clock()
                if found.status in jobs.PAUSED or left <= 0:
                    return
                await waiter.wait(left)

    async def _stayed(self, waiting: Coroutine[Any, Any, None]) -> bool:
        """Wait; whether the client was still there at the end."""
        ended = asyncio.ensure_future(waiting)
        gone = asyncio.ensure_future(self._gone())
        try:
            await asyncio.wait({ended, gone}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                ended.result()
            return ended.done()
        finally:
            for task in (ended, gone):
                task.cancel()
            await asyncio.gather(ended, gone, return_exceptions=True)

    async def _gone(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass

    async def _left(self, job: Job) -> None:
        if not self._cancels or self._served.stopping.is_set():
            return
        now, actor = self._served.store.clock.now_ms(), self._caller.identity
        with suppress(JobStateConflict, JobNotFound):  # it ended meanwhile
            await self._served.store.awrite(
                lambda connection: jobs.cancel(connection, jobs.lock(connection, job.id), now=now, actor=actor)
            )
