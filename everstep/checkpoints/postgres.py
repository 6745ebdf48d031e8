"""A record in PostgreSQL: several hosts share it. Connections, migrations under a lock, wake-ups, one clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, LiteralString

from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool, QueuePool

from everstep.checkpoints import migrate, postgres_pooler
from everstep.checkpoints.wake_ups import WORK
from everstep.clock import Clock
from everstep.errors import (
    BackupImpossible,
    EverstepError,
    PayloadInvalid,
    StoreCorrupt,
    StoreNotFound,
    StoreUnavailable,
    StoreUrlInvalid,
)

try:
    import psycopg
    from psycopg import conninfo, errors, sql
    from psycopg.rows import dict_row
    from psycopg_pool import ConnectionPool
except ImportError as missing:
    raise StoreUrlInvalid(
        f"a record in PostgreSQL needs a package that is not there ({missing})",
        next_step="install it: pip install 'everstep[postgres]'",
    ) from missing

if TYPE_CHECKING:
    from everstep.checkpoints.saver import StepSaver

DEFAULTS = {
    "application_name": "everstep",
    "connect_timeout": "5",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
"""Parameters of libpq, where the URL does not say otherwise: a host that vanished is noticed within half a minute."""
LOCK_TIMEOUT = "30s"
WRITING = (
    f"-c lock_timeout={LOCK_TIMEOUT} -c idle_in_transaction_session_timeout=60s -c tcp_keepalives_idle=30"
    " -c enable_bitmapscan=off -c random_page_cost=1.1 -c jit=off"
)
"""Without bitmaps: ready jobs come in their order from an index, but a planner that has no statistics of how many wait
would rather collect and sort them all for each claim. So an `or` of columns with different indexes is written as a
union. And without machine code, which takes longer to make than what is written to run."""
READING = "-c default_transaction_read_only=on -c statement_timeout=60s -c random_page_cost=1.1"
"""What is looked for are few rows among many, which a planner that thinks of a turning disk would read all of."""
_MIGRATING = 0x45564552  # the advisory lock under which one process migrates
_TRIES, _PAUSE_S = 600, 0.05
_RESYNC_S = 30.0
_LISTEN_S = 0.5


class DatabaseClock:
    """The clock of the database's host: read now and then, and carried on by this machine's monotonic clock.

    So workers whose clocks disagree agree on leases and due times.

    Args:
        ask: Asks the host for its time, in milliseconds since the Unix epoch.
    """

    def __init__(self, ask: Callable[[], int]) -> None:
        self._ask = ask
        self._asking = threading.Lock()
        self._known = (ask(), time.monotonic())

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch, UTC."""
        then, at = self._known
        elapsed = time.monotonic() - at
        if elapsed > _RESYNC_S and self._asking.acquire(blocking=False):
            threading.Thread(target=self._resync, name="everstep-clock", daemon=True).start()
        return then + int(elapsed * 1000)

    def _resync(self) -> None:
        try:
            began = time.monotonic()
            self._known = (self._ask(), (began + time.monotonic()) / 2)
        except (psycopg.Error, DBAPIError):
            pass  # it goes on by the monotonic clock, and asks again at the next call
        finally:
            self._asking.release()


def _row(connection: psycopg.Connection[Any], query: LiteralString, *parameters: Any) -> dict[str, Any]:
    found = connection.execute(query, parameters).fetchone()
    if found is None:
        raise LookupError(f"no row: {query}")
    return found


class Postgres:
    """The database of a `postgresql://…` URL; see `database.Database`.

    Args:
        url: `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`, with any parameter of libpq after `?`.

    Raises:
        StoreUrlInvalid: libpq cannot read it.
    """

    checkpoint_tables: tuple[str, ...] = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")
    poll_s = 1.0  # seconds after which a worker looks for work though nobody woke it

    def __init__(self, url: str) -> None:
        try:
            given = conninfo.conninfo_to_dict(url)
        except psycopg.ProgrammingError:
            raise StoreUrlInvalid(
                "the store URL is not one PostgreSQL's library can read",
                next_step="use postgresql://USER@HOST:PORT/DATABASE; percent-encode what is special",
            ) from None
        self._given: dict[str, Any] = {**DEFAULTS, **given}
        self._sets_by_statement = False
        shown = {name: given[name] for name in ("user", "host", "port", "dbname") if given.get(name)}
        host = str(shown.get("host", "")) + (f":{shown['port']}" if "port" in shown else "")
        user = f"{shown['user']}@" if "user" in shown else ""
        self.label = f"postgresql://{user}{host}/{shown.get('dbname', '')}"
        self._patience = postgres_pooler.Patience(self.label)

    def _options(self, options: str) -> str:
        return f"{self._given.get('options') or ''} {options}".strip()

    def _conninfo(self, options: str) -> str:
        asked = None if self._sets_by_statement else self._options(options)
        return conninfo.make_conninfo("", **{**self._given, "options": asked})

    def _configure(self, connection: psycopg.Connection[Any], options: str) -> None:
        """Make the settings of a new connection, where a pooler does not take them as it begins."""
        if self._sets_by_statement:
            with self._patience.kept():
                postgres_pooler.set_by_statement(connection, self._options(options))

    def _connect(self, options: str = WRITING) -> psycopg.Connection[Any]:
        dicts: Any = dict_row
        connection = psycopg.connect(self._conninfo(options), autocommit=True, prepare_threshold=0, row_factory=dicts)
        self._configure(connection, options)
        return connection

    def _connect_first(self) -> psycopg.Connection[Any]:
        """Connect, and find out what stands between.

        Raises:
            StoreUrlInvalid: A pooler that does not leave a session to us.
        """
        try:
            connection = self._connect()
        except psycopg.OperationalError as error:
            if self._sets_by_statement or not postgres_pooler.refuses_options(error):
                raise
            self._sets_by_statement = True
            connection = self._connect()
        try:
            found = postgres_pooler.look(connection)
            if found.lock_timeout != LOCK_TIMEOUT:  # it was dropped, and the others with it
                self._sets_by_statement = True
                self._configure(connection, WRITING)
            if found.is_between:
                postgres_pooler.require_sessions(connection, self._connect, self.label)
        except BaseException:
            connection.close()
            raise
        return connection

    def prepare(self, *, create: bool) -> None:
        try:
            with self._patience.kept():
                first = self._connect_first()
            with first as connection:
                version = self._version(connection)
                if version is None and not create:
                    raise StoreNotFound(
                        f"there is no record in {self.label}",
                        next_step="name the right database with --store or EVERSTEP_STORE;"
                        " everstep submit and everstep worker make a new record",
                        path=self.label,
                    )
                if version != migrate.HEAD:
                    self._migrate(connection)
        except psycopg.Error as error:
            raise self.translate(error) from error

    def _version(self, connection: psycopg.Connection[Any]) -> str | None:
        rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()").fetchall()
        tables = {str(row["tablename"]) for row in rows}
        if "alembic_version" not in tables:
            migrate.refuse_foreign(tables, self.label)
            return None
        row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        version = None if row is None else str(row["version_num"])
        migrate.check_version(version, self.label)
        return version

    def _migrate(self, connection: psycopg.Connection[Any]) -> None:
        from langgraph.checkpoint.postgres import PostgresSaver
        from langgraph.store.postgres import PostgresStore

        with self._alone(connection):
            PostgresSaver(connection).setup()
            PostgresStore(connection).setup()
            engine = self.writing_engine()
            try:
                with engine.begin() as own:
                    migrate.upgrade(own)
            except DBAPIError as error:
                raise self.translate(error) from error
            finally:
                engine.dispose()

    @contextmanager
    def _alone(self, connection: psycopg.Connection[Any]) -> Generator[None]:
        """Hold the lock under which tables are made."""
        # Tried again and again, not waited for: the saver builds indexes concurrently, which waits for whoever waits.
        for _ in range(_TRIES):
            if _row(connection, "SELECT pg_try_advisory_lock(%s) AS mine", _MIGRATING)["mine"]:
                break
            time.sleep(_PAUSE_S)
        else:
            raise StoreUnavailable(
                f"another process has been migrating the record {self.label} for {_TRIES * _PAUSE_S:.0f} s",
                next_step="find what hangs there (pg_stat_activity), then try again",
            )
        try:
            yield
        finally:
            connection.execute("SELECT pg_advisory_unlock(%s)", (_MIGRATING,))

    def alone(self, make: Callable[[], None]) -> None:
        """Let one process after the other make tables."""
        with self._connect() as connection, self._alone(connection):
            make()

    def _plain(self, options: str) -> psycopg.Connection[Any]:
        connection = psycopg.Connection.connect(self._conninfo(options))
        self._configure(connection, options)
        return connection

    def writing_engine(self) -> Engine:
        return create_engine(
            "postgresql+psycopg://",
            creator=lambda: self._plain(WRITING),
            poolclass=NullPool,
            use_native_hstore=False,
        )

    def reading_engine(self) -> Engine:
        return create_engine(
            "postgresql+psycopg://",
            creator=lambda: self._plain(READING),
            poolclass=QueuePool,
            pool_pre_ping=True,
            isolation_level="REPEATABLE READ",
            use_native_hstore=False,
        )

    def checkpoint_reader(self) -> ConnectionPool[Any]:
        return self._pool(READING)

    def item_pool(self) -> ConnectionPool[Any]:
        """What the store of items reads with: a read may let an item's time to live begin anew."""
        return self._pool(WRITING)

    def _pool(self, options: str) -> ConnectionPool[Any]:
        return ConnectionPool(
            self._conninfo(options),
            kwargs={"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row},
            configure=lambda connection: self._configure(connection, options),
            min_size=0,
            max_size=4,
            timeout=30.0,
            check=ConnectionPool.check_connection,
            open=True,
        )

    def item_tables(self) -> Any:
        from everstep.checkpoints.postgres_items import PostgresItems

        return PostgresItems

    def saver_class(self) -> type[StepSaver]:
        from everstep.checkpoints.postgres_saver import PostgresStepSaver

        return PostgresStepSaver

    def clock(self) -> Clock:
        def ask() -> int:
            with self._connect(READING) as connection:
                return int(
                    _row(connection, "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS ms")["ms"]
                )

        try:
            return DatabaseClock(ask)
        except psycopg.Error as error:
            raise self.translate(error) from error

    def translate(self, error: BaseException) -> Exception:
        original: Any = error.orig if isinstance(error, DBAPIError) else error
        if isinstance(original, EverstepError):
            return original
        what = " ".join(str(original).split("\n")[0].split())
        if isinstance(original, (errors.UndefinedTable, errors.UndefinedColumn)):
            return StoreCorrupt(
                f"the record {self.label} lacks what belongs to it: {what}",
                next_step="restore a backup, or give another --store; everstep doctor tells what is missing",
                path=self.label,
            )
        if isinstance(original, (errors.InsufficientPrivilege, errors.ReadOnlySqlTransaction)):
            return StoreUnavailable(
                f"the record {self.label} may not be written: {what}",
                next_step="give the user the right to create and write tables there, or name the primary server",
                path=self.label,
            )
        if isinstance(original, psycopg.DataError):
            return PayloadInvalid(
                f"PostgreSQL cannot store a text of it: {what}",
                next_step="leave NUL characters and lone surrogates out of texts",
            )
        if isinstance(original, (psycopg.OperationalError, psycopg.InterfaceError)):
            next_step = "check that the server runs and the URL is right; nothing was lost, the work goes on then"
            return StoreUnavailable(
                f"the record {self.label} cannot be reached or does not answer: {what}",
                next_step=postgres_pooler.room_for(what) or next_step,
                path=self.label,
            )
        return original if isinstance(original, Exception) else RuntimeError(what)

    def is_conflict(self, error: BaseException) -> bool:
        original: Any = error.orig if isinstance(error, DBAPIError) else error
        return isinstance(original, (errors.DeadlockDetected, errors.SerializationFailure))

    def own_errors(self) -> tuple[type[BaseException], ...]:
        return (psycopg.Error,)

    def problem(self, connection: Connection, seconds: float | None = None) -> str | None:
        return None  # the server looks after its own files

    def size(self, connection: Connection) -> int:
        from everstep.checkpoints.schema import metadata

        names = [*metadata.tables, *self.checkpoint_tables, "store", "store_vectors"]
        query = "SELECT coalesce(sum(pg_total_relation_size(to_regclass(name))), 0) FROM unnest(%s::text[]) AS name"
        return int(connection.exec_driver_sql(query, (names,)).scalar_one())

    def log_size(self) -> int | None:
        return None

    def backup(self, target: Path) -> None:
        raise BackupImpossible(
            f"{self.label} is a PostgreSQL database, which has tools of its own",
            next_step=f"use them: pg_dump --format=custom --file={target} DATABASE",
        )

    @contextmanager
    def listen(self, wake: Callable[[], None], topic: str = WORK) -> Generator[float]:
        stop = threading.Event()

        def hear() -> None:
            while not stop.is_set():
                try:
                    with self._connect(READING) as connection:
                        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(topic)))
                        wake()  # what was told before it listened
                        while not stop.is_set():
                            for _ in connection.notifies(timeout=_LISTEN_S, stop_after=1):
                                wake()
                except psycopg.Error:
                    stop.wait(1.0)  # meanwhile the worker looks by itself

        threading.Thread(target=hear, name="everstep-listen", daemon=True).start()
        try:
            yield self.poll_s
        finally:
            stop.set()  # it ends by itself, within `_LISTEN_S`

    def ring(self, topics: Iterable[str]) -> None:
        pass  # the server did, as it committed

    def close(self) -> None:
        pass  # all it holds are connections
