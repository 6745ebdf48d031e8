"""Threads as LangGraph's interface has them: a row with what they can be found by, beside the checkpoints.

A thread that a client made, or runs on, has a row. A job that was submitted otherwise is a thread, too: its thread has
the job's id. It gets a row when it first waits for a person, so that whoever looks for open questions finds it, and is
found by its id without one. Status, values and interrupts in the row are what was true when its last run stopped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, String, bindparam, column, func, select, update
from sqlalchemy import table as table_named
from sqlalchemy.exc import NoResultFound

from everstep.checkpoints.database import insert_or_ignore
from everstep.checkpoints.job import Job
from everstep.checkpoints.json_filters import check_storable, storable
from everstep.checkpoints.schema import agent_jobs
from everstep.checkpoints.schema import threads as table
from everstep.checkpoints.statements import Statement
from everstep.checkpoints.thread import OF_JOB, Status, Thread, Ttl, asked_by, of_job, thread_of
from everstep.clock import uuid7
from everstep.errors import CheckpointNotFound, RequestInvalid, ThreadBusy, ThreadExists, ThreadNotFound

GOING = ("pending", "running", "retry")
ENDED = ("done", "failed")
KEEP: Any = object()
"""In place of a value that is to stay as it is."""
_checkpoints = table_named(
    "checkpoints", *(column(name, String) for name in ("thread_id", "checkpoint_ns", "checkpoint_id"))
)
_FIND = Statement(select(table).where(table.c.thread_id == bindparam("thread")))
_LOCK = Statement(select(table).where(table.c.thread_id == bindparam("thread")).with_for_update())


@cache
def _change(columns: tuple[str, ...]) -> Statement:
    given: dict[str, Any] = {one: bindparam(one) for one in columns}
    return Statement(update(table).where(table.c.thread_id == bindparam("thread")).values(given).returning(*table.c))


def find(connection: Connection, thread_id: str, *, owner: str | None = None) -> Thread:
    """A thread by its id, whether or not it has a row.

    Args:
        connection: A snapshot or transaction.
        thread_id: Its id.
        owner: Who asks; None sees all.

    Raises:
        ThreadNotFound: There is none that the owner sees.
    """
    found = _row(connection, thread_id.lower()) or of_job(connection, thread_id.lower())
    if found is None or owner not in (None, found.owner):
        raise ThreadNotFound(f"there is no thread {thread_id}", thread_id=thread_id)
    return found


def create(
    connection: Connection,
    thread_id: str | None,
    *,
    owner: str,
    now: int,
    metadata: Mapping[str, Any] | None = None,
    ttl: Ttl | None = None,
    keep_existing: bool = False,
) -> Thread:
    """Make a thread.

    Args:
        connection: The write transaction.
        thread_id: Its id, a UUID; a new one when omitted.
        owner: Whose it is.
        now: UTC milliseconds.
        metadata: What it can be found by; `graph_id` there names its graph.
        ttl: How long it is kept.
        keep_existing: Answer with the thread of this id, if there is one.

    Raises:
        ThreadExists: There is one with this id.
        RequestInvalid: The id is no UUID, or the metadata cannot be stored.
    """
    chosen = uuid7(now) if thread_id is None else checked_id(thread_id)
    given = dict(metadata or {})
    graph = given.get("graph_id")
    assistant = given.get("assistant_id")
    values = {
        "thread_id": chosen,
        "owner": owner,
        "graph": graph if isinstance(graph, str) else None,
        "assistant_id": assistant if isinstance(assistant, str) else None,
        "created_at": now,
    }
    if of_job(connection, chosen) is not None or not _insert(connection, values, given, ttl, now):
        existing = find(connection, chosen)
        if not keep_existing or existing.owner != owner:
            raise ThreadExists(
                f"there is a thread {chosen} already",
                next_step='give another id, or "if_exists": "do_nothing"',
                thread_id=chosen,
            )
        return existing
    return find(connection, chosen)


def ensure(
    connection: Connection,
    thread_id: str,
    *,
    owner: str,
    now: int,
    graph: str | None = None,
    assistant_id: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    ttl: Ttl | None = None,
    make: bool = True,
) -> Thread:
    """A thread with a row, made if there was none, for a run on it; nobody else changes it until the transaction ends.

    Args:
        connection: The write transaction.
        thread_id: Its id.
        owner: Whose it is if it is made; that of an existing one stays, and is for the caller to check.
        now: UTC milliseconds.
        graph: The graph that runs on it now.
        assistant_id: The assistant that runs on it now.
        metadata: Laid over what it has.
        ttl: How long it is kept, if it is made.
        make: Whether it is made; a thread that the caller saw may be deleted since.

    Raises:
        ThreadNotFound: There is none, and none is to be made.
        RequestInvalid: The id is no UUID, or the metadata cannot be stored.
    """
    chosen = checked_id(thread_id)
    found = _lock(connection, chosen)
    if found is None:
        job = of_job(connection, chosen)
        if job is None and not make:
            raise ThreadNotFound(f"there is no thread {thread_id}", thread_id=thread_id)
        row = {"thread_id": chosen, "owner": owner, "created_at": now}
        if job is not None:
            kept = ("owner", "graph", "assistant_id", "status", "created_at")
            row |= {name: getattr(job, name) for name in kept}
        _insert(connection, row, job.metadata if job else {}, None if job else ttl, now)
        found = _lock(connection, chosen) or find(connection, chosen)
    about = {"graph_id": graph, "assistant_id": assistant_id}
    merged = {**found.metadata, **(metadata or {}), **{name: value for name, value in about.items() if value}}
    changes: dict[str, Any] = {}
    if merged != found.metadata:
        check_storable(merged, "metadata")
        changes["metadata_json"] = json.dumps(merged)
    if graph is not None and graph != found.graph:
        changes["graph"] = graph
    if assistant_id is not None and assistant_id != found.assistant_id:
        changes["assistant_id"] = assistant_id
    return _changed(connection, chosen, changes, now) if changes else found


def change(
    connection: Connection, thread_id: str, *, now: int, metadata: Mapping[str, Any] | None = None, ttl: Any = KEEP
) -> Thread:
    """Lay metadata over a thread's, and set how long it is kept; one without a row gets one.

    Args:
        connection: The write transaction.
        thread_id: Its id.
        now: UTC milliseconds.
        metadata: Laid over what it has, key by key.
        ttl: A `Ttl`, or None for ever.

    Raises:
        ThreadNotFound: It was deleted since the caller saw it.
        RequestInvalid: The metadata cannot be stored.
    """
    found = ensure(connection, thread_id, owner="default", now=now, metadata=metadata, make=False)
    changes: dict[str, Any] = {}
    if ttl is not KEEP:
        changes = {"ttl_json": ttl and json.dumps(ttl.as_dict()), "expires_at": ttl and ttl.from_now(now)}
    graph = (metadata or {}).get("graph_id")
    if isinstance(graph, str) and graph != found.graph:
        changes["graph"] = graph
    return _changed(connection, found.thread_id, changes, now)


def copy(connection: Connection, source: Thread, thread_id: str, *, owner: str, now: int) -> Thread:
    """The row of a copy of a thread.

    Args:
        connection: The write transaction.
        source: The thread.
        thread_id: The copy's id.
        owner: Whose the copy is.
        now: UTC milliseconds.
    """
    row = {
        "thread_id": thread_id,
        "owner": owner,
        "graph": source.graph,
        "assistant_id": source.assistant_id,
        "status": "interrupted" if source.interrupts else "idle",
        "config_json": json.dumps(source.config),
        "values_json": source.values_json,
        "interrupts_json": json.dumps(source.interrupts),
        "created_at": now,
        "state_updated_at": now,
    }
    _insert(connection, row, source.metadata, source.ttl, now)
    return find(connection, thread_id)


def refresh(
    connection: Connection,
    thread_id: str,
    *,
    now: int,
    status: Status | None = None,
    values: Any = KEEP,
    interrupts: Mapping[str, Any] | None = None,
    error: Any = KEEP,
) -> None:
    """Note where a thread stands; nothing happens to one without a row.

    Args:
        connection: The write transaction.
        thread_id: Its id.
        now: UTC milliseconds.
        status: What it is now.
        values: Its state, as JSON data.
        interrupts: By task, what it waits for.
        error: Why its run failed, as JSON data; None: it did not.
    """
    changes: dict[str, Any] = {"updated_at": now}
    if status is not None:
        changes["status"] = status
    if values is not KEEP:
        changes |= {"values_json": json.dumps(storable(values)), "state_updated_at": now}
    if interrupts is not None:
        changes["interrupts_json"] = json.dumps(storable(interrupts))
    if error is not KEEP:
        changes["error_json"] = None if error is None else json.dumps(storable(error))
    connection.execute(update(table).where(table.c.thread_id == thread_id).values(**changes))


def follow(connection: Connection, before: Job, after: Job, *, now: int) -> None:
    """A job that is alone on its thread changed its status; while it waits for a person, the thread has a row.

    Args:
        connection: The write transaction, with the questions written.
        before: The job as it was.
        after: The job as it is.
        now: UTC milliseconds.
    """
    if after.status == "review":
        ensure(connection, after.thread_id, owner=after.owner, now=now)
        asked = asked_by(connection, after.id)
        refresh(connection, after.thread_id, now=now, status="interrupted", interrupts=asked)
    elif before.status in ("review", "failed") or after.status in ENDED:
        told: dict[str, Any] = {"error": json.loads(after.error_json) if after.error_json else None}
        if after.status == "done":
            told["values"] = json.loads(after.result_json or "null")
        status: Status = OF_JOB.get(after.status, "busy")
        refresh(connection, after.thread_id, now=now, status=status, interrupts={}, **told)


def require_idle(connection: Connection, thread_id: str, *, writing: bool = True) -> None:
    """Refuse what would disturb a run, and let none begin until the transaction ends.

    Args:
        connection: The transaction.
        thread_id: The thread.
        writing: Whether the transaction may write; one that only looks keeps nothing from beginning.

    Raises:
        ThreadBusy: A run of the thread is under way or waits for its turn.
    """
    if writing:
        _lock(connection, thread_id)
    going = select(func.count()).where(agent_jobs.c.thread_id == thread_id, agent_jobs.c.status.in_(GOING))
    if connection.execute(going).scalar_one():
        raise ThreadBusy(
            f"thread {thread_id} has a run in flight",
            next_step="wait for its end, or cancel it",
            thread_id=thread_id,
        )


def require_checkpoint(connection: Connection, thread_id: str, checkpoint_id: str, namespace: str = "") -> None:
    """Refuse a place that a thread has not: a graph that is sent there would begin with nothing.

    Raises:
        CheckpointNotFound: It has no such checkpoint.
    """
    place = {"thread_id": thread_id, "checkpoint_ns": namespace, "checkpoint_id": checkpoint_id}
    if not connection.execute(select(func.count()).select_from(_checkpoints).filter_by(**place)).scalar_one():
        raise CheckpointNotFound(
            f"thread {thread_id} has no checkpoint {checkpoint_id[:80]!r}",
            next_step="list those it has: POST /threads/{id}/history",
            thread_id=thread_id,
        )


def checked_id(thread_id: str) -> str:
    """The id of a thread that may be made, as it is stored.

    Raises:
        RequestInvalid: It is no UUID.
    """
    try:
        return str(UUID(thread_id))
    except ValueError:
        raise RequestInvalid(f"thread_id is no UUID: {thread_id[:80]!r}", field="thread_id") from None


def _row(connection: Connection, thread_id: str) -> Thread | None:
    row = next(iter(_FIND.rows(connection, {"thread": thread_id})), None)
    return None if row is None else thread_of(row)


def _insert(
    connection: Connection, row: Mapping[str, Any], metadata: Mapping[str, Any], ttl: Ttl | None, now: int
) -> bool:
    """Whether it was not there yet."""
    check_storable(metadata, "metadata")
    values = {
        **row,
        "metadata_json": json.dumps(metadata),
        "ttl_json": ttl and json.dumps(ttl.as_dict()),
        "expires_at": ttl and ttl.from_now(now),
        "updated_at": now,
    }
    return insert_or_ignore(connection, table, values) is not None


def _lock(connection: Connection, thread_id: str) -> Thread | None:
    """Hold the thread's row until the transaction ends; None if it has none."""
    row = next(iter(_LOCK.rows(connection, {"thread": thread_id})), None)
    return None if row is None else thread_of(row)


def _changed(connection: Connection, thread_id: str, changes: Mapping[str, Any], now: int) -> Thread:
    given = {"updated_at": now, **changes}
    found = _change(tuple(given)).rows(connection, {**given, "thread": thread_id})
    if not found:
        raise NoResultFound(f"thread {thread_id} has no row")
    return thread_of(found[0])
