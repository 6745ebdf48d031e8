"""Items in SQLite: LangGraph's `SqliteStore` makes the SQL; here is where it reads, and it writes nothing itself."""

from __future__ import annotations

import queue
import re
import sqlite3
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from langgraph.store.base import Op, PutOp, Result, TTLConfig
from langgraph.store.sqlite import SqliteStore
from langgraph.store.sqlite.base import NS_MATCH_FUNCTION, SqliteIndexConfig
from sqlalchemy import Connection

from everstep.checkpoints.recorder import Recorder, Statement
from everstep.checkpoints.sqlite import raw_connection
from everstep.errors import ConfigInvalid

if TYPE_CHECKING:
    from everstep.checkpoints.store import Store

READERS = 4
_UNEXPIRED = (
    "CREATE TEMP VIEW store AS SELECT * FROM main.store WHERE expires_at IS NULL OR expires_at > CURRENT_TIMESTAMP"
)
"""Shadows the table on connections that read: what is over is not there, whether or not it was deleted yet."""


class _Recorder(Recorder):
    """Times as the text that SQLite's own functions can compare."""

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        plain = [one.isoformat(" ") if isinstance(one, datetime) else one for one in parameters]
        super().execute(sql, plain)


class _Cursor:
    """Reads, and records what would be written."""

    def __init__(self, cursor: sqlite3.Cursor, recorder: Recorder) -> None:
        self._cursor = cursor
        self._recorder = recorder

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        if sql.lstrip()[:6].upper() == "UPDATE":  # a time to live begins anew, unless it is over
            self._recorder.execute(f"{sql} AND expires_at > CURRENT_TIMESTAMP", parameters)
        else:
            self._cursor.execute(sql, parameters)

    def fetchall(self) -> list[Any]:
        return self._cursor.fetchall()


class SqliteItems(SqliteStore):
    """See `ItemTables`.

    Args:
        store: The record.
        index: By what items are found by meaning.
        ttl: How long they are kept.

    Raises:
        ConfigInvalid: Vectors are wanted, and this Python's SQLite loads no extensions.
    """

    def __init__(self, store: Store, index: SqliteIndexConfig | None, ttl: TTLConfig | None) -> None:
        self._record = store
        self._readers: queue.LifoQueue[sqlite3.Connection | None] = queue.LifoQueue()
        for _ in range(READERS):
            self._readers.put(None)  # opened when it is needed
        self._recording = threading.local()
        with_functions = sqlite3.connect(":memory:", check_same_thread=False)  # the stock store's own is never used
        super().__init__(with_functions, index=index, ttl=ttl)
        with_functions.close()
        self.is_setup = True
        self.embeds = index is not None
        if self.embeds:
            try:
                self._readers.put(self._opened())
                self._readers.get()
            except (AttributeError, sqlite3.OperationalError) as error:
                raise ConfigInvalid(
                    f"store.index: SQLite cannot compare vectors here: {error}",
                    next_step="use a Python whose sqlite3 loads extensions, PostgreSQL, or leave store.index out",
                ) from error
            store.write(_set_up_vectors).result()

    def look_up(self, ops: Sequence[Op]) -> tuple[list[Result], list[Statement]]:
        """See `ItemTables`."""
        recorder = self._recording.recorder = _Recorder()
        try:
            return self.batch(ops), recorder.statements
        except sqlite3.Error as error:
            raise self._record.database.translate(error) from error

    def statements(self, ops: Sequence[PutOp]) -> list[Statement]:
        """See `ItemTables`."""
        recorder = _Recorder()
        self._batch_put_ops([*enumerate(ops)], cast(sqlite3.Cursor, recorder))
        return recorder.statements

    def close(self) -> None:
        """See `ItemTables`."""
        for _ in range(READERS):
            reader = self._readers.get()
            if reader is not None:
                reader.close()

    @contextmanager
    def _cursor(self, *, transaction: bool = True) -> Generator[Any]:
        """The stock store's hook."""
        reader = self._readers.get()
        try:
            reader = reader or self._opened()
            reader.execute("BEGIN")
            try:
                yield _Cursor(reader.cursor(), self._recording.recorder)
            finally:
                reader.execute("COMMIT")
        finally:
            self._readers.put(reader)

    def _opened(self) -> sqlite3.Connection:
        connection = raw_connection(self._record.path)
        connection.create_function(NS_MATCH_FUNCTION, 2, _fits, deterministic=True)
        if self.embeds:
            import sqlite_vec  # pyright: ignore[reportMissingTypeStubs]

            connection.enable_load_extension(True)
            sqlite_vec.load(connection)
            connection.enable_load_extension(False)
        connection.execute(_UNEXPIRED)
        connection.execute("PRAGMA query_only=ON")
        return connection


def _fits(namespace: str | None, pattern: str) -> bool:
    """The function that the stock store's SQL calls to compare namespaces."""
    return namespace is not None and re.search(pattern, namespace) is not None


def set_up(connection: Connection) -> None:
    """Make LangGraph's tables of items, in the connection's transaction."""
    _migrate(connection, "store_migrations", SqliteStore.MIGRATIONS)


def _set_up_vectors(connection: Connection) -> None:
    _migrate(connection, "vector_migrations", SqliteStore.VECTOR_MIGRATIONS)


def _migrate(connection: Connection, table: str, migrations: Sequence[str]) -> None:
    """As the stock store's `setup`, but in a transaction: of several processes one does it."""
    connection.exec_driver_sql(f"CREATE TABLE IF NOT EXISTS {table} (v INTEGER PRIMARY KEY)")
    last = connection.exec_driver_sql(f"SELECT coalesce(max(v), -1) FROM {table}").scalar_one()
    for number, sql in list(enumerate(migrations))[last + 1 :]:
        connection.exec_driver_sql(sql)
        connection.exec_driver_sql(f"INSERT INTO {table} (v) VALUES (?)", (number,))
