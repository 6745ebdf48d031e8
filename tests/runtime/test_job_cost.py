"""What a job costs in statements and commits: counted, because times wander and counts do not."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from everstep.checkpoints import budgets, claims, jobs, sqlite, writer
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.policy import Budget, JobPolicy
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock
from everstep.runtime import claiming
from tests.support.jobs import chain, result, work
from tests.support.record import record

JOBS = 20
AN_HOUR_S = 3600.0


class Counted:
    """A record in SQLite whose connections tell of every statement, and of each time that one is planned."""

    def __init__(self, store: Store, statements: list[str], planned: list[int]) -> None:
        self.store = store
        self.statements = statements
        self.planned = planned

    def during(self, action: Callable[[], Any]) -> tuple[list[str], int]:
        """The statements and the number of commits while something is done."""
        self.statements.clear()
        before = self.store.commits
        action()
        return list(self.statements), self.store.commits - before


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    """A record that counts; however slow the machine is, a look stays fresh and what may wait waits."""
    statements: list[str] = []
    planned: list[int] = []
    connect = sqlite.raw_connection

    def authorize(action: int, *_: Any) -> int:  # SQLite asks as it plans a statement, not as it runs one
        if action != sqlite3.SQLITE_TRANSACTION:
            planned.append(action)
        return sqlite3.SQLITE_OK

    def raw_connection(path: Path) -> sqlite3.Connection:
        connection = connect(path)
        connection.set_trace_callback(statements.append)
        connection.set_authorizer(authorize)
        return connection

    monkeypatch.setattr(sqlite, "raw_connection", raw_connection)
    monkeypatch.setattr(claiming, "FRESH_S", AN_HOUR_S)
    monkeypatch.setattr(writer, "PATIENCE_S", AN_HOUR_S)
    with record("sqlite", tmp_path, ManualClock()) as store:
        yield Counted(store, statements, planned)


class Sent:
    """A record in PostgreSQL whose writer tells of every message that it sends."""

    def __init__(self, store: Store, messages: list[str]) -> None:
        self.store = store
        self._messages = messages

    def during(self, action: Callable[[], Any]) -> list[str]:
        """The messages of the writer while something is done; the server answers each before the next is sent."""
        self._messages.clear()
        before = self.store.commits
        action()
        return [*self._messages, *["BEGIN", "COMMIT"] * (self.store.commits - before)]


@pytest.fixture
def sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sent]:
    """As `counted`, on PostgreSQL."""
    from psycopg import Cursor

    from everstep.checkpoints.postgres import WRITING, Postgres

    messages: list[str] = []
    connect = Postgres._plain  # pyright: ignore[reportPrivateUsage]

    class Told(Cursor[Any]):
        def execute(self, query: Any, *given: Any, **how: Any) -> Any:
            messages.append(str(query))
            return super().execute(query, *given, **how)

        def executemany(self, query: Any, params_seq: Any, **how: Any) -> None:
            messages.append(str(query))
            super().executemany(query, params_seq, **how)

    def plain(database: Postgres, options: str) -> Any:
        connection = connect(database, options)
        if options == WRITING:
            connection.cursor_factory = Told
        return connection

    monkeypatch.setattr(Postgres, "_plain", plain)
    monkeypatch.setattr(claiming, "FRESH_S", AN_HOUR_S)
    monkeypatch.setattr(writer, "PATIENCE_S", AN_HOUR_S)
    with record("postgres", tmp_path, ManualClock()) as store:
        yield Sent(store, messages)


def enqueue(store: Store, number: int) -> Job:
    """One of several jobs."""
    return store.enqueue("graph", {"log": [str(number)]}).job


def done_and_next(store: Store, done: list[Job], limit: int) -> list[Job]:
    """Settle jobs and claim as many, in one transaction."""
    now = store.clock.now_ms()

    def operation(connection: Connection) -> list[Job]:
        moves = [jobs.Move(job, "done", "finished", {"result_json": "null"}) for job in done]
        jobs.transition_all(connection, moves, now=now, actor="a")
        return claims.claim(connection, now=now, worker="a", lease_ms=1000, limit=limit, graphs=["graph"])

    return store.write(operation).result()


def test_an_enqueued_job_is_three_statements_and_a_commit(counted: Counted) -> None:
    """The job, a look for a tombstone of its key, the event."""
    enqueue(counted.store, 0)  # the connection is open
    statements, commits = counted.during(lambda: enqueue(counted.store, 1))
    assert (len(statements), commits) == (3 + 2, 1), statements


def test_a_job_of_the_bare_queue_is_five_statements_and_a_commit(counted: Counted) -> None:
    """Done and the next claim: a look for the first job, and for each of the two a change and its event."""
    for number in range(3):
        enqueue(counted.store, number)
    held = done_and_next(counted.store, [], 1)
    statements, commits = counted.during(lambda: done_and_next(counted.store, held, 1))
    assert (len(statements), commits) == (5 + 2, 1), statements
    assert sum("agent_jobs.payload_json" in statement for statement in statements) == 1


def test_on_postgresql_an_enqueued_job_is_four_messages(sent: Sent) -> None:
    """The transaction's begin; the job, its event and the wake-up; a look for a tombstone of its key; the commit."""
    enqueue(sent.store, 0)  # the connection is open
    messages = sent.during(lambda: enqueue(sent.store, 1))
    assert len(messages) == 4, messages


@pytest.mark.parametrize("batch", [1, 5])
def test_on_postgresql_jobs_of_the_bare_queue_are_four_messages(sent: Sent, batch: int) -> None:
    """However many end and begin together: the transaction's begin, what is done, what is next, the commit."""
    for number in range(3 * batch):
        enqueue(sent.store, number)
    held = done_and_next(sent.store, [], batch)
    messages = sent.during(lambda: held.extend(done_and_next(sent.store, held[:batch], batch)))
    assert len(messages) == 4, messages
    assert len(held) == 2 * batch


def test_a_new_job_runs_when_its_claim_is_committed(counted: Counted) -> None:
    """Nothing else is waited for: what comes before its first node is committed with what that writes."""
    began: list[int] = []

    def node(_state: Any) -> Any:
        began.append(counted.store.commits)
        return {}

    enqueue(counted.store, 0)
    before = counted.store.commits
    work(counted.store, chain(node), concurrency=1)
    assert [commits - before for commits in began] == [1]


@pytest.mark.parametrize("batch", [1, 5])
def test_statements_of_the_bare_queue_are_planned_once(counted: Counted, batch: int) -> None:
    """Once a claim and a settlement ran, SQLite runs them again as they are: planning takes longer than running."""
    for number in range(5 * batch):
        enqueue(counted.store, number)
    held = done_and_next(counted.store, [], batch)
    held = done_and_next(counted.store, held, batch)
    counted.planned.clear()
    held = done_and_next(counted.store, held, batch)
    assert len(held) == batch
    assert counted.planned == []


def test_on_postgresql_an_empty_job_of_the_worker_is_at_most_18_messages(sent: Sent) -> None:
    """Its steps are twelve, of which one says how far it is, and its settlement with the next claim six."""
    ids = [enqueue(sent.store, number) for number in range(JOBS)]
    graph = chain(lambda _state: {})
    messages = sent.during(lambda: work(sent.store, graph, concurrency=1))
    assert [result(sent.store, job) for job in ids] == [[str(number)] for number in range(JOBS)]
    beside = 3 * 15
    assert len(messages) <= 18 * JOBS + beside, f"{len(messages) / JOBS}" + "\n".join(sorted(messages))
    advances = sum("input_applied=1" in message.replace(" ", "") for message in messages)
    assert advances <= JOBS + 2, "one change of the job's row for all that its run writes together"


def test_an_empty_job_of_the_worker_is_at_most_22_statements_and_2_commits(counted: Counted) -> None:
    """One node: its input with all its steps, its settlement with the claim of the next; nothing is read between."""
    ids = [enqueue(counted.store, number) for number in range(JOBS)]
    graph = chain(lambda _state: {})
    statements, commits = counted.during(lambda: work(counted.store, graph, concurrency=1))
    assert [result(counted.store, job) for job in ids] == [[str(number)] for number in range(JOBS)]
    assert commits <= 2 * JOBS + 2
    beside = 3 * 15  # a look before the first job, at the end, and a heartbeat that may come between
    assert len(statements) <= 22 * JOBS + beside, f"{len(statements) / JOBS}" + "\n".join(sorted(statements))
    selected = sum("reviews" in each or each.startswith("SELECT thread_id") for each in statements)
    assert selected <= JOBS + 5, "what a run came to is known: neither reviews nor the last checkpoint are read"


def test_what_binds_a_child_is_two_statements_that_are_built_once(counted: Counted) -> None:
    """The job's own look, then all accounts up to the oldest ancestor in one: a step under a budget asks for both."""
    store = counted.store
    job, policy = None, JobPolicy(budget=Budget(steps=9))
    for number in range(3):
        job = store.enqueue("graph", {"n": number}, policy=policy, parent=job and job.public_id).job
    assert job is not None
    row_id = job.id
    ask = partial(store.read, lambda connection: budgets.binding(connection, row_id))
    assert len(ask()) == 3  # the connection is open
    counted.planned.clear()
    statements, _ = counted.during(ask)
    assert sum(each.startswith(("SELECT", "WITH")) for each in statements) == 2, statements
    assert counted.planned == []
