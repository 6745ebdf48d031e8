"""Jobs that are cancelled or retried by a person, whatever they were doing."""

from __future__ import annotations

import json

import pytest

from everstep.checkpoints.schema import agent_jobs
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock
from everstep.errors import (
    JobStateConflict,
    ReviewAnswered,
)
from everstep.runtime.settle import Outcome
from tests.support.record import begin_effect, begin_running, claim, settled, snapshot

pytestmark = pytest.mark.both_databases


@pytest.mark.parametrize("status", ["pending", "retry", "review"])
def test_a_job_nobody_runs_is_cancelled_at_once(store: Store, status: str) -> None:
    """Cancelling a job that waits ends it as failed with code cancelled, and closes its questions."""
    store.enqueue("graph", {})
    if status != "pending":
        begin_running(store)
        store.write(lambda c: c.execute(agent_jobs.update().values(status=status))).result()
    (job,) = store.jobs()
    after = store.cancel(job.public_id, by="ann")
    assert after.status == "failed"
    assert json.loads(after.error_json or "")["code"] == "cancelled"
    assert (store.events(job)[-1]["actor"], store.events(job)[-1]["to"]) == ("ann", "failed")


def test_a_running_job_is_cancelled_by_its_worker(store: Store) -> None:
    """Cancelling a running job is a request: it stays running until its worker acknowledges."""
    store.enqueue("graph", {})
    job = begin_running(store)
    asked = store.cancel(job.public_id)
    assert asked.status == "running"
    assert asked.cancel_requested_at is not None
    assert settled(store, job, Outcome("cancelled")).status == "failed"


@pytest.mark.parametrize("outcome", [Outcome("released"), Outcome("review"), Outcome("effect")])
def test_a_request_to_cancel_wins_over_a_pause(store: Store, outcome: Outcome) -> None:
    """A run that comes to a pause after its cancellation was requested ends as cancelled."""
    store.enqueue("graph", {})
    job = begin_running(store)
    store.cancel(job.public_id)
    assert settled(store, job, outcome).status == "failed"


def test_a_job_that_finished_first_is_done_though_its_cancellation_was_requested(store: Store) -> None:
    """A result that is there is kept: a request that came too late changes nothing."""
    store.enqueue("graph", {})
    job = begin_running(store)
    store.cancel(job.public_id)
    assert settled(store, job, Outcome("done", values={"x": 1})).status == "done"


def test_a_cancelled_job_whose_worker_died_ends_at_takeover(store: Store, clock: ManualClock) -> None:
    """If the worker dies before it acknowledges, whoever finds the expired lease ends the job; it never runs again."""
    store.enqueue("graph", {})
    job = begin_running(store)
    store.cancel(job.public_id)
    clock.advance(1000)
    assert claim(store, "b") == []
    assert store.job(job.public_id).status == "failed"


@pytest.mark.parametrize("decision", ["approve", "reject"])
def test_a_job_cancelled_in_mid_effect_waits_for_a_person_and_then_ends(store: Store, decision: str) -> None:
    """With an effect in flight a cancelled job goes to review; after the answer it has failed as cancelled."""
    store.enqueue("graph", {})
    job = begin_running(store)
    begin_effect(store, job)
    store.cancel(job.public_id)
    waiting = settled(store, job, Outcome("cancelled"))
    assert waiting.status == "review"
    assert [effect.state for effect in store.effects(job)] == ["unknown"]
    (review,) = store.reviews()
    assert review.kind == "effect"
    _, ended = store.answer(review.public_id, decision, value="ref" if decision == "approve" else None)
    assert ended.status == "failed"
    assert json.loads(ended.error_json or "")["code"] == "cancelled"
    (effect,) = store.effects(job)
    assert (effect.state, effect.value()) == (("confirmed", "ref") if decision == "approve" else ("rejected", None))
    assert store.reviews() == []


def test_a_cancelled_job_with_two_effects_in_flight_waits_for_both_answers(store: Store) -> None:
    """Each unknown effect of a cancelled job is asked about; the job ends with the last answer."""
    store.enqueue("graph", {})
    job = begin_running(store)
    begin_effect(store, job, "one")
    begin_effect(store, job, "two")
    store.cancel(job.public_id)
    settled(store, job, Outcome("cancelled"))
    first, second = store.reviews()
    assert store.answer(first.public_id, "reject")[1].status == "review"
    assert store.answer(second.public_id, "approve")[1].status == "failed"


def test_cancelling_twice_asks_once(store: Store) -> None:
    """A second request to cancel changes nothing: not the time of the first, nor the questions."""
    store.enqueue("graph", {})
    job = begin_running(store)
    begin_effect(store, job)
    store.cancel(job.public_id)
    settled(store, job, Outcome("cancelled"))
    before = store.job(job.public_id).cancel_requested_at
    assert store.cancel(job.public_id).status == "review"
    assert store.job(job.public_id).cancel_requested_at == before
    assert len(store.reviews()) == 1


@pytest.mark.parametrize("status", ["done", "failed"])
def test_a_job_that_ended_cannot_be_cancelled(store: Store, status: str) -> None:
    """Cancelling a job that has ended is refused and changes nothing."""
    store.enqueue("graph", {})
    job = begin_running(store)
    settled(store, job, Outcome("done", values={}) if status == "done" else Outcome("cancelled"))
    before = snapshot(store)
    with pytest.raises(JobStateConflict, match=status):
        store.cancel(job.public_id)
    assert snapshot(store) == before


def test_a_failed_job_that_is_redriven_gets_its_attempts_back(store: Store, clock: ManualClock) -> None:
    """Redriving a failed job makes it pending now, with its failures forgotten, and forgets the request to cancel."""
    store.enqueue("graph", {})
    job = begin_running(store)
    store.cancel(job.public_id)
    settled(store, job, Outcome("cancelled"))
    clock.advance(5)
    again = store.redrive(job.public_id, by="ann")
    assert (again.status, again.failures, again.cancel_requested_at, again.error_json) == ("pending", 0, None, None)
    assert [found.id for found in claim(store)] == [job.id]


def test_a_job_in_backoff_can_be_told_to_run_now(store: Store, clock: ManualClock) -> None:
    """Redriving a job that waits for its backoff makes it due at once, and does not give it attempts back."""
    store.enqueue("graph", {})
    begin_running(store)
    store.write(
        lambda c: c.execute(agent_jobs.update().values(status="retry", next_run_at=clock.now_ms() + 60_000))
    ).result()
    assert claim(store) == []
    (job,) = store.jobs()
    assert store.redrive(job.public_id).attempts == 1
    assert len(claim(store)) == 1


@pytest.mark.parametrize("status", ["pending", "running", "review", "done"])
def test_only_a_failed_or_waiting_job_is_redriven(store: Store, status: str) -> None:
    """Redriving is refused in the other states, and a job in review points to its questions."""
    store.enqueue("graph", {})
    store.write(lambda c: c.execute(agent_jobs.update().values(status=status))).result()
    (job,) = store.jobs()
    with pytest.raises(JobStateConflict) as refused:
        store.redrive(job.public_id)
    assert ("everstep review" in refused.value.next_step) == (status == "review")
    assert store.job(job.public_id) == job


def test_a_question_of_a_cancelled_job_cannot_be_answered(store: Store) -> None:
    """Once its job has ended a question is closed, and says so to whoever answers it."""
    from everstep.checkpoints.reviews import Question

    store.enqueue("graph", {})
    job = begin_running(store)
    settled(store, job, Outcome("review", questions=[Question("interrupt", "id", "go on?")]))
    (review,) = store.reviews()
    store.cancel(job.public_id)
    with pytest.raises(ReviewAnswered, match="closed"):
        store.answer(review.public_id, "approve")
