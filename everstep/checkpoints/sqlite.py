"""A record in a SQLite file: connections with the right pragmas, migrations under a lock, errors one can act on."""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import ConnectionPoolEntry, NullPool, QueuePool

from everstep.checkpoints import migrate
from everstep.checkpoints.wake_ups import WORK, WakeUps
from everstep.clock import Clock, SystemClock
from everstep.errors import BackupImpossible, EverstepError, StoreCorrupt, StoreNotFound, StoreUnavailable

if TYPE_CHECKING:
    from everstep.checkpoints.saver import StepSaver

BUSY_TIMEOUT_S = 30.0
JOURNAL_SIZE_LIMIT = 64 * 1024 * 1024


class SqliteReader:
    """The connection all savers of a record read with, in turns.

    Args:
        connection: It should refuse to write.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.lock = threading.Lock()

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


class Sqlite:
    """The database of a `sqlite:///…` URL; see `database.Database`.

    Attributes:
        path: The file, absolute.
        poll_s: Seconds after which a worker looks for work where it cannot be woken.
        listening_poll_s: The same where it can.
    """

    checkpoint_tables: tuple[str, ...] = ("checkpoints", "writes")
    poll_s = 0.2
    listening_poll_s = 1.0

    def __init__(self, url: str) -> None:
        self.path = Path(url.removeprefix("sqlite:///")).absolute()
        self.label = str(self.path)
        self._wake_ups = WakeUps(self.path)

    def prepare(self, *, create: bool) -> None:
        prepare(self.path, create=create)

    def writing_engine(self) -> Engine:
        return writing_engine(self.path)

    def reading_engine(self) -> Engine:
        return reading_engine(self.path)

    def checkpoint_reader(self) -> SqliteReader:
        connection = raw_connection(self.path)
        connection.execute("PRAGMA query_only=ON")
        return SqliteReader(connection)

    def item_tables(self) -> Any:
        from everstep.checkpoints.sqlite_items import SqliteItems

        return SqliteItems

    def saver_class(self) -> type[StepSaver]:
        from everstep.checkpoints.sqlite_saver import SqliteStepSaver

        return SqliteStepSaver

    def clock(self) -> Clock:
        return SystemClock()

    def translate(self, error: BaseException) -> Exception:
        return translate(error, self.path)

    def is_conflict(self, error: BaseException) -> bool:
        return False  # writers take turns

    def own_errors(self) -> tuple[type[BaseException], ...]:
        return (sqlite3.Error,)

    def problem(self, connection: Connection, seconds: float | None = None) -> str | None:
        with _interrupted_after(seconds, connection.connection.driver_connection):
            found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
        return None if found == "ok" else str(found)

    def size(self, connection: Connection) -> int:
        return sum(_size(self.path.with_name(self.path.name + ending)) for ending in ("", "-wal", "-shm"))

    def log_size(self) -> int | None:
        return _size(self.path.with_name(f"{self.path.name}-wal"))

    def backup(self, target: Path) -> None:
        backup(self.path, target)

    @contextmanager
    def listen(self, wake: Callable[[], None], topic: str = WORK) -> Generator[float]:
        with self._wake_ups.listen(wake, topic) as possible:
            yield self.listening_poll_s if possible else self.poll_s

    def ring(self, topics: Iterable[str]) -> None:
        for topic in topics:
            self._wake_ups.ring(topic)

    def close(self) -> None:
        self._wake_ups.close()


@contextmanager
def _interrupted_after(seconds: float | None, connection: Any) -> Generator[None]:
    """End what the connection does when its time is over.

    Raises:
        TimeoutError: It was ended.
    """
    done = threading.Event()

    def watch() -> None:
        while not done.wait(seconds):
            connection.interrupt()  # again and again: before its statement began it would be lost

    watching = threading.Thread(target=watch, daemon=True)
    if seconds is not None:
        watching.start()
    try:
        yield
    except DBAPIError as error:
        if getattr(error.orig, "sqlite_errorcode", None) != sqlite3.SQLITE_INTERRUPT:
            raise
        raise TimeoutError from error
    finally:
        done.set()
        if seconds is not None:
            watching.join()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def raw_connection(path: Path) -> sqlite3.Connection:
    """A plain connection in autocommit mode; transactions are begun explicitly."""
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute(f"PRAGMA journal_size_limit={JOURNAL_SIZE_LIMIT}")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def writing_engine(path: Path) -> Engine:
    """An engine whose transactions take the write lock as they begin (`BEGIN IMMEDIATE`): no read can go stale."""
    return _engine(path, "BEGIN IMMEDIATE", NullPool)


def reading_engine(path: Path) -> Engine:
    """An engine for snapshots; its connections refuse to write."""
    engine = _engine(path, "BEGIN", QueuePool)

    def refuse_writes(connection: sqlite3.Connection, _entry: ConnectionPoolEntry) -> None:
        connection.execute("PRAGMA query_only=ON")

    event.listen(engine, "connect", refuse_writes)
    return engine


def _engine(path: Path, begin: str, pool: type[NullPool] | type[QueuePool]) -> Engine:
    engine = create_engine("sqlite://", creator=lambda: raw_connection(path), poolclass=pool)

    def do_begin(dbapi_connection: Any) -> None:
        dbapi_connection.dbapi_connection.execute(begin)

    engine.dialect.do_begin = do_begin  # a listener would be asked in vain at each commit, too
    return engine


def prepare(path: Path, *, create: bool = True) -> None:
    """Create or migrate the record at `path`; does nothing when it is up to date.

    Args:
        path: The file.
        create: Whether to make a record where there is none.

    Raises:
        StoreNotFound: There is none, and it may not be made.
        StoreUnavailable: The folder is missing, or the file cannot be opened or written.
        StoreCorrupt: The file is not a SQLite database, is damaged, or belongs to another program.
        StoreTooNew: A newer Everstep wrote it.
    """
    try:
        if not path.parent.is_dir():
            raise StoreUnavailable(
                f"the folder of the record does not exist: {path.parent}",
                next_step=f"create it (mkdir -p {path.parent}) or give another --store",
                path=str(path),
            )
        if path.is_dir():
            raise StoreUnavailable(
                f"the record {path} is a folder",
                next_step=f"name a file in it: --store sqlite:///{path / 'everstep.db'}",
                path=str(path),
            )
        version = _version(path)
        if version is None and not create:
            raise StoreNotFound(
                f"there is no record at {path}" + (", but another file" if path.exists() else ""),
                next_step="name the right one with --store sqlite:///FILE or EVERSTEP_STORE;"
                " everstep submit and everstep worker make a new one",
                path=str(path),
            )
        if version != migrate.HEAD:
            _migrate(path)
    except (sqlite3.Error, DBAPIError) as error:
        raise translate(error, path) from error
    except OSError as error:
        what, next_step = _UNAVAILABLE[sqlite3.SQLITE_PERM]
        raise StoreUnavailable(f"the record {path} {what}: {error.strerror}", next_step=next_step) from error


def _version(path: Path) -> str | None:
    """The record's schema version; None for a new file."""
    if not path.exists():
        return None
    connection = raw_connection(path)
    try:
        tables = {str(row[0]) for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        if "alembic_version" not in tables:
            migrate.refuse_foreign(tables, str(path), alone=True)
            return None
        row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    finally:
        connection.close()
    version = None if row is None else str(row[0])
    migrate.check_version(version, str(path))
    return version


def _migrate(path: Path) -> None:
    from everstep.checkpoints.sqlite_items import set_up

    _set_up_saver_tables(path)
    engine = writing_engine(path)
    event.listen(engine, "connect", _enforce_no_references)
    try:
        with engine.begin() as connection:  # holds the write lock: of several processes one migrates, the others see it
            migrate.upgrade(connection)
            set_up(connection)
            if connection.exec_driver_sql("PRAGMA foreign_key_check").first() is not None:
                raise StoreCorrupt(
                    f"the record {path} has rows that refer to nothing; it was not migrated",
                    next_step="restore it from a backup",
                    path=str(path),
                )
    finally:
        engine.dispose()


def _enforce_no_references(connection: sqlite3.Connection, _entry: ConnectionPoolEntry) -> None:
    """A migration may have to make a table anew, to which others refer; it cannot be told so once it has begun."""
    connection.execute("PRAGMA foreign_keys=OFF")


def _set_up_saver_tables(path: Path) -> None:
    """WAL, and LangGraph's tables by its own saver. Switching to WAL ignores the busy timeout, so it is retried."""
    from langgraph.checkpoint.sqlite import SqliteSaver

    for attempt in range(20):
        connection = raw_connection(path)
        try:
            SqliteSaver(connection).setup()
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) or attempt == 19:
                raise
            time.sleep(random.uniform(0.01, 0.1))
        finally:
            connection.close()


def backup(path: Path, target: Path) -> None:
    """Copy a live record into a new file; a copy that is not sound and whole never gets the target's name.

    Raises:
        BackupImpossible: The target is there already, or cannot be written.
    """
    if target.exists():
        raise BackupImpossible(f"{target} is there already", next_step="name a file that does not exist yet")
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with closing(raw_connection(path)) as source, closing(sqlite3.connect(part)) as copy:
            source.backup(copy)  # in one go: one snapshot, which nobody who writes waits for
            found = copy.execute("PRAGMA quick_check(1)").fetchone()
            if found != ("ok",):
                raise StoreCorrupt(f"the record {path} is damaged: {found[0]}", next_step="everstep doctor")
            copy.execute("PRAGMA journal_mode=DELETE")  # nothing of it is left in a file beside it
        with part.open("rb+") as whole:
            os.fsync(whole.fileno())
        os.link(part, target)  # unlike a rename it replaces nothing
    except FileExistsError:
        raise BackupImpossible(f"{target} is there already", next_step="name a file that does not exist yet") from None
    except (OSError, sqlite3.OperationalError) as error:
        raise BackupImpossible(
            f"the copy {target} cannot be written: {error}",
            next_step="name a file in a folder that exists, is writable and has room",
        ) from error
    finally:
        for left in (part, *part.parent.glob(f"{part.name}-*")):
            left.unlink(missing_ok=True)


_UNAVAILABLE: dict[int, tuple[str, str]] = {
    sqlite3.SQLITE_READONLY: ("is read-only", "make the file and its folder writable, or give another --store"),
    sqlite3.SQLITE_CANTOPEN: ("cannot be opened", "check that the file and its folder exist and are accessible"),
    sqlite3.SQLITE_FULL: (
        "has no space left",
        "free disk space; nothing was lost, the work goes on when there is space",
    ),
    sqlite3.SQLITE_IOERR: ("cannot be read or written (I/O error)", "check the disk, then run everstep doctor"),
    sqlite3.SQLITE_BUSY: (
        "stayed locked by another process",
        "find what holds it open (another tool in a transaction?) and try again",
    ),
    sqlite3.SQLITE_PERM: ("may not be accessed", "check the permissions of the file and its folder"),
}


def translate(error: BaseException, path: Path) -> Exception:
    """The catalogue error for a database error; other errors come back as they are."""
    original: Any = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(original, EverstepError):
        return original
    code = getattr(original, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return StoreCorrupt(
            f"the record {path} is not a SQLite database or is damaged: {original}",
            next_step="keep the file, restore a backup or recover it (sqlite3 FILE .recover), or give another --store",
            path=str(path),
        )
    if code == sqlite3.SQLITE_ERROR and str(original).startswith(("no such table", "no such column")):
        return StoreCorrupt(
            f"the record {path} lacks what belongs to it: {original}",
            next_step="restore a backup, or give another --store; everstep doctor tells what is missing",
            path=str(path),
        )
    if code in _UNAVAILABLE:
        what, next_step = _UNAVAILABLE[code]
        return StoreUnavailable(f"the record {path} {what}: {original}", next_step=next_step, path=str(path))
    return original if isinstance(original, Exception) else RuntimeError(str(original))
