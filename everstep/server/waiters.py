"""Those who wait for the record to tell something, in this process: one look at the record serves all of them.

What is waited for has a key (a job, a thread) and something that grows or changes with all that happens to it. A look
is made when a commit is heard of, and now and then though nothing was heard. While nobody waits nothing is listened to.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Generic, TypeVar

from everstep.checkpoints.store import Store

logger = logging.getLogger("everstep.server")

RESTS = 2
"""After a look it rests so many times as long as the look took: looking takes a third of the time at most."""
FAILED_S = 2.0
"""After which time another look is tried at the latest when the record could not be read."""
Key = TypeVar("Key", int, str)


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


class Waiters(ABC, Generic[Key]):
    """Wakes those who wait; what is looked at is said by `_look`.

    Args:
        store: The record.
        topic: What is listened to.
        what: What is waited for, in a word for the log.
        between_s: Looks that follow each other are so far apart at most, seconds; less where they are quick.
    """

    def __init__(self, store: Store, topic: str, what: str, between_s: float) -> None:
        self._store = store
        self._topic, self._what, self._between_s = topic, what, between_s
        self._waiting: dict[Key, set[asyncio.Event]] = {}
        self._seen: dict[Key, int] = {}
        self._looking: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def waiting(self, key: Key) -> AsyncGenerator[Waiter]:
        """While entered, its waiter is woken whenever something happened to what has this key."""
        woken = asyncio.Event()
        self._waiting.setdefault(key, set()).add(woken)
        if self._looking is None:
            self._begin()
            self._looking = asyncio.create_task(self._look_on(asyncio.get_running_loop()))
        try:
            yield Waiter(woken)
        finally:
            others = self._waiting[key]
            others.discard(woken)
            if not others:
                del self._waiting[key]
                self._seen.pop(key, None)
            if not self._waiting:
                self._stop()

    def _begin(self) -> None:
        """The first one waits."""

    @abstractmethod
    async def _look(self, poll_s: float) -> float:
        """Look at the record, and say what was seen; how long nothing need be looked at though nothing is heard.

        Args:
            poll_s: How often to look where nobody can be heard.
        """

    def _saw(self, key: Key, newest: int) -> None:
        """What the newest of a key is; whoever waits for it is woken if that is news."""
        if key in self._waiting and self._seen.get(key) != newest:
            self._seen[key] = newest
            for woken in self._waiting[key]:
                woken.set()

    def _stop(self) -> None:
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()

    async def _look_on(self, loop: asyncio.AbstractEventLoop) -> None:
        rung = asyncio.Event()

        def heard() -> None:  # on the listener's thread
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(rung.set)

        with self._store.database.listen(heard, self._topic) as poll_s:
            while True:
                rung.clear()
                began = loop.time()
                try:
                    pause = await self._look(poll_s)
                except Exception as error:
                    logger.warning("%s cannot be waited for, trying again: %s", self._what, error)
                    pause = FAILED_S
                await asyncio.sleep(min((loop.time() - began) * RESTS, self._between_s))
                with suppress(TimeoutError):
                    await asyncio.wait_for(rung.wait(), pause)
