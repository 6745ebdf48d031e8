"""Retention: what goes with a job, what stays, what its key answers, and what races change."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, select, update

from everstep.checkpoints import (
    conversations,
    deliveries,
    jobs,
    retention,
    reviews,
    services,
    signals,
    stream_readers,
    submission,
    trigger_events,
)
from everstep.checkpoints import events as event_log
from everstep.checkpoints import runs as runs_of_threads
from everstep.checkpoints.events import Emitted
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.policy import JobPolicy
from everstep.checkpoints.retention import BATCH, DAY_MS, Rules
from everstep.checkpoints.reviews import Question
from everstep.checkpoints.runs import RunRequest
from everstep.checkpoints.schema import (
    agent_jobs,
    approvals,
    events,
    evidence,
    metadata,
    runs,
    schedule_slots,
    schedules,
    span_outbox,
    spans,
    tombstones,
    upstream_events,
    waits,
)
from everstep.checkpoints.services import Report
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock, uuid7
from everstep.errors import JobNotFound, JobPruned, JobStateConflict, KeyConflict, PayloadInvalid
from everstep.nodes.effect import effect
from everstep.runtime.settle import Outcome
from tests.support import paid
from tests.support.jobs import chain, work
from tests.support.record import begin_running, settled
from tests.support.waiting import PATIENCE, Halt, until

pytestmark = pytest.mark.both_databases

AT_ONCE = Rules(done_days=0, failed_days=0)
NOTHING = {"done": 0, "failed": 0}


def done(store: Store, name: Any = 1, **more: Any) -> Job:
    """A job that is done."""
    store.enqueue("graph", {"n": name}, **more)
    return settled(store, begin_running(store), Outcome("done", values={"n": name}))


def failed(store: Store, name: Any = 1, **more: Any) -> Job:
    """A job that failed."""
    job, _ = store.enqueue("graph", {"n": name}, **more)
    return change(store, job, "failed", error_json='{"code": "x", "message": "y"}')


def change(store: Store, job: Job, to: str, **columns: Any) -> Job:
    """Move a job."""
    now = store.clock.now_ms()
    return store.write(
        lambda c: jobs.transition(c, jobs.lock(c, job.id), to, now=now, actor="test", reason="", **columns)
    ).result()


def adopt(store: Store, child: Job, parent: Job) -> None:
    """Make a job the child of another."""
    store.write(
        lambda c: c.execute(update(agent_jobs).where(agent_jobs.c.id == child.id).values(parent_id=parent.id))
    ).result()


def rows(store: Store, *but: str) -> dict[str, int]:
    """How many rows each table has, if any."""
    names = {*metadata.tables, *store.database.checkpoint_tables} - set(but)
    counts = store.read(
        lambda c: {name: c.exec_driver_sql(f"SELECT count(*) FROM {name}").scalar_one() for name in sorted(names)}
    )
    return {name: count for name, count in counts.items() if count}


def names(store: Store) -> set[Any]:
    """The jobs that are there."""
    return {job.payload["n"] for job in store.jobs()}


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


# ---- everything of a job, at once


@effect("retention.sends", idempotent=True)
def sends(to: str, idempotency_key: str = "") -> str:
    """An effect."""
    return to


def a_whole_job(store: Store) -> Job:
    """A done job that has left a row in every table that can hold one of it."""
    job, _ = store.enqueue("graph", {"log": []}, policy=JobPolicy(services=("api.example",)))
    work(store, chain(lambda _s: {"log": [sends("ada")]}, lambda _s: {"log": ["x" * 500]}))
    now = store.clock.now_ms()

    def more(connection: Any) -> None:
        connection.execute(evidence.insert().values(job_id=job.id, claim_no=1, kind="error", detail_json="{}", at=now))
        reviews.open_all(connection, jobs.get(connection, job.id), [Question("interrupt", "i", "?")], now=now)
        reviews.close_all(connection, job.id, now=now)
        (asked,) = reviews.of_job(connection, job.id)
        use = {"review_id": asked.id, "action": "a", "argument_digest": "d", "state": "consumed", "effect_key": "k"}
        connection.execute(approvals.insert().values(job_id=job.id, reserved_at=now, **use))
        connection.execute(waits.insert().values(job_id=job.id, key="k", owner="default", state="met", created_at=now))
        connection.execute(
            upstream_events.insert().values(service="api.example", symptom="s", check_time=now, job_id=job.id)
        )
        span = {"job_id": job.id, "leg": 1, "span_id": "00f067aa0ba902b7", "started_ns": now, "body": b""}
        row = connection.execute(spans.insert().values(**span).returning(spans.c.id)).scalar_one()
        waiting = {"job_id": job.id, "span": row, "destination": "http://collector:4318", "queued_at": now}
        connection.execute(span_outbox.insert().values(**waiting))
        message = deliveries.queue(connection, job, "https://example.org", {}, now=now)
        deliveries.delivered(connection, deliveries.find(connection, message), now=now)
        kept = {"trigger": "t", "source": "http", "key": "k", "headers": {}, "body": {}, "occurred_at": None}
        event, _ = trigger_events.store(connection, **kept, now=now)
        trigger_events.started(connection, event, job.id, claim_no=1, now=now)
        same = {"job_id": job.id, "run_id": "r", "thread_id": job.thread_id}
        connection.execute(
            runs.insert().values(
                **same,
                assistant_id="a",
                status="success",
                kwargs_json="{}",
                multitask_strategy="enqueue",
                created_at=now,
                updated_at=now,
            )
        )
        connection.execute(
            events.insert().values(**same, claim_no=1, method="end", namespace="", data_json="null", at=now)
        )
        stream_readers.read_to(connection, "reader", job_id=job.id, run_id="r", seen=0, now=now)
        when = {"cron": "0 0 * * *", "overlap": "skip", "missed": "skip", "created_at": now, "updated_at": now}
        what = {"public_id": "s", "origin": "test", "graph": "graph", "input_json": "{}"}
        of = connection.execute(schedules.insert().values(**what, **when).returning(schedules.c.id)).scalar_one()
        slot = {"schedule_id": of, "slot_at": now, "fired_at": now, "outcome": "started", "job_id": job.id}
        connection.execute(schedule_slots.insert().values(**slot))

    store.write(more).result()
    return store.job(job.public_id)


def test_a_job_goes_with_everything_of_it(store: Store) -> None:
    """After a prune no table holds a row of the job, LangGraph's neither; an outage it met is kept without it."""
    job = a_whole_job(store)
    before = rows(store)
    owned = {table.name for table in metadata.sorted_tables if "job_id" in table.c} | {"agent_jobs"}
    assert {*owned, *store.database.checkpoint_tables} <= set(before), "the test must fill every table"
    pruned = store.prune(AT_ONCE)
    assert (pruned.jobs, pruned.kept, pruned.keys) == ({"done": 1, "failed": 0}, 0, 0)
    assert rows(store, "alembic_version", "services", "schedules") == {"tombstones": 1, "upstream_events": 1}
    assert store.read(lambda c: c.execute(select(upstream_events.c.job_id)).scalar_one()) is None
    stone = store.read(lambda c: c.execute(select(tombstones)).mappings().one())
    now = store.clock.now_ms()
    assert dict(stone) == {
        "id": stone["id"],
        "idempotency_key": job.idempotency_key,
        "public_id": job.public_id,
        "graph": "graph",
        "payload_digest": job.payload_digest,
        "status": "done",
        "result_digest": job.result_digest,
        "pruned_at": now,
        "expires_at": now + 365 * DAY_MS,
    }
    with pytest.raises(JobNotFound):
        store.job(job.public_id)


def test_paid_tasks_and_money_outlive_their_job(store: Store) -> None:
    """They name it by its public id alone, and what the provider says later is told to the task all the same."""
    job = done(store)
    paid.give(store, 500)
    task = paid.submitted(store, job=job.public_id)
    paid.send(store, paid.PENDING, provider_task_id="film-1")
    assert store.prune(AT_ONCE).jobs == {"done": 1, "failed": 0}
    assert paid.again(store, task) == task
    assert paid.tell(store, task, paid.FAILED).task.job == job.public_id
    assert paid.send(store, paid.DONE, "event-2", provider_task_id="film-1").state == "ignored"
    assert paid.entries(store, task) == [("charge", -200), ("refund", 200)]


def test_what_was_never_submitted_is_given_back_with_the_deletion(store: Store) -> None:
    """Once, in the transaction that deletes the job; what another job is to submit stays, and so does what is asked."""
    paid.give(store, 1000)
    job, other = failed(store), store.enqueue("graph", {"other": 1}).job
    mine, _ = paid.create(store, job=job.public_id)
    asked = paid.submitted(store, job=job.public_id, submission_key="asked")
    theirs, _ = paid.create(store, job=other.public_id, submission_key="theirs")
    rules = {"now": store.clock.now_ms(), "key_days": 1, "checkpoint_tables": store.database.checkpoint_tables}
    with pytest.raises(RuntimeError):
        store.write(lambda c: (retention.remove(c, [job.id], **rules), broken())).result()
    assert paid.entries(store, mine) == [("charge", -200)]
    assert store.prune(AT_ONCE).jobs == {"done": 0, "failed": 1}
    assert store.prune(AT_ONCE).jobs == {"done": 0, "failed": 0}
    assert paid.entries(store, mine) == [("charge", -200), ("refund", 200)]
    assert [paid.again(store, one).state for one in (mine, asked, theirs)] == ["failed", "pending", "created"]
    assert paid.told(store, mine) is not None
    assert paid.balance(store) == 600


def broken() -> None:
    """The transaction fails."""
    raise RuntimeError("it was made to fail")


def test_another_job_keeps_all_it_has(store: Store) -> None:
    """Deleting a job changes no row of another one."""
    kept = a_whole_job(store)
    before = rows(store)
    store.enqueue("graph", {"log": ["other"]})
    work(store, chain(lambda _s: {"log": [sends("bob")]}))
    other = next(job for job in store.jobs() if job.id != kept.id)
    deleted = store.write(
        lambda c: retention.remove(c, [other.id], now=1, key_days=1, checkpoint_tables=store.database.checkpoint_tables)
    ).result()
    assert [job.id for job in deleted] == [other.id]
    assert rows(store, "tombstones") == before


def test_a_deletion_that_fails_deletes_nothing(store: Store) -> None:
    """Should one statement of a deletion fail, all that went before it is undone."""
    job, before = a_whole_job(store), rows(store)
    tables = (*store.database.checkpoint_tables, "no_such_table")
    with pytest.raises(Exception, match="no_such_table"):
        store.write(lambda c: retention.remove(c, [job.id], now=1, key_days=1, checkpoint_tables=tables)).result()
    assert rows(store) == before


# ---- what stays


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


def test_no_table_of_a_job_is_forgotten() -> None:
    """Every table that names jobs refers to them by a foreign key and is deleted from; outages are kept."""
    owned = {table.name for table in retention.owned_tables()}
    assert owned | {"upstream_events"} == {table.name for table in metadata.sorted_tables if "job_id" in table.c}


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
