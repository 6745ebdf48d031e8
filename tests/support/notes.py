"""A record with a table of notes, for tests of what writes to it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from sqlalchemy import Connection

from everstep.checkpoints.store import Store
from tests.support.record import fresh


@contextmanager
def noted(folder: Path) -> Iterator[Store]:
    """A record in the folder, with a table of notes."""
    with fresh(folder) as store:
        store.write(lambda connection: connection.exec_driver_sql("CREATE TABLE notes (text TEXT)")).result()
        yield store


def note(text: str) -> Callable[[Connection], str]:
    """An operation that adds a note."""

    def operation(connection: Connection) -> str:
        connection.exec_driver_sql("INSERT INTO notes VALUES (?)", (text,))
        return text

    return operation


def notes(path: Path) -> list[str]:
    """The notes another connection sees."""
    with closing(sqlite3.connect(path)) as connection:
        return [row[0] for row in connection.execute("SELECT text FROM notes ORDER BY rowid")]
