"""`Record`: a database that is open. Everything above reads and writes through it.

Writes are operations for the single writer; reads are snapshots on connections of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from everstep.checkpoints.database import Database, missing_tables, of_url
from everstep.checkpoints.sqlite import Sqlite
from everstep.checkpoints.writer import Writer
from everstep.clock import Clock
from everstep.errors import StoreUrlInvalid

if TYPE_CHECKING:
    from everstep.checkpoints.saver import StepSaver

T = TypeVar("T")


class Record:
    """The record behind a store URL: one writer, and connections that only read.

    Attributes:
        url: The URL it was opened with.
        database: The database that holds it.
        clock: Where times come from.
        checkpoint_reader: What checkpoint savers read with.
        closing: What is closed with it.
    """

    def __init__(self, url: str, database: Database, clock: Clock) -> None:
        self.url = url
        self.database = database
        self.clock = clock
        self._writing = database.writing_engine()
        self._reading = database.reading_engine()
        self.checkpoint_reader: Any = database.checkpoint_reader()
        self._writer = Writer(self._writing.connect, database)
        self._threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="everstep-read")
        self.closing = ExitStack()

    @classmethod
    def open(cls, url: str = "sqlite:///everstep.db", *, create: bool = True, clock: Clock | None = None) -> Self:
        """Open a record; create or migrate it first if need be.

        Args:
            url: `sqlite:///FILE` (three slashes for a relative path, four for an absolute one), or
                `postgresql://USER:PASSWORD@HOST/DATABASE` with the parameters of libpq.
            create: Whether to make a record where there is none.
            clock: Where times come from; the clock of the database's host when omitted.

        Raises:
            StoreNotFound: There is no record, and `create` is false.
            StoreUrlInvalid: The URL is of another kind.
            StoreUnavailable: The database cannot be reached, opened or written.
            StoreCorrupt: It is no database of ours, or damaged.
            StoreTooNew: A newer Everstep wrote it.
        """
        database = of_url(url)
        database.prepare(create=create)
        return cls(url, database, clock or database.clock())

    @property
    def path(self) -> Path:
        """The file of a record in SQLite.

        Raises:
            StoreUrlInvalid: The record is not in a file.
        """
        if not isinstance(self.database, Sqlite):
            raise StoreUrlInvalid(f"{self.database.label} is no file", next_step="use sqlite:///FILE")
        return self.database.path

    @property
    def saver_class(self) -> type[StepSaver]:
        """The checkpoint saver of its database."""
        return self.database.saver_class()

    def close(self) -> None:
        """Finish what was queued and close every connection. Safe to call twice."""
        self._writer.close()
        self._threads.shutdown()
        self.closing.close()
        self._writing.dispose()
        self._reading.dispose()
        self.checkpoint_reader.close()
        self.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def commits(self) -> int:
        """How many write transactions this process has committed to the record."""
        return self._writer.commits

    def write(self, operation: Callable[[Connection], T], *, patient: bool = False, told: bool = False) -> Future[T]:
        """Queue a write; the future resolves when it is committed, which a patient one may wait for a little.

        One by which a client is told of something waits only if another was just before it.
        """
        return self._writer.submit(operation, patient=patient, told=told)

    def carry_out(self, operation: Callable[[Connection], T]) -> T:
        """Run a write and wait for its commit; on this thread, if no other write is under way."""
        return self._writer.carry_out(operation)

    def commit_held(self) -> None:
        """Have what is held committed; it is not waited for."""
        self._writer.submit(lambda _connection: None)

    def flush(self) -> None:
        """Wait for the patient writes that are held, so that a read sees them."""
        self._writer.flush()

    async def awrite(self, operation: Callable[[Connection], T]) -> T:
        """Queue a write and wait for its commit without blocking the event loop."""
        return await asyncio.wrap_future(self.write(operation))

    def read(self, query: Callable[[Connection], T]) -> T:
        """Run a query on a snapshot."""
        try:
            with self._reading.connect() as connection:
                return query(connection)
        except DBAPIError as error:
            raise self.database.translate(error) from error

    def missing_tables(self) -> list[str]:
        """Tables the record should have and has not."""
        return self.read(lambda connection: missing_tables(connection, self.database.checkpoint_tables))

    def backup(self, target: Path) -> None:
        """Copy the record as it is at one moment, beside those who write.

        Args:
            target: A file that does not exist yet.

        Raises:
            BackupImpossible: It exists or cannot be written, or the record is not in a file.
        """
        self.database.backup(target)

    async def aread(self, query: Callable[[Connection], T]) -> T:
        """As `read`, without blocking the event loop."""
        return await self.in_thread(lambda: self.read(query))

    async def in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a blocking call on the record's own threads, which no graph's node can occupy."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)
