"""A thread's state and its history, as the protocol's commands give them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.types import StateSnapshot

from everstep.checkpoints.saver import StepSaver
from everstep.checkpoints.thread import Thread
from everstep.errors import CheckpointNotFound
from everstep.runtime.results import json_ready
from everstep.server.context import Served
from everstep.server.langgraph.protocol.answers import Refused
from everstep.server.langgraph.thread_states import opened


async def get(served: Served, thread: Thread, namespace: Sequence[str], keys: Sequence[str] | None) -> dict[str, Any]:
    """What `state.get` gives.

    Args:
        served: What is served.
        thread: The thread.
        namespace: The graph whose state is wanted; empty for the thread's own.
        keys: Which values; None: all.

    Raises:
        Refused: There is no such graph below the thread's.
    """
    if thread.graph is None:
        return {"values": {}}
    async with opened(served, thread, "threads.read", StepSaver(served.store)) as graph:
        try:
            found = await graph.aget_state(_config(thread, namespace))
        except ValueError as error:
            raise _no_namespace(namespace) from error
    if found.created_at is None:
        if namespace:
            raise _no_namespace(namespace)
        return {"values": {}}
    values: Any = await served.store.in_thread(json_ready, found.values)
    if keys is not None and isinstance(values, Mapping):
        known = cast("Mapping[str, Any]", values)
        values = {key: known[key] for key in keys if key in known}
    return {"values": values, "checkpoint": _reference(found.config)}


async def history(
    served: Served, thread: Thread, namespace: Sequence[str], limit: int, before: str | None
) -> list[dict[str, Any]]:
    """What `state.listCheckpoints` gives, newest first.

    Args:
        served: What is served.
        thread: The thread.
        namespace: The graph whose history is wanted; empty for the thread's own.
        limit: How many checkpoints at most.
        before: Only older ones than this.

    Raises:
        Refused: There is no such graph below the thread's.
    """
    if thread.graph is None:
        return []
    config = _config(thread, namespace)
    earlier: RunnableConfig | None = None
    if before is not None:
        earlier = {"configurable": {**config.get("configurable", {}), "checkpoint_id": before}}
    async with opened(served, thread, "threads.read", StepSaver(served.store)) as graph:
        try:
            found = [one async for one in graph.aget_state_history(config, before=earlier, limit=limit)]
        except ValueError as error:
            raise _no_namespace(namespace) from error
    return await served.store.in_thread(lambda: [_summary(one) for one in found])


async def require_checkpoint(served: Served, thread_id: str, checkpoint_id: str) -> None:
    """Refuse a checkpoint that a thread has not.

    Raises:
        CheckpointNotFound: It has none of this id.
    """
    place: RunnableConfig = {
        "configurable": {"thread_id": thread_id, "checkpoint_ns": "", "checkpoint_id": checkpoint_id}
    }
    if await StepSaver(served.store).aget_tuple(place) is None:
        raise CheckpointNotFound(f"thread {thread_id} has no checkpoint {checkpoint_id}", thread_id=thread_id)


def _config(thread: Thread, namespace: Sequence[str]) -> RunnableConfig:
    return {"configurable": {"thread_id": thread.thread_id, "checkpoint_ns": "|".join(namespace)}}


def _reference(config: RunnableConfig) -> dict[str, Any]:
    place: Mapping[str, Any] = config.get("configurable", {})
    return {"id": place.get("checkpoint_id"), "ns": place.get("checkpoint_ns", "")}


def _summary(state: StateSnapshot) -> dict[str, Any]:
    metadata: dict[str, Any] = json_ready(state.metadata or {})
    return {
        "id": state.config.get("configurable", {}).get("checkpoint_id"),
        "timestamp": state.created_at,
        "step": metadata.get("step", -1),
        "metadata": metadata,
    }


def _no_namespace(namespace: Sequence[str]) -> Refused:
    return Refused("no_such_namespace", f"the thread has no graph at {list(namespace)}")
