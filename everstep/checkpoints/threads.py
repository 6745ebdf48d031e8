"""What of a thread must be kept so that what stays of it can be read; for what savers delete."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from langgraph.checkpoint.base import CheckpointTuple

from everstep.checkpoints.history import Grown

if TYPE_CHECKING:
    from everstep.checkpoints.saver import StepSaver


def needed(saver: StepSaver, thread_id: str, namespace: str) -> list[CheckpointTuple]:
    """The newest checkpoint of a namespace of a thread, and those ancestors a `DeltaChannel` in it is rebuilt from."""
    kept: list[CheckpointTuple] = []
    current = saver.as_stored({"configurable": {"thread_id": thread_id, "checkpoint_ns": namespace}})
    waiting: set[str] = set()
    if current is not None:
        waiting = set(current.metadata.get("counters_since_delta_snapshot") or ())
    while current is not None:
        kept.append(current)
        waiting -= set(current.checkpoint["channel_values"])
        current = saver.as_stored(current.parent_config) if waiting and current.parent_config else None
    return kept


def lines(checkpoints: Iterable[CheckpointTuple]) -> dict[str, int]:
    """Which lines the lists of checkpoints consist of, and how many chunks of each from its beginning."""
    found: dict[str, int] = {}
    for checkpoint in checkpoints:
        for value in checkpoint.checkpoint["channel_values"].values():
            for line, count in value.lines if isinstance(value, Grown) else ():
                found[line] = max(count, found.get(line, 0))
    return found
