"""`StepSaver` on PostgreSQL: LangGraph's `PostgresSaver` does the SQL; here is what it lacks, and where it reads."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.postgres import PostgresSaver
from psycopg.types.json import Jsonb

from everstep.checkpoints.fence import Fence
from everstep.checkpoints.history import CHUNKS, NewChunk
from everstep.checkpoints.recorder import Place, Recorder, Statement
from everstep.checkpoints.saver import INTERRUPT, RESUME, StepSaver
from everstep.checkpoints.task_writes import PART, PARTS, TOGETHER, Row, replaced
from everstep.checkpoints.threads import lines, needed, parted

if TYPE_CHECKING:
    from everstep.checkpoints.store import Store

_COLUMNS = {
    "checkpoints": "checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata",
    "checkpoint_blobs": "checkpoint_ns, channel, version, type, blob",
    "checkpoint_writes": "checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type, blob",
}
_ROW = "thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type, blob"
_UNREFERENCED = """
DELETE FROM checkpoint_blobs b WHERE b.thread_id = %s AND b.checkpoint_ns = %s AND NOT EXISTS (
    SELECT 1 FROM checkpoints c
    WHERE c.thread_id = b.thread_id AND c.checkpoint_ns = b.checkpoint_ns
    AND c.checkpoint -> 'channel_versions' ->> b.channel = b.version
)"""

_LOCKING = """
SELECT 1 FROM checkpoint_writes WHERE thread_id = %s AND checkpoint_ns = %s AND checkpoint_id = %s AND idx = 0
ORDER BY task_id, idx FOR UPDATE"""
"""Whoever puts a checkpoint counts the first chunk of each line it needs: those are seen from here on, or wait."""


class _Recorder(Recorder):
    """Keeps JSON as the text it is now, not as the object it may become."""

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        super().execute(sql, [json.dumps(one.obj) if isinstance(one, Jsonb) else one for one in parameters])


class PostgresStepSaver(StepSaver, PostgresSaver):
    """See `StepSaver`."""

    recorder_class = _Recorder
    stores_what_changed = True

    def __init__(self, store: Store, fence: Fence | None = None, *, full_lists: bool = False) -> None:
        PostgresSaver.__init__(self, store.checkpoint_reader)
        StepSaver.__init__(self, store, fence, full_lists=full_lists)

    @contextmanager
    def _cursor(self, *, pipeline: bool = False) -> Generator[Any]:
        """The stock saver's hook: a recorder for writes (it makes them in a pipeline), a real cursor for reads."""
        if pipeline:
            yield self.recorder()
        else:
            with super()._cursor() as cursor:
                yield cursor

    def _rows(self, sql: str, parameters: Sequence[Any]) -> list[dict[str, Any]]:
        with self._cursor() as cursor:
            return cursor.execute(sql, parameters).fetchall()

    def chunks_of(self, place: Place, line: tuple[str, int], first: int = 0) -> Sequence[Any]:
        """See `ChunkTable`."""
        rows = self._rows(
            "SELECT type, blob FROM checkpoint_writes WHERE thread_id = %s AND checkpoint_ns = %s"
            " AND checkpoint_id = %s AND task_id = %s AND idx < %s AND idx >= %s ORDER BY idx",
            (*place, CHUNKS, *line, first),
        )
        return [(row["type"], row["blob"]) for row in rows]

    def rewriting(self, row: Row, kind: str, value: bytes) -> Statement:
        """See `RewritingTable`."""
        return (
            "UPDATE checkpoint_writes SET type = %s, blob = %s WHERE thread_id = %s AND checkpoint_ns = %s"
            " AND checkpoint_id = %s AND task_id = %s AND idx = %s AND type = %s AND blob = %s",
            (kind, value, *row.as_it_is),
        )

    def storing(self, place: Place, new: NewChunk) -> Statement:
        """See `ChunkTable`."""
        return (
            "INSERT INTO checkpoint_writes (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, blob)"
            " VALUES (%s, %s, %s, %s, %s, %s, %s, %s)",
            (*place, CHUNKS, *new),
        )

    def counting(self, place: Place, chunks: Sequence[tuple[str, int]]) -> Statement:
        """See `ChunkTable`. They are locked, so that whoever wants to delete them waits for what is put."""
        rows = ", ".join(["(%s, %s)"] * len(chunks))
        return (
            "SELECT count(*) FROM ("
            "SELECT 1 FROM checkpoint_writes WHERE thread_id = %s AND checkpoint_ns = %s AND checkpoint_id = %s"
            f" AND (task_id, idx) IN ({rows}) ORDER BY task_id, idx FOR KEY SHARE) AS held",
            (*place, CHUNKS, *(part for chunk in chunks for part in chunk)),
        )

    def _answers(self, thread_id: str) -> Sequence[Any]:
        rows = self._rows(
            "SELECT checkpoint_ns, checkpoint_id, task_id, channel, type, blob FROM checkpoint_writes"
            " WHERE thread_id = %s AND channel IN (%s, %s)",
            (thread_id, INTERRUPT, RESUME),
        )
        return [tuple(row.values()) for row in rows]

    def _deletion_of_runs(self, run_ids: Sequence[str]) -> list[Statement]:
        of_run = "SELECT thread_id, checkpoint_ns, checkpoint_id FROM checkpoints WHERE metadata ->> 'run_id' = %s"
        touched = {
            (row["thread_id"], row["checkpoint_ns"]) for run_id in run_ids for row in self._rows(of_run, (run_id,))
        }
        places = sorted(touched)
        return [
            *((_LOCKING, (*place, CHUNKS)) for place in places),
            *(
                (f"DELETE FROM {table} WHERE (thread_id, checkpoint_ns, checkpoint_id) IN ({of_run})", (run_id,))
                for run_id in run_ids
                for table in ("checkpoint_writes", "checkpoints")
            ),
            *(self._deletion_of_lines(place, self._left(place, run_ids)) for place in places),
            *((_UNREFERENCED, place) for place in places),
        ]

    def _copying(self, source_thread_id: str, target_thread_id: str) -> list[Statement]:
        if source_thread_id == target_thread_id:
            return []
        replaced = [(f"DELETE FROM {table} WHERE thread_id = %s", (target_thread_id,)) for table in _COLUMNS]
        copied = [
            (
                f"INSERT INTO {table} (thread_id, {columns}) SELECT %s, {columns} FROM {table} WHERE thread_id = %s",
                (target_thread_id, source_thread_id),
            )
            for table, columns in _COLUMNS.items()
        ]
        return [*replaced, *copied]

    def _pruning(self, thread_id: str) -> list[Statement]:
        statements: list[Statement] = []
        namespaces = self._rows("SELECT DISTINCT checkpoint_ns FROM checkpoints WHERE thread_id = %s", (thread_id,))
        for place in [(thread_id, row["checkpoint_ns"]) for row in namespaces]:
            found = needed(self, *place)
            kept = [each.checkpoint["id"] for each in found]
            if not kept:
                continue  # deleted since
            statements.append((_LOCKING, (*place, CHUNKS)))
            # Ids grow with time: what was stored since the look is newer than all it kept, and stays.
            statements += [
                (
                    f"DELETE FROM {table} WHERE thread_id = %s AND checkpoint_ns = %s"
                    " AND checkpoint_id < %s AND checkpoint_id <> ALL(%s)",
                    (*place, max(kept), [*kept, CHUNKS]),
                )
                for table in ("checkpoints", "checkpoint_writes")
            ]
            statements += [self._deletion_of_lines(place, found), (_UNREFERENCED, place)]
        return statements

    def _deletion_of_lines(self, place: Place, left: Sequence[CheckpointTuple]) -> Statement:
        ids = [each.checkpoint["id"] for each in left]
        return (
            "DELETE FROM checkpoint_writes WHERE thread_id = %s AND checkpoint_ns = %s AND checkpoint_id = %s"
            " AND idx >= coalesce((%s::jsonb ->> task_id)::int, 0) AND NOT EXISTS ("
            "SELECT 1 FROM checkpoints WHERE thread_id = %s AND checkpoint_ns = %s AND checkpoint_id <> ALL(%s))"
            " AND %s = (SELECT count(*) FROM checkpoint_writes WHERE thread_id = %s AND checkpoint_ns = %s"
            " AND type IN (%s, %s) AND checkpoint_id = ANY(%s))",
            (*place, CHUNKS, json.dumps(lines(left)), *place, ids, parted(left), *place, PART, PARTS, ids),
        )

    def _together(self, thread_id: str) -> list[Row]:
        rows = self._rows(
            f"SELECT {_ROW} FROM checkpoint_writes WHERE thread_id = %s AND type IN (%s, %s, %s)",
            (thread_id, PART, PARTS, TOGETHER),
        )
        return [Row(*row.values()) for row in rows]

    def _stored_together(self, place: Place) -> list[str]:
        rows = self._rows(
            "SELECT DISTINCT channel FROM checkpoint_writes WHERE thread_id = %s AND checkpoint_ns = %s"
            " AND type IN (%s, %s)",
            (*place, TOGETHER, PARTS),
        )
        return [row["channel"] for row in rows]

    def _replacing(self, row: Row, rows: Sequence[Row]) -> list[Statement]:
        marks = ", ".join(["%s"] * len(row))
        return [
            (
                "DELETE FROM checkpoint_writes WHERE thread_id = %s AND checkpoint_ns = %s AND checkpoint_id = %s"
                " AND task_id = %s AND idx BETWEEN %s AND %s",
                (*row[:4], *replaced(row)),
            ),
            (
                f"INSERT INTO checkpoint_writes ({_ROW}) VALUES ({marks}) ON CONFLICT DO NOTHING",
                [tuple(each) for each in rows],
            ),
        ]

    def _freeing(self, place: Place, versions: Mapping[str, Any]) -> list[Statement]:
        return [
            (
                "DELETE FROM checkpoint_blobs WHERE thread_id = %s AND checkpoint_ns = %s AND channel = %s"
                " AND version = %s",
                (*place, name, str(version)),
            )
            for name, version in versions.items()
        ]

    def _deletion_of_chunks(self, thread_id: str) -> Statement:
        return "DELETE FROM checkpoint_writes WHERE thread_id = %s AND checkpoint_id = %s", (thread_id, CHUNKS)
