"""Statements over whole threads, for `StepSaver`: what to copy, and what of a thread may be dropped.

They are run by the saver, as all its writes; nothing here changes the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langgraph.checkpoint.sqlite import SqliteSaver

Statement = tuple[str, Any]
"""SQL, and its parameters: a tuple, or a list of tuples to run it once for each."""

_COLUMNS = {
    "checkpoints": "checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata",
    "writes": "checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type, value",
}


def deletion_of_runs(run_ids: Sequence[str]) -> list[Statement]:
    """Delete the checkpoints whose metadata name one of these runs, and their writes, in every namespace."""
    of_run = "json_extract(CAST(metadata AS TEXT), '$.run_id') = ?"
    checkpoints = f"SELECT thread_id, checkpoint_ns, checkpoint_id FROM checkpoints WHERE {of_run}"
    deletions = (
        f"DELETE FROM writes WHERE (thread_id, checkpoint_ns, checkpoint_id) IN ({checkpoints})",
        f"DELETE FROM checkpoints WHERE {of_run}",
    )
    return [(deletion, (run_id,)) for run_id in run_ids for deletion in deletions]


def copy(source_thread_id: str, target_thread_id: str) -> list[Statement]:
    """Copy a whole thread: every checkpoint and write, in every namespace."""
    return [
        (
            f"INSERT OR REPLACE INTO {table} (thread_id, {columns}) SELECT ?, {columns} FROM {table}"
            " WHERE thread_id = ?",
            (target_thread_id, source_thread_id),
        )
        for table, columns in _COLUMNS.items()
    ]


def pruning(saver: SqliteSaver, thread_id: str) -> list[Statement]:
    """Drop every checkpoint of a thread that is not needed to read the newest one of its namespace."""
    statements: list[Statement] = []
    for namespace, kept in _needed(saver, thread_id).items():
        # Ids grow with time: what was stored since the look above is newer than all it kept, and stays.
        marks = ", ".join("?" * len(kept))
        statements += [
            (
                f"DELETE FROM {table} WHERE thread_id = ? AND checkpoint_ns = ?"
                f" AND checkpoint_id < ? AND checkpoint_id NOT IN ({marks})",
                (thread_id, namespace, max(kept), *kept),
            )
            for table in _COLUMNS
        ]
    return statements


def _needed(saver: SqliteSaver, thread_id: str) -> dict[str, list[str]]:
    """For each namespace of a thread, its newest checkpoint and those ancestors a `DeltaChannel` is rebuilt from."""
    with saver.cursor(transaction=False) as cursor:
        rows = cursor.execute(
            "SELECT DISTINCT checkpoint_ns FROM checkpoints WHERE thread_id = ?", (thread_id,)
        ).fetchall()
    needed: dict[str, list[str]] = {}
    for (namespace,) in rows:
        current = saver.get_tuple({"configurable": {"thread_id": thread_id, "checkpoint_ns": namespace}})
        waiting: set[str] = set()
        if current is not None:
            waiting = set(current.metadata.get("counters_since_delta_snapshot") or ())
        while current is not None:
            needed.setdefault(namespace, []).append(current.checkpoint["id"])
            waiting -= set(current.checkpoint["channel_values"])
            current = saver.get_tuple(current.parent_config) if waiting and current.parent_config else None
    return needed
