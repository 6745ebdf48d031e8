"""What of a thread must be kept so that its newest state can be read; for the savers' `prune`."""

from __future__ import annotations

from langgraph.checkpoint.base import BaseCheckpointSaver


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
