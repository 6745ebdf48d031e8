"""What a worker remembers of jobs that are held: it does not look through them again, and misses no change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, delete

from everstep.checkpoints import claims, services, standstill
from everstep.checkpoints.jobs import transition
from everstep.checkpoints.policy import JobPolicy
from everstep.checkpoints.schema import job_services
from everstep.checkpoints.services import Report
from everstep.checkpoints.standstill import AFRESH_MS, Standstill
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock
from tests.support.record import begin_running, claim

pytestmark = pytest.mark.both_databases

OUT = Report("api", "service_unavailable", "503")
HOUR_MS = 3_600_000


@pytest.fixture
def look(store: Store) -> Callable[[], bool]:
    """Looks as one worker that remembers."""
    memory = Standstill()
    return lambda: store.read(lambda c: claims.anything_ready(c, now=store.clock.now_ms(), graphs=None, memory=memory))


@pytest.fixture
def held(store: Store, look: Callable[[], bool]) -> None:
    """A service is out for an hour, and the jobs that need it were looked through."""
    for number in range(5):
        store.enqueue("graph", {"n": number}, policy=JobPolicy(services=("api",)))
    job, now = begin_running(store), store.clock.now_ms()

    def met(connection: Connection) -> None:
        services.report(connection, job, OUT, now=now, wait_ms=lambda _tries: HOUR_MS)
        transition(
            connection,
            job,
            "retry",
            now=now,
            actor="worker",
            reason="out",
            next_run_at=now + HOUR_MS,
            error_json='{"service": "api"}',
        )

    store.write(met).result()
    assert look() is False


@pytest.mark.usefixtures("held")
def test_what_is_held_is_not_looked_through_again(
    store: Store, clock: ManualClock, look: Callable[[], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What no event tells of is found in a minute's time, when all are looked through once more."""
    monkeypatch.setattr(standstill, "LATE_EVENTS", 0)
    assert look() is False
    store.write(lambda c: c.execute(delete(job_services))).result()
    assert look() is False
    assert store.read(lambda c: claims.anything_ready(c, now=clock.now_ms(), graphs=None)) is True
    clock.advance(AFRESH_MS)
    assert look() is True


@pytest.mark.usefixtures("held")
def test_a_job_that_comes_is_found(store: Store, look: Callable[[], bool]) -> None:
    """One that needs the service is held with the others; one that does not may start."""
    store.enqueue("graph", {"n": "held"}, policy=JobPolicy(services=("api",)))
    assert look() is False
    store.enqueue("graph", {"n": "free"})
    assert look() is True
    claim(store)
    assert look() is False


@pytest.mark.usefixtures("held")
def test_a_job_whose_time_comes_is_found(store: Store, clock: ManualClock, look: Callable[[], bool]) -> None:
    """A backoff that ends is no event, and needs none."""
    store.enqueue("graph", {"n": "free"})
    (job,) = claim(store)
    now = clock.now_ms()
    what: dict[str, Any] = {"now": now, "actor": "worker", "reason": "test", "next_run_at": now + 1000}
    store.write(lambda c: transition(c, job, "retry", **what)).result()
    assert look() is False
    clock.advance(999)
    assert look() is False
    clock.advance(1)
    assert look() is True


@pytest.mark.usefixtures("held")
def test_a_gate_that_opens_lets_all_go(store: Store, clock: ManualClock, look: Callable[[], bool]) -> None:
    """By a person, or by its time: then what was held is looked through again."""
    clock.advance(HOUR_MS)
    assert look() is True
    clock.advance(-HOUR_MS)
    assert look() is False
    store.open_service("api")
    assert look() is True


def test_a_place_that_is_free_lets_the_next_go(store: Store, look: Callable[[], bool]) -> None:
    """Jobs of a concurrency key wait while one runs, and no longer."""
    for number in range(3):
        store.enqueue("graph", {"n": number}, policy=JobPolicy(concurrency_key="shop"))
    (job,) = claim(store, lease_ms=HOUR_MS)
    assert [look(), look()] == [False, False]
    now = store.clock.now_ms()
    store.write(lambda c: transition(c, job, "done", now=now, actor="worker", reason="test")).result()
    assert look() is True
