"""The single writer: one thread, one connection, one queue per process, and group commit.

What waits in the queue is drained into one transaction: each operation runs in its own savepoint, then one commit makes
all of them durable, then their futures resolve. So an operation that fails takes nothing with it, an acknowledged one
is on disk, and 100 agents stepping at once share an fsync. Operations run in the order they were submitted; the saver
and the effects rely on it.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from everstep.checkpoints.database import Database

T = TypeVar("T")
Operation = Callable[[Connection], T]

MAX_BATCH = 256
CONFLICTS = 6
"""How often a transaction that met another one is run again."""


class Writer:
    """Runs write operations in order on one connection.

    Args:
        connect: Opens the connection; called on the writer's thread. Its `begin()` must take the write lock at once.
        database: Tells what a database error means.
    """

    def __init__(self, connect: Callable[[], Connection], database: Database) -> None:
        self._connect = connect
        self._database = database
        self._queue: queue.SimpleQueue[tuple[Operation[Any], Future[Any]] | None] = queue.SimpleQueue()
        self._closed = False
        self._closing = threading.Lock()
        self.commits = 0
        self._thread = threading.Thread(target=self._run, name="everstep-writer", daemon=True)
        self._thread.start()

    def submit(self, operation: Operation[T]) -> Future[T]:
        """Queue an operation; the future resolves after the commit that holds it.

        Raises:
            RuntimeError: The writer is closed.
        """
        future: Future[T] = Future()
        with self._closing:  # nothing may be queued behind the end, where nobody would look
            if self._closed:
                raise RuntimeError("the record is closed")
            self._queue.put((operation, future))
        return future

    def close(self) -> None:
        """Finish what was queued and stop. Safe to call twice."""
        with self._closing:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        connection: Connection | None = None
        open_ = True
        while open_:
            batch: list[tuple[Operation[Any], Future[Any]]] = []
            item = self._queue.get()
            while True:
                if item is None:
                    open_ = False
                elif item[1].set_running_or_notify_cancel():
                    batch.append(item)
                if not open_ or len(batch) >= MAX_BATCH:
                    break
                try:
                    item = self._queue.get_nowait()
                except queue.Empty:
                    break
            if batch:
                try:
                    connection = connection or self._connect()
                    self._commit(connection, batch)
                except BaseException as error:  # the connection itself failed
                    reason = self._seen_by_caller(error)
                    for _, future in batch:
                        if not future.done():
                            future.set_exception(reason)
                    if connection is not None:
                        connection.close()
                        connection = None
        if connection is not None:
            connection.close()

    def _commit(self, connection: Connection, batch: list[tuple[Operation[Any], Future[Any]]]) -> None:
        for again in range(CONFLICTS + 1):
            outcomes: list[tuple[Future[Any], Any, BaseException | None]] = []
            failure: BaseException | None = None
            try:
                with connection.begin():
                    for operation, future in batch:
                        connection.exec_driver_sql("SAVEPOINT operation")
                        try:
                            result = operation(connection)
                            connection.exec_driver_sql("RELEASE SAVEPOINT operation")
                            outcomes.append((future, result, None))
                        except BaseException as error:
                            failure = error
                            if self._database.is_conflict(error):
                                raise
                            # A full disk or an I/O error ends the whole transaction; then this raises.
                            connection.exec_driver_sql("ROLLBACK TO SAVEPOINT operation")
                            connection.exec_driver_sql("RELEASE SAVEPOINT operation")
                            failure = None
                            outcomes.append((future, None, error))
            except BaseException as error:
                with suppress(DBAPIError):
                    connection.rollback()
                if self._database.is_conflict(failure or error) and again < CONFLICTS:
                    time.sleep(random.uniform(0, 0.02 * 2**again))
                    continue
                reason = self._seen_by_caller(failure or error)
                told = {id(future): own for future, _, own in outcomes if own is not None}
                for _, future in batch:
                    own = told.get(id(future))
                    future.set_exception(reason if own is None else self._seen_by_caller(own))
                if connection.invalidated:
                    raise
                return
            self.commits += 1
            for future, result, own in outcomes:
                if own is None:
                    future.set_result(result)
                else:
                    future.set_exception(self._seen_by_caller(own))
            return

    def _seen_by_caller(self, error: BaseException) -> BaseException:
        return self._database.translate(error) if isinstance(error, DBAPIError) else error
