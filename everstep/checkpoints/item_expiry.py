"""Items of the key-value store whose time to live is over. Its tables are LangGraph's; their times are texts there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Connection

if TYPE_CHECKING:
    from everstep.checkpoints.store import Store

OVER = "FROM store WHERE expires_at IS NOT NULL AND expires_at < CURRENT_TIMESTAMP"


def forget(store: Store, *, dry_run: bool = False) -> int:
    """Delete them, or only count them.

    Returns:
        How many they are.
    """
    over = store.read(_count)
    return store.write(_delete).result() if over and not dry_run else over


def _count(connection: Connection) -> int:
    return connection.exec_driver_sql(f"SELECT count(*) {OVER}").scalar_one()


def _delete(connection: Connection) -> int:
    return connection.exec_driver_sql(f"DELETE {OVER}").rowcount
