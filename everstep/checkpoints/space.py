"""The room that deleted jobs leave: what a database gives back to the disk, and what it keeps for what comes next."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from everstep.checkpoints.sqlite import Sqlite, raw_connection

if TYPE_CHECKING:
    from everstep.checkpoints.store import Store

CHECKPOINT_TIMEOUT_MS = 5000


@dataclass(frozen=True)
class Space:
    """Bytes of a record.

    Attributes:
        taken: What it takes on disk.
        free: What of that is empty, to be used again; None where the database does not tell.
    """

    taken: int
    free: int | None


def measure(store: Store) -> Space:
    """What the record takes now."""

    def look(connection: Connection) -> Space:
        free = None
        if isinstance(store.database, Sqlite):
            pages, size = (
                int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())
                for name in ("freelist_count", "page_size")
            )
            free = pages * size
        return Space(store.database.size(connection), free)

    return store.read(look)


def truncate_log(store: Store) -> bool:
    """Empty SQLite's write-ahead log into the file, beside those who write; on PostgreSQL there is nothing to do.

    Returns:
        Whether that is so now; somebody who reads an old snapshot can keep it for a while.
    """
    if not isinstance(store.database, Sqlite):
        return True
    try:
        with closing(raw_connection(store.database.path)) as connection:
            connection.execute(f"PRAGMA busy_timeout={CHECKPOINT_TIMEOUT_MS}")
            (busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            return not busy
    except sqlite3.Error as error:
        raise store.database.translate(error) from error


def vacuum(store: Store) -> None:
    """Give the empty pages of a SQLite record back to the disk. Nobody can write meanwhile, so let workers be idle.

    It needs as much room as the record takes, for a while. On PostgreSQL there is nothing to do: autovacuum does it.
    """
    if not isinstance(store.database, Sqlite):
        return
    try:
        with closing(raw_connection(store.database.path)) as connection:
            connection.execute("VACUUM")
    except sqlite3.Error as error:
        raise store.database.translate(error) from error
    truncate_log(store)
