"""Whose turn it is on a thread that several jobs share, and what its runs and the thread itself are told of a job.

A run is the part of a job from an input, or a person's answer, to its next pause or its end: what LangGraph's clients
see of it. Every change of a job's status comes through `moved`, in its own transaction, so neither a run's status nor
the thread's is ever ahead of the job, and the next job starts when the one before it is over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from sqlalchemy import Connection, and_, bindparam, delete, func, insert, literal_column, or_, select, update

from everstep.checkpoints import deliveries, events, large_texts
from everstep.checkpoints.events import Emitted
from everstep.checkpoints.job import NOT_YET as NOT_YET
from everstep.checkpoints.job import Job, from_row
from everstep.checkpoints.json_filters import storable_text
from everstep.checkpoints.schema import agent_jobs, reviews, runs, threads
from everstep.checkpoints.statements import Statement
from everstep.clock import uuid7
from everstep.errors import JobStateConflict

GOING = ("pending", "retry", "running")
ASKING = frozenset({"interrupt", "breakpoint"})
"""Kinds of reviews that the graph itself asked for: its run came to what it was to come to."""

_STATUS = {"pending": "pending", "retry": "pending", "running": "running", "done": "success"}
_is_going = agent_jobs.c.status.in_([literal_column(f"'{status}'") for status in GOING])
_of_thread = agent_jobs.c.thread_id == bindparam("thread")
_of_job = select(runs).where(runs.c.job_id == bindparam("job")).order_by(runs.c.id.desc()).limit(1)
_OPEN_RUN = Statement(_of_job.where(runs.c.ended_at.is_(None)))
_FIRST = Statement(
    select(agent_jobs).where(_of_thread, _is_going).order_by(agent_jobs.c.next_run_at, agent_jobs.c.id).limit(1)
)
_HOLD = Statement(select(threads.c.id).where(threads.c.thread_id == bindparam("thread")).with_for_update())


@cache
def _set_run(columns: tuple[str, ...]) -> Statement:
    given: dict[str, Any] = {one: bindparam(one) for one in columns}
    return Statement(update(runs).where(runs.c.id == bindparam("run")).values(given))


@cache
def _set_thread(columns: tuple[str, ...]) -> Statement:
    given: dict[str, Any] = {one: bindparam(one) for one in columns}
    return Statement(update(threads).where(threads.c.thread_id == bindparam("thread")).values(given))


def change_run(connection: Connection, run_id: int, changes: Mapping[str, Any]) -> None:
    """Set columns of a run, by its row id."""
    _set_run(tuple(changes)).run(connection, {**changes, "run": run_id})


def change_thread(connection: Connection, thread_id: str, changes: Mapping[str, Any]) -> None:
    """Set columns of a thread's row, if it has one."""
    _set_thread(tuple(changes)).run(connection, {**changes, "thread": thread_id})


def open_run(connection: Connection, job_id: int) -> dict[str, Any] | None:
    """The run of a job that is not over."""
    return next(iter(_OPEN_RUN.rows(connection, {"job": job_id})), None)


def tell_values(connection: Connection, job: Job, told: Mapping[str, Any]) -> None:
    """Note what a job came to, for its run and its thread, before its status changes.

    Args:
        connection: The write transaction.
        job: The job.
        told: JSON texts: `values_json`, its output; `state_json`, all of its state; `interrupts_json`, what it waits
            for, by task.
    """
    run = open_run(connection, job.id)
    if run is not None and "values_json" in told:
        values = large_texts.kept(connection, job.thread_id, told["values_json"])
        change_run(connection, run["id"], {"values_json": values})
    of_thread = {"values_json": told.get("state_json"), "interrupts_json": told.get("interrupts_json")}
    known = {name: storable_text(value) for name, value in of_thread.items() if value is not None}
    if known:
        change_thread(connection, job.thread_id, known)


def moved(connection: Connection, after: Job, *, now: int, actor: str) -> None:
    """A job that may share its thread changed its status: tell its run and its thread, and let the next one start.

    Args:
        connection: The write transaction, which holds the job's row.
        after: The job as it is.
        now: UTC milliseconds.
        actor: Who did it.
    """
    hold(connection, after.thread_id)
    run = open_run(connection, after.id)
    if after.status in GOING:
        if run is None:  # a person lets it go on
            run = go_on(connection, after, now=now, actor=actor)
        _progress(connection, run, after, now)
        return
    status, error = _verdict(connection, after)
    if run is not None and run["rolled_back"] and after.status == "done":  # it finished before it heard of that
        status, error = "interrupted", {"error": "rolled_back", "message": "its steps are taken away"}
    if run is not None:
        _end_run(connection, run, after, status, error, now)
    first = _first(connection, after.thread_id)
    if first is None or first.waits_for_its_turn:  # otherwise that one is told of
        _tell_thread(connection, after, status, error, now)
    if after.status == "review":
        _make_way(connection, after, now)
        return
    start_next(connection, after.thread_id, now=now)
    if run is not None and run["delete_thread"] and _first(connection, after.thread_id) is None:
        # What ran on it stays for as long as what it came to may be asked for: retention takes it, like other jobs.
        connection.execute(delete(threads).where(threads.c.thread_id == after.thread_id))


def hold(connection: Connection, thread_id: str) -> None:
    """Let no other transaction change what is on a thread until this one ends, so that what it sees there stays true.

    In SQLite one transaction writes at a time anyway.
    """
    if connection.dialect.name == "postgresql":
        _HOLD.run(connection, {"thread": thread_id})


def hold_running(connection: Connection, thread_id: str) -> None:
    """Let what runs on a thread tell nothing until this transaction ends, so that events have ids in their order."""
    if connection.dialect.name == "postgresql":
        running = and_(agent_jobs.c.thread_id == thread_id, agent_jobs.c.status == "running")
        connection.execute(select(agent_jobs.c.id).where(running).with_for_update())


def go_on(connection: Connection, job: Job, *, now: int, actor: str) -> dict[str, Any]:
    """A run for a job that goes on though no client asked: a person answered, retried, or raised its budget."""
    last = (
        connection.execute(select(runs).where(runs.c.job_id == job.id).order_by(runs.c.id.desc()).limit(1))
        .mappings()
        .first()
    )
    how = json.loads(job.run_json or "{}")
    values = {
        "run_id": uuid7(now),
        "job_id": job.id,
        "thread_id": job.thread_id,
        "assistant_id": how.get("assistant_id", "" if last is None else last["assistant_id"]),
        "status": "pending",
        "metadata_json": json.dumps({"continued_by": actor}),
        "kwargs_json": json.dumps({"input": None, "command": None}),
        "multitask_strategy": "enqueue",
        "webhook": None if last is None else last["webhook"],
        "delete_thread": 0 if last is None else last["delete_thread"],
        "created_at": now,
        "updated_at": now,
    }
    connection.execute(insert(runs).values(**values))
    how["run_id"] = values["run_id"]
    connection.execute(update(agent_jobs).where(agent_jobs.c.id == job.id).values(run_json=json.dumps(how)))
    found = open_run(connection, job.id)
    assert found is not None
    return found


def start_next(connection: Connection, thread_id: str, *, now: int) -> None:
    """If nothing is under way on a thread, let the job that has waited longest start."""
    from everstep.checkpoints import jobs

    first = _first(connection, thread_id)
    if first is None or not first.waits_for_its_turn:
        return
    due = max(now, json.loads(first.run_json or "{}").get("not_before") or 0)
    jobs.set_due(connection, first, due)
    busy = {"status": "busy", "error_json": None, "updated_at": now}
    change_thread(connection, thread_id, busy)


def _first(connection: Connection, thread_id: str) -> Job | None:
    """The job of a thread that is under way, or else the one that has waited longest for its turn."""
    row = _FIRST.run(connection, {"thread": thread_id}).fetchone()
    return None if row is None else from_row(row)


def require_last(connection: Connection, job: Job) -> None:
    """Refuse to go on with a job whose thread has gone on without it, or is another's at the moment.

    Raises:
        JobStateConflict: A later job is on its thread, or one that has not ended.
    """
    hold(connection, job.thread_id)
    on_thread = and_(agent_jobs.c.thread_id == job.thread_id, agent_jobs.c.id != job.id)
    alive = agent_jobs.c.status.in_((*GOING, "review"))
    others = select(agent_jobs.c.public_id).where(on_thread, or_(agent_jobs.c.id > job.id, alive))
    found = connection.execute(others.limit(1)).scalar_one_or_none()
    if found is not None:
        raise JobStateConflict(
            f"the thread of job {job.public_id} went on with job {found}; it cannot be gone back to",
            next_step="start another run on the thread",
            job=job.public_id,
            status=job.status,
        )


def _progress(connection: Connection, run: Mapping[str, Any], job: Job, now: int) -> None:
    status = _STATUS[job.status]
    changes: dict[str, Any] = {"status": status, "updated_at": now}
    if status == "running":
        changes["started_at"] = run["started_at"] or now
        begun = {"run_id": run["run_id"], "attempt": job.claim_no}
        _emit(connection, run, job, [Emitted(events.METADATA, json.dumps(begun))], now)
    change_run(connection, run["id"], changes)
    busy = {"status": "busy", "interrupts_json": "{}", "error_json": None, "updated_at": now}
    change_thread(connection, job.thread_id, busy)


def _verdict(connection: Connection, job: Job) -> tuple[str, dict[str, Any] | None]:
    """What the run of a job that stopped came to, in LangGraph's words, and its error."""
    error: dict[str, Any] = json.loads(job.error_json or "{}")
    told = {"error": error.get("type") or error.get("code") or "Error", "message": error.get("message", "")}
    if job.status == "done":
        return "success", None
    if job.status == "failed":
        by_person = error.get("code") in ("cancelled", "superseded", "rejected")
        return ("interrupted" if by_person else "error"), told
    kinds = set(
        connection.execute(
            select(reviews.c.kind).where(and_(reviews.c.job_id == job.id, reviews.c.status == "open"))
        ).scalars()
    )
    if kinds <= ASKING:
        return "success", None
    if "error" in kinds:
        return "error", told
    what = ", ".join(sorted(kinds - ASKING))
    return "interrupted", {"error": "Review", "message": f"a person must decide: {what}"}


def _end_run(
    connection: Connection, run: Mapping[str, Any], job: Job, status: str, error: dict[str, Any] | None, now: int
) -> None:
    changes = {"status": status, "ended_at": now, "updated_at": now, "error_json": error and json.dumps(error)}
    change_run(connection, run["id"], changes)
    deliveries.tell_of_run(connection, job, {**run, **changes}, now=now)
    told = [Emitted(events.ERROR, json.dumps(error))] if status == "error" else []
    over: dict[str, Any] = {"status": status}
    if job.status == "review" and status != "error":
        over["asks"] = _asked(connection, job)
    _emit(connection, run, job, [*told, Emitted(events.END, json.dumps(over))], now)


def _asked(connection: Connection, job: Job) -> list[dict[str, Any]]:
    """What a client may answer now, by the id it answers to; a pause without a question is none."""
    waits = and_(reviews.c.job_id == job.id, reviews.c.status == "open", reviews.c.kind != "breakpoint")
    asked = connection.execute(select(reviews).where(waits).order_by(reviews.c.id))
    return [
        {"id": row.subject if row.kind == "interrupt" else row.public_id, "value": json.loads(row.value_json)}
        for row in asked
    ]


def _tell_thread(connection: Connection, job: Job, status: str, error: dict[str, Any] | None, now: int) -> None:
    of_thread = "interrupted" if job.status == "review" else "idle"
    changes: dict[str, Any] = {"error_json": None}
    if job.status == "review" and (asked := _questions(connection, job)):
        known = select(threads.c.interrupts_json).where(threads.c.thread_id == job.thread_id)
        interrupts = json.loads(connection.execute(known).scalar_one_or_none() or "{}")
        changes["interrupts_json"] = json.dumps({**interrupts, "everstep": asked})
    if status == "error":
        of_thread = "error"
        changes["error_json"] = json.dumps(error)
    if job.status != "review":
        changes["interrupts_json"] = "{}"
    changes |= {"status": of_thread, "updated_at": now, "state_updated_at": now}
    change_thread(connection, job.thread_id, changes)


def _questions(connection: Connection, job: Job) -> list[dict[str, Any]]:
    """What Everstep, and not the graph, asks about a job: an effect, a budget, a policy; in the form of interrupts."""
    own = and_(reviews.c.job_id == job.id, reviews.c.status == "open", reviews.c.kind.not_in(ASKING))
    query = select(reviews.c.public_id, reviews.c.value_json).where(own).order_by(reviews.c.id)
    return [{"id": row.public_id, "value": json.loads(row.value_json)} for row in connection.execute(query)]


def _emit(connection: Connection, run: Mapping[str, Any], job: Job, emitted: list[Emitted], now: int) -> None:
    events.append(
        connection,
        emitted,
        job_id=job.id,
        run_id=run["run_id"],
        thread_id=job.thread_id,
        claim_no=job.claim_no,
        now=now,
    )


def _make_way(connection: Connection, paused: Job, now: int) -> None:
    """A job waits for a person while others wait for its thread: their input takes its place, as in LangGraph.

    Unless nobody can say yet whether one of its effects happened.
    """
    waiting = select(func.count()).where(
        agent_jobs.c.thread_id == paused.thread_id,
        agent_jobs.c.status == "pending",
        agent_jobs.c.next_run_at >= NOT_YET,
    )
    if connection.execute(waiting).scalar_one():
        supersede(connection, paused, now=now)


def supersede(connection: Connection, paused: Job, *, now: int) -> bool:
    """End a job that waits for a person, since another input came; whether it could be ended."""
    from everstep.checkpoints import effects, jobs

    if effects.unsettled(connection, paused.id):
        return False
    error = {"code": "superseded", "message": "its thread went on with another input", "step": paused.step}
    jobs.end(connection, paused, now=now, actor="thread", why="superseded by another input", error=error)
    return True
