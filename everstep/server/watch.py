"""Waking whoever waits for something to happen on a thread, in this process or another.

One look at the record serves all who wait in this process: which threads have events that are newer than those of the
last look. It is made when a commit that wrote events is heard of, and now and then though nothing was heard. Nobody
else looks: a stream on which nothing happens costs no read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from functools import partial

from everstep.checkpoints import events
from everstep.checkpoints.database import EVENTS
from everstep.checkpoints.store import Store

logger = logging.getLogger("everstep.server")

LONGEST_S = 2.0
"""After which time each thread that anybody waits for is looked at, whatever was heard."""
BETWEEN_LOOKS_S = 0.02
"""Looks that follow each other are so far apart: tokens come by the batch anyway."""


class Watch:
    """Wakes those who wait.

    Args:
        store: The record.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._known: dict[str, int] = {}
        self._after = 0
        self._looking: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def waiting(self, thread_id: str) -> AsyncGenerator[Waiter]:
        """While entered, its waiter is woken whenever events of the thread were written or deleted."""
        woken = asyncio.Event()
        self._waiting.setdefault(thread_id, set()).add(woken)
        if self._looking is None:
            self._looking = asyncio.create_task(self._look_on(asyncio.get_running_loop()))
        try:
            yield Waiter(woken)
        finally:
            others = self._waiting[thread_id]
            others.discard(woken)
            if not others:
                del self._waiting[thread_id]
                self._known.pop(thread_id, None)
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

        with self._store.database.listen(heard, EVENTS) as poll_s:
            all_at = 0.0
            while True:
                rung.clear()
                try:
                    if loop.time() >= all_at:
                        await self._look_at_all()
                        all_at = loop.time() + LONGEST_S
                    else:
                        await self._look_at_new()
                except Exception as error:
                    logger.warning("events cannot be waited for, trying again: %s", error)
                    await asyncio.sleep(LONGEST_S)
                await asyncio.sleep(BETWEEN_LOOKS_S)
                with suppress(TimeoutError):
                    await asyncio.wait_for(rung.wait(), min(poll_s, max(all_at - loop.time(), BETWEEN_LOOKS_S)))

    async def _look_at_new(self) -> None:
        """At the threads with events that were written since the last look."""
        found = await self._store.aread(partial(events.written_since, after=self._after))
        for thread_id, newest in found.items():
            self._after = max(self._after, newest)
            if thread_id in self._waiting:
                self._found(thread_id, newest)

    async def _look_at_all(self) -> None:
        """At every thread that anybody waits for: the other look may miss an event, and tells of no deletion."""
        asked = list(self._waiting)
        after, found = await self._store.aread(partial(events.newest_of, thread_ids=asked))
        self._after = max(self._after, after)
        for thread_id in asked:
            if thread_id in self._waiting:
                self._found(thread_id, found.get(thread_id, 0))

    def _found(self, thread_id: str, newest: int) -> None:
        if not newest or self._known.get(thread_id) != newest:  # one without events may be gone, with its run
            self._known[thread_id] = newest
            for woken in self._waiting[thread_id]:
                woken.set()


class Waiter:
    """One who waits; it never misses what happens between a look and its wait.

    Args:
        woken: Set when something happened.
    """

    def __init__(self, woken: asyncio.Event) -> None:
        self._woken = woken

    def look(self) -> None:
        """What happened until now is about to be looked at."""
        self._woken.clear()

    async def wait(self, most_s: float) -> bool:
        """Wait until something happened; whether it did within so many seconds.

        Args:
            most_s: Seconds.
        """
        if not self._woken.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), most_s)
        return self._woken.is_set()
