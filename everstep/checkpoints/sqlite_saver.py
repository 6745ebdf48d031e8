"""`StepSaver` on SQLite: LangGraph's `SqliteSaver` does the SQL; here is what it lacks, and where it reads."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.sqlite import SqliteSaver

from everstep.checkpoints.fence import Fence
from everstep.checkpoints.history import CHUNKS, NewChunk
from everstep.checkpoints.recorder import Place, Statement
from everstep.checkpoints.saver import INTERRUPT, RESUME, StepSaver
from everstep.checkpoints.sqlite import SqliteReader
from everstep.checkpoints.task_writes import PART, PARTS, TOGETHER, Row, replaced
from everstep.checkpoints.threads import lines, needed, parted

if TYPE_CHECKING:
    from everstep.checkpoints.store import Store

_COLUMNS = {
    "checkpoints": "checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata",
    "writes": "checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type, value",
}
_ROW = "thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type, value"


class SqliteStepSaver(StepSaver, SqliteSaver):
    """See `StepSaver`."""

    def __init__(self, store: Store, fence: Fence | None = None, *, full_lists: bool = False) -> None:
        reader: SqliteReader = store.checkpoint_reader
        SqliteSaver.__init__(self, reader.connection)
        self.lock = reader.lock
        self.is_setup = True
        StepSaver.__init__(self, store, fence, full_lists=full_lists)

    @contextmanager
    def cursor(self, transaction: bool = True) -> Generator[Any]:
        """The stock saver's hook: a recorder for writes, a real cursor for reads."""
        if transaction:
            yield self.recorder()
        else:
            with super().cursor(transaction=False) as cursor:
                yield cursor

    def chunks_of(self, place: Place, line: tuple[str, int], first: int = 0) -> Sequence[Any]:
        """See `ChunkTable`."""
        with self.cursor(transaction=False) as cursor:
            return cursor.execute(
                "SELECT type, value FROM writes WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?"
                " AND task_id = ? AND idx < ? AND idx >= ? ORDER BY idx",
                (*place, CHUNKS, *line, first),
            ).fetchall()

    def rewriting(self, row: Row, kind: str, value: bytes) -> Statement:
        """See `RewritingTable`."""
        return (
            "UPDATE writes SET type = ?, value = ? WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?"
            " AND task_id = ? AND idx = ? AND type = ? AND value = ?",
            (kind, value, *row.as_it_is),
        )

    def storing(self, place: Place, new: NewChunk) -> Statement:
        """See `ChunkTable`."""
        return (
            "INSERT INTO writes (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, value)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (*place, CHUNKS, *new),
        )

    def counting(self, place: Place, chunks: Sequence[tuple[str, int]]) -> Statement:
        """See `ChunkTable`."""
        rows = ", ".join(["(?, ?)"] * len(chunks))
        return (
            "SELECT count(*) FROM writes WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?"
            f" AND (task_id, idx) IN (VALUES {rows})",
            (*place, CHUNKS, *(part for chunk in chunks for part in chunk)),
        )

    def _answers(self, thread_id: str) -> Sequence[Any]:
        with self.cursor(transaction=False) as cursor:
            return cursor.execute(
                "SELECT checkpoint_ns, checkpoint_id, task_id, channel, type, value FROM writes"
                " WHERE thread_id = ? AND channel IN (?, ?)",
                (thread_id, INTERRUPT, RESUME),
            ).fetchall()

    def _deletion_of_runs(self, run_ids: Sequence[str]) -> list[Statement]:
        of_run = "json_extract(CAST(metadata AS TEXT), '$.run_id') = ?"
        touched = {place for run_id in run_ids for place in self._places(of_run, run_id)}
        checkpoints = f"SELECT thread_id, checkpoint_ns, checkpoint_id FROM checkpoints WHERE {of_run}"
        deletions = (
            f"DELETE FROM writes WHERE (thread_id, checkpoint_ns, checkpoint_id) IN ({checkpoints})",
            f"DELETE FROM checkpoints WHERE {of_run}",
        )
        deleted = [(deletion, (run_id,)) for run_id in run_ids for deletion in deletions]
        return [*deleted, *(self._deletion_of_lines(place, self._left(place, run_ids)) for place in sorted(touched))]

    def _copying(self, source_thread_id: str, target_thread_id: str) -> list[Statement]:
        return [
            (
                f"INSERT OR REPLACE INTO {table} (thread_id, {columns}) SELECT ?, {columns} FROM {table}"
                " WHERE thread_id = ?",
                (target_thread_id, source_thread_id),
            )
            for table, columns in _COLUMNS.items()
        ]

    def _places(self, condition: str, parameter: str) -> list[Place]:
        with self.cursor(transaction=False) as cursor:
            return cursor.execute(
                f"SELECT DISTINCT thread_id, checkpoint_ns FROM checkpoints WHERE {condition}", (parameter,)
            ).fetchall()

    def _pruning(self, thread_id: str) -> list[Statement]:
        statements: list[Statement] = []
        for place in self._places("thread_id = ?", thread_id):
            found = needed(self, *place)
            kept = [each.checkpoint["id"] for each in found]
            if not kept:
                continue  # deleted since
            marks = ", ".join("?" * (len(kept) + 1))
            # Ids grow with time: what was stored since the look is newer than all it kept, and stays.
            statements += [
                (
                    f"DELETE FROM {table} WHERE thread_id = ? AND checkpoint_ns = ?"
                    f" AND checkpoint_id < ? AND checkpoint_id NOT IN ({marks})",
                    (*place, max(kept), CHUNKS, *kept),
                )
                for table in _COLUMNS
            ]
            statements.append(self._deletion_of_lines(place, found))
        return statements

    def _deletion_of_lines(self, place: Place, left: Sequence[CheckpointTuple]) -> Statement:
        ids = json.dumps([each.checkpoint["id"] for each in left])
        return (
            "DELETE FROM writes WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?"
            " AND idx >= coalesce(json_extract(?, '$.\"' || task_id || '\"'), 0) AND NOT EXISTS ("
            "SELECT 1 FROM checkpoints WHERE thread_id = ? AND checkpoint_ns = ?"
            " AND checkpoint_id NOT IN (SELECT value FROM json_each(?))) AND ? = ("
            "SELECT count(*) FROM writes WHERE thread_id = ? AND checkpoint_ns = ? AND type IN (?, ?)"
            " AND checkpoint_id IN (SELECT value FROM json_each(?)))",
            (*place, CHUNKS, json.dumps(lines(left)), *place, ids, parted(left), *place, PART, PARTS, ids),
        )

    def _together(self, thread_id: str) -> list[Row]:
        with self.cursor(transaction=False) as cursor:
            return [
                Row(*row)
                for row in cursor.execute(
                    f"SELECT {_ROW} FROM writes WHERE thread_id = ? AND type IN (?, ?, ?)",
                    (thread_id, PART, PARTS, TOGETHER),
                )
            ]

    def _stored_together(self, place: Place) -> list[str]:
        with self.cursor(transaction=False) as cursor:
            return [
                channel
                for (channel,) in cursor.execute(
                    "SELECT DISTINCT channel FROM writes WHERE thread_id = ? AND checkpoint_ns = ? AND type IN (?, ?)",
                    (*place, TOGETHER, PARTS),
                )
            ]

    def _replacing(self, row: Row, rows: Sequence[Row]) -> list[Statement]:
        marks = ", ".join("?" * len(row))
        return [
            (
                "DELETE FROM writes WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ? AND task_id = ?"
                " AND idx BETWEEN ? AND ?",
                (*row[:4], *replaced(row)),
            ),
            (f"INSERT OR IGNORE INTO writes ({_ROW}) VALUES ({marks})", [tuple(each) for each in rows]),
        ]

    def get_next_version(self, current: str | None, channel: None) -> str:
        """As the stock saver, without the random digits, which nothing here needs: no value is kept by its version."""
        before = 0 if current is None else int(str(current).partition(".")[0])
        return f"{before + 1:032}"

    def _freeing(self, place: Place, versions: Mapping[str, Any]) -> list[Statement]:
        return []  # a checkpoint has its values in itself

    def _deletion_of_chunks(self, thread_id: str) -> Statement:
        return "DELETE FROM writes WHERE thread_id = ? AND checkpoint_id = ?", (thread_id, CHUNKS)
