"""Lines of JSON on stdout, written by a thread of their own: a reader that is slow, or stands, holds up no job.

What has to be looked up for a line is looked up on that thread, too. What waits is bounded. When nobody reads, lines
are left out, and where they are missing a line says how many: `{"event": "dropped", "lines": 12}`. At its end a process
waits until its reader has everything, or is gone; not where it failed, since then somebody else may have to start it.
"""

from __future__ import annotations

import io
import json
import logging
import os
import select
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self, TextIO

from everstep.counts import counted

logger = logging.getLogger("everstep.worker")

MOST_WAITING_BYTES = 8 * 1024 * 1024
"""How much may wait for a reader, bytes; some thousand lines."""
AFTER_FAILURE_S = 2.0
"""How long a process that failed waits for a reader that takes nothing, seconds."""
TOLD_AFTER_S = 2.0
"""After this time a process tells that it waits for a reader, seconds."""
TOLD_EVERY_S = 10.0
"""How often it tells that again, seconds."""


class _Signalled(Exception):
    """Whoever waits is to end at once, for the signal of this number."""


class JsonLines:
    """Writes lines in the order they come, until it is left; then what waits, as long as its reader lives.

    Args:
        output: Where they go.
        most_waiting_bytes: How much may wait.
    """

    def __init__(self, output: TextIO, *, most_waiting_bytes: int = MOST_WAITING_BYTES) -> None:
        self._output = output
        self._most_waiting_bytes = most_waiting_bytes
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
        if error is None:
            self._wait_for_reader()
        else:
            while self._thread.is_alive() and (left_s := self._taken_at + AFTER_FAILURE_S - time.monotonic()) > 0:
                self._thread.join(left_s)
        self._tell_of_missing()

    def _wait_for_reader(self) -> None:
        """Until it has everything or is gone; a signal ends the process, as nothing is left in it that could drain."""
        try:
            with _signals_raise():
                self._thread.join(TOLD_AFTER_S)
                while self._thread.is_alive():
                    told = counted(self._missing(), "line")
                    logger.warning("%s of --json not taken by the reader yet; Ctrl-C ends without it", told)
                    self._thread.join(TOLD_EVERY_S)
        except _Signalled as signalled:
            self._tell_of_missing()
            os._exit(128 + signalled.args[0])  # Python would wait for threads that nodes left behind

    def _tell_of_missing(self) -> None:
        if missing := self._missing():
            logger.warning("%s of --json not written: nobody reads", counted(missing, "line"))

    def _missing(self) -> int:
        with self._changed:
            return len(self._waiting) + self._dropped

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


@contextmanager
def _signals_raise() -> Generator[None]:
    """SIGINT and SIGTERM raise `_Signalled`, on the main thread; others are never signalled."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise _Signalled(number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, leave) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"
