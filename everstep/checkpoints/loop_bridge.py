"""`LoopBridge`: between an event loop and the writer's thread, one message each way for what belongs together.

A hundred agents that step at once hand a hundred checkpoints to the writer, and wait for a few commits. If each write
woke the writer, and each woke the loop, both threads would spend most of their time on taking the interpreter from
each other, and commits would hold the few writes that happened to be there.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

_BRIDGES: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopBridge] = weakref.WeakKeyDictionary()


class LoopBridge:
    """One for each event loop; see `of_running_loop`.

    Args:
        loop: The loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._told: deque[tuple[asyncio.Future[Any], Future[Any]]] = deque()
        self._is_woken = False
        self._after: dict[Any, Callable[[], Any]] = {}

    async def wait(self, future: Future[T]) -> T:
        """Wait for what another thread does; if the wait is cancelled, so is that, unless it has begun.

        Raises:
            BaseException: What was raised there.
        """
        try:
            return await self.here(future)
        except asyncio.CancelledError:
            future.cancel()
            raise

    def here(self, future: Future[T]) -> asyncio.Future[T]:
        """What another thread does, as a future of this loop, which hears of several in the order they were done."""
        here: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda done: self._tell(here, done))
        return here

    def after_this_turn(self, key: Any, call: Callable[[], Any]) -> None:
        """Call something when all that the loop has ready now had its turn; of one key, once."""
        if not self._after:
            asyncio.get_running_loop().call_soon(self._turn_is_over)
        self._after.setdefault(key, call)

    def _turn_is_over(self) -> None:
        calls, self._after = self._after, {}
        for call in calls.values():
            with suppress(RuntimeError):  # what it was for is closed
                call()

    def _tell(self, waiting: asyncio.Future[Any], done: Future[Any]) -> None:
        """In the other thread; whoever finds that the loop is woken has put its own before that, so it is told of."""
        self._told.append((waiting, done))
        if not self._is_woken and (loop := self._loop()) is not None:
            self._is_woken = True
            with suppress(RuntimeError):  # it is closed: nobody waits
                loop.call_soon_threadsafe(self._tell_all)

    def _tell_all(self) -> None:
        self._is_woken = False
        while self._told:
            waiting, done = self._told.popleft()
            if waiting.done():
                continue
            if done.cancelled():
                waiting.cancel()
            elif (error := done.exception()) is not None:
                waiting.set_exception(error)
            else:
                waiting.set_result(done.result())


def of_running_loop() -> LoopBridge:
    """The bridge of the event loop that this runs in."""
    loop = asyncio.get_running_loop()
    found = _BRIDGES.get(loop)
    if found is None:
        found = _BRIDGES[loop] = LoopBridge(loop)
    return found
