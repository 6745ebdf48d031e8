"""The event log: what runs on threads emit, in order, for those who watch now, later or again.

An event's id grows along its thread, since a thread has one running job at a time and whoever writes an event holds
that job's row. Clients name the last id they saw and miss nothing, whichever process they ask.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, insert, select

from everstep.checkpoints.database import EVENTS, notify
from everstep.checkpoints.schema import events as table
from everstep.checkpoints.statements import Statement

PAGE = 500
END, ERROR, METADATA = "end", "error", "metadata"
CHECKPOINT_IDS = "checkpoint-ids"
"""Which checkpoints were stored, without what is in them."""
SEPARATOR = "|"


@dataclass(frozen=True)
class Event:
    """A row of `events`.

    Attributes:
        id: Its place in the log; decimal, it is what clients go on from.
        run_id: The run that emitted it.
        claim_no: The leg of its job that did.
        method: What it tells of: a stream mode of LangGraph's, `checkpoint-ids`, or `metadata`, `error`, `end`.
        namespace: The subgraph it comes from, its parts joined by `|`; empty for the graph itself.
        data_json: What it tells, as JSON.
        at: UTC milliseconds.
    """

    id: int
    run_id: str
    thread_id: str
    claim_no: int
    method: str
    namespace: str
    data_json: str
    at: int

    @property
    def data(self) -> Any:
        """What it tells."""
        return json.loads(self.data_json)


@dataclass(frozen=True)
class Emitted:
    """An event that is to be written.

    Attributes:
        method: See `Event`.
        data_json: What it tells, as JSON.
        namespace: See `Event`.
    """

    method: str
    data_json: str
    namespace: str = ""


_COLUMNS = [column for column in table.c if column.name != "job_id"]
_APPEND = Statement(
    insert(table).values({column.name: bindparam(column.name) for column in table.c if column.name != "id"}).inline()
)
_OF_RUN = Statement(
    select(*_COLUMNS)
    .where(table.c.run_id == bindparam("run_id"), table.c.id > bindparam("after"))
    .order_by(table.c.id)
    .limit(bindparam("most", type_=table.c.id.type))
)
_OF_THREAD = Statement(
    select(*_COLUMNS)
    .where(table.c.thread_id == bindparam("thread_id"), table.c.id > bindparam("after"))
    .order_by(table.c.id)
    .limit(bindparam("most", type_=table.c.id.type))
)


def append(
    connection: Connection,
    emitted: Sequence[Emitted],
    *,
    job_id: int,
    run_id: str,
    thread_id: str,
    claim_no: int,
    now: int,
) -> None:
    """Add events to a run, and wake those who watch. The caller holds the job's row.

    Args:
        connection: The write transaction.
        emitted: The events, in order.
        job_id: Row id of the run's job.
        run_id: The run.
        thread_id: Its thread.
        claim_no: The leg.
        now: UTC milliseconds.
    """
    same = {"job_id": job_id, "run_id": run_id, "thread_id": thread_id, "claim_no": claim_no, "at": now}
    rows: list[Mapping[str, Any]] = [
        {**same, "method": event.method, "namespace": event.namespace, "data_json": event.data_json}
        for event in emitted
    ]
    if rows:
        _APPEND.run_all(connection, rows)
        notify(connection, EVENTS)


def of_run(connection: Connection, run_id: str, *, after: int = 0, limit: int = PAGE) -> list[Event]:
    """A run's events with ids above `after`, in order."""
    return [Event(**row) for row in _OF_RUN.rows(connection, {"run_id": run_id, "after": after, "most": limit})]


def of_thread(connection: Connection, thread_id: str, *, after: int = 0, limit: int = PAGE) -> list[Event]:
    """The events of all runs of a thread with ids above `after`, in order."""
    found = _OF_THREAD.rows(connection, {"thread_id": thread_id, "after": after, "most": limit})
    return [Event(**row) for row in found]


def newest(connection: Connection, thread_id: str) -> int:
    """The id of a thread's newest event; 0 if it has none."""
    found = connection.execute(select(func.max(table.c.id)).where(table.c.thread_id == thread_id)).scalar_one()
    return int(found or 0)


def first_of_run(connection: Connection, run_id: str) -> int | None:
    """The id of a run's first event; None if it has none."""
    return connection.execute(select(func.min(table.c.id)).where(table.c.run_id == run_id)).scalar_one()


def begun_before(connection: Connection, thread_id: str, until: int) -> str | None:
    """The run of a thread that began last, up to an event."""
    begun = (table.c.thread_id == thread_id, table.c.id <= until, table.c.method == METADATA)
    return connection.execute(select(table.c.run_id).where(*begun).order_by(table.c.id.desc()).limit(1)).scalar()


def forget(connection: Connection, *, before: int, limit: int = 10_000) -> int:
    """Delete events older than a moment (UTC milliseconds), but for the ends of runs; how many."""
    old = select(table.c.id).where(table.c.at < before, table.c.method.not_in((END, ERROR))).limit(limit)
    return connection.execute(delete(table).where(table.c.id.in_(old))).rowcount
