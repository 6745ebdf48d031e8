"""The heartbeat: a thread of its own that extends the leases of what runs, and goes on after a failure."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable

import pytest

from everstep.checkpoints import claims
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock
from everstep.runtime.heartbeat import Heartbeat, Held
from tests.support.record import claim
from tests.support.waiting import PATIENCE

LEASE_MS = 60


Beats = Callable[[Callable[[Held], bool]], Held]


class Beating:
    """A heartbeat under test, and what it reports."""

    def __init__(self, store: Store, *running: Job) -> None:
        self.running = [job.id for job in running]
        self._beats: queue.Queue[Held] = queue.Queue()
        self.heartbeat = Heartbeat(store, "a", LEASE_MS, lambda: self.running, self._beats.put)

    def __enter__(self) -> Beating:
        self.heartbeat.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.heartbeat.stop()

    def until(self, wanted: Callable[[Held], bool]) -> Held:
        """The first beat that is as wanted."""
        end = time.monotonic() + PATIENCE
        while True:
            held = self._beats.get(timeout=max(end - time.monotonic(), 0.01))
            if wanted(held):
                return held


def two_jobs(store: Store) -> list[Job]:
    """Two jobs that worker `a` has claimed."""
    for number in range(2):
        store.enqueue("graph", {"n": number})
    return claim(store, "a", limit=2, lease_ms=LEASE_MS)


def test_it_extends_what_runs(store: Store, clock: ManualClock) -> None:
    """Each beat sets the lease of every running job to the full length from now, and reports claim and wishes."""
    one, two = two_jobs(store)
    clock.advance(LEASE_MS // 2)
    store.cancel(two.public_id)
    with Beating(store, one, two) as beating:
        assert beating.until(lambda held: len(held) == 2) == {one.id: (1, False), two.id: (1, True)}
    assert {store.job_by_row(job.id).lease_until for job in (one, two)} == {clock.now_ms() + LEASE_MS}


def test_it_follows_what_runs(store: Store) -> None:
    """A job the worker no longer runs is left to expire; one that is added is kept."""
    one, two = two_jobs(store)
    with Beating(store, one) as beating:
        beating.until(lambda held: set(held) == {one.id})
        beating.running = [two.id]
        beating.until(lambda held: set(held) == {two.id})
        beating.running = []
        beating.until(lambda held: not held)


def test_it_reports_a_job_that_was_taken_over(store: Store, clock: ManualClock) -> None:
    """A job another worker has claimed is no longer held, and its lease is left alone."""
    one, two = two_jobs(store)
    clock.advance(LEASE_MS + claims.MOMENT_MS)
    now, kept = clock.now_ms(), [two.id]
    store.write(lambda c: claims.heartbeat(c, now=now, worker="a", lease_ms=LEASE_MS, running=kept)).result()
    (taken,) = claim(store, "b", lease_ms=999_999)
    with Beating(store, one, two) as beating:
        beating.until(lambda held: set(held) == {two.id})
    assert store.job_by_row(taken.id).lease_until == taken.lease_until


def test_it_goes_on_after_the_database_failed(
    store: Store, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A beat that fails is told once each time, and the next one tries again."""
    one, two = two_jobs(store)
    with Beating(store, one, two) as beating:
        beating.until(lambda held: len(held) == 2)
        store.write(lambda c: c.exec_driver_sql("ALTER TABLE agent_jobs RENAME TO away")).result()
        end = time.monotonic() + PATIENCE
        while not any("heartbeat failed" in record.getMessage() for record in caplog.records):
            assert time.monotonic() < end
            time.sleep(0.005)
        store.write(lambda c: c.exec_driver_sql("ALTER TABLE away RENAME TO agent_jobs")).result()
        clock.advance(10)
        expected = clock.now_ms() + LEASE_MS
        beating.until(lambda held: len(held) == 2 and store.job_by_row(one.id).lease_until == expected)


def test_it_stops_at_once(store: Store) -> None:
    """Stopping does not wait for the next beat, however long the lease is."""
    heartbeat = Heartbeat(store, "a", 3_600_000, list, lambda _held: None)
    heartbeat.start()
    started = time.monotonic()
    heartbeat.stop()
    assert time.monotonic() - started < PATIENCE
