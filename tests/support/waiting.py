"""Waiting for a bounded time, without sleeping blindly: for a condition, and at a place until a test goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

PATIENCE = 180.0
"""Seconds nothing should ever take, on a machine ten times as busy; a test that waits so long has failed."""


def until(condition: Callable[[], Any], what: str = "the condition") -> Any:
    """What the condition gives once it gives something; asked again and again for a bounded time."""
    end = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < end, f"{what} did not come"
        time.sleep(0.01)
    return found


class Halt:
    """A place where a thread stands until the test lets it go on."""

    def __init__(self) -> None:
        self._reached, self._released = threading.Event(), threading.Event()

    def stand(self) -> None:
        """For the thread: stand here."""
        self._reached.set()
        assert self._released.wait(PATIENCE), "nobody let it go on"

    def wait_until_reached(self) -> None:
        """For the test: until a thread stands here."""
        assert self._reached.wait(PATIENCE), "nothing came there"

    def release(self) -> None:
        """For the test: let it go on, and all that come later."""
        self._released.set()
