"""`LongLists`: between LangGraph's saver, which stores and reads checkpoints, and the chunks their lists are kept in.

Before a checkpoint is stored its long lists are replaced by what stands for them; after it is read they are put back.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from functools import partial
from typing import Any, Protocol, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.types import _DeltaSnapshot  # pyright: ignore[reportPrivateUsage]
from sqlalchemy import Connection

from everstep.checkpoints import history
from everstep.checkpoints.change_warnings import NEXT_NODE
from everstep.checkpoints.history import Grown, HistoryGone, Known, Line, Memory, NewChunk
from everstep.checkpoints.recorder import Place, Statement, place_of
from everstep.checkpoints.statements import execute
from everstep.checkpoints.task_writes import Part, chunk_value, whole
from everstep.errors import StoreCorrupt

_LOST = "if the thread was pruned or deleted meanwhile, read it again; else restore a backup"


class ChunkTable(Protocol):
    """The rows of chunks in a database."""

    def chunks_of(self, place: Place, line: Line, first: int = 0) -> Sequence[tuple[str, bytes]]:
        """The first chunks of a line, in order: types and values; not those before a number."""
        ...

    def counting(self, place: Place, chunks: Sequence[Line]) -> Statement:
        """Count those of these chunks that are there; each by its line and its number."""
        ...


class Shortened:
    """A checkpoint as it is stored.

    Attributes:
        checkpoint: What LangGraph's saver stores.
        chunks: What is stored besides.
        lists: What is known of its lists once it is stored.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.chunks: list[NewChunk] = []
        self.lists: dict[str, Known] = {}
        self._guard: tuple[Statement, int] | None = None

    def expect(self, count: Statement, expected: int) -> None:
        """In the transaction, this must count so many."""
        self._guard = count, expected

    def check(self, connection: Connection) -> None:
        """Whether what it refers to is still there, under the lock of the transaction.

        Raises:
            HistoryGone: It is not.
        """
        if self._guard is not None:
            (sql, parameters), expected = self._guard
            if execute(connection, sql, parameters).fetchone()[0] != expected:
                raise HistoryGone


class LongLists:
    """Replaces long lists of checkpoints, and puts them back.

    Args:
        table: Where chunks are.
    """

    def __init__(self, table: ChunkTable) -> None:
        self._table = table
        self._memory = Memory()

    def shorten(
        self,
        serializer: SerializerProtocol,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        stored_anew: Sequence[str],
    ) -> Shortened:
        """Replace a checkpoint's long lists.

        Args:
            serializer: Makes the stored form of items.
            config: The checkpoint before it.
            checkpoint: The checkpoint.
            stored_anew: The channels whose values are stored with it.
        """
        values = dict(checkpoint["channel_values"])
        shortened = Shortened({**checkpoint, "channel_values": values})
        place = place_of(config)
        known = self._memory.take(place, config.get("configurable", {}).get("checkpoint_id"))
        expected = set[Line]()
        for name, value in values.items():
            if type(value) is not list or name.startswith("__"):
                continue
            if name not in stored_anew:
                if name in known:
                    shortened.lists[name] = known[name]
                continue
            list_known = known.get(name) or Known()
            grown = history.grow(serializer, name, list_known, cast("list[Any]", value))
            if grown is None:
                continue
            values[name], new = grown
            shortened.lists[name] = list_known
            stored = dict(grown[0].lines)
            if new is not None:
                shortened.chunks.append(new)
                stored[new.line] = new.number
            # The first, which all that need a line lock, and the last.
            expected |= {(line, number) for line, count in stored.items() if count for number in (0, count - 1)}
        if expected:
            shortened.expect(self._table.counting(place, sorted(expected)), len(expected))
        return shortened

    def stored(self, place: Place, shortened: Shortened) -> None:
        """A checkpoint was stored: its successor can go on from it."""
        if not _is_over(place, shortened.checkpoint):
            values = shortened.checkpoint["channel_values"]
            plain = {name for name, value in values.items() if not isinstance(value, _DeltaSnapshot)}
            self._memory.keep(place, shortened.checkpoint["id"], shortened.lists, plain=plain)

    def plain_channels(self, config: RunnableConfig) -> Set[str]:
        """The channels that a checkpoint with long lists has the values of; of one that was stored a moment ago.

        So none is a `DeltaChannel`, for which what was written to it is looked for by its name.
        """
        return self._memory.plain(place_of(config), config.get("configurable", {}).get("checkpoint_id"))

    def restore(
        self, serializer: SerializerProtocol, found: CheckpointTuple, *, remember: bool = False
    ) -> CheckpointTuple:
        """Put the lists back into a checkpoint that was read, and what its tasks wrote, and return it.

        Raises:
            StoreCorrupt: Parts of them are missing.
        """
        values, lists = found.checkpoint["channel_values"], dict[str, Known]()
        place = place_of(found.config)
        for name, value in values.items():
            if isinstance(value, Grown):
                values[name], chunks = self.read(serializer, place, value)
                if remember:
                    lists[name] = history.known_of(serializer, value.lines, chunks)
        self._memory.keep(place, found.checkpoint["id"], lists)
        if found.pending_writes:
            found.pending_writes[:] = whole(found.pending_writes, serializer, partial(self.chunk_of, place))
        return found

    def chunk_of(self, place: Place, part: Part) -> bytes:
        """The chunk that something is part of, unpacked.

        Raises:
            StoreCorrupt: It is not there.
        """
        rows = self._table.chunks_of(place, (part.line, part.number + 1), part.number)
        if not rows:
            raise StoreCorrupt(f"thread {place[0]}: what a task wrote is not there", next_step=_LOST)
        return chunk_value(*rows[0])[1]

    def read(self, serializer: SerializerProtocol, place: Place, grown: Grown) -> tuple[list[Any], list[list[Any]]]:
        """A list, and its chunks.

        Raises:
            StoreCorrupt: Parts of it are missing.
        """
        rows = [row for line in grown.lines for row in self._table.chunks_of(place, line)]
        chunks: list[list[Any]] = [serializer.loads_typed((kind, value)) for kind, value in rows]
        items = [item for chunk in chunks for item in chunk]
        if len(rows) != sum(count for _, count in grown.lines) or len(items) != grown.items:
            raise StoreCorrupt(
                f"thread {place[0]}: {len(items)} of {grown.items} items of a list are there",
                next_step=_LOST,
            )
        return items, chunks


def _is_over(place: Place, checkpoint: Checkpoint) -> bool:
    """Whether nothing follows, of a subgraph that has another namespace each time it is called."""
    one_call = ":" in place[1].rpartition("|")[2]
    return one_call and not any(name.startswith((NEXT_NODE, "join:", "__")) for name in checkpoint["channel_values"])
