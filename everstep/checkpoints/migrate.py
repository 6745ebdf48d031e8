"""Migrations of the record, for either database: which schema this Everstep knows, and how a record gets it."""

from __future__ import annotations

import threading
from collections.abc import Collection
from pathlib import Path

from sqlalchemy import Connection

from everstep.errors import StoreCorrupt, StoreTooNew

HEAD = "0007"

_migrating = threading.Lock()


def upgrade(connection: Connection) -> None:
    """Bring the record to `HEAD`, in the connection's transaction and under the caller's lock."""
    from alembic import command
    from alembic.config import Config

    settings = Config()
    settings.set_main_option("script_location", str(Path(__file__).with_name("migrations")))
    settings.attributes["connection"] = connection
    with _migrating:  # Alembic keeps what it works on in module globals, so threads take turns
        command.upgrade(settings, HEAD)


def version(connection: Connection) -> str | None:
    """The schema the record has now; another process may have migrated it since it was opened."""
    found = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one_or_none()
    return None if found is None else str(found)


def check_version(version: str | None, record: str) -> None:
    """Refuse a schema that is not ours, or newer than this Everstep.

    Args:
        version: What the record says; None when it says nothing.
        record: The record's name in messages.

    Raises:
        StoreCorrupt: The version is none of ours.
        StoreTooNew: A newer Everstep wrote it.
    """
    if version is None:
        return
    if not (version.isdigit() and len(version) == len(HEAD)):
        raise StoreCorrupt(
            f"the database {record} belongs to another program: its schema has version {version!r}",
            next_step="give another --store",
            path=record,
        )
    if version > HEAD:
        raise StoreTooNew(
            f"the record {record} has schema {version}, this Everstep knows up to {HEAD}",
            next_step="upgrade Everstep, or use another --store",
            path=record,
        )


def refuse_foreign(tables: Collection[str], record: str, *, alone: bool = False) -> None:
    """A database of LangGraph's saver may become a record; one with tables of our names that we did not make may not.

    Args:
        tables: Those it has.
        record: Its name in messages.
        alone: Refuse also one that is another program's altogether, such as its file.

    Raises:
        StoreCorrupt: It belongs to another program.
    """
    from everstep.checkpoints.schema import metadata

    clash = sorted(set(tables) & set(metadata.tables))
    if alone and not clash and "checkpoints" not in tables:
        clash = sorted(name for name in tables if not name.startswith("sqlite_"))[:5]
    if clash:
        raise StoreCorrupt(
            f"the database {record} belongs to another program: it has tables named {', '.join(clash)}",
            next_step="give another --store",
            path=record,
        )
