"""An empty record for each run: a copy of a file, or a schema of its own in a PostgreSQL database."""

from __future__ import annotations

import shutil
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit
from uuid import uuid4

from everstep.checkpoints.store import Store


class Records(Protocol):
    """Makes records, from several threads."""

    def fresh(self, folder: Path) -> AbstractContextManager[str]:
        """The URL of an empty record for the run in this folder, for the length of a `with` block."""
        ...


class InFiles:
    """Each in the run's folder, where it stays.

    Args:
        folder: Where the file is made that the others are copies of.
    """

    def __init__(self, folder: Path) -> None:
        self._template = folder / "template.db"
        Store.open(f"sqlite:///{self._template}").close()

    @contextmanager
    def fresh(self, folder: Path) -> Generator[str]:
        """See `Records.fresh`."""
        record = folder / "record.db"
        shutil.copyfile(self._template, record)
        yield f"sqlite:///{record}"


class InSchemas:
    """Each in a schema that is made for it and dropped afterwards; nothing else in the database is touched.

    Args:
        url: URL of the database; its user must have the right to make schemas in it.
    """

    def __init__(self, url: str) -> None:
        from everstep.checkpoints.postgres import Postgres

        self._url, self._database = url, Postgres(url)

    @contextmanager
    def fresh(self, folder: Path) -> Generator[str]:
        """See `Records.fresh`."""
        schema = f"everstep_crash_test_{uuid4().hex}"
        self._execute("CREATE SCHEMA", schema)
        try:
            yield in_schema(self._url, schema)
        finally:
            self._execute("DROP SCHEMA", schema, "CASCADE")

    def _execute(self, *words: str) -> None:
        import psycopg

        try:
            with psycopg.connect(self._url, autocommit=True, connect_timeout=5) as connection:
                connection.execute(" ".join(words).encode())
        except psycopg.Error as error:
            raise self._database.translate(error) from error


def in_schema(url: str, schema: str) -> str:
    """The URL of a PostgreSQL database, with this schema for a search path."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    query["options"] = f"{query.get('options', '')} -csearch_path={schema}".strip()
    return urlunsplit(parts._replace(query=urlencode(query, quote_via=quote)))
