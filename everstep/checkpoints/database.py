"""What a record needs of its database, and which database a store URL names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from sqlalchemy import ColumnElement, Connection, Engine, Table, bindparam, false, inspect
from sqlalchemy.dialects import postgresql, sqlite

from everstep.checkpoints import together
from everstep.checkpoints.statements import Statement
from everstep.checkpoints.wake_ups import WORK
from everstep.clock import Clock
from everstep.errors import StoreUrlInvalid

if TYPE_CHECKING:
    from everstep.checkpoints.saver import StepSaver

EVENTS = "everstep_events"
PAUSES = "everstep_pauses"
"""What one can be woken by: work that became ready, new events of runs, and jobs that ended or wait for a person."""
_FIRST_ID = "00000000-0000-0000-0000-000000000000"
_LAST_ID = _FIRST_ID.replace("0", "f")
_ID = re.compile(_FIRST_ID.replace("0", "[0-9a-f]"))
ID_LENGTH = len(_FIRST_ID)


class Database(Protocol):
    """A database that can hold a record.

    Attributes:
        label: Its name for people: a path, or a URL without password.
        checkpoint_tables: LangGraph's tables in it.
    """

    label: str
    checkpoint_tables: tuple[str, ...]

    def prepare(self, *, create: bool) -> None:
        """Create or migrate the record; does nothing when it is up to date.

        Raises:
            StoreNotFound: There is none, and it may not be made.
            StoreUnavailable: It cannot be reached, opened or written.
            StoreCorrupt: It is damaged, or belongs to another program.
            StoreTooNew: A newer Everstep wrote it.
        """
        ...

    def writing_engine(self) -> Engine:
        """Connections to write with."""
        ...

    def reading_engine(self) -> Engine:
        """Connections for snapshots, which refuse to write."""
        ...

    def checkpoint_reader(self) -> Any:
        """What its savers read with; has `close()`."""
        ...

    def saver_class(self) -> type[StepSaver]:
        """The checkpoint saver for it."""
        ...

    def item_tables(self) -> Any:
        """The `items.ItemTables` for it: a class, called with the record, an index and a time to live."""
        ...

    def clock(self) -> Clock:
        """The one clock that decides leases and due times: that of the database's host."""
        ...

    def translate(self, error: BaseException) -> Exception:
        """The catalogue error for a database error; other errors come back as they are."""
        ...

    def is_conflict(self, error: BaseException) -> bool:
        """Whether the transaction only met another one, and may simply be run again."""
        ...

    def own_errors(self) -> tuple[type[BaseException], ...]:
        """Errors the driver itself raises, which `translate` knows."""
        ...

    def problem(self, connection: Connection, seconds: float | None = None) -> str | None:
        """What is damaged, if anything; for `doctor`.

        Args:
            connection: A snapshot.
            seconds: How long to look at most.

        Raises:
            TimeoutError: It is not looked through by then; so far nothing was found.
        """
        ...

    def size(self, connection: Connection) -> int:
        """Bytes it takes."""
        ...

    def log_size(self) -> int | None:
        """Bytes its write-ahead log takes of that; None where a server looks after it."""
        ...

    def backup(self, target: Path) -> None:
        """Copy the record, as it is at one moment, into a new file, beside those who write.

        Raises:
            BackupImpossible: The target is there already or cannot be written, or the database has tools of its own.
        """
        ...

    def listen(self, wake: Callable[[], None], topic: str = WORK) -> AbstractContextManager[float]:
        """While entered, call `wake` (on any thread) when a process may have made work ready, or written events.

        Gives the seconds after which to look though nobody was woken.
        """
        ...

    def ring(self, topics: Iterable[str]) -> None:
        """Wake those who listen: a transaction that called `notify` is committed. Never waits, never fails."""
        ...

    def close(self) -> None:
        """Close what belongs to no connection."""
        ...


def of_url(url: str) -> Database:
    """The database a store URL names.

    Raises:
        StoreUrlInvalid: It names none that is supported.
    """
    if url.startswith(("postgresql://", "postgres://")):
        from everstep.checkpoints.postgres import Postgres

        return Postgres(url)
    if url.startswith("sqlite:///") and url not in ("sqlite:///", "sqlite:///:memory:") and "?" not in url:
        from everstep.checkpoints.sqlite import Sqlite

        return Sqlite(url)
    raise StoreUrlInvalid(
        f"not a store URL: {re.sub('//.*@', '//…@', url)!r}",
        next_step="use sqlite:///FILE (three slashes for a relative file, four for an absolute one; no parameters),"
        " or postgresql://USER@HOST/DATABASE",
    )


def insert_or_ignore(connection: Connection, table: Table, values: Mapping[str, Any]) -> int | None:
    """Insert a row, unless there is one already; the table's unique constraints decide, never a look before.

    Returns:
        The row's id; None if there was one.
    """
    cursor = _insertion(table, tuple(values), connection.dialect.name).run(connection, values)
    if connection.dialect.name != "postgresql":  # its driver knows the id: to be told it takes a third longer
        return cursor.lastrowid if cursor.rowcount else None
    row = cursor.fetchone()
    return None if row is None else row[0]


@cache
def _insertion(table: Table, columns: tuple[str, ...], dialect: str) -> Statement:
    row: dict[str, Any] = {name: bindparam(name) for name in columns}
    if dialect == "postgresql":
        return Statement(postgresql.insert(table).values(row).on_conflict_do_nothing().returning(table.c.id))
    return Statement(sqlite.insert(table).values(row).on_conflict_do_nothing().inline())


def has_id(column: ColumnElement[str], given: str) -> ColumnElement[bool]:
    """Whether an id is the given one, or begins with it; either is found by the column's index, however many there are.

    What begins alike lies between two ids of the same form, so that no collation can order them otherwise.
    """
    given = given.lower()
    if len(given) >= ID_LENGTH:
        return column == given
    first, last = given + _FIRST_ID[len(given) :], given + _LAST_ID[len(given) :]
    return column.between(first, last) if _ID.fullmatch(first) else false()


def notify(connection: Connection, topic: str = WORK) -> None:
    """Wake who listens in any process when this transaction commits; where nothing can, they look by themselves."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SELECT pg_notify('{topic}', '')")
    else:
        together.of(connection).topics.add(topic)


def notify_if_free(connection: Connection, topic: str) -> None:
    """As `notify`, where it costs neither a statement nor a lock of commits: in SQLite; elsewhere who waits looks."""
    if connection.dialect.name != "postgresql":
        notify(connection, topic)


def require_writable(connection: Connection) -> None:
    """Refuse, in a write transaction, a record that is read-only; beginning one alone may let it pass."""
    connection.exec_driver_sql("DELETE FROM agent_jobs WHERE false")


def missing_tables(connection: Connection, checkpoint_tables: tuple[str, ...]) -> list[str]:
    """Tables the record should have and has not; for `doctor`."""
    from everstep.checkpoints.schema import metadata

    present = set(inspect(connection).get_table_names())
    return sorted({*metadata.tables, *checkpoint_tables} - present)
