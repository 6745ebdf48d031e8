"""Waking whoever waits for jobs to change: one look at the record serves all who wait in this process.

A job's end wakes at once where that costs the job nothing (a record in SQLite); otherwise, and for changes that end
nothing, the record is looked at a few times a second, by one query for all jobs that anybody waits for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from everstep.checkpoints import job_log
from everstep.checkpoints.database import PAUSES
from everstep.checkpoints.store import Store

logger = logging.getLogger("everstep.server")

LOOK_EVERY_S = 0.25
BETWEEN_LOOKS_S = 0.005
"""Ends of jobs that come so close to each other are seen together."""
FAILED_S = 2.0
"""After which time another look is tried when the record could not be read."""


class JobWatch:
    """Wakes those who wait for jobs.

    Args:
        store: The record.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[int, set[asyncio.Event]] = {}
        self._seen: dict[int, int] = {}
        self._looking: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def waiting(self, job_id: int) -> AsyncGenerator[JobWaiter]:
        """While entered, its waiter is woken whenever the job with this row id changed its status."""
        woken = asyncio.Event()
        self._waiting.setdefault(job_id, set()).add(woken)
        if self._looking is None:
            self._looking = asyncio.create_task(self._look_on(asyncio.get_running_loop()))
        try:
            yield JobWaiter(woken)
        finally:
            others = self._waiting[job_id]
            others.discard(woken)
            if not others:
                del self._waiting[job_id]
                self._seen.pop(job_id, None)
            if not self._waiting:
                self._stop()

    def _stop(self) -> None:
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()

    async def _look_on(self, loop: asyncio.AbstractEventLoop) -> None:
        rung = asyncio.Event()

        def heard() -> None:  # on the listener's thread
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(rung.set)

        with self._store.database.listen(heard, PAUSES):
            while True:
                pause = LOOK_EVERY_S
                rung.clear()
                try:
                    await self._look()
                except Exception as error:
                    logger.warning("jobs cannot be waited for, trying again: %s", error)
                    pause = FAILED_S
                with suppress(TimeoutError):
                    await asyncio.wait_for(rung.wait(), pause)
                await asyncio.sleep(BETWEEN_LOOKS_S)

    async def _look(self) -> None:
        asked = list(self._waiting)
        found = await self._store.aread(lambda connection: job_log.newest(connection, asked))
        for job_id in asked:
            newest = found.get(job_id, -1)  # deleted: who waits will see
            if job_id in self._waiting and self._seen.get(job_id) != newest:
                self._seen[job_id] = newest
                for woken in self._waiting[job_id]:
                    woken.set()


class JobWaiter:
    """One who waits; it never misses what happens between a look and its wait.

    Args:
        woken: Set when the job changed.
    """

    def __init__(self, woken: asyncio.Event) -> None:
        self._woken = woken

    def look(self) -> None:
        """The job as it is now is about to be looked at."""
        self._woken.clear()

    async def wait(self, most_s: float) -> None:
        """Wait until the job changed, so many seconds at most."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), most_s)
