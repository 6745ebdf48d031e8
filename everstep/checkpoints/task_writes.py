"""`TaskWrites`: what a task wrote, stored without what the checkpoint after it stores as well.

LangGraph stores what each task writes, and then the channels that it went into. A message would be stored twice: as the
write, and as the chunk its list grew by (`history`). So the write is stored first, as its task may be the last one that
ends before a crash, and in the transaction of the chunk it becomes what differs from that: mostly nothing, or the id
that the reducer gave the message. The rows of a task become one row as well, where a thread has long lists anyhow.

Both are undone when they are read (`whole`), and by `store_whole` (`apart`).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, NamedTuple, Protocol

import ormsgpack
from langgraph.checkpoint.base import WRITES_IDX_MAP, PendingWrite
from langgraph.checkpoint.serde.base import SerializerProtocol

from everstep.checkpoints import compression
from everstep.checkpoints.change_warnings import is_routing
from everstep.checkpoints.history import NewChunk
from everstep.checkpoints.recorder import Place, Statement

PART, TOGETHER, PARTS, CHUNK = "everstep-d", "everstep-w", "everstep-p", "everstep-c"
"""Types: a write as what differs from a chunk; the writes of a task; those of which some are so; a deflated chunk.
They are short, as each row has one."""
MOST_REMEMBERED = 16 * 1024 * 1024
"""Bytes of writes that a saver remembers until the next checkpoint."""
SMALLEST = 160
"""Bytes below which a value stays as it is."""
_SHARE = 16
"""A write is looked for in a chunk of up to as many times its size, so that the effort stays that of the chunk's."""
_SEPARATOR = ","
_LAST = 2**31 - 1
_KINDS = ("msgpack", "null")


class Part(NamedTuple):
    """Stands for a value that is in a chunk.

    Attributes:
        kind: The value's type.
        line: The chunk's line.
        number: Its number there.
        differs: The value, deflated with the chunk's bytes as what is known; empty if it is the same.
    """

    kind: str
    line: str
    number: int
    differs: bytes

    def value(self, chunk: bytes) -> bytes:
        """The bytes it stands for."""
        return compression.inflated(self.differs, chunk) if self.differs else chunk


class Written(NamedTuple):
    """A value that is not in a chunk.

    Attributes:
        kind: Its type.
        value: Its bytes.
        deflated: The same, as they are stored; None if they are stored as they are.
    """

    kind: str
    value: bytes
    deflated: bytes | None = None


Parts = list[Part | Written]
"""What a task wrote."""


class Together(NamedTuple):
    """Stands for what a task wrote, in rows that are one."""

    parts: Parts


class Row(NamedTuple):
    """A row of LangGraph's table of writes."""

    thread_id: str
    namespace: str
    checkpoint_id: str
    task_id: str
    task_path: str
    position: int
    channel: str
    kind: str
    value: bytes

    @property
    def as_it_is(self) -> tuple[str, str, str, str, int, str, bytes]:
        """By what a statement finds it if it is still so: its key, its type and its value."""
        key = self.thread_id, self.namespace, self.checkpoint_id, self.task_id, self.position
        return *key, self.kind, self.value


class Shorter(NamedTuple):
    """What to run to store chunks, and in which form they are stored.

    Attributes:
        rewritten: Makes of the writes that are part of them what differs; first, as there is room then.
        chunks: The chunks.
    """

    rewritten: list[Statement]
    chunks: list[NewChunk]


class RewritingTable(Protocol):
    """The rows of writes in a database."""

    def rewriting(self, row: Row, kind: str, value: bytes) -> Statement:
        """Give a row another type and value, if it is there as it is given."""
        ...


class TaskWrites:
    """What tasks wrote since a checkpoint.

    Args:
        table: Where it is stored.
    """

    def __init__(self, table: RewritingTable) -> None:
        self._table = table
        self._lock = threading.Lock()
        self._rows: OrderedDict[tuple[Place, str], list[tuple[Row, Parts]]] = OrderedDict()
        self._size = 0

    def to_store(self, rows: Sequence[Row], plain: Set[str]) -> Sequence[Row]:
        """What a task wrote, as it is stored from now on: as one row, if that can be.

        Args:
            rows: The rows, as LangGraph would store them.
            plain: Channels whose writes nobody looks for by their name, as for those of a `DeltaChannel`.
        """
        if can_be_one(rows, plain):
            parts: Parts = [_written(row) for row in rows]
            channels = _SEPARATOR.join([row.channel for row in rows])
            rows = [rows[0]._replace(channel=channels, kind=TOGETHER, value=_packed(parts))]
            self._remember(rows[0], parts)
        else:
            for row in rows:
                self._remember(row, [Written(row.kind, row.value)])
        return rows

    def _remember(self, row: Row, parts: Parts) -> None:
        if all(len(part.value) < SMALLEST for part in parts if isinstance(part, Written)):
            return
        with self._lock:
            key = (row.thread_id, row.namespace), row.checkpoint_id
            self._rows.setdefault(key, []).append((row, parts))
            self._size += _size(parts)
            while self._size > MOST_REMEMBERED:
                self._take(next(iter(self._rows)))

    def shorten(self, place: Place, checkpoint_id: str | None, chunks: Sequence[NewChunk]) -> Shorter:
        """How chunks are stored, and what became part of them.

        Args:
            place: Where.
            checkpoint_id: The checkpoint whose tasks wrote what is in the chunks.
            chunks: The chunks, as they are.
        """
        with self._lock:
            remembered = self._take((place, checkpoint_id or ""))
        by_channel = {chunk.channel: chunk for chunk in chunks}
        known: dict[bytes, bytes] = {}
        rewritten: list[Statement] = []
        for row, parts in remembered:
            channels = channels_of(row.channel) if row.kind == TOGETHER else [row.channel]
            shorter = [_part_of(part, by_channel.get(name)) for name, part in zip(channels, parts, strict=True)]
            known.update({part.value: part.deflated for part in parts if isinstance(part, Written) and part.deflated})
            if shorter == parts:
                continue
            if row.kind == TOGETHER:
                rewritten.append(self._table.rewriting(row, PARTS, _packed(shorter)))
            else:
                rewritten.append(self._table.rewriting(row, PART, ormsgpack.packb([*shorter[0]])))
        return Shorter(rewritten, [_deflated_chunk(chunk, known) for chunk in chunks])

    def _take(self, key: tuple[Place, str]) -> list[tuple[Row, Parts]]:
        found = self._rows.pop(key, [])
        self._size -= sum(_size(parts) for _, parts in found)
        return found


def can_be_one(rows: Sequence[Row], plain: Set[str]) -> bool:
    """Whether the rows of a task are stored as one; see `TaskWrites.to_store`."""
    if not rows or not rows[0].task_path or (len(rows) == 1 and len(rows[0].value) < SMALLEST):
        return False
    for at, row in enumerate(rows):
        if row.position != at or _SEPARATOR in row.channel or not (row.channel in plain or is_routing(row.channel)):
            return False
    return True


def channels_of(channel: str) -> list[str]:
    """The channels of writes that are stored together."""
    return channel.split(_SEPARATOR)


def parts_of(value: bytes) -> Parts:
    """What was stored together."""
    return [_unpacked(*given) for given in ormsgpack.unpackb(value)]


def apart(row: Row, chunk_of: Callable[[Part], bytes]) -> list[Row]:
    """The rows that a row stands for, as LangGraph would have stored them."""
    parts: Parts = [Part(*ormsgpack.unpackb(row.value))] if row.kind == PART else parts_of(row.value)
    channels = [row.channel] if row.kind == PART else channels_of(row.channel)
    return [
        row._replace(
            position=row.position + at,
            channel=channel,
            kind=part.kind,
            value=_value(part, chunk_of),
        )
        for at, (channel, part) in enumerate(zip(channels, parts, strict=True))
    ]


def whole(
    writes: Iterable[PendingWrite], serializer: SerializerProtocol, chunk_of: Callable[[Part], bytes]
) -> list[PendingWrite]:
    """What tasks wrote, as it was: first, as what a task wrote when it ran again changes nothing.

    Args:
        writes: As they were read, with what stands for them.
        serializer: Makes values of their stored form.
        chunk_of: The chunk that something is part of.
    """

    def read(part: Part | Written) -> Any:
        return serializer.loads_typed((part.kind, _value(part, chunk_of)))

    writes = list(writes)
    complete = {task_id for task_id, _, value in writes if type(value) is Together}
    found: list[PendingWrite] = []
    for task_id, channel, value in writes:
        if type(value) is Together:
            values = [read(part) for part in value.parts]
            found += [(task_id, *each) for each in zip(channels_of(channel), values, strict=True)]
        elif task_id in complete and channel not in WRITES_IDX_MAP:
            continue  # row by row: what is one row kept but the first from being stored
        else:
            found.append((task_id, channel, read(value) if type(value) is Part else value))
    return found


def replaced(row: Row) -> tuple[int, int]:
    """The first and the last position of the rows of its task that those of `apart` take the place of."""
    return row.position, row.position if row.kind == PART else _LAST


def lines_of(value: Any) -> Iterable[tuple[str, int]]:
    """Which lines that which was read of a write needs, and how many chunks of each."""
    for part in value.parts if type(value) is Together else (value,):
        if type(part) is Part:
            yield part.line, part.number + 1


def chunk_value(kind: str, value: bytes) -> tuple[str, bytes]:
    """A chunk as it was before it was deflated: type and value."""
    return ("msgpack", compression.inflated(value)) if kind == CHUNK else (kind, value)


def _deflated_chunk(chunk: NewChunk, known: Mapping[bytes, bytes]) -> NewChunk:
    value = known.get(chunk.value) or _deflated(chunk.kind, chunk.value)
    return chunk if value is None else chunk._replace(kind=CHUNK, value=value)


def _deflated(kind: str, value: bytes) -> bytes | None:
    """A value as it is stored, if that is shorter."""
    if kind != "msgpack" or not SMALLEST <= len(value) <= compression.MOST:
        return None
    shorter = compression.deflated(value)
    return shorter if len(shorter) < len(value) else None


def _written(row: Row) -> Written:
    return Written(row.kind, row.value, _deflated(row.kind, row.value))


def _part_of(part: Part | Written, chunk: NewChunk | None) -> Part | Written:
    if chunk is None or isinstance(part, Part) or part.kind != "msgpack" or chunk.kind != "msgpack":
        return part
    if len(part.value) < SMALLEST or len(chunk.value) > len(part.value) * _SHARE:
        return part
    if part.value == chunk.value:
        return Part(part.kind, chunk.line, chunk.number, b"")
    if len(chunk.value) > compression.REACH or len(part.value) > compression.MOST:
        return part
    differs = compression.deflated(part.value, chunk.value)
    return Part(part.kind, chunk.line, chunk.number, differs) if len(differs) < len(part.value) // 4 else part


def _value(part: Part | Written, chunk_of: Callable[[Part], bytes]) -> bytes:
    return part.value(chunk_of(part)) if isinstance(part, Part) else part.value


def _packed(parts: Parts) -> bytes:
    return ormsgpack.packb([_short(part) for part in parts])


def _short(part: Part | Written) -> tuple[Any, ...]:
    kind = _KINDS.index(part.kind) if part.kind in _KINDS else part.kind
    if isinstance(part, Part):
        return kind, *part[1:]
    return (kind, part.value) if part.deflated is None else (kind, part.deflated, True)


def _unpacked(given: int | str, *rest: Any) -> Part | Written:
    kind = given if isinstance(given, str) else _KINDS[given]
    if len(rest) == 3:
        return Part(kind, *rest)
    return Written(kind, compression.inflated(rest[0]), rest[0]) if len(rest) == 2 else Written(kind, *rest)


def _size(parts: Parts) -> int:
    return sum(len(part.value) for part in parts if isinstance(part, Written))
