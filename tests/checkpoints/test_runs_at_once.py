"""Runs on one thread in several transactions at once, on PostgreSQL: each status change sees what the others did."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from sqlalchemy import Connection

from everstep.checkpoints import claims, conversations, events, jobs, retention, reviews, runs
from everstep.checkpoints.events import Emitted
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.reviews import Question
from everstep.checkpoints.runs import Run, RunRequest
from everstep.checkpoints.saver import StepSaver
from everstep.checkpoints.store import Store
from everstep.checkpoints.turns import NOT_YET
from everstep.errors import JobStateConflict
from everstep.runtime.settle import Outcome, settle
from tests.support.postgres import fresh_postgres
from tests.support.record import begin_running
from tests.support.transactions import Held, stands
from tests.support.waiting import Halt

THREAD = "019ad000-0000-7000-8000-000000000001"


@pytest.fixture
def store() -> Iterator[Store]:
    """A record, with the server's clock."""
    with fresh_postgres() as store:
        yield store


@pytest.fixture
def beside(store: Store) -> Iterator[Store]:
    """The same record, opened as by another process."""
    with Store.open(store.url) as other:
        yield other


def post(store: Store, **asked: Any) -> Run:
    """Admit a run."""
    return store.write(lambda connection: admit(connection, **asked)).result()


def admit(connection: Connection, thread_id: str = THREAD, **asked: Any) -> Run:
    """Admit a run in a transaction."""
    conversations.ensure(connection, thread_id, owner="default", now=1)
    request = RunRequest("graph", "A", **asked)
    return runs.create(connection, request, thread_id=thread_id, owner="default", now=1, actor="http")


def settle_in(connection: Connection, job: Job, outcome: Outcome) -> Job:
    """Settle a leg in a transaction."""
    return settle(connection, job, outcome, now=2, actor="w", randomness=random.Random(0))


def settle_as(store: Store, job: Job, outcome: Outcome) -> Future[Job]:
    """Settle a leg."""
    return store.write(lambda connection: settle_in(connection, job, outcome))


def test_the_turn_is_not_given_to_a_waiter_that_is_cancelled_at_that_moment(store: Store, beside: Store) -> None:
    """A run ends while another transaction cancels the next one: the turn goes to the one behind it."""
    post(store, input={})
    second, third = post(store, input={}), post(store, input={})
    running = begin_running(store)
    cancelling = Held(beside, lambda c: runs.cancel(c, second, now=1, actor="http"))
    ending = settle_as(store, running, Outcome("done", values={}))
    stands(store, ending)
    cancelling.commit()
    ending.result()
    assert store.job_by_row(third.job_id).next_run_at < NOT_YET


def test_a_run_that_ends_at_that_moment_is_not_cancelled(store: Store, beside: Store) -> None:
    """Whoever cancels a run while another transaction ends it changes nothing, and is told so without an error."""
    run = post(store, input={})
    running = begin_running(store)
    ending = Held(beside, lambda c: settle_in(c, running, Outcome("done", values={})))
    cancelling = store.write(lambda c: runs.cancel(c, run, now=1, actor="http", rollback=True))
    stands(store, cancelling)
    ending.commit()
    after = cancelling.result()
    assert (after.status, after.rolled_back) == ("success", 0)
    assert store.job_by_row(run.job_id).status == "done"


def test_a_cancellation_does_not_reach_the_run_that_follows(store: Store, beside: Store) -> None:
    """A run pauses and is answered while it is cancelled: that run is over, and the one that goes on is another."""
    run = post(store, input={})
    running = begin_running(store)

    def pause_and_answer(connection: Connection) -> None:
        settle_in(connection, running, Outcome("review", questions=[Question("interrupt", "a" * 32, "who?")]))
        (asked,) = reviews.of_job(connection, running.id)
        reviews.answer(connection, asked, decision="respond", value="me", by="ann", now=2)

    answering = Held(beside, pause_and_answer)
    cancelling = store.write(lambda c: runs.cancel(c, run, now=1, actor="http"))
    stands(store, cancelling)
    answering.commit()
    cancelling.result()
    assert store.job_by_row(run.job_id).status == "pending"


def test_a_job_is_not_retried_beside_a_run_that_is_admitted(store: Store, beside: Store) -> None:
    """A failed job is retried while another transaction admits a run to its thread: the thread has gone on."""
    run = post(store, input={})
    store.write(lambda c: runs.cancel(c, run, now=1, actor="http")).result()
    admitting = Held(beside, lambda c: admit(c, input={}))
    retrying = store.write(lambda c: jobs.redrive(c, jobs.lock(c, run.job_id), now=2, actor="cli"))
    stands(store, retrying)
    admitting.commit()
    with pytest.raises(JobStateConflict, match="went on with"):
        retrying.result()


def test_who_follows_a_thread_misses_nothing_of_two_transactions(store: Store, beside: Store) -> None:
    """A waiting run is cancelled while another's event is written: whoever reads on from the last event sees both."""
    first, second = post(store, input={}), post(store, input={})
    job = begin_running(store)
    emitted = [Emitted("custom", '"told"')]
    about: dict[str, Any] = {
        "job_id": job.id,
        "run_id": first.run_id,
        "thread_id": THREAD,
        "claim_no": job.claim_no,
        "now": 1,
    }

    def tell(connection: Connection) -> None:
        claims.fence(connection, job.id, job.claim_no)
        events.append(connection, emitted, **about)

    telling = Held(beside, tell)
    cancelling = store.write(lambda c: runs.cancel(c, second, now=1, actor="http"))
    stands(store, cancelling)
    seen = store.read(lambda c: events.of_thread(c, THREAD))
    telling.commit()
    cancelling.result()
    seen += store.read(lambda c: events.of_thread(c, THREAD, after=seen[-1].id))
    assert [event.method for event in seen] == [events.METADATA, "custom", events.END]


def test_a_run_that_takes_the_place_of_one_that_ends_is_admitted(store: Store, beside: Store) -> None:
    """A run interrupts another that is settled at that moment: both succeed, whoever comes first."""
    post(store, input={})
    running = begin_running(store)
    halt = Halt()

    def interrupting(connection: Connection) -> Run:
        conversations.ensure(connection, THREAD, owner="default", now=1)
        halt.stand()
        return admit(connection, input={}, strategy="interrupt")

    admitting = beside.write(interrupting)
    halt.wait_until_reached()
    ending = settle_as(store, running, Outcome("done", values={}))
    stands(store, ending)
    halt.release()
    assert ending.result().status in ("done", "failed")
    assert store.job_by_row(admitting.result().job_id).next_run_at < NOT_YET


def test_a_thread_is_not_pruned_beside_a_run_that_is_admitted(store: Store, beside: Store) -> None:
    """The job whose thread it was is pruned while another transaction admits a run: the run keeps thread and state."""
    job, _ = store.enqueue("graph", {})
    settle_as(store, begin_running(store), Outcome("done", values={})).result()
    now = store.clock.now_ms()
    store.write(lambda c: conversations.ensure(c, job.thread_id, owner="default", now=now)).result()
    put: Any = StepSaver(store).put
    put({"configurable": {"thread_id": job.thread_id, "checkpoint_ns": ""}}, empty_checkpoint(), {}, {})
    admitting = Held(beside, lambda c: admit(c, job.thread_id, input={}))
    tables = store.database.checkpoint_tables
    removing = store.write(lambda c: retention.remove(c, [job.id], now=now, key_days=1, checkpoint_tables=tables))
    stands(store, removing)
    admitting.commit()
    assert [each.id for each in removing.result()] == [job.id]
    assert store.read(lambda c: conversations.find(c, job.thread_id)).status == "busy"
    assert StepSaver(store).get_tuple({"configurable": {"thread_id": job.thread_id}}) is not None
