"""What an effect's function does to the outside world while it runs: each touch, once it was made, is a crash point.

The audit hook (`touches`) says what is about to be done. That it was done is seen by the profile function of the thread
that runs the effect: a call into C has returned. Sockets, open files and databases need no audit event for that. So the
points are the same in every run that does the same, and none goes by time.
"""

from __future__ import annotations

import asyncio.base_subprocess
import os
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from everstep import crash
from everstep.nodes.effect_life import effect_key
from everstep.runtime.crash_test import frames

POINT = "effect.touched"
_SENDING = frozenset({"send", "sendall", "sendto", "sendmsg"})
_WRITING_OUT = frozenset({"close", "flush", "__exit__"})
_COMMITTING = frozenset({"commit", "__exit__", "execute", "executemany", "executescript"})
_NAMES = _SENDING | _WRITING_OUT | _COMMITTING | {"write"}
_WAIT = subprocess.Popen[Any].wait.__code__
_AWAIT = asyncio.base_subprocess.BaseSubprocessTransport._wait.__code__  # pyright: ignore[reportPrivateUsage]


class Inside:
    """Follows the effects that are being called.

    Args:
        is_ours: Whether what is written to this path is no touch of the outside world.
    """

    def __init__(self, is_ours: Callable[[str], bool]) -> None:
        self._is_ours = is_ours
        self._names: dict[str, str] = {}
        self._thread = threading.local()
        self._changes: dict[int, int] = {}
        self._waited: set[int] = set()

    def begin(self, key: str, name: str) -> None:
        """An effect's function is about to be called in this thread."""
        self._names[key] = name
        self._thread.calls = getattr(self._thread, "calls", 0) + 1
        sys.setprofile(self._profile)

    def end(self) -> None:
        """The function of an effect of this thread has returned or raised."""
        self._thread.calls = getattr(self._thread, "calls", 0) - 1
        self._thread.pending = ""
        if self._thread.calls <= 0:
            sys.setprofile(None)

    def about_to(self, what: str) -> None:
        """The call into C that is under way in this thread touches the world for an effect."""
        self._thread.pending = what
        if sys.getprofile() is None:  # a thread to which the effect gave work
            sys.setprofile(self._profile)

    def _profile(self, frame: FrameType, event: str, given: Any) -> None:
        """See `sys.setprofile`."""
        if event == "c_return":
            self._returned(given)
        elif event == "c_exception":
            self._thread.pending = ""
        elif event == "return" and frame.f_code is _WAIT and given is not None:
            process = frame.f_locals["self"]
            if process.pid not in self._waited:
                self._waited.add(process.pid)
                self._touched(f"process ended: {process.args}")
        elif event == "return" and frame.f_code is _AWAIT and isinstance(given, int):  # not where it only gives way
            pid = frame.f_locals["self"].get_pid()
            if pid not in self._waited:
                self._waited.add(pid)
                self._touched("process ended")

    def _returned(self, function: Any) -> None:
        if pending := getattr(self._thread, "pending", ""):
            self._thread.pending = ""
            self._touched(pending)
        elif function.__name__ in _NAMES and (what := self._what(function.__name__, function.__self__)):
            self._touched(what)

    def _what(self, name: str, of: Any) -> str:
        """What the method of an object of C's did to the world; empty if nothing."""
        if isinstance(of, socket.socket):
            return name if name in _SENDING and not _is_own_pair(of) else ""
        module = type(of).__module__
        if module == "_ssl":
            return "send" if name == "write" else ""
        if module == "_io":
            return self._written(name, of)
        if isinstance(of, sqlite3.Connection) and name == "close":
            self._changes.pop(id(of), None)
        elif isinstance(of, (sqlite3.Connection, sqlite3.Cursor)) and name in _COMMITTING:
            return self._committed(of if isinstance(of, sqlite3.Connection) else of.connection)
        return ""

    def _written(self, name: str, of: Any) -> str:
        path, mode = getattr(of, "name", None), getattr(of, "mode", "")
        unbuffered = name == "write" and type(of).__name__ == "FileIO"
        if not isinstance(path, (str, bytes)) or not (name in _WRITING_OUT or unbuffered):
            return ""  # a file without a name: a pipe, a temporary one
        if not isinstance(mode, str) or not any(letter in mode for letter in "wax+"):
            return ""
        full = os.path.abspath(os.fsdecode(path))
        is_stream = str(path).startswith("<")
        return "" if is_stream or self._is_ours(full) else f"{'close' if name == '__exit__' else name} of '{full}'"

    def _committed(self, connection: sqlite3.Connection) -> str:
        try:
            changes, within = connection.total_changes, connection.in_transaction
        except sqlite3.ProgrammingError:  # closed, or another thread's
            return ""
        if within or changes == self._changes.get(id(connection), 0):
            return ""
        self._changes[id(connection)] = changes
        return "commit"

    def _touched(self, what: str) -> None:
        try:
            key = effect_key()
        except RuntimeError:
            if not getattr(self._thread, "calls", 0):
                sys.setprofile(None)
            return
        made = frames.look(POINT, in_effect=True)
        if not made.harmless:
            crash.point(POINT, self._names[key], (key, what, made.where))


def _is_own_pair(of: socket.socket) -> bool:
    """Whether a socket is an event loop's to itself."""
    try:
        return of.family == getattr(socket, "AF_UNIX", None) and not of.getpeername()
    except OSError:
        return False
