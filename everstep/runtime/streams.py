"""What a graph emits as it runs, on its way into the event log.

Tokens of a model's message are joined for 50 milliseconds, so that a long answer is some rows a second and not one for
each token; everything else is written at once, with what else the writer has to commit. Writing is fenced by the claim:
a run that was taken over tells nothing more.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, cast

from langchain_core.messages import BaseMessageChunk
from sqlalchemy import Connection

from everstep.checkpoints import claims, events
from everstep.checkpoints.events import Emitted
from everstep.checkpoints.job import Job
from everstep.checkpoints.jobs import LostClaim
from everstep.checkpoints.store import Store
from everstep.runtime.results import json_ready

TOKENS_S = 0.05
INTERRUPT = "__interrupt__"
_GRAPH_MODES = ("values", "updates", "messages", "custom", "checkpoints", "tasks", "debug")
"""The stream modes a graph knows; `messages-tuple` is another form of `messages`."""


def graph_modes(asked: tuple[str, ...]) -> list[str]:
    """What to ask the graph for, so that what a client asked for can be told; `updates` brings interrupts."""
    modes = {"messages" if mode == "messages-tuple" else mode for mode in asked}
    return [mode for mode in _GRAPH_MODES if mode in modes or mode == "updates"]


class EventWriter:
    """Writes what one leg emits.

    Args:
        store: The record.
        job: The job as claimed.
        run_id: The run that is under way.
        modes: What the client asked for.
        subgraphs: Whether what subgraphs emit is told.
    """

    def __init__(self, store: Store, job: Job, run_id: str, modes: tuple[str, ...], *, subgraphs: bool) -> None:
        self._store = store
        self._job = job
        self._run_id = run_id
        self._modes = frozenset(modes)
        self._subgraphs = subgraphs
        self._tokens: dict[tuple[str, str], tuple[BaseMessageChunk, Mapping[str, Any]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._written: Future[None] | None = None

    def emit(self, namespace: tuple[str, ...], mode: str, chunk: Any) -> None:
        """Tell of one chunk, on the event loop."""
        if namespace and not self._subgraphs and mode != "messages":
            return
        place = events.SEPARATOR.join(namespace)
        if mode == "messages":
            self._message(place, chunk)
            return
        self.flush()
        for method in self._methods(mode, chunk):
            self._write([Emitted(method, _text(chunk), place)])

    def flush(self) -> None:
        """Write the tokens that are held."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        held, self._tokens = self._tokens, {}
        self._write(
            [
                Emitted("messages", _text([message, metadata]), place)
                for (place, _), (message, metadata) in held.items()
            ]
        )

    async def written(self) -> None:
        """Wait until what was told is in the record, so that the run's end comes after it."""
        self.flush()
        if self._written is not None:
            await asyncio.wait([asyncio.wrap_future(self._written)])

    def _methods(self, mode: str, chunk: Any) -> list[str]:
        if mode != "updates" or "updates" in self._modes:
            return [mode]
        interrupted = isinstance(chunk, Mapping) and INTERRUPT in chunk
        return ["values"] if interrupted and "values" in self._modes else []

    def _message(self, place: str, chunk: Any) -> None:
        message, metadata = cast("tuple[Any, Mapping[str, Any]]", chunk)
        if not isinstance(message, BaseMessageChunk) or message.id is None:
            self.flush()
            self._write([Emitted("messages", _text([message, metadata]), place)])
            return
        key = (place, message.id)
        held = self._tokens.get(key)
        self._tokens[key] = (message if held is None else _joined(held[0], message), metadata)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TOKENS_S, self.flush)

    def _write(self, emitted: list[Emitted]) -> None:
        if not emitted:
            return
        job, now = self._job, self._store.clock.now_ms()

        def operation(connection: Connection) -> None:
            claims.fence(connection, job.id, job.claim_no)
            events.append(
                connection,
                emitted,
                job_id=job.id,
                run_id=self._run_id,
                thread_id=job.thread_id,
                claim_no=job.claim_no,
                now=now,
            )

        self._written = self._store.write(operation, patient=True)
        self._written.add_done_callback(_ignore_lost_claim)


def _ignore_lost_claim(written: Future[None]) -> None:
    """Who lost the claim learns of it by what it stores; what it told is of no account."""
    error = None if written.cancelled() else written.exception()
    if error is not None and not isinstance(error, LostClaim):
        raise error


def _joined(first: BaseMessageChunk, second: BaseMessageChunk) -> BaseMessageChunk:
    add = cast("Callable[[Any], BaseMessageChunk]", first.__add__)
    return add(second)


def _text(value: Any) -> str:
    return json.dumps(json_ready(value))
