"""Waking whoever waits for something to happen to a run, in this process or another.

One listener a process, started by the first who waits: a thread hears of each commit that wrote events, and every
waiting request looks. What cannot be heard of is looked for after a moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager, suppress

from everstep.checkpoints.database import EVENTS
from everstep.checkpoints.store import Store

LONGEST_S = 2.0
BETWEEN_LOOKS_S = 0.02
"""Who is woken again and again looks once in this time: tokens come by the batch anyway."""


class Watch:
    """Wakes those who wait.

    Args:
        store: The record.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: set[asyncio.Event] = set()
        self._listening: ExitStack | None = None
        self._poll_s = LONGEST_S

    @asynccontextmanager
    async def waiting(self) -> AsyncGenerator[Waiter]:
        """While entered, its waiter is woken whenever events were written."""
        woken = asyncio.Event()
        if self._listening is None:
            loop = asyncio.get_running_loop()
            self._listening = ExitStack()
            listening = self._store.database.listen(lambda: self._heard(loop), EVENTS)
            self._poll_s = min(LONGEST_S, self._listening.enter_context(listening))
        self._waiting.add(woken)
        try:
            yield Waiter(woken, self._poll_s)
        finally:
            self._waiting.discard(woken)
            if not self._waiting:
                self._stop()

    def _stop(self) -> None:
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.close()

    def _heard(self, loop: asyncio.AbstractEventLoop) -> None:
        """On the listener's thread."""
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        for woken in self._waiting:
            woken.set()


class Waiter:
    """One who waits; it never misses what happens between a look and its wait.

    Args:
        woken: Set when something happened.
        poll_s: After how many seconds to look though nothing was heard.
    """

    def __init__(self, woken: asyncio.Event, poll_s: float) -> None:
        self._woken = woken
        self._poll_s = poll_s

    def look(self) -> None:
        """What happened until now is about to be looked at."""
        self._woken.clear()

    async def wait(self, most_s: float) -> bool:
        """Wait until something happened, or it is time to look; whether something was heard of.

        Args:
            most_s: Seconds.
        """
        try:
            await asyncio.wait_for(self._woken.wait(), min(most_s, self._poll_s))
        except TimeoutError:
            return False
        await asyncio.sleep(BETWEEN_LOOKS_S)
        return True
