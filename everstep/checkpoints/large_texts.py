"""Large texts, such as states, in parts that the texts of a thread share: its size is linear in what is new in them.

A run on a thread tells its whole state several times, and the next one tells it again with a little more. A text of
`LARGE` characters or more is therefore cut, and its row keeps a reference. Where it is cut depends on the characters
around the place alone, so what two texts have in common, wherever it stands in them, is cut alike and is one row. The
list of a text's parts is cut in the same way, and so on, so a text that grew needs a few rows more however long it is.

Parts belong to a thread, whose rows alone refer to them: they go with it, and `sweep` deletes those that no row of it
needs any more. A row stands for all that is below it: none is stored or deleted without.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, bindparam, delete, func, insert, select

from everstep.checkpoints.schema import agent_jobs, deliveries, events, runs
from everstep.checkpoints.schema import text_parts as table
from everstep.checkpoints.statements import Statement
from everstep.errors import StoreCorrupt

if TYPE_CHECKING:
    from everstep.checkpoints.store import Store

LARGE = 16 * 1024
"""Shorter texts stay in their rows: most states are, and cost nothing more than before."""
REFERENCE = "@"
"""What a reference begins with, and no JSON does."""
_LEAST, _MOST, _EACH = 1024, 8192, 8
"""Characters of a part, and at which of the places where one may end it does: at every eighth or so."""
_AROUND = 32
_PLACE = re.compile(r"[,:\\][ n]")
_FEWEST_BELOW, _MOST_BELOW = 4, 64
_AT_ONCE = 512
_SIZES = (1, 8, 64, _AT_ONCE)

_STORE = Statement(
    insert(table).values({name: bindparam(name) for name in ("thread_id", "digest", "level", "content")})
)


@dataclass(frozen=True)
class Tree:
    """A text in parts.

    Attributes:
        levels: By level the content of each part by its digest: pieces of the text, then lists of digests.
        root: The digest that stands for all of it.
    """

    levels: list[dict[str, str]]
    root: str


def kept(connection: Connection, thread_id: str, text: str) -> str:
    """What a row keeps of a text: itself, or a reference if it is large, whose parts are stored now.

    Args:
        connection: The write transaction, which holds the row of the thread's running job.
        thread_id: The thread whose row it is.
        text: JSON.
    """
    if len(text) < LARGE or not text.isascii():
        return text
    tree = cut(text)
    _hold(connection, thread_id)
    wanted = [tree.root]
    for level in range(len(tree.levels) - 1, -1, -1):
        contents = tree.levels[level]
        asked = list(dict.fromkeys(wanted))
        known = set(_found(connection, thread_id, asked, "digest"))
        new = [digest for digest in asked if (digest,) not in known]
        if not new:
            break
        _STORE.run_all(
            connection,
            [{"thread_id": thread_id, "digest": one, "level": level, "content": contents[one]} for one in new],
        )
        wanted = [below for digest in new for below in contents[digest].split()]
    return f"{REFERENCE}{len(tree.levels) - 1} {tree.root} {len(text)}"


def whole(connection: Connection, thread_id: str, stored: str) -> str:
    """The text that a row keeps, itself or by reference.

    Args:
        connection: A snapshot or transaction, in which the row was read.
        thread_id: The thread whose row it is.
        stored: What stands in the row.

    Raises:
        StoreCorrupt: Parts of it are missing.
    """
    if not stored.startswith(REFERENCE):
        return stored
    level, root, _ = stored.removeprefix(REFERENCE).split()
    digests = [root]
    for _ in range(int(level)):
        digests = [below for content in _contents(connection, thread_id, digests) for below in content.split()]
    return "".join(_contents(connection, thread_id, digests))


def remove(connection: Connection, thread_ids: Sequence[str]) -> None:
    """Delete all parts of threads, with all that refers to them."""
    connection.execute(delete(table).where(table.c.thread_id.in_(thread_ids)))


def sweep(store: Store) -> None:
    """Delete the parts that nothing refers to any more, in a transaction for each thread that has such."""
    last = ""
    while thread_id := store.read(partial(_next_thread, after=last)):
        last = thread_id
        if store.read(partial(_needless, thread_id=thread_id)):  # a look that nobody waits for
            store.write(partial(_sweep, thread_id=thread_id)).result()


def _sweep(connection: Connection, thread_id: str) -> None:
    _hold(connection, thread_id)
    needless = _needless(connection, thread_id)
    for start in range(0, len(needless), _AT_ONCE):
        part = table.c.digest.in_(needless[start : start + _AT_ONCE])
        connection.execute(delete(table).where(table.c.thread_id == thread_id, part))


def _needless(connection: Connection, thread_id: str) -> list[str]:
    """The parts of a thread that no text of it needs."""
    mine = table.c.thread_id == thread_id
    lists = connection.execute(select(table.c.digest, table.c.content).where(mine, table.c.level > 0))
    below = {row.digest: row.content.split() for row in lists}
    needed: set[str] = set()
    found = set(_referred(connection, thread_id))
    while found:
        needed |= found
        found = {one for digest in found for one in below.get(digest, ()) if one not in needed}
    return [one for one in connection.execute(select(table.c.digest).where(mine)).scalars() if one not in needed]


def _referred(connection: Connection, thread_id: str) -> Iterator[str]:
    """The digests that stand for the texts of a thread."""
    of_job = deliveries.c.job_id.in_(select(agent_jobs.c.id).where(agent_jobs.c.thread_id == thread_id))
    places: list[tuple[Any, Any]] = [
        (events.c.data_json, events.c.thread_id == thread_id),
        (runs.c.values_json, runs.c.thread_id == thread_id),
        (agent_jobs.c.result_json, agent_jobs.c.thread_id == thread_id),
        (deliveries.c.body_json, of_job),
    ]
    for column, mine in places:
        refers = func.substr(column, 1, 1) == REFERENCE
        for stored in connection.execute(select(column).where(mine, refers)).scalars():
            yield stored.split()[1]


def _next_thread(connection: Connection, after: str) -> str | None:
    return connection.execute(select(func.min(table.c.thread_id)).where(table.c.thread_id > after)).scalar_one()


def _hold(connection: Connection, thread_id: str) -> None:
    """Let nobody else store or delete parts of a thread until the transaction ends (PostgreSQL).

    Otherwise parts that are found and referred to now might be deleted as needless by who does not see that yet.
    In SQLite one transaction writes at a time anyway.
    """
    if connection.dialect.name == "postgresql":
        number = int.from_bytes(hashlib.sha256(f"parts\n{thread_id}".encode()).digest()[:8], signed=True)
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({number})")


def _contents(connection: Connection, thread_id: str, digests: Sequence[str]) -> list[str]:
    """The contents of parts, in their order."""
    found = dict(_found(connection, thread_id, list(dict.fromkeys(digests)), "digest", "content"))
    try:
        return [found[digest] for digest in digests]
    except KeyError as missing:
        raise StoreCorrupt(
            f"a part of a text of thread {thread_id} is missing: {missing}", next_step="everstep doctor --deep"
        ) from None


def _found(connection: Connection, thread_id: str, digests: Sequence[str], *columns: str) -> Iterator[tuple[Any, ...]]:
    """Columns of those parts that are there."""
    for start in range(0, len(digests), _AT_ONCE):
        asked = digests[start : start + _AT_ONCE]
        most = next(size for size in _SIZES if size >= len(asked))
        named = {f"digest_{number}": asked[min(number, len(asked) - 1)] for number in range(most)}
        yield from _look(most, columns).run(connection, {"thread_id": thread_id, **named}).fetchall()


@cache
def _look(most: int, columns: tuple[str, ...]) -> Statement:
    """The parts of a thread with so many digests: some sizes are enough, as one may be asked for twice."""
    mine = (
        table.c.thread_id == bindparam("thread_id"),
        table.c.digest.in_([bindparam(f"digest_{n}") for n in range(most)]),
    )
    return Statement(select(*(table.c[name] for name in columns)).where(*mine))


# ---- where a text is cut


def cut(text: str) -> Tree:
    """A text in parts."""
    pieces = [text[start:end] for start, end in _pieces(text)]
    levels: list[dict[str, str]] = []
    while True:
        digests = [_digest(len(levels), piece) for piece in pieces]
        levels.append(dict(zip(digests, pieces, strict=True)))
        if len(digests) == 1:
            return Tree(levels, digests[0])
        pieces = list(_lists(digests))


def _digest(level: int, content: str) -> str:
    return hashlib.blake2b(content.encode(), digest_size=16, salt=bytes([level])).hexdigest()


def _pieces(text: str) -> Iterator[tuple[int, int]]:
    start = 0
    while start < len(text):
        end = _end(text, start)
        yield start, end
        start = end


def _end(text: str, start: int) -> int:
    """Where the part ends that begins at a place."""
    most = start + _MOST
    for place in _PLACE.finditer(text, start + _LEAST, most):
        end = place.end()
        if zlib.crc32(text[end - _AROUND : end].encode()) % _EACH == 0:
            return end
    if most >= len(text):
        return len(text)
    # A long value: it begins a part of its own, so that it is cut alike whatever is before it.
    return max((place.end() for place in _PLACE.finditer(text, start, most)), default=most)


def _lists(digests: Sequence[str]) -> Iterator[str]:
    """The digests in lists, which end alike wherever they begin."""
    start = 0
    for number, digest in enumerate(digests, 1):
        length = number - start
        if length >= _MOST_BELOW or (length >= _FEWEST_BELOW and digest[0] == "0") or number == len(digests):
            yield " ".join(digests[start:number])
            start = number
