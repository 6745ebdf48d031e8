"""The event log: what runs on threads emit, in order, for those who watch now, later or again.

An event's id grows along its thread, since a thread has one running job at a time and whoever writes an event holds
that job's row. Clients name the last id they saw and miss nothing, whichever process they ask.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, bindparam, delete, func, insert, select

from everstep.checkpoints import large_texts
from everstep.checkpoints.database import EVENTS, notify
from everstep.checkpoints.schema import events as table
from everstep.checkpoints.schema import runs, threads
from everstep.checkpoints.statements import Statement

PAGE = 500
PAGE_BYTES = 256 * 1024
"""How much of events is read at once, in rows and in characters of JSON; one event that is larger is a page."""
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
_HEAD = select(*_COLUMNS).where(table.c.id > bindparam("after")).order_by(table.c.id)
_MOST = bindparam("most", type_=table.c.id.type)


class _Pages:
    """Reads what a query finds a page at a time, however large its rows are.

    SQLite's driver gives row after row, so no more is read than is taken. PostgreSQL's holds all that was found, so
    there the query itself ends with the page; the size of a text is known there without reading it. One that is kept by
    reference is loaded when its turn comes.
    """

    def __init__(self, found: Select[Any]) -> None:
        self._rows = Statement(found.limit(_MOST))
        rows = found.limit(_MOST).subquery()
        size = func.octet_length(rows.c.data_json)
        before = (func.sum(size).over(order_by=rows.c.id) - size).label("before")
        sized = select(*rows.c, before).subquery()
        within = select(*(column for column in sized.c if column.name != "before"))
        self._sized = Statement(within.where(sized.c.before < bindparam("bytes")).order_by(sized.c.id))

    def read(self, connection: Connection, values: Mapping[str, Any], limit: int) -> list[Event]:
        """A page; empty only if nothing is found."""
        whole = connection.dialect.name == "postgresql"
        asked = {**values, "most": limit, "bytes": PAGE_BYTES} if whole else {**values, "most": limit}
        cursor = (self._sized if whole else self._rows).run(connection, asked)
        names = [column[0] for column in cursor.description]
        page: list[Event] = []
        size = 0
        for row in cursor:
            found = dict(zip(names, row, strict=True))
            found["data_json"] = large_texts.whole(connection, found["thread_id"], found["data_json"])
            page.append(Event(**found))
            size += len(page[-1].data_json)
            if size >= PAGE_BYTES:
                break
        cursor.close()
        return page


_OUT_OF_ORDER = 200
_PART = 500
_SINCE = Statement(
    select(table.c.thread_id, table.c.id, table.c.method).where(table.c.id > bindparam("after")).order_by(table.c.id)
)
_OF_RUN = _Pages(_HEAD.where(table.c.run_id == bindparam("run_id")))
_OF_THREAD = _Pages(_HEAD.where(table.c.thread_id == bindparam("thread_id")))


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
        {
            **same,
            "method": event.method,
            "namespace": event.namespace,
            "data_json": large_texts.kept(connection, thread_id, event.data_json),
        }
        for event in emitted
    ]
    if rows:
        _APPEND.run_all(connection, rows)
        notify(connection, EVENTS)


def of_run(connection: Connection, run_id: str, *, after: int = 0, limit: int = PAGE) -> list[Event]:
    """A page of a run's events with ids above `after`, in order; behind it there may be more, unless it is empty."""
    return _OF_RUN.read(connection, {"run_id": run_id, "after": after}, limit)


def of_thread(connection: Connection, thread_id: str, *, after: int = 0, limit: int = PAGE) -> list[Event]:
    """As `of_run`, of all runs of a thread."""
    return _OF_THREAD.read(connection, {"thread_id": thread_id, "after": after}, limit)


def newest(connection: Connection, thread_id: str) -> int:
    """The id of a thread's newest event; 0 if it has none."""
    found = connection.execute(select(func.max(table.c.id)).where(table.c.thread_id == thread_id)).scalar_one()
    return int(found or 0)


def is_full(page: Sequence[Event]) -> bool:
    """Whether there may be more behind a page."""
    return len(page) >= PAGE or sum(len(event.data_json) for event in page) >= PAGE_BYTES


def written_since(connection: Connection, after: int) -> tuple[dict[str, int], dict[str, int]]:
    """By thread its newest event, and the newest that ends a run; of threads with events above an id.

    Ids are in the order of commits in SQLite. In PostgreSQL a transaction may commit after another that took a later
    id, so there the last few are looked at again; `newest_of` misses none.
    """
    after -= _OUT_OF_ORDER if connection.dialect.name == "postgresql" else 0
    rows = _SINCE.run(connection, {"after": after}).fetchall()
    return {row[0]: int(row[1]) for row in rows}, {row[0]: int(row[1]) for row in rows if row[2] == END}


def newest_of(connection: Connection, thread_ids: Sequence[str]) -> tuple[int, dict[str, int]]:
    """The newest event of all, and by thread those of some threads.

    Of a thread without events it is a number below zero that changes when the thread or a run of it comes or goes.
    """
    found = _by_thread(connection, table.c.thread_id, func.max(table.c.id), thread_ids)
    silent = [thread_id for thread_id in thread_ids if thread_id not in found]
    there = _by_thread(connection, threads.c.thread_id, func.count(), silent)
    begun = _by_thread(connection, runs.c.thread_id, func.count(), silent)
    found |= {thread_id: -1 - begun.get(thread_id, 0) for thread_id in {*there, *begun}}
    return int(connection.execute(select(func.max(table.c.id))).scalar_one() or 0), found


def _by_thread(
    connection: Connection, thread: Any, value: ColumnElement[int], thread_ids: Sequence[str]
) -> dict[str, int]:
    """A number for each of some threads, where there is one."""
    found: dict[str, int] = {}
    for start in range(0, len(thread_ids), _PART):
        query = select(thread, value).where(thread.in_(thread_ids[start : start + _PART])).group_by(thread)
        found.update((str(row[0]), int(row[1])) for row in connection.execute(query))
    return found


def first_of_run(connection: Connection, run_id: str) -> int | None:
    """The id of a run's first event; None if it has none."""
    return connection.execute(select(func.min(table.c.id)).where(table.c.run_id == run_id)).scalar_one()


def begun_before(connection: Connection, thread_id: str, until: int) -> str | None:
    """The run of a thread that began last, up to an event."""
    begun = (table.c.thread_id == thread_id, table.c.id <= until, table.c.method == METADATA)
    return connection.execute(select(table.c.run_id).where(*begun).order_by(table.c.id.desc()).limit(1)).scalar()


def forget(connection: Connection, *, before: int, limit: int = 5_000) -> int:
    """Delete events of runs that were over before a moment (UTC milliseconds), but for their ends; how many."""
    return connection.execute(delete(table).where(table.c.id.in_(_old(before).limit(limit)))).rowcount


def old(connection: Connection, *, before: int) -> int:
    """How many `forget` would delete in all."""
    return connection.execute(select(func.count()).select_from(_old(before).subquery())).scalar_one()


def _old(before: int) -> Select[Any]:
    return (
        select(table.c.id)
        .join(runs, runs.c.run_id == table.c.run_id)
        .where(runs.c.ended_at < before, table.c.method.not_in((END, ERROR)))
    )
