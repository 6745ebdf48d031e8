"""Lines of JSON on stdout, written by a thread of their own: a reader that is slow, or stands, holds up no job.

What has to be looked up for a line is looked up on that thread, too. What waits is bounded. When nobody reads, lines
are left out, and where they are missing a line says how many: `{"event": "dropped", "lines": 12}`.
"""

from __future__ import annotations

import io
import json
import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TextIO

logger = logging.getLogger("everstep.worker")

MOST_WAITING_BYTES = 8 * 1024 * 1024
"""How much may wait for a reader, bytes; some thousand lines."""
AT_END_S = 2.0
"""How long the end of the process waits for a reader that takes nothing, seconds."""


class JsonLines:
    """Writes lines in the order they come, until it is left; then what waits, as long as somebody reads it.

    Args:
        output: Where they go.
        most_waiting_bytes: How much may wait.
        at_end_s: How long the end waits for a reader that takes nothing, seconds.
    """

    def __init__(
        self, output: TextIO, *, most_waiting_bytes: int = MOST_WAITING_BYTES, at_end_s: float = AT_END_S
    ) -> None:
        self._output = output
        self._most_waiting_bytes = most_waiting_bytes
        self._at_end_s = at_end_s
        self._changed = threading.Condition()
        self._waiting: deque[tuple[int, Callable[[], bytes]]] = deque()
        self._waiting_bytes = 0
        self._dropped = 0
        self._taken_at = time.monotonic()
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="everstep-json-lines", daemon=True)

    def __enter__(self) -> Self:
        self._output.flush()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._ending, self._taken_at = True, time.monotonic()
            self._changed.notify_all()
        while self._thread.is_alive() and (left_s := self._taken_at + self._at_end_s - time.monotonic()) > 0:
            self._thread.join(left_s)
        with self._changed:
            missing = len(self._waiting) + self._dropped
        if missing:
            logger.warning("%d lines of --json were not written: nobody reads them", missing)

    def say(self, value: dict[str, Any]) -> None:
        """Write a line, soon; returns at once. Thread-safe."""
        line = _line(value)
        self._take(len(line), lambda: line)

    def say_later(self, make: Callable[[], dict[str, Any]], about_bytes: int) -> None:
        """As `say`, of what `make` gives; it is called on the writing thread.

        Args:
            make: Gives what the line holds; must not raise.
            about_bytes: What it keeps until then, bytes.
        """
        self._take(about_bytes, lambda: _line(make()))

    def _take(self, size: int, line: Callable[[], bytes]) -> None:
        with self._changed:
            if self._dropped and self._waiting_bytes + size <= self._most_waiting_bytes // 2:
                self._add_told_of_dropped()
            if self._dropped or (self._waiting and self._waiting_bytes + size > self._most_waiting_bytes):
                self._dropped += 1
                return
            self._add(size, line)

    def _add(self, size: int, line: Callable[[], bytes]) -> None:
        self._waiting.append((size, line))
        self._waiting_bytes += size
        self._changed.notify_all()

    def _add_told_of_dropped(self) -> None:
        told = _line({"event": "dropped", "lines": self._dropped})
        self._add(len(told), lambda: told)
        self._dropped = 0

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._ending and not self._dropped:
                    self._changed.wait()
                if not self._waiting:
                    if not self._dropped:
                        return
                    self._add_told_of_dropped()
                size, line = self._waiting[0]
            try:
                self._write(self._made(line))
            except (OSError, ValueError):  # whoever read it is gone, for ever
                self._give_up()
                return
            with self._changed:
                self._waiting.popleft()
                self._waiting_bytes -= size

    def _made(self, line: Callable[[], bytes]) -> bytes:
        """The line; one that cannot be made is one that is missing, as if there had been no room for it."""
        try:
            return line()
        except Exception:
            logger.exception("a line of --json could not be made")
            return _line({"event": "dropped", "lines": 1})

    def _write(self, line: bytes) -> None:
        """Write it past Python's buffer: its lock would be held while nobody reads, and the process could not end."""
        try:
            descriptor = self._output.fileno()
        except (io.UnsupportedOperation, AttributeError):
            self._output.write(line.decode())
            self._output.flush()
            self._taken_at = time.monotonic()
            return
        rest = memoryview(line)
        while rest:
            try:
                rest = rest[os.write(descriptor, rest) :]
            except BlockingIOError:  # whoever shares it made it so
                select.select([], [descriptor], [])
            self._taken_at = time.monotonic()

    def _give_up(self) -> None:
        """Nobody will read any more: nothing waits from now on."""
        with self._changed:
            self._dropped += len(self._waiting)
            self._waiting.clear()
            self._waiting_bytes = self._most_waiting_bytes  # no line has room again
            self._changed.notify_all()


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"
