"""Runs: what LangGraph's clients start, watch and cancel. See `turns` for how they hang together with jobs.

A run on a thread begins a job of its own; a run that answers the thread's open questions, or steers a thread that has
paused, goes on with the job that paused, whose effects, budget and history stay its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from sqlalchemy import Connection, RowMapping, and_, bindparam, delete, insert, literal_column, select, update

from everstep.checkpoints import answers, effects, jobs, large_texts, reviews, services, turns
from everstep.checkpoints.job import Job, from_row
from everstep.checkpoints.policy import JobPolicy
from everstep.checkpoints.reviews import Review
from everstep.checkpoints.run_request import RunRequest as RunRequest
from everstep.checkpoints.schema import agent_jobs, events, threads
from everstep.checkpoints.schema import runs as table
from everstep.checkpoints.statements import Statement
from everstep.checkpoints.turns import GOING, NOT_YET
from everstep.clock import uuid7
from everstep.errors import JobStateConflict, ReviewAnswerInvalid, RunNotFound, ThreadBusy, ThreadNotFound

_INTERRUPT_ID = re.compile(r"[0-9a-f]{32}")
NO_ANSWER: Any = answers.MISSING
_FIND = Statement(select(table).where(table.c.run_id == bindparam("run_id")))
_LOCK = Statement(select(threads.c.id).where(threads.c.thread_id == bindparam("thread_id")).with_for_update())
_is_live = agent_jobs.c.status.in_([literal_column(f"'{status}'") for status in (*GOING, "review")])
_LIVE = Statement(
    select(agent_jobs).where(agent_jobs.c.thread_id == bindparam("thread_id"), _is_live).order_by(agent_jobs.c.id)
)


@cache
def _insertion(columns: tuple[str, ...]) -> Statement:
    given: dict[str, Any] = {one: bindparam(one) for one in columns}
    return Statement(insert(table).values(given).returning(*table.c))


@dataclass(frozen=True)
class Run:
    """A row of `runs`; times are UTC milliseconds."""

    id: int
    run_id: str
    job_id: int
    thread_id: str
    assistant_id: str
    status: str
    metadata_json: str
    kwargs_json: str
    multitask_strategy: str
    webhook: str | None
    delete_thread: int
    rolled_back: int
    values_json: str | None
    error_json: str | None
    created_at: int
    updated_at: int
    started_at: int | None
    ended_at: int | None


def find(connection: Connection, run_id: str) -> Run:
    """The run by its id.

    Raises:
        RunNotFound: There is none.
    """
    row = next(iter(_FIND.rows(connection, {"run_id": run_id})), None)
    if row is None:
        raise RunNotFound(f"no run has the id {run_id!r}", next_step="list the runs of its thread", run=run_id)
    return _run(connection, row)


def of_thread(
    connection: Connection,
    thread_id: str,
    *,
    status: str | None = None,
    limit: int = 10,
    offset: int = 0,
    with_values: bool = True,
) -> list[Run]:
    """A thread's runs, newest first.

    Args:
        connection: A snapshot or transaction.
        thread_id: The thread.
        status: Of this status only.
        limit: Most of them.
        offset: How many are passed over.
        with_values: Whether what they came to is read; otherwise it is as if they had come to nothing yet.
    """
    query = select(*(column for column in table.c if with_values or column.name != "values_json"))
    query = query.where(table.c.thread_id == thread_id)
    if status is not None:
        query = query.where(table.c.status == status)
    rows = connection.execute(query.order_by(table.c.id.desc()).limit(limit).offset(offset)).mappings().all()
    return [_run(connection, row) for row in rows]


def _run(connection: Connection, row: Mapping[str, Any] | RowMapping) -> Run:
    known: dict[str, Any] = {"values_json": None, **row}
    if known["values_json"] is not None:
        known["values_json"] = large_texts.whole(connection, known["thread_id"], known["values_json"])
    return Run(**known)


def create(
    connection: Connection,
    request: RunRequest,
    *,
    thread_id: str,
    owner: str,
    now: int,
    actor: str,
    policy: JobPolicy | None = None,
) -> Run:
    """Admit a run to a thread that exists.

    Args:
        connection: The write transaction.
        request: What is asked for.
        thread_id: The thread.
        owner: Whose it is.
        now: UTC milliseconds.
        actor: Who asks, for the job's history.
        policy: What a job of it may use and must pass.

    Raises:
        ThreadNotFound: There is no such thread.
        ThreadBusy: Something is under way on it and the strategy is `reject`; or a person must say first what became
            of an effect.
        JobStateConflict: It answers a question that nobody asks.
        ReviewAnswerInvalid: Several questions wait, and the answer does not say which it is for.
    """
    if _LOCK.run(connection, {"thread_id": thread_id}).fetchone() is None:
        raise ThreadNotFound(f"Thread {thread_id} not found", next_step="create it first", thread=thread_id)
    live = [from_row(row) for row in _LIVE.run(connection, {"thread_id": thread_id}).fetchall()]
    going = [job for job in live if job.status in GOING]
    paused = next((job for job in live if job.status == "review"), None)
    answer = (request.command or {}).get("resume", NO_ANSWER)
    if answer is not NO_ANSWER and (paused is None or going):
        raise _not_asked(connection, going, thread_id)
    if paused is not None and not going and (request.command or request.input is None) and request.checkpoint is None:
        return _continue(connection, request, paused, answer, now, actor)
    if going and request.strategy == "reject":
        raise ThreadBusy(
            "Thread is already running a task. Wait for it to finish or choose a different multitask strategy.",
            thread=thread_id,
        )
    if paused is not None and not turns.supersede(connection, paused, now=now):
        raise ThreadBusy(
            f"job {paused.public_id} on this thread waits for a person to say whether an effect of it happened",
            next_step=f"everstep show {paused.public_id}",
            thread=thread_id,
            job=paused.public_id,
        )
    for job in going:
        if job.run_json is None:  # it came without a client; from now on its end lets the next one start
            connection.execute(update(agent_jobs).where(agent_jobs.c.id == job.id).values(run_json="{}"))
    if going and request.strategy in ("interrupt", "rollback"):
        for job in going:
            _give_way(connection, job, request.strategy, now, actor)
    return _begin(connection, request, thread_id, owner, now, actor, policy, waits=bool(going))


def _not_asked(connection: Connection, going: Sequence[Job], thread_id: str) -> JobStateConflict:
    """A client answers, and no run of the thread has ended with a question."""
    of_going = (review for job in going for review in reviews.of_job(connection, job.id))
    beside = next((review.public_id for review in of_going if review.status == "open"), None)
    if beside is None:
        next_step = "look at the thread's state: it was answered before, or the run still goes on"
    else:
        next_step = (
            "more of the run is under way, such as a wait for a signal: answer when the thread is interrupted,"
            f" or the review itself: POST /everstep/reviews/{beside}/answer"
        )
    return JobStateConflict("no question waits for an answer on this thread", next_step=next_step, thread=thread_id)


def cancel(connection: Connection, run: Run, *, now: int, actor: str, rollback: bool = False) -> Run:
    """Cancel a run: at once when nothing runs it, otherwise as a request its worker acknowledges.

    One that is over already stays as it is. `rollback` marks it for `rolled_back`, which takes its steps away.
    """
    if run.ended_at is not None:
        return run
    job = jobs.lock(connection, run.job_id)
    run = find(connection, run.run_id)
    if run.ended_at is None:  # still, now that nobody else can end it
        if rollback:
            connection.execute(update(table).where(table.c.id == run.id).values(rolled_back=1))
        jobs.cancel(connection, job, now=now, actor=actor)
    return find(connection, run.run_id)


def going(
    connection: Connection, *, status: str | None = None, thread_id: str | None = None, owner: str | None = None
) -> list[Run]:
    """Runs that are not over, oldest first.

    Args:
        connection: A snapshot or transaction.
        status: `pending` or `running` only.
        thread_id: Of one thread only.
        owner: Of one owner only.
    """
    query = select(table).join(agent_jobs, agent_jobs.c.id == table.c.job_id).where(table.c.ended_at.is_(None))
    if status is not None:
        query = query.where(table.c.status == status)
    if thread_id is not None:
        query = query.where(table.c.thread_id == thread_id)
    if owner is not None:
        query = query.where(agent_jobs.c.owner == owner)
    return [_run(connection, row) for row in connection.execute(query.order_by(table.c.id)).mappings().all()]


def forget(connection: Connection, run: Run) -> None:
    """Delete a run that is over, and its events.

    Raises:
        ThreadBusy: It is not over.
    """
    deleted = connection.execute(delete(table).where(table.c.id == run.id, table.c.ended_at.is_not(None)))
    if deleted.rowcount == 0:
        raise ThreadBusy(f"run {run.run_id} is not over", next_step="cancel it first", run=run.run_id)
    connection.execute(delete(events).where(events.c.run_id == run.run_id))


def _give_way(connection: Connection, job: Job, strategy: str, now: int, actor: str) -> None:
    if strategy == "rollback":
        of_job = and_(table.c.job_id == job.id, table.c.ended_at.is_(None))
        connection.execute(update(table).where(of_job).values(rolled_back=1))
    if job.cancel_requested_at is None:
        jobs.cancel(connection, jobs.lock(connection, job.id), now=now, actor=actor)


def _begin(
    connection: Connection,
    request: RunRequest,
    thread_id: str,
    owner: str,
    now: int,
    actor: str,
    policy: JobPolicy | None,
    *,
    waits: bool,
) -> Run:
    """A job of its own."""
    run_id, policy = uuid7(now), policy or JobPolicy()
    how = request.how(run_id, now)
    if (
        waits
        and not connection.execute(
            select(agent_jobs.c.id).where(agent_jobs.c.thread_id == thread_id, agent_jobs.c.status.in_(GOING)).limit(1)
        ).first()
    ):
        waits = False  # what was under way had not begun, and is cancelled
    due = NOT_YET if waits else max(now, how.get("not_before", 0))
    payload = json.dumps(request.input)
    values: dict[str, Any] = {
        "public_id": run_id,
        "idempotency_key": f"run:{run_id}",
        "payload_digest": jobs.loose_digest({"graph": request.graph, "input": request.input}),
        "payload_json": payload,
        "owner": owner,
        "graph": request.graph,
        "thread_id": thread_id,
        "workflow_version": "1",
        "status": "pending",
        "priority": request.priority,
        "max_attempts": request.max_attempts,
        "next_run_at": due,
        "due_rank": jobs.rank(request.priority, due),
        "concurrency_key": policy.concurrency_key,
        "budget_json": policy.budget and json.dumps(policy.budget.as_dict()),
        "acceptance_json": policy.acceptance and json.dumps(policy.acceptance.as_dict()),
        "run_json": json.dumps(how),
        "created_at": now,
        "updated_at": now,
    }
    job = jobs.add(connection, values, actor=actor)
    assert job is not None  # its id is new
    services.need(connection, job.id, policy.services, now=now)
    run = _insert(connection, request, job, run_id, now)
    busy = {"status": "busy", "graph": request.graph, "assistant_id": request.assistant_id, "updated_at": now}
    turns.change_thread(connection, thread_id, busy)
    return run


def _continue(connection: Connection, request: RunRequest, paused: Job, answer: Any, now: int, actor: str) -> Run:
    """The job that paused goes on: with answers, or as the command says."""
    job = jobs.lock(connection, paused.id)
    asked = [review for review in reviews.of_job(connection, job.id) if review.status == "open"]
    given = _assigned(asked, answer) if answer is not NO_ANSWER else []
    steers = any(name in (request.command or {}) for name in ("update", "goto"))
    if steers and effects.unsettled(connection, job.id):
        raise ThreadBusy(
            f"job {job.public_id} on this thread waits for a person to say whether an effect of it happened",
            next_step=f"everstep show {job.public_id}",
            thread=job.thread_id,
            job=job.public_id,
        )
    run_id = uuid7(now)
    how = request.how(run_id, now)
    changes: dict[str, Any] = {"run_json": json.dumps(how)}
    if steers:
        changes |= {"input_applied": 0, "next_input_json": None}
    connection.execute(update(agent_jobs).where(agent_jobs.c.id == job.id).values(**changes))
    _insert(connection, request, job, run_id, now)
    for review, value in given:
        reviews.answer_for_client(connection, review, value, by=actor, now=now)
    if answer is NO_ANSWER:
        for review in asked:
            if review.kind == "breakpoint":
                reviews.answer(connection, review, decision="approve", by=actor, now=now)
        if steers:
            reviews.close_all(connection, job.id, now=now)
    job = jobs.get(connection, job.id)
    if job.status == "review":  # an answer alone would have let it go on
        changes = {"next_run_at": now, "error_json": None, "failures": 0, "attempts": max(job.attempts - 1, 0)}
        jobs.transition(connection, job, "pending", now=now, actor=actor, reason="goes on by a run", **changes)
    return find(connection, run_id)


def _assigned(asked: Sequence[Review], answer: Any) -> list[tuple[Review, Any]]:
    """Which question an answer is for: named by id, or the only one."""
    by_id = {reviews.client_id(review): review for review in asked}
    named: Mapping[str, Any] = cast("Mapping[str, Any]", answer) if isinstance(answer, Mapping) else {}
    if named and (set(named) <= set(by_id) or all(_INTERRUPT_ID.fullmatch(name) for name in named)):
        if unknown := sorted(set(named) - set(by_id)):
            raise JobStateConflict(
                f"no question with the id {unknown[0]} waits for an answer on this thread",
                next_step="look at the thread's state: it was answered before, or never asked",
                interrupts=sorted(by_id),
            )
        return [(by_id[name], value) for name, value in named.items()]
    if len(by_id) == 1:
        return [(next(iter(by_id.values())), answer)]
    raise ReviewAnswerInvalid(
        f"{len(by_id)} questions wait on this thread, and the answer does not say which it is for",
        next_step="resume with an object of answers by interrupt id",
        interrupts=sorted(by_id),
    )


def _insert(connection: Connection, request: RunRequest, job: Job, run_id: str, now: int) -> Run:
    values = {
        "run_id": run_id,
        "job_id": job.id,
        "thread_id": job.thread_id,
        "assistant_id": request.assistant_id,
        "status": "pending",
        "metadata_json": json.dumps(dict(request.metadata)),
        "kwargs_json": json.dumps(dict(request.kwargs)),
        "multitask_strategy": request.strategy,
        "webhook": request.webhook,
        "delete_thread": int(request.delete_thread),
        "created_at": now,
        "updated_at": now,
    }
    return Run(**_insertion(tuple(values)).rows(connection, values)[0])
