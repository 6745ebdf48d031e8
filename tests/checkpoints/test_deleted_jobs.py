"""A job is deleted with everything of it at once, and nothing of another is."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select

from everstep.checkpoints import (
    deliveries,
    jobs,
    retention,
    reviews,
    stream_readers,
    trigger_events,
)
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.policy import JobPolicy
from everstep.checkpoints.retention import DAY_MS
from everstep.checkpoints.reviews import Question
from everstep.checkpoints.schema import (
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
from everstep.checkpoints.store import Store
from everstep.errors import JobNotFound
from everstep.nodes.effect import effect
from tests.support import paid
from tests.support.ended import AT_ONCE, done, failed, rows
from tests.support.jobs import chain, work

pytestmark = pytest.mark.both_databases


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


def test_no_table_of_a_job_is_forgotten() -> None:
    """Every table that names jobs refers to them by a foreign key and is deleted from; outages are kept."""
    owned = {table.name for table in retention.owned_tables()}
    assert owned | {"upstream_events"} == {table.name for table in metadata.sorted_tables if "job_id" in table.c}
