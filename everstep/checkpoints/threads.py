"""What of a thread must be kept so that what stays of it can be read; for what savers delete."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from langgraph.checkpoint.base import CheckpointTuple

from everstep.checkpoints.history import Grown
from everstep.checkpoints.task_writes import lines_of

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
    """Which lines checkpoints, and what their tasks wrote, need; and how many chunks of each from its beginning."""
    found: dict[str, int] = {}
    for checkpoint in checkpoints:
        needed = [value.lines for value in checkpoint.checkpoint["channel_values"].values() if isinstance(value, Grown)]
        needed += [lines_of(value) for _, _, value in checkpoint.pending_writes or ()]
        for line, count in (each for some in needed for each in some):
            found[line] = max(count, found.get(line, 0))
    return found


def parted(checkpoints: Iterable[CheckpointTuple]) -> int:
    """How many rows of what the tasks of checkpoints wrote need lines."""
    return sum(1 for each in checkpoints for _, _, value in each.pending_writes or () if any(lines_of(value)))
