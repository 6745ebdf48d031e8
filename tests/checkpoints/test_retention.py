"""Retention: what is deleted in its time, and what stays."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, select, update

from everstep.checkpoints import (
    conversations,
    deliveries,
    retention,
    services,
    signals,
    submission,
    trigger_events,
)
from everstep.checkpoints import events as event_log
from everstep.checkpoints import runs as runs_of_threads
from everstep.checkpoints.events import Emitted
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.retention import BATCH, DAY_MS, Rules
from everstep.checkpoints.runs import RunRequest
from everstep.checkpoints.schema import (
    agent_jobs,
    runs,
)
from everstep.checkpoints.services import Report
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock, uuid7
from everstep.errors import PayloadInvalid
from tests.support.ended import AT_ONCE, adopt, change, done, failed, names, rows
from tests.support.record import begin_running

pytestmark = pytest.mark.both_databases

NOTHING = {"done": 0, "failed": 0}


def test_a_job_stays_until_its_webhook_was_told(store: Store, clock: ManualClock) -> None:
    """What waits in the outbox is not deleted with its job; once it is delivered, or given up, the job goes."""
    job, _ = store.enqueue("graph", {"n": "told"}, webhook="https://example.org/hook")
    change(store, job, "running")
    change(store, job, "done", result_json="{}")
    clock.advance(DAY_MS)
    assert store.prune(AT_ONCE).jobs["done"] == 0
    (message,) = store.read(deliveries.every)
    store.write(lambda c: deliveries.delivered(c, message, now=clock.now_ms())).result()
    assert store.prune(AT_ONCE).jobs["done"] == 1


def test_events_that_started_nothing_go_in_their_time(store: Store, clock: ManualClock) -> None:
    """An event that was filtered out or failed is kept as long as a failed job, one that is not handled stays."""
    kept = {"trigger": "t", "source": "http", "headers": {}, "body": {}, "occurred_at": None}
    for key in ("filtered", "failed", "stored"):
        event, _ = store.write(lambda c, key=key: trigger_events.store(c, **kept, key=key, now=clock.now_ms())).result()
        if key == "filtered":
            store.write(lambda c, event=event: trigger_events.filtered(c, event, now=clock.now_ms())).result()
        elif key == "failed":
            store.write(lambda c, event=event: trigger_events.failed(c, event, {}, now=clock.now_ms())).result()
    store.prune(Rules(failed_days=1))
    assert len(store.read(trigger_events.every)) == 3
    clock.advance(DAY_MS + 1)
    store.prune(Rules(failed_days=1))
    assert [event.state for event in store.read(trigger_events.every)] == ["stored"]


def test_only_what_ended_long_enough_ago_goes(store: Store, clock: ManualClock) -> None:
    """Done and failed jobs go at the end of their days, to the millisecond; the rest stays however old it is."""
    done(store, "done")
    failed(store, "failed")
    store.enqueue("graph", {"n": "pending"})
    store.enqueue("graph", {"n": "review"})
    change(store, store.jobs()[0], "review")
    rules = Rules(done_days=1, failed_days=2)
    clock.advance(DAY_MS - 1)
    assert store.prune(rules).jobs == NOTHING
    clock.advance(1)
    assert store.prune(rules, dry_run=True).jobs == {"done": 1, "failed": 0}
    assert names(store) == {"done", "failed", "pending", "review"}
    assert store.prune(rules).jobs == {"done": 1, "failed": 0}
    clock.advance(DAY_MS)
    assert store.prune(rules).jobs == {"done": 0, "failed": 1}
    clock.advance(1000 * DAY_MS)
    assert store.prune(rules).jobs == NOTHING
    assert names(store) == {"pending", "review"}


@pytest.mark.parametrize("to", ["pending", "running", "retry", "review"])
def test_a_job_that_has_not_ended_is_never_deleted(to: str, store: Store) -> None:
    """Whoever asks for it by name: a job that has not ended stays."""
    store.enqueue("graph", {"n": 1})
    job = begin_running(store)
    job = job if to == "running" else change(store, job, to)
    tables = store.database.checkpoint_tables
    assert (
        store.write(lambda c: retention.remove(c, [job.id], now=1, key_days=1, checkpoint_tables=tables)).result() == []
    )
    assert store.job(job.public_id) == job


def test_only_jobs_of_the_graph_go(store: Store) -> None:
    """With a graph named, jobs of others stay."""
    done(store, "mine")
    job, _ = store.enqueue("other", {"n": "other"})
    change(store, job, "failed")
    assert store.prune(Rules(done_days=0, failed_days=0, graph="graph")).jobs == {"done": 1, "failed": 0}
    assert names(store) == {"other"}


def test_a_family_is_kept_while_one_of_it_lives(store: Store) -> None:
    """A job stays while a child or a parent of it, however far, has not ended; then all go."""
    eldest, middle, youngest, alone = (failed(store, name) for name in ("eldest", "middle", "youngest", "alone"))
    adopt(store, middle, eldest)
    adopt(store, youngest, middle)
    for living in (eldest, middle, youngest):
        store.redrive(living.public_id)
        pruned = store.prune(AT_ONCE, dry_run=True)
        assert (pruned.jobs["failed"], pruned.kept) == (1, 2)
        change(store, living, "failed")
    store.redrive(youngest.public_id)
    pruned = store.prune(AT_ONCE)
    assert (pruned.jobs["failed"], pruned.kept) == (1, 2)
    assert names(store) == {"eldest", "middle", "youngest"}
    assert alone.payload["n"] not in names(store)
    change(store, youngest, "failed")
    assert store.prune(AT_ONCE).jobs["failed"] == 3
    assert store.jobs() == []


def test_what_is_done_is_kept_while_an_ancestor_that_failed_is(store: Store, clock: ManualClock) -> None:
    """A failed job may be retried, and its budget counts what was done for it; what it leaves goes with it."""
    eldest, middle, other = failed(store, "eldest"), done(store, "middle"), done(store, "other")
    young = done(store, "young")
    adopt(store, middle, eldest)
    adopt(store, young, middle)
    adopt(store, other, failed(store, "purged"))
    clock.advance(31 * DAY_MS)
    assert (store.prune(Rules(), dry_run=True).kept, store.prune(Rules()).kept) == (3, 3)
    assert {"eldest", "middle", "young", "other"} < names(store)
    clock.advance(60 * DAY_MS)
    assert store.prune(Rules()).jobs == {"done": 3, "failed": 2}
    assert store.jobs() == []


def test_children_become_those_of_the_grandparent(store: Store) -> None:
    """A child whose parent is deleted belongs to its grandparent; when that goes as well, to nobody."""
    eldest, middle, young = (failed(store, name) for name in ("eldest", "middle", "young"))
    adopt(store, middle, eldest)
    adopt(store, young, middle)
    tables = store.database.checkpoint_tables

    def remove(*gone: Job) -> list[Job]:
        ids = [job.id for job in gone]
        return store.write(lambda c: retention.remove(c, ids, now=1, key_days=1, checkpoint_tables=tables)).result()

    remove(middle)
    assert store.job(young.public_id).parent_id == eldest.id
    again = failed(store, "middle again")
    adopt(store, again, eldest)
    adopt(store, young, again)
    assert len(remove(eldest, again)) == 2
    assert store.job(young.public_id).parent_id is None


def test_many_jobs_go_in_batches(store: Store) -> None:
    """Each batch is a transaction of its own, and progress is told after each."""
    now = store.clock.now_ms()
    for number in range(BATCH + 50):
        store.write(
            lambda c, number=number: submission.enqueue(
                c,
                now=now,
                graph="graph",
                payload_json="{}",
                payload_digest="",
                key=str(number),
                workflow_version="1",
                priority=5,
                max_attempts=1,
                owner="",
            )
        )
    store.write(lambda c: c.execute(update(agent_jobs).values(status="done"))).result()
    commits, told = store.commits, list[int]()
    pruned = store.prune(AT_ONCE, progress=lambda so_far: told.append(so_far.jobs["done"]))
    assert pruned.jobs["done"] == BATCH + 50
    assert told == [BATCH, BATCH + 50]
    assert (
        store.commits - commits == 9
    )  # two batches, a look each for old readers, slots, replies, signals, events, what providers told, keys


def test_outages_are_forgotten_in_their_time(store: Store, clock: ManualClock) -> None:
    """What jobs met goes after its days, in batches, and is told before; a gate that it closed stays closed."""
    store.enqueue("graph", {"n": 1})
    job = begin_running(store)
    out = Report("api.example", "payment_failed", "402")

    def met(connection: Any, times: int = 1) -> None:
        for _ in range(times):
            services.report(connection, job, out, now=clock.now_ms(), wait_ms=lambda _tries: 1000)

    store.write(lambda connection: met(connection, services.FORGET_AT_ONCE + 2)).result()
    clock.advance(5 * DAY_MS)
    store.write(met).result()
    rules = Rules(outage_days=5)
    assert store.prune(rules, dry_run=True).outages == services.FORGET_AT_ONCE + 2
    assert store.prune(rules).outages == services.FORGET_AT_ONCE + 2
    assert store.prune(rules).outages == 0
    assert rows(store)["upstream_events"] == 1
    assert [service.gate for service in store.services()] == ["closed"]


def test_what_runs_emitted_goes_in_its_time_and_their_ends_stay(store: Store, clock: ManualClock) -> None:
    """Events of a run that was over long ago go, but for its end; those of a run that goes on stay, however old."""
    over, going = emitting(store, "over"), emitting(store, "going")
    ends = update(runs).where(runs.c.run_id == over.run_id).values(ended_at=clock.now_ms())
    store.write(lambda c: c.execute(ends)).result()
    rules = Rules(event_days=7)
    clock.advance(7 * DAY_MS)
    assert store.prune(rules).events == 0
    clock.advance(1)
    assert store.prune(rules, dry_run=True).events == 2
    assert store.prune(rules).events == 2
    assert [event.method for event in store.read(lambda c: event_log.of_run(c, over.run_id))] == ["end"]
    assert len(store.read(lambda c: event_log.of_run(c, going.run_id))) == 3
    assert store.prune(rules).events == 0


def emitting(store: Store, name: str) -> runs_of_threads.Run:
    """A run on a thread of its own that has emitted three events."""
    now = store.clock.now_ms()

    def begin(connection: Connection) -> runs_of_threads.Run:
        thread = conversations.ensure(connection, uuid7(now), owner="default", now=now)
        request = RunRequest(graph="graph", assistant_id="graph", input={"n": name})
        more = {"owner": "default", "now": now, "actor": "test"}
        run = runs_of_threads.create(connection, request, thread_id=thread.thread_id, **more)
        told = [Emitted(method, "null") for method in ("metadata", "custom", "end")]
        of = {"job_id": run.job_id, "run_id": run.run_id, "thread_id": run.thread_id, "claim_no": 1, "now": now}
        event_log.append(connection, told, **of)
        return run

    return store.write(begin).result()


@pytest.mark.parametrize("days", [-1, float("nan"), float("inf"), 40_000])
def test_days_out_of_range_are_refused(days: float) -> None:
    """A number of days below 0, beyond a hundred years or none at all is refused."""
    with pytest.raises(PayloadInvalid, match="key_days"):
        Rules(key_days=days)


def test_signals_are_kept_while_they_may_be_heard(store: Store, clock: ManualClock) -> None:
    """A user's signal goes after the time of failed jobs; what Everstep emitted, and what came since, stays."""
    for name in ("old", f"{signals.RESERVED}task"):
        store.write(
            partial(signals.emit, name=name, payload=1, owner="default", by="test", now=clock.now_ms())
        ).result()
    clock.advance(2 * DAY_MS)
    store.emit("new")
    store.prune(Rules(failed_days=1))
    left = store.read(lambda connection: connection.execute(select(signals.table.c.name)).scalars().all())
    assert sorted(left) == [f"{signals.RESERVED}task", "new"]
