"""Starts of the first ready jobs at once, as their order alone decides; and where it does not, that none is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from everstep.checkpoints import starts
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock
from tests.support.record import claim, record
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.both_databases


def execute(store: Store, statement: str) -> None:
    """Change the record past the functions that keep it."""
    store.write(lambda connection: connection.exec_driver_sql(statement)).result(PATIENCE)


def driver(connection: Connection) -> Any:
    """SQLite's own connection."""
    return connection.connection.dbapi_connection


def three(store: Store) -> list[Job]:
    """Jobs that are ready, in the order of their starts."""
    return [store.enqueue("graph", {"number": number}).job for number in range(3)]


def started(store: Store, limit: int, *running: int) -> list[Job] | None:
    """What is started without a judgement."""

    def start(connection: Connection) -> list[Job] | None:
        now = store.clock.now_ms()
        return starts.start_first(
            connection, now=now, worker="a", lease_ms=60_000, limit=limit, graphs=["graph"], running=running
        )

    return store.write(start).result(PATIENCE)


@pytest.mark.parametrize("odd", ["suspect", "worker_deaths", "lease_until", "concurrency_key", "mine", "gate"])
def test_nothing_starts_where_more_than_the_order_decides(store: Store, odd: str) -> None:
    """A suspect, an expired lease, a key, a job that the worker still runs, a closed gate: each is judged first."""
    of_three = three(store)
    second = of_three[1].id
    if odd == "lease_until":
        execute(store, f"UPDATE agent_jobs SET status = 'running', lease_until = 1 WHERE id = {second}")
    elif odd == "gate":
        columns = "name, gate, symptom, closed_at, updated_at"
        execute(store, f"INSERT INTO services ({columns}) VALUES ('model', 'closed', 'down', 1, 1)")
    elif odd != "mine":
        execute(store, f"UPDATE agent_jobs SET {odd} = '1' WHERE id = {second}")
    assert started(store, 2, *([second] if odd == "mine" else [])) is None
    assert [store.job(job.public_id).claim_no for job in of_three] == [0, 0, 0]


def test_what_lies_behind_those_that_start_decides_nothing(store: Store) -> None:
    """A suspect whose turn has not come holds up nobody, and is not started."""
    first, second, third = three(store)
    execute(store, f"UPDATE agent_jobs SET suspect = 1 WHERE id = {third.id}")
    assert [job.id for job in started(store, 2) or []] == [first.id, second.id]
    assert store.job(third.public_id).status == "pending"


def test_what_is_started_is_as_the_record_has_it(store: Store) -> None:
    """The jobs come in their order, as they are, and each start is an event; a job behind them waits."""
    four = [store.enqueue("graph", {"number": number}, priority=number).job for number in range(4)]
    found = started(store, 3)
    assert found is not None
    assert [job.id for job in found] == [four[3].id, four[2].id, four[1].id]
    assert [store.job(job.public_id) for job in found] == found
    assert [(job.attempts, job.claim_no, job.leased_by) for job in found] == [(1, 1, "a")] * 3
    told = [store.events(job)[-1] for job in found]
    assert [(event["from"], event["to"], event["claim_no"], event["reason"]) for event in told] == [
        ("pending", "running", 1, "claimed")
    ] * 3
    assert store.job(four[0].public_id).status == "pending"


def test_a_job_due_for_a_retry_takes_its_turn(store: Store) -> None:
    """It comes between the pending ones, as its order is, and its event says what it was."""
    of_three = three(store)
    execute(store, f"UPDATE agent_jobs SET status = 'retry' WHERE id = {of_three[1].id}")
    found = claim(store, "a", limit=3)
    assert [job.id for job in found] == [job.id for job in of_three]
    assert [store.job(job.public_id) for job in found] == found
    assert [store.events(job)[-1]["from"] for job in found] == ["pending", "retry", "pending"]


def test_a_closed_gate_is_seen_before_what_waits(tmp_path: Path) -> None:
    """However much waits: SQLite finds out that more than the order decides in as few steps as with one job."""
    with record("sqlite", tmp_path, ManualClock()) as store:
        three(store)
        alike = "payload_digest, payload_json, graph, workflow_version, priority, max_attempts, next_run_at, created_at"
        names = f"public_id, idempotency_key, thread_id, status, updated_at, due_rank, {alike}"
        numbers = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 2000)"
        each = f"SELECT n, n, n, 'pending', n, n, {alike} FROM agent_jobs, n WHERE id = 1"
        execute(store, f"INSERT INTO agent_jobs ({names}) {numbers} {each}")
        columns = "name, gate, symptom, closed_at, updated_at"
        execute(store, f"INSERT INTO services ({columns}) VALUES ('model', 'closed', 'down', 1, 1)")
        thousands: list[int] = []
        store.write(
            lambda connection: driver(connection).set_progress_handler(lambda: thousands.append(1), 1000)
        ).result()
        assert started(store, 1) is None
        assert len(thousands) <= 1
