"""An audit hook that notices when a node touches the outside world and no effect is under way.

What an effect touches is its own business, and a place to kill it (`inside`).

What counts: files written, removed or renamed, processes started; connections and databases are told apart, because
nobody can see there whether something was read or done. What does not count: the record, imports and their bytecode,
files made by `tempfile`, caches, logging, exporters of traces, and folders made.
"""

from __future__ import annotations

import os
import socket
import stat
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langchain_core.runnables.config import var_child_runnable_config

from everstep.nodes.attempt import Attempt, current
from everstep.nodes.effect_life import effect_key
from everstep.runtime.crash_test import frames
from everstep.runtime.crash_test.inside import Inside

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
NODE_THREADS = "everstep-node"
TEXT = 160
"""Longest description of a call; of a longer one the middle is left out."""


class Touches:
    """The hook.

    Attributes:
        inside: Follows what effects do.

    Args:
        tell: Told of each touch, once a process: `event`, `node`, `kind` (`file`, `process`, `network`, `database`),
            `what`, `where`.
        bodies: The node bodies that run now.
        folder: The run's own folder.
        place: The part of it that is the outside world.
    """

    def __init__(self, tell: Callable[..., None], bodies: Callable[[], list[Any]], *, folder: Path, place: Path):
        self._tell = tell
        self._bodies = bodies
        self._folder = str(folder) + os.sep
        self._place = str(place)
        self._temporary: set[str] = set()
        self._told: set[tuple[str, ...]] = set()
        self._busy = threading.local()
        self.inside = Inside(self._is_ours)
        self._caches = tuple(
            os.path.join(place, "")
            for place in (
                os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"),
                os.path.expanduser("~/Library/Caches"),
                "/dev",
                "/proc",
            )
        )

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        """An audit event of CPython: see its audit events table."""
        if event not in _EVENTS or getattr(self._busy, "now", False):
            return
        self._busy.now = True
        try:
            self._seen(event, arguments)
        except Exception as error:  # a hook that raises would make the user's call fail
            sys.stderr.write(f"crash-test: {event} was not looked at: {type(error).__name__}: {error}\n")
        finally:
            self._busy.now = False

    def _seen(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event.startswith("tempfile."):
            self._temporary.add(os.path.abspath(os.fsdecode(arguments[0])))
            return
        kind, words, paths = _EVENTS[event](arguments)
        if not kind or (paths and all(self._is_ours(path) for path in paths)):
            return
        if _in_effect():
            if event in _DONE_IN_C:
                self.inside.about_to(words.format(*paths))
            return
        who = self._who()
        if who is None:
            return
        made = frames.look(event)
        if made.harmless or (who.hopped and any(attempt.in_flight() for attempt in who.attempts)):
            return
        if who.guessed and not made.own:  # a thread of a library's own
            return
        if made.library and paths and all(self._is_scratch(path) for path in paths):
            return
        words = words.format(*map(self._shown, paths)).replace(self._place, "{run}")
        what = _shortened(" ".join(words.split()))
        touch = (who.node, kind, what, made.where)
        if touch not in self._told:
            self._told.add(touch)
            self._tell(event="touch", node=who.node, kind=kind, what=what, where=made.where)

    def _who(self) -> _Who | None:
        config = var_child_runnable_config.get()
        node = ((config or {}).get("metadata") or {}).get("langgraph_node")
        attempt = current.get()
        if node is not None:
            return _Who(str(node), not frames.in_node(), [] if attempt is None else [attempt])
        bodies = self._bodies()
        if not bodies:
            return None
        names = " or ".join(sorted({body.node for body in bodies}))
        attempts = [body.attempt for body in bodies if body.attempt is not None]
        return _Who(names, True, attempts, guessed=not threading.current_thread().name.startswith(NODE_THREADS))

    def _is_ours(self, path: str) -> bool:
        if any(path == made or path.startswith(made + os.sep) for made in self._temporary):
            return True
        if path.startswith(self._folder):
            return not path.startswith(self._place)
        if path.endswith((".pyc", "__pycache__")) or f"__pycache__{os.sep}" in path:
            return True
        return path.startswith(self._caches)

    def _is_scratch(self, path: str) -> bool:
        """A place for temporary files, as libraries use it for what they keep between runs."""
        around = os.path.realpath(tempfile.gettempdir()) + os.sep
        return path.startswith(around) and not path.startswith((self._place, os.getcwd() + os.sep))

    def _shown(self, path: str) -> str:
        return path.removeprefix(os.getcwd() + os.sep)


def _shortened(text: str) -> str:
    return text if len(text) <= TEXT else f"{text[: TEXT // 3]} … {text[-TEXT // 3 * 2 :]}"


@dataclass(frozen=True)
class _Who:
    """The node that made a call.

    Attributes:
        node: Its name; several, if the call has no context and several run.
        hopped: The call comes from a thread or task that the node started, where an effect around it would not show.
        attempts: Those it may belong to.
        guessed: Nothing but the time connects the call to the node.
    """

    node: str
    hopped: bool
    attempts: list[Attempt]
    guessed: bool = False


def _in_effect() -> bool:
    try:
        effect_key()
    except RuntimeError:
        return False
    return True


_Described = tuple[str, str, list[str]]


def _absolute(path: Any) -> str:
    return os.path.abspath(os.fsdecode(path))


def _opened(arguments: tuple[Any, ...]) -> _Described:
    path, mode, flags = arguments[:3]
    if isinstance(path, int) or path is None:
        return "", "", []
    writes = any(letter in mode for letter in "wax+") if isinstance(mode, str) else bool((flags or 0) & WRITING)
    if not writes:
        return "", "", []
    full = _absolute(path)
    try:
        if not stat.S_ISREG(os.stat(full).st_mode):
            return "", "", []  # a folder (O_TMPFILE), a device, a pipe
    except OSError:
        pass
    return "file", "open('{0}'" + (f", '{mode}')" if isinstance(mode, str) else ") for writing"), [full]


def _on_path(name: str, count: int = 1) -> Callable[[tuple[Any, ...]], _Described]:
    words = ", ".join(f"'{{{index}}}'" for index in range(count))

    def described(arguments: tuple[Any, ...]) -> _Described:
        if any(isinstance(argument, int) for argument in arguments[:count]):
            return "", "", []
        return "file", f"{name}({words})", [_absolute(argument) for argument in arguments[:count]]

    return described


def _plain(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _started(arguments: tuple[Any, ...]) -> _Described:
    program, command = arguments[:2]
    parts: list[Any] = (
        [command or program] if isinstance(command, (str, bytes, os.PathLike, type(None))) else [*command]
    )
    return "process", _plain("process: " + " ".join(os.fsdecode(part) for part in parts)), []


def _shell(arguments: tuple[Any, ...]) -> _Described:
    return "process", _plain(f"os.system({os.fsdecode(arguments[0])!r})"), []


def _connected(arguments: tuple[Any, ...]) -> _Described:
    connection, address = arguments[:2]
    if getattr(connection, "type", None) == socket.SOCK_DGRAM:
        return "", "", []  # a look for the own address or a name sends nothing that lasts
    if isinstance(address, tuple):
        return "network", _plain(f"connection to {address[0]}:{address[1]}"), []
    return "network", _plain(f"connection to {os.fsdecode(address)}"), []


def _database(arguments: tuple[Any, ...]) -> _Described:
    name = os.fsdecode(arguments[0])
    if name in ("", ":memory:") or "mode=ro" in name or "mode=memory" in name:
        return "", "", []
    return "database", "sqlite3.connect('{0}')", [name if name.startswith("file:") else _absolute(name)]


def _nothing(_arguments: tuple[Any, ...]) -> _Described:
    return "", "", []


_EVENTS: dict[str, Callable[[tuple[Any, ...]], _Described]] = {
    "open": _opened,
    "os.remove": _on_path("os.remove"),
    "os.rmdir": _on_path("os.rmdir"),
    "os.rename": _on_path("os.rename", 2),
    "os.link": _on_path("os.link", 2),
    "os.symlink": _on_path("os.symlink", 2),
    "os.truncate": _on_path("os.truncate"),
    "shutil.rmtree": _on_path("shutil.rmtree"),
    "subprocess.Popen": _started,
    "os.posix_spawn": _started,
    "os.exec": _started,
    "os.system": _shell,
    "socket.connect": _connected,
    "sqlite3.connect": _database,
    "tempfile.mkstemp": _nothing,
    "tempfile.mkdtemp": _nothing,
}
_DONE_IN_C = frozenset(
    {"open", "os.system", "os.remove", "os.rmdir", "os.rename", "os.link", "os.symlink", "os.truncate"}
)
"""Events of which the call that raises them does all, so that the touch was made when it returns."""
