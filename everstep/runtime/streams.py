"""What a graph emits as it runs, on its way into the event log.

Tokens of a model's message are joined for 50 milliseconds, so that a long answer is some rows a second and not one for
each token; everything else is written at once, with what else the writer has to commit. Writing is fenced by the claim:
a run that was taken over tells nothing more.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import Future
from contextlib import aclosing
from typing import Any, cast

from langchain_core.messages import BaseMessageChunk
from langchain_core.runnables import RunnableConfig
from langgraph.types import Interrupt
from sqlalchemy import Connection

from everstep.checkpoints import claims, events
from everstep.checkpoints.events import Emitted
from everstep.checkpoints.job import Job
from everstep.checkpoints.jobs import LostClaim
from everstep.checkpoints.store import Store
from everstep.checkpoints.waits import asks_a_person
from everstep.runtime.results import json_ready
from everstep.runtime.slow_clients import SlowClients

TOKENS_S = 0.05
_GRAPH_MODES = ("values", "updates", "messages", "custom", "checkpoints", "tasks", "debug", "tools")
"""The stream modes a graph knows; what else can be asked for is a form of one of them."""
_FORMS = {"messages-tuple": "messages", events.CHECKPOINT_IDS: "checkpoints"}
_AS_IT_HAPPENS = frozenset({"custom", "tools", "events"})
"""Modes that tell of what goes on within a node, after which no checkpoint follows soon; besides `messages`."""
_PLACE = ("thread_id", "checkpoint_ns", "checkpoint_id", "checkpoint_map")


def graph_modes(asked: tuple[str, ...]) -> list[str]:
    """What to ask the graph for, so that what a client asked for can be told."""
    modes = {_FORMS.get(mode, mode) for mode in asked}
    return [mode for mode in _GRAPH_MODES if mode in modes] or ["updates"]


async def emitted(
    graph: Any, given: Any, config: RunnableConfig, asked: tuple[str, ...], how: Mapping[str, Any]
) -> AsyncGenerator[tuple[tuple[str, ...], str, Any]]:
    """Run a graph; what it emits: namespace, mode and chunk.

    Args:
        graph: The graph.
        given: What it is fed.
        config: The run's config.
        asked: The stream modes a client asked for.
        how: Further arguments of `astream`.
    """
    modes = graph_modes(asked)
    if "events" not in asked:
        async with aclosing(graph.astream(given, config, stream_mode=modes, subgraphs=True, **how)) as parts:
            async for part in parts:
                yield part
        return
    root: str | None = None
    whole: Any = graph.astream_events(given, config, version="v2", stream_mode=modes, subgraphs=True, **how)
    async with aclosing(whole):
        async for event in whole:
            root = root or event["run_id"]
            if event["event"] == "on_chain_stream" and event["run_id"] == root:
                yield event["data"]["chunk"]
            yield (), "events", event


class EventWriter:
    """Writes what one leg emits.

    Args:
        store: The record.
        job: The job as claimed.
        run_id: The run that is under way.
        modes: What the client asked for.
        subgraphs: Whether what subgraphs emit is told.
        slow_clients: Those that the agent waits for; None: it waits for none, the log holds what they have not read.
    """

    def __init__(
        self,
        store: Store,
        job: Job,
        run_id: str,
        modes: tuple[str, ...],
        *,
        subgraphs: bool,
        slow_clients: SlowClients | None = None,
    ) -> None:
        self._store = store
        self._job = job
        self._run_id = run_id
        self._modes = frozenset(modes) | ({"messages"} if "messages-tuple" in modes else set[str]())
        self._subgraphs = subgraphs
        self._slow_clients = slow_clients
        self._tokens: dict[tuple[str, str], tuple[BaseMessageChunk, Mapping[str, Any]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._values: str | None = None

    def emit(self, namespace: tuple[str, ...], mode: str, chunk: Any) -> None:
        """Tell of one chunk, on the event loop."""
        if namespace and not self._subgraphs:
            return
        place = events.SEPARATOR.join(namespace)
        if mode == "checkpoints" and events.CHECKPOINT_IDS in self._modes:
            self.flush()
            self._write([Emitted(events.CHECKPOINT_IDS, _text(checkpoint_ids(chunk)), place)])
        if mode not in self._modes:
            return
        chunk = _without_waits(mode, chunk)
        if chunk is None:
            return
        if mode == "messages":
            self._message(place, chunk)
            return
        self.flush()
        text = _text(_placed(mode, chunk))
        if mode == "values" and not namespace:
            self._values = text
        self._write([Emitted(mode, text, place)], told=mode in _AS_IT_HAPPENS)

    async def room(self) -> None:
        """Wait, if the run asks for that, for clients that are far behind."""
        if self._slow_clients is not None:
            await self._slow_clients.wait()

    def end_with(self, values: Any) -> None:
        """The graph came to this: it is told, if it was not; a leg before may have been killed on its way to it."""
        if "values" in self._modes and (text := _text(values)) != self._values:
            self._write([Emitted("values", text)])

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
            ],
            told=True,
        )

    def _message(self, place: str, chunk: Any) -> None:
        message, metadata = cast("tuple[Any, Mapping[str, Any]]", chunk)
        if not isinstance(message, BaseMessageChunk) or message.id is None:
            self.flush()
            self._write([Emitted("messages", _text([message, metadata]), place)], told=True)
            return
        key = (place, message.id)
        held = self._tokens.get(key)
        self._tokens[key] = (message if held is None else _joined(held[0], message), metadata)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TOKENS_S, self.flush)

    def _write(self, emitted: list[Emitted], *, told: bool = False) -> None:
        if not emitted:
            return
        job, now = self._job, self._store.clock.now_ms()

        def operation(connection: Connection) -> int:
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
            return 0 if self._slow_clients is None else events.newest(connection, job.thread_id)

        written = self._store.write(operation, patient=not told, told=told)
        written.add_done_callback(_ignore_lost_claim)
        if self._slow_clients is not None:
            self._slow_clients.wrote(written, sum(len(event.data_json) for event in emitted))


def _ignore_lost_claim(written: Future[int]) -> None:
    """Who lost the claim learns of it by what it stores; what it told is of no account."""
    error = None if written.cancelled() else written.exception()
    if error is not None and not isinstance(error, LostClaim):
        raise error


def checkpoint_ids(told: Mapping[str, Any]) -> dict[str, Any]:
    """Which checkpoint was stored, of all that is told of it: its id, its parent's, its step and where it came from."""
    metadata: Mapping[str, Any] = told.get("metadata") or {}
    ids = {"id": _place(told.get("config")), "parent_id": _place(told.get("parent_config"))}
    named = {name: place["checkpoint_id"] for name, place in ids.items() if place and "checkpoint_id" in place}
    return {**named, "step": metadata.get("step", -1), "source": metadata.get("source", "loop")}


def _without_waits(mode: str, chunk: Any) -> Any:
    """A chunk without the interrupts by which nodes wait for a signal or a moment: clients would ask a person.

    None if nothing is left of it.
    """
    if not isinstance(chunk, dict):
        return chunk
    told = cast("dict[str, Any]", chunk)
    if mode == "debug":
        inner = {"checkpoint": "checkpoints", "task_result": "tasks"}.get(told["type"], "")
        return {**told, "payload": _without_waits(inner, told["payload"])}
    if mode == "checkpoints":
        return {**told, "tasks": [_without_waits("tasks", task) for task in told.get("tasks", ())]}
    name = {"tasks": "interrupts", "updates": "__interrupt__", "values": "__interrupt__"}.get(mode, "")
    if not told.get(name):
        return told
    interrupts: list[Any] = list(told[name])
    asked = [each for each in interrupts if asks_a_person(_id_of(each))]
    if asked or mode == "tasks":
        return {**told, name: asked}
    left = {key: value for key, value in told.items() if key != name}
    return left if left or mode == "values" else None


def _id_of(interrupt: Any) -> str:
    return str(interrupt.id if isinstance(interrupt, Interrupt) else interrupt.get("id"))


def _placed(mode: str, chunk: Any) -> Any:
    """A chunk that tells of a checkpoint says where it is in the form of a thread's state, too; others as they are."""
    if mode == "debug" and chunk.get("type") == "checkpoint":
        return {**chunk, "payload": _placed("checkpoints", chunk["payload"])}
    if mode != "checkpoints":
        return chunk
    return {**chunk, "checkpoint": _place(chunk["config"]), "parent_checkpoint": _place(chunk["parent_config"])}


def _place(config: RunnableConfig | None) -> dict[str, Any] | None:
    told = (config or {}).get("configurable", {})
    return {name: told[name] for name in _PLACE if name in told} or None


def _joined(first: BaseMessageChunk, second: BaseMessageChunk) -> BaseMessageChunk:
    add = cast("Callable[[Any], BaseMessageChunk]", first.__add__)
    return add(second)


def _text(value: Any) -> str:
    return json.dumps(json_ready(value))
