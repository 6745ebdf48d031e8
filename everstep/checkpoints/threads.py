"""What of a thread must be kept so that its newest state can be read; for the savers' `prune`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from langgraph.checkpoint.base import BaseCheckpointSaver

if TYPE_CHECKING:
    from everstep.checkpoints.saver import StepSaver


def needed(saver: BaseCheckpointSaver[str], thread_id: str, namespace: str) -> list[str]:
    """The newest checkpoint of a namespace of a thread, and those ancestors a `DeltaChannel` in it is rebuilt from."""
    kept: list[str] = []
    current = saver.get_tuple({"configurable": {"thread_id": thread_id, "checkpoint_ns": namespace}})
    waiting: set[str] = set()
    if current is not None:
        waiting = set(current.metadata.get("counters_since_delta_snapshot") or ())
    while current is not None:
        kept.append(current.checkpoint["id"])
        waiting -= set(current.checkpoint["channel_values"])
        current = saver.get_tuple(current.parent_config) if waiting and current.parent_config else None
    return kept


def lines(saver: StepSaver, thread_id: str, namespace: str, checkpoints: Iterable[str]) -> set[str]:
    """The lines that the lists of these checkpoints consist of."""
    places = [{"thread_id": thread_id, "checkpoint_ns": namespace, "checkpoint_id": each_id} for each_id in checkpoints]
    return {line for place in places for line in saver.lines_of({"configurable": place})}
