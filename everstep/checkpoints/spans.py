"""Spans in the record: each committed with what its leg wrote, and queued for every destination it is to go to.

Spans are evidence, not state: they are written under no claim, and of two writers of the same span the first one wins.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Connection, bindparam, delete, func, insert, select
from sqlalchemy.dialects import postgresql, sqlite

from everstep.checkpoints.schema import span_outbox, spans
from everstep.checkpoints.statements import Statement
from everstep.observability import enclosing
from everstep.observability.enclosing import Enclosing
from everstep.observability.span_buffer import FinishedSpan, SpanBuffer

if TYPE_CHECKING:
    from everstep.checkpoints.record import Record

T = TypeVar("T")

logger = logging.getLogger("everstep.spans")

PART = 1_000
_QUEUE = Statement(
    insert(span_outbox).values({name: bindparam(name) for name in ("job_id", "span", "destination", "queued_at")})
)


def write(
    connection: Connection,
    job_id: int,
    leg: int,
    finished: Sequence[FinishedSpan],
    *,
    destinations: Sequence[str],
    now: int,
) -> int:
    """Write spans of a leg, and queue those that were not there for each destination.

    Args:
        connection: The write transaction.
        job_id: Row id of the job.
        leg: The leg's number, which is that of its claim.
        finished: The spans.
        destinations: Names of where they go.
        now: UTC milliseconds.

    Returns:
        How many were not there.
    """
    if not finished:
        return 0
    rows = [
        {"job_id": job_id, "leg": leg, "span_id": one.span_id, "started_ns": one.started_ns, "body": one.body}
        for one in finished
    ]
    new = _inserted(connection, rows)
    if new and destinations:
        queued = [
            {"job_id": job_id, "span": row, "destination": destination, "queued_at": now}
            for row in new
            for destination in destinations
        ]
        _QUEUE.run_all(connection, queued)
    return len(new)


def _inserted(connection: Connection, rows: Sequence[dict[str, Any]]) -> Sequence[int]:
    """Ids of those that were not there."""
    if len(rows) > 1:
        return connection.execute(_insertion(connection.dialect.name), rows).scalars().all()
    if connection.dialect.name == "sqlite":  # as mostly: a step that calls nothing
        cursor = _ONE_OF_SQLITE.run(connection, rows[0])
        return [cursor.lastrowid] if cursor.rowcount == 1 else []
    return [row[0] for row in _ONE.run(connection, rows[0]).fetchall()]


@cache
def _insertion(dialect: str) -> Any:
    of_dialect: Any = postgresql.insert if dialect == "postgresql" else sqlite.insert
    return of_dialect(spans).on_conflict_do_nothing().returning(spans.c.id)


_VALUES: dict[str, Any] = {name: bindparam(name) for name in ("job_id", "leg", "span_id", "started_ns", "body")}
_ONE = Statement(_insertion("postgresql").values(_VALUES))
_ONE_OF_SQLITE = Statement(sqlite.insert(spans).on_conflict_do_nothing().values(_VALUES))
"""Without `returning`, for which SQLite keeps a table; its driver knows the row's id."""


def of_leg(connection: Connection, job_id: int, leg: int) -> list[tuple[str, bytes]]:
    """The spans of a leg in the order of their start: id and body (`FinishedSpan.body`)."""
    query = select(spans.c.span_id, spans.c.body).where(spans.c.job_id == job_id, spans.c.leg == leg)
    return [(row.span_id, row.body) for row in connection.execute(query.order_by(spans.c.started_ns, spans.c.id))]


def last_start_ns(connection: Connection, job_id: int, leg: int) -> int:
    """When the newest span of a leg began, nanoseconds since the Unix epoch; 0 if there is none."""
    query = select(func.max(spans.c.started_ns)).where(spans.c.job_id == job_id, spans.c.leg == leg)
    return int(connection.execute(query).scalar_one() or 0)


def missing(connection: Connection, job_id: int, leg: int, root_id: str) -> list[Enclosing]:
    """The spans around stored ones of a leg that are not stored, without its root.

    Args:
        connection: The transaction.
        job_id: Row id of the job.
        leg: The leg's number.
        root_id: The id of its root span.
    """
    of_leg = spans.c.job_id == job_id, spans.c.leg == leg
    known = set(connection.execute(select(spans.c.span_id).where(*of_leg)).scalars())
    bodies = select(spans.c.body).where(*of_leg).order_by(spans.c.started_ns).execution_options(yield_per=PART)
    return enclosing.missing((bytes(body) for body in connection.execute(bodies).scalars()), known, root_id)


def prune(connection: Connection, *, before_ns: int, after: int, dry_run: bool = False) -> tuple[int, int | None]:
    """Delete spans that began before a moment and wait for no destination, a part of the table at a time.

    Args:
        connection: The transaction.
        before_ns: Nanoseconds since the Unix epoch.
        after: Row id of the last span looked at; 0 at first.
        dry_run: Only count.

    Returns:
        How many, and the last row looked at; None when there are no more.
    """
    looked = select(spans.c.id, spans.c.started_ns).where(spans.c.id > after).order_by(spans.c.id).limit(PART)
    rows = connection.execute(looked).all()
    old = [row.id for row in rows if row.started_ns < before_ns]
    if not rows or not old:  # those behind are younger, but for the roots of long legs, which a later time finds
        return 0, None
    waiting = connection.execute(select(span_outbox.c.span).where(span_outbox.c.span.in_(old)))
    ids = sorted(set(old) - set(waiting.scalars()))
    if ids and not dry_run:
        connection.execute(delete(spans).where(spans.c.id.in_(ids)))
    return len(ids), rows[-1].id


class SpanWriter:
    """Lets the spans of one leg go along with its writes.

    Args:
        record: The record.
        buffer: What has ended.
        job_id: Row id of the job.
        leg: The leg's number.
        destinations: Names of where they go.
        written: Called when some are committed, on the writer's thread.
    """

    def __init__(
        self,
        record: Record,
        buffer: SpanBuffer,
        job_id: int,
        leg: int,
        *,
        destinations: Sequence[str],
        written: Callable[[], None],
    ) -> None:
        self._record = record
        self._buffer = buffer
        self._job_id = job_id
        self._leg = leg
        self._destinations = destinations
        self._written = written
        self._rest: Sequence[FinishedSpan] = ()

    def submit(
        self,
        operation: Callable[[Connection], T],
        *,
        patient: bool = False,
        task_id: str | None = None,
        graph_ns: str | None = None,
    ) -> Future[T]:
        """Queue a write of the leg, and with it what has ended; if it fails, that goes with the next one.

        Args:
            operation: The write.
            patient: See `Writer.submit`.
            task_id: The task whose output is stored by it.
            graph_ns: The checkpoint namespace whose step is stored by it.
        """
        self._buffer.release(task_id=task_id, graph_ns=graph_ns)
        taken = self._buffer.take()
        if not taken:
            return self._record.write(operation, patient=patient)

        def with_spans(connection: Connection) -> T:
            result = operation(connection)
            self._write(connection, taken)
            return result

        try:
            future = self._record.write(with_spans, patient=patient)
        except RuntimeError:  # the record is closed
            self._buffer.give_back(taken)
            raise
        future.add_done_callback(partial(self._told, taken))
        return future

    def write_rest(self, connection: Connection) -> None:
        """In the transaction that settles the leg: all that has ended; `forget_rest` when it is committed."""
        self._rest = self._buffer.waiting()
        self._write(connection, self._rest)

    def forget_rest(self) -> None:
        """What `write_rest` wrote is committed; what was given back since is not."""
        self._buffer.forget(self._rest)
        self._written()

    def write_alone(self) -> None:
        """What is left, on its own: the leg is over, or writes nothing for long. Nobody waits for it."""
        if not (taken := self._buffer.take()):
            return
        try:
            self._record.write(partial(self._write, finished=taken)).add_done_callback(partial(self._told, taken))
        except RuntimeError:
            logger.debug("the record is closed: %d spans are lost", len(taken))

    def _write(self, connection: Connection, finished: Sequence[FinishedSpan]) -> None:
        now = self._record.clock.now_ms()
        write(connection, self._job_id, self._leg, finished, destinations=self._destinations, now=now)

    def _told(self, taken: Sequence[FinishedSpan], future: Future[Any]) -> None:
        if future.cancelled() or future.exception() is not None:
            self._buffer.give_back(taken)
        else:
            self._written()
