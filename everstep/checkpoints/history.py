"""Long lists by their growth: a list of a checkpoint is stored as what it has more than its predecessor's.

LangGraph gives the saver the whole list with each checkpoint, so a conversation of n messages would be stored n times.
A list is kept in chunks instead. Chunks are never changed; they stand in lines, each with one writer, as rows of
LangGraph's own table of writes under the checkpoint id `history`, which no checkpoint has. A checkpoint holds in place
of the list which chunks it consists of (`Grown`). A line grows by one chunk a step; where a list is not what it was (a
message replaced or removed, a branch), what is equal up to there is kept, and a new line begins.

Whether a list only grew is decided by content, not by identity: a node may change an item, or the list, in place. The
content of messages and plain JSON is compared as the bytes of `marshal`, which costs a tenth of storing them; that of
anything else as the bytes that would be stored. So equal bytes mean that the same would be read back.
"""

from __future__ import annotations

import functools
import itertools
import marshal
import operator
import secrets
import threading
import weakref
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from langgraph.checkpoint.serde.base import SerializerProtocol

from everstep.checkpoints import serialization

CHUNKS = "history"
"""The checkpoint id that chunks stand under."""
SMALLEST = 2048
"""Lists whose content has fewer bytes stay in their checkpoint: a row of its own would cost more."""
MOST_ALIKE = 8
"""Where as many lines of about one size would follow each other, they are written as one: so a list of n items that
every run of a thread goes on with is spread over some `log n` lines, and is written `log n` times, not n."""
MOST_KNOWN = 128 * 1024 * 1024
"""Bytes of content that the savers of a process remember together, however many work at once."""

_AT_ONCE = 64

Place = tuple[str, str]
"""A thread and a namespace in it."""


class HistoryGone(Exception):
    """Chunks are no longer there: somebody deleted or pruned the thread."""


Line = tuple[str, int]
"""A line's id, and a number of chunks from its beginning."""


class NewChunk(NamedTuple):
    """A chunk: the line it stands in and its number there, from 0; its value, and that's type."""

    line: str
    number: int
    channel: str
    kind: str
    value: bytes


@dataclass(frozen=True)
class Grown:
    """Stands in a checkpoint for a list.

    Attributes:
        lines: The lines it consists of, one after the other, and how many chunks of each, from its beginning.
        items: How many items it has.
    """

    lines: tuple[Line, ...]
    items: int


@dataclass
class Known:
    """A list whose chunks are stored.

    Attributes:
        lines: What it consists of.
        items: How many items it has up to the end of each chunk.
        ends: How many bytes of content up to the end of each chunk.
        content: Its content.
        exact: Which items are compared as what they are, not as what would be stored.
        own: Whether its last line is this saver's to go on with.
    """

    lines: list[Line] = field(default_factory=list[Line])
    items: list[int] = field(default_factory=list[int])
    ends: list[int] = field(default_factory=list[int])
    content: bytes = b""
    exact: list[bool] = field(default_factory=list[bool])
    own: bool = False


@functools.cache
def _messages() -> dict[Any, tuple[int, int, frozenset[str], Callable[[Any], tuple[Any, ...]]]]:
    """The classes whose stored form depends on nothing but their class and fields.

    Returns:
        Of each: a number for it, how many fields it has, their names, and what takes their values in a fixed order.
    """
    from langchain_core import messages

    names = ("Human", "AI", "System", "Tool", "Function", "Chat")
    classes = [getattr(messages, f"{name}Message{end}") for name in names for end in ("", "Chunk")]
    return {
        each: (number, len(each.model_fields), frozenset(each.model_fields), operator.itemgetter(*each.model_fields))
        for number, each in enumerate([*classes, messages.RemoveMessage])
    }


def _are_exact(items: Iterable[Any]) -> list[bool]:
    """Of each item, whether its content is compared as what it is."""
    known = _messages()
    exact: list[bool] = []
    for item in items:
        of_class = known.get(type(item))
        if of_class is None:
            exact.append(serialization.is_exact(item))
            continue
        fields: dict[str, Any] = item.__dict__
        # All of them are there, so that their values alone tell.
        exact.append(
            fields.keys() == of_class[2]
            and serialization.are_exact(fields.values())
            and serialization.is_exact(item.__pydantic_extra__)
        )
    return exact


def is_exact(value: Any) -> bool:
    """Whether a value surely comes back as it is, without a try: plain JSON, a message, or a list of such."""
    return all(_are_exact(cast("list[Any]", value) if type(value) is list else (value,)))


def content_of(serializer: SerializerProtocol, items: Sequence[Any], exact: Sequence[bool]) -> bytes:
    """Bytes that are equal only if what would be read back is; those of a beginning are a beginning of them.

    Raises:
        ValueError: An item that should be exact is not even plain.
        KeyError: A field of one is missing.
    """
    known = _messages()
    parts: list[Any] = []
    for item, is_plain in zip(items, exact, strict=True):
        if not is_plain:
            parts.append((..., -1, *serializer.dumps_typed(item)))
        elif (of_class := known.get(type(item))) is None:
            parts.append(item)
        else:
            number, count, _, values = of_class
            fields: dict[str, Any] = item.__dict__
            if len(fields) != count:
                raise ValueError(fields.keys())
            parts.append((..., number, item.__pydantic_extra__, *values(fields)))
    # Version 0 depends on the values alone. Lists of a few, without their lengths: a long one's buffer grows slowly.
    return b"".join([marshal.dumps(parts[at : at + _AT_ONCE], 0)[5:] for at in range(0, len(parts), _AT_ONCE)])


def known_of(serializer: SerializerProtocol, lines: Sequence[Line], chunks: Sequence[Sequence[Any]]) -> Known:
    """A list as it was read, chunk by chunk."""
    known = Known(list(lines))
    content: list[bytes] = []
    for items in chunks:
        exact = _are_exact(items)
        content.append(content_of(serializer, items, exact))
        known.exact += exact
        known.items.append(len(known.exact))
        known.ends.append((known.ends[-1] if known.ends else 0) + len(content[-1]))
    known.content = b"".join(content)
    return known


def grow(
    serializer: SerializerProtocol, channel: str, known: Known, value: list[Any]
) -> tuple[Grown, NewChunk | None] | None:
    """How to store a list after the one that is stored.

    Args:
        serializer: Makes the stored form of items.
        channel: The channel it is the value of.
        known: What is stored of the list before it; changed to what is stored when the chunk is.
        value: The list.

    Returns:
        What stands for the list, and the chunk to store, if it needs one; None if it stays in its checkpoint.
    """
    kept, exact, content = _compare(serializer, known, value)
    if len(content) < SMALLEST:
        return None
    known.own = known.own and kept == len(known.items)
    if not known.own:
        kept = _gone_on_with(_beginning(known.lines, kept), known.ends, len(content))
    del known.items[kept:], known.ends[kept:]
    known.lines, known.exact, known.content = _beginning(known.lines, kept), exact, content
    rest = value[known.items[-1] if kept else 0 :]
    if not rest:
        return Grown(tuple(known.lines), len(value)), None
    if not known.own:
        known.lines.append((secrets.token_urlsafe(6), 0))
    line, number = known.lines.pop()
    new = NewChunk(line, number, channel, *serializer.dumps_typed(rest))
    known.lines.append((line, number + 1))
    known.items.append(len(value))
    known.ends.append(len(content))
    known.own = True
    return Grown(tuple(known.lines), len(value)), new


def _gone_on_with(lines: Sequence[Line], ends: Sequence[int], size: int) -> int:
    """How many chunks stay before a new line that goes on to a size: those of its kind become part of it."""
    last = list(itertools.accumulate((count for _, count in lines), initial=0))
    sizes = [ends[to - 1] - (ends[start - 1] if start else 0) for start, to in itertools.pairwise(last)]
    kept, new, at = len(sizes), size - sum(sizes), len(sizes)
    while at and sizes[at - 1] < new * MOST_ALIKE:
        at -= 1
        if kept - at == MOST_ALIKE - 1:
            new += sum(sizes[at:kept])
            kept = at
    return last[kept]


def _beginning(lines: Sequence[Line], chunks: int) -> list[Line]:
    """The first chunks of what consists of these lines."""
    found: list[Line] = []
    for line, count in lines:
        if chunks <= 0:
            break
        found.append((line, min(count, chunks)))
        chunks -= count
    return found


def _compare(serializer: SerializerProtocol, known: Known, value: list[Any]) -> tuple[int, list[bool], bytes]:
    """How many of the known chunks begin the list; how its items are compared; its content."""
    exact = known.exact[: len(value)]
    exact += _are_exact(value[len(exact) :])
    try:
        content = content_of(serializer, value, exact)
    except (ValueError, KeyError):  # an item became something else
        exact = _are_exact(value)
        content = content_of(serializer, value, exact)
    if content.startswith(known.content):
        kept = len(known.items)
    else:
        kept = bisect_right(known.ends, 0, key=lambda end: int(content[:end] != known.content[:end]))
    items, end = (known.items[kept - 1], known.ends[kept - 1]) if kept else (0, 0)
    if items == len(known.exact):
        return kept, exact, content
    exact[items:] = _are_exact(value[items:])
    return kept, exact, content[:end] + content_of(serializer, value[items:], exact[items:])


class _Stored(NamedTuple):
    time: int
    lists: dict[str, Known]
    plain: Set[str]


class Memory:
    """What a saver knows of the lists of the checkpoints it stored or read last."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[Place, str], _Stored] = OrderedDict()
        self._size = 0
        with _LOCK:
            _MEMORIES.add(self)

    def take(self, place: Place, checkpoint_id: str | None) -> Mapping[str, Known]:
        """What is known of a checkpoint, for whoever stores its first successor: only one may go on with its lines."""
        with _LOCK:
            return self._drop((place, checkpoint_id or ""))

    def plain(self, place: Place, checkpoint_id: str | None) -> Set[str]:
        """What `keep` was told of a checkpoint; nothing, if it is not remembered."""
        found = self._known.get((place, checkpoint_id or ""))
        return frozenset() if found is None else found.plain

    def keep(self, place: Place, checkpoint_id: str, lists: dict[str, Known], *, plain: Set[str] | None = None) -> None:
        """Remember a checkpoint.

        Args:
            place: Where it is.
            checkpoint_id: Its id.
            lists: Its lists.
            plain: The channels whose values are stored with it, if it was stored; not of one that was only read, which
                tells less.
        """
        with _LOCK:
            if not lists or (plain is None and (place, checkpoint_id) in self._known):
                return
            self._drop((place, checkpoint_id))
            self._known[place, checkpoint_id] = _Stored(next(_TIMES), lists, plain or frozenset())
            self._size += _size(lists)
            while sum(memory._size for memory in _MEMORIES) > MOST_KNOWN:
                oldest = min((memory for memory in _MEMORIES if memory._known), key=Memory._oldest)
                oldest._drop(next(iter(oldest._known)))

    def _oldest(self) -> int:
        return next(iter(self._known.values())).time

    def _drop(self, key: tuple[Place, str]) -> Mapping[str, Known]:
        found = self._known.pop(key, None)
        if found is None:
            return {}
        self._size -= _size(found.lists)
        return found.lists


_LOCK = threading.Lock()
_MEMORIES: weakref.WeakSet[Memory] = weakref.WeakSet()
_TIMES = itertools.count()


def _size(lists: Mapping[str, Known]) -> int:
    return sum(len(known.content) for known in lists.values())
