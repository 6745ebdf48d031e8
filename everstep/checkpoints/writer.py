"""The single writer: one connection, one transaction at a time, one thread and one queue per process, and group commit.

What waits in the queue is drained into one transaction; one commit makes all of it durable, then the futures resolve.
Should an operation fail, the transaction is run again with a savepoint for each. So an operation that fails takes
nothing with it, an acknowledged one is on disk, and 100 agents stepping at once share an fsync. Operations run in the
order they were submitted; the saver and the effects rely on it.

Who waits for the commit anyway (`carry_out`) runs the transaction on its own thread, if no other operation is under way
or queued: handing it over and back costs more than most operations.

A patient operation is one nobody waits for: what a task wrote, whose checkpoint follows within a millisecond or two. It
is held for the next urgent one and shares its commit, so a superstep costs one; alone it is held for `PATIENCE_S`.

What a client is told as it happens, such as a token, has nothing to wait for: it is held until `PATIENCE_S` after the
last of its kind, so a single stream is told at once, and a hundred of them cost as many commits as one.
"""

from __future__ import annotations

import math
import os
import queue
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from everstep.checkpoints import together
from everstep.checkpoints.database import Database

T = TypeVar("T")
Operation = Callable[[Connection], T]

MAX_BATCH = 256
CONFLICTS = 6
"""How often a transaction that met another one is run again."""
PATIENCE_S = 0.015
"""How long a patient operation is held at most: many times what LangGraph needs from the end of a superstep's last task
to its checkpoint, and nothing beside a model's call, which is what a crash within it may cost."""


class _Waiting(NamedTuple):
    operation: Operation[Any]
    future: Future[Any]
    until: float
    """Until when it may be held, by the monotonic clock; 0: not at all."""


_Outcome = tuple[Future[Any], Any, BaseException | None]


class Writer:
    """Runs write operations in order on one connection.

    Args:
        connect: Opens the connection, which several threads use in turns. Its `begin()` must take the write lock at
            once.
        database: Tells what a database error means.
    """

    def __init__(self, connect: Callable[[], Connection], database: Database) -> None:
        self._connect = connect
        self._database = database
        self._queue: deque[_Waiting | None] = deque()
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        """Wakes the thread, which looks into `_queue` after each ring: so one that is not heard yet is enough."""
        self._looks_at = math.inf
        """When the thread looks again anyway, if it holds something: only what may not be held until then rings."""
        self._tells_at = -math.inf
        """When what clients are told is committed, or was."""
        self._held: Future[Any] | None = None
        self._closed = False
        self._unfinished: set[Future[Any]] = set()
        """Of operations that were accepted and are not carried out. They leave it without a lock: the thread that has
        it may be interrupted by a signal's handler that waits for one of them."""
        self._accepting = threading.RLock()
        """Guards `_closed` and what comes to `_unfinished`; also a handler that interrupts who has it may submit."""
        self._connection: Connection | None = None
        self._turn = threading.RLock()
        """Who holds it has the connection. A handler that came before its thread is known as the one does not hang."""
        self._carrying: int | None = None
        """The thread whose turn it is: neither a handler that interrupts it nor what it calls can wait for a write."""
        self.commits = 0
        self._thread = threading.Thread(target=self._run, name="everstep-writer", daemon=True)
        self._thread.start()
        self._process = os.getpid()

    def submit(self, operation: Operation[T], *, patient: bool = False, told: bool = False) -> Future[T]:
        """Queue an operation; the future resolves after the commit that holds it.

        Args:
            operation: Touches nothing but the transaction.
            patient: Nobody waits for it: it may be held for `PATIENCE_S`, for an urgent one to share its commit with.
            told: A client may wait for it, and no urgent one follows: it is held if another such one was submitted in
                the last `PATIENCE_S`.

        Raises:
            RuntimeError: The writer is closed, or another process's.
        """
        future: Future[T] = Future()
        self._refuse_if_forked()
        with self._accepting:  # nothing may be queued behind the end, where nobody would look
            self._refuse_if_closed()
            self._unfinished.add(future)
            until = self._next_telling() if told else time.monotonic() + PATIENCE_S if patient else 0.0
            self._queue.append(_Waiting(operation, future, until))
            if patient or told:
                self._held = future
            if until < self._looks_at and self._bell.empty():
                self._bell.put(None)
        return future

    def carry_out(self, operation: Operation[T]) -> T:
        """Run an operation and wait for the commit that holds it.

        Args:
            operation: As for `submit`.

        Raises:
            RuntimeError: The writer is closed, or another process's, or this is called by an operation under way.
        """
        self._refuse_if_forked()
        self._refuse_if_carrying()
        if not self._unfinished:
            this_thread, future = threading.get_ident(), Future[T]()
            with self._turn:
                self._carrying = this_thread  # nothing is called before, so no handler can come between
                try:
                    with self._accepting:
                        self._refuse_if_closed()
                        alone = not self._unfinished  # then none was accepted before this one
                        if alone:
                            self._unfinished.add(future)
                    if alone:
                        self._finish([_Waiting(operation, future, 0.0)])
                        return future.result()
                finally:
                    self._unfinished.discard(future)
                    self._carrying = None
        return self.submit(operation).result()

    def _next_telling(self) -> float:
        now = time.monotonic()
        if self._tells_at <= now:
            self._tells_at = max(now, self._tells_at + PATIENCE_S)
        return self._tells_at

    def _refuse_if_forked(self) -> None:
        """A fork has a copy of the connection, whose statements would get among its parent's, and not the thread."""
        if os.getpid() != self._process:
            raise RuntimeError("the record was opened before this process was forked; open it here")

    def _refuse_if_carrying(self) -> None:
        """The operation may be one that a signal's handler interrupted, which would go on when the handler is over."""
        if self._carrying == threading.get_ident():
            raise RuntimeError("this thread is writing to the record, and cannot wait for another write; see `write`")

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise RuntimeError("the record is closed")

    def flush(self) -> None:
        """Wait until no patient operation that was submitted before is held, so that reads see them all.

        Raises:
            RuntimeError: This is called by an operation under way.
        """
        held = self._held
        if held is None or (held.done() and not held.cancelled()):
            return
        self._refuse_if_carrying()
        try:
            wait([self.submit(lambda _connection: None)])  # not for one that was cancelled: those before it are held
        except RuntimeError:
            self._thread.join()  # closed: then everything is carried out anyway
        with self._accepting:
            if self._held is held:
                self._held = None

    def close(self) -> None:
        """Finish what was queued and stop. Safe to call twice."""
        with self._accepting:
            if not self._closed:
                self._closed = True
                self._queue.append(None)
                self._bell.put(None)
        self._thread.join()

    def _run(self) -> None:
        open_ = True
        while open_:
            batch, open_ = self._gather()
            if batch:
                with self._turn:
                    self._carrying = self._thread.ident
                    self._finish(batch)
                    self._carrying = None
        with self._turn:
            self._disconnect()

    def _finish(self, batch: list[_Waiting]) -> None:
        """Carry out what was accepted, and tell who waits; whose turn it is calls it."""
        try:
            self._connection = self._connection or self._connect()
            outcomes = self._commit(self._connection, batch)
        except BaseException as error:  # the connection itself failed
            outcomes = [(future, None, error) for _, future, _ in batch]
            self._disconnect()
        for future, _, _ in outcomes:
            self._unfinished.discard(future)
        for future, result, error in outcomes:
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(self._seen_by_caller(error))

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(DBAPIError):
                connection.close()

    def _gather(self) -> tuple[list[_Waiting], bool]:
        """What the next commit holds, and whether more may come."""
        batch: list[_Waiting] = []
        held_until: float | None = None
        while True:
            is_over = self._rest(held_until)
            while self._queue and len(batch) < MAX_BATCH:
                item = self._queue.popleft()
                if item is None:
                    return batch, False
                if not item.future.set_running_or_notify_cancel():
                    self._unfinished.discard(item.future)
                    continue
                batch.append(item)
                held_until = item.until if held_until is None else min(held_until, item.until)
            is_over = is_over or (held_until is not None and held_until <= time.monotonic())
            if batch and (is_over or len(batch) >= MAX_BATCH):
                return batch, True

    def _rest(self, until: float | None) -> bool:
        """Until something comes, or until then, at which nothing that is patient wakes the thread; whether it is then.

        What comes is in the queue before it looks whether it has to ring, and the thread looks there after this.
        """
        if until is None:
            if not self._queue:
                self._bell.get()
            return False
        self._looks_at = until
        try:
            self._bell.get(timeout=max(until - time.monotonic(), 0))
        except queue.Empty:
            return True
        finally:
            self._looks_at = math.inf
        return False

    def _commit(self, connection: Connection, batch: list[_Waiting]) -> list[_Outcome]:
        again, apart, renewed = 0, False, False
        while True:
            outcomes: list[_Outcome] = []
            failure: BaseException | None = None
            try:
                shared = together.begin(connection, [] if apart else [future for _, future, _ in batch])
                connection.begin()
                for operation, future, _ in batch:
                    if apart:
                        connection.exec_driver_sql("SAVEPOINT operation")
                    try:
                        result = operation(connection)
                        if apart:
                            connection.exec_driver_sql("RELEASE SAVEPOINT operation")
                        outcomes.append((future, result, None))
                    except BaseException as error:
                        failure = error
                        if not apart or self._database.is_conflict(error):
                            raise
                        # A full disk or an I/O error ends the whole transaction; then this raises.
                        connection.exec_driver_sql("ROLLBACK TO SAVEPOINT operation")
                        connection.exec_driver_sql("RELEASE SAVEPOINT operation")
                        failure = None
                        outcomes.append((future, None, error))
                connection.commit()
            except BaseException as error:
                with suppress(DBAPIError):
                    connection.rollback()
                if self._database.is_conflict(failure or error):
                    if again < CONFLICTS:
                        time.sleep(random.uniform(0, 0.02 * 2**again))
                        again += 1
                        continue
                elif failure is not None and not apart and len(batch) > 1 and not connection.invalidated:
                    apart = True  # seldom: all over, and it takes nothing with it
                    continue
                elif isinstance(failure, Exception) and connection.invalidated and not renewed:
                    renewed = True  # it broke before the commit, mostly as it lay idle while the server was restarted
                    self._disconnect()
                    connection = self._connection = self._connect()
                    continue
                reason = failure or error
                if connection.invalidated or not isinstance(reason, Exception):
                    self._disconnect()  # a thread that was interrupted leaves it as it may be
                told = {id(future): own for future, _, own in outcomes if own is not None}
                return [(future, None, told.get(id(future), reason)) for _, future, _ in batch]
            self.commits += 1
            if shared.topics:  # also of operations that failed apart: a wake-up may come for nothing
                self._database.ring(shared.topics)
            return outcomes

    def _seen_by_caller(self, error: BaseException) -> BaseException:
        return self._database.translate(error) if isinstance(error, DBAPIError) else error
