"""What a watched worker tells of itself: crash points passed, node bodies begun, touches of the outside world.

Each is a line of JSON that is written at once, so that a SIGKILL loses none.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.tracers.context import register_configure_hook

from everstep import crash
from everstep.nodes.attempt import Attempt, current
from everstep.nodes.effect_life import Declaration
from everstep.runtime.crash_test import inside
from everstep.runtime.crash_test.touches import Touches

_STEP_TAG = "graph:step:"
_handler: ContextVar[BaseCallbackHandler | None] = ContextVar("everstep_crash_test_handler", default=None)


def begin(observed: Path, *, folder: Path, place: Path) -> None:
    """Watch this process, from now to its end.

    Args:
        observed: The file to tell.
        folder: The run's own folder: not the outside world, except below `place`.
        place: The run's part of the outside world.
    """
    lines = _Lines(observed)
    bodies = Bodies(lines, place=str(place))
    touches = Touches(lines.write, bodies.now, folder=folder, place=place)

    def passed(name: str, subject: str, about: Any) -> None:
        bodies.passed(name, subject, about)
        if name == "effect.intended":
            touches.inside.begin(about[0], subject)
        elif name in ("effect.called", "effect.raised"):
            touches.inside.end()

    crash.observe(passed)
    register_configure_hook(_handler, inheritable=True)
    _handler.set(bodies)
    sys.addaudithook(touches)


class _Lines:
    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, **event: Any) -> None:
        os.write(self._file, json.dumps(event).encode() + b"\n")


@dataclass(frozen=True)
class Body:
    """A node's body that runs: the node's name, and the attempt it runs in."""

    node: str
    attempt: Attempt | None


class Bodies(BaseCallbackHandler):
    """Follows node bodies through LangChain's callbacks, and adds the crash point `node.finished`."""

    run_inline = True

    def __init__(self, lines: _Lines, *, place: str) -> None:
        self._lines = lines
        self._place = place
        self._lock = threading.Lock()
        self._namespaces: dict[UUID, str] = {}
        self._running: dict[UUID, Body] = {}
        self._last = ""

    def now(self) -> list[Body]:
        """The bodies that run."""
        with self._lock:
            return [*self._running.values()]

    def passed(self, name: str, subject: str, about: Any) -> None:
        """A crash point was passed."""
        event: dict[str, Any] = {"event": "point", "name": name, "subject": subject}
        if name == inside.POINT:
            key, what, where = cast("tuple[str, str, str]", about)
            event.update(key=key, what=what.replace(self._place, "{run}"), where=where)
        elif isinstance(about, tuple):  # an effect's
            key, declared = cast("tuple[str, Declaration]", about)
            event.update(key=key, idempotent=declared.idempotent, probe=declared.probe is not None)
        elif not subject:
            event["after"] = self._last
        self._lines.write(**event)

    def on_chain_start(
        self,
        serialized: dict[str, Any],
        inputs: dict[str, Any],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        told = metadata or {}
        namespace = str(told.get("langgraph_checkpoint_ns", ""))
        node = str(told.get("langgraph_node", ""))
        with self._lock:
            around = self._namespaces.get(parent_run_id, "") if parent_run_id else ""
            self._namespaces[run_id] = namespace
            if not _is_body(tags or (), told, namespace != around, kwargs.get("name")) or node.startswith("__"):
                return
            self._running[run_id] = Body(node, current.get())
        self._lines.write(event="body", node=node)

    def on_chain_end(self, outputs: dict[str, Any], *, run_id: UUID, **kwargs: Any) -> None:
        if (body := self._leave(run_id)) is not None:
            self._last = body.node
            crash.point("node.finished", body.node)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._leave(run_id)

    def _leave(self, run_id: UUID) -> Body | None:
        with self._lock:
            self._namespaces.pop(run_id, None)
            return self._running.pop(run_id, None)


def _is_body(tags: Sequence[str], metadata: Mapping[str, Any], is_own_namespace: bool, name: object) -> bool:
    """LangGraph tags a graph's nodes; a task of the functional API is known by a checkpoint namespace of its own."""
    if any(tag.startswith(_STEP_TAG) for tag in tags):
        return True
    return is_own_namespace and name == metadata.get("langgraph_node")
