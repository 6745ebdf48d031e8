"""Transactions that meet: one that is not committed yet, and another that may have to wait for it (PostgreSQL)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from sqlalchemy import Connection

from everstep.checkpoints.store import Store
from tests.support.waiting import Halt, until


def stands(store: Store, future: Future[Any]) -> None:
    """Wait until an operation of another transaction is done, or waits for a lock."""
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    until(lambda: future.done() or store.read(lambda c: c.exec_driver_sql(waiting).scalar_one()), "its end or a lock")


class Held:
    """A transaction of one process that has done its work and is not committed yet."""

    def __init__(self, store: Store, operation: Callable[[Connection], Any]) -> None:
        self._halt = Halt()

        def both(connection: Connection) -> Any:
            result = operation(connection)
            self._halt.stand()
            return result

        self._done = store.write(both)
        self._halt.wait_until_reached()

    def commit(self) -> Any:
        self._halt.release()
        return self._done.result()
