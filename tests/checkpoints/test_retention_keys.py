"""What the key of a deleted job answers, and what it answers while the job is being deleted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from everstep.checkpoints import (
    retention,
)
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.retention import DAY_MS, Rules
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock
from everstep.errors import JobNotFound, JobPruned, JobStateConflict, KeyConflict
from tests.support.ended import AT_ONCE, done, failed, rows
from tests.support.waiting import PATIENCE, Halt, until

pytestmark = pytest.mark.both_databases


# ---- what the key answers


def test_a_pruned_key_tells_what_became_of_its_job(store: Store, clock: ManualClock) -> None:
    """Same key and payload: JobPruned with id, status and when; another payload: KeyConflict; nothing is stored."""
    job = done(store, 1, key="ticket-7")
    store.prune(Rules(done_days=0, key_days=2))
    before = rows(store)
    clock.advance(2 * DAY_MS - 1)
    with pytest.raises(JobPruned, match=job.public_id) as pruned:
        store.enqueue("graph", {"n": 1}, key="ticket-7")
    ids = pruned.value.ids
    assert (ids["job"], ids["status"], ids["key"], ids["result_digest"]) == (
        job.public_id,
        "done",
        "ticket-7",
        job.result_digest,
    )
    assert ids["pruned_at"].endswith("Z")
    assert "--workflow-version" in pruned.value.next_step
    assert pruned.value.exit_code == 65
    with pytest.raises(KeyConflict, match=job.public_id):
        store.enqueue("graph", {"n": 2}, key="ticket-7")
    assert rows(store) == before
    assert store.enqueue("graph", {"n": 1}, key="ticket-8").created


@pytest.mark.parametrize("cleared", [False, True])
def test_an_expired_key_is_free(cleared: bool, store: Store, clock: ManualClock) -> None:
    """From the moment its tombstone expires a key is free, whether it was cleared away or not."""
    done(store, 1, key="ticket-7")
    assert store.prune(Rules(done_days=0, key_days=2)).keys == 0
    clock.advance(2 * DAY_MS)
    if cleared:
        assert store.prune(Rules(), dry_run=True).keys == 1
        assert store.prune(Rules()).keys == 1
    assert store.enqueue("graph", {"n": 2}, key="ticket-7").created
    assert "tombstones" not in rows(store)


def test_a_derived_key_is_remembered_too(store: Store) -> None:
    """Without a key of its own, the same input is known after its job was deleted; another version is another job."""
    done(store, 1)
    store.prune(AT_ONCE)
    with pytest.raises(JobPruned):
        store.enqueue("graph", {"n": 1})
    assert store.enqueue("graph", {"n": 1}, workflow_version="2").created


# ---- races


def at_once(*actions: Callable[[], Any]) -> list[Any]:
    """What the actions give, or raise, each in a thread of its own, begun at the same time."""
    barrier, results = threading.Barrier(len(actions)), [None] * len(actions)

    def run(number: int, action: Callable[[], Any]) -> None:
        barrier.wait(PATIENCE)
        try:
            results[number] = action()
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(actions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    return results


def second(store: Store, clock: ManualClock) -> Store:
    """The same record opened by another process's means: a writer and connections of its own."""
    return Store.open(store.url, clock=clock)


def test_two_prunes_delete_each_job_once(store: Store, clock: ManualClock) -> None:
    """Of two prunes at the same time each job is counted by one, and leaves one tombstone."""
    for number in range(40):
        failed(store, number)
    with second(store, clock) as other:
        results = at_once(lambda: store.prune(AT_ONCE), lambda: other.prune(AT_ONCE))
    assert sum(result.jobs["failed"] for result in results) == 40
    assert rows(store, "alembic_version") == {"tombstones": 40}


def test_a_job_is_either_retried_or_deleted(store: Store, clock: ManualClock) -> None:
    """A prune beside a redrive of the same jobs: each job is whole and pending, or gone, never half."""
    ids = [failed(store, number).public_id for number in range(30)]
    with second(store, clock) as other:
        pruned, *redriven = at_once(
            lambda: store.prune(AT_ONCE), *(lambda name=name: other.redrive(name).status for name in ids)
        )
    kept = {job.public_id: job for job in store.jobs()}
    assert len(kept) + pruned.jobs["failed"] == 30
    for name, result in zip(ids, redriven, strict=True):
        assert (result == "pending") == (name in kept)
        assert name in kept or isinstance(result, JobNotFound | JobStateConflict), result
    assert rows(store, "alembic_version").get("job_events", 0) == sum(len(store.events(job)) for job in kept.values())


def test_an_enqueue_beside_a_prune_never_makes_a_second_job(store: Store, clock: ManualClock) -> None:
    """An enqueue of a key whose job is being deleted gives the old job or JobPruned, and never a new job."""
    for number in range(30):
        failed(store, number)
    with second(store, clock) as other:
        results = at_once(
            lambda: store.prune(AT_ONCE), *(lambda n=n: other.enqueue("graph", {"n": n}) for n in range(30))
        )
    assert results[0].jobs["failed"] == 30
    for result in results[1:]:
        assert isinstance(result, JobPruned) or result.created is False, result
    assert store.jobs() == []


def test_an_enqueue_waits_for_the_deletion_of_its_key(store: Store, clock: ManualClock, database: str) -> None:
    """An enqueue that comes while a deletion of its key is under way sees the tombstone it leaves."""
    job, halt = failed(store, 1), Halt()
    tables = store.database.checkpoint_tables

    def remove(connection: Any) -> list[Job]:
        gone = retention.remove(connection, [job.id], now=clock.now_ms(), key_days=1, checkpoint_tables=tables)
        halt.stand()
        return gone

    removing = store.write(remove)
    halt.wait_until_reached()
    with second(store, clock) as other, ThreadPoolExecutor(1) as thread:
        enqueuing = thread.submit(other.enqueue, "graph", {"n": 1})
        if database == "postgres":
            until(lambda: store.read(lambda c: c.exec_driver_sql("SELECT 1 FROM pg_locks WHERE NOT granted").first()))
        halt.release()
        assert len(removing.result(PATIENCE)) == 1
        with pytest.raises(JobPruned):
            enqueuing.result(PATIENCE)
    assert store.jobs() == []
