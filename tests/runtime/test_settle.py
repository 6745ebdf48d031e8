"""How a leg ends: each outcome moves the job as it should, keeps the evidence, and counts what it should count."""

from __future__ import annotations

import json
from typing import Any

import pytest

from everstep.checkpoints import effects
from everstep.checkpoints.canonical import digest
from everstep.checkpoints.jobs import Job, LostClaim
from everstep.checkpoints.reviews import Question
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock
from everstep.errors import PayloadInvalid
from everstep.nodes.effect import EffectUnknown
from everstep.runtime.classify import Verdict, classify
from everstep.runtime.settle import Outcome
from tests.support.record import begin_effect, begin_running, claim, settled

pytestmark = pytest.mark.both_databases

QUESTION = Question("interrupt", "id", {"question": "go on?"})


def running(store: Store, **more: Any) -> Job:
    """A job in mid-run."""
    store.enqueue("graph", {"n": len(store.jobs())}, **more)
    return begin_running(store)


def failed_with(error: BaseException, verdict: Verdict | None = None) -> Outcome:
    """An outcome by exception."""
    return Outcome("error", error=error, verdict=verdict or classify(error))


def in_flight(store: Store, job: Job, key: str = "key") -> effects.Effect:
    """An effect whose call has begun."""
    return begin_effect(store, job, key)[0]


def test_done_keeps_the_result_and_its_digest(store: Store) -> None:
    """A finished job has its result as JSON, the digest of it, no error and no lease."""
    job = settled(store, running(store), Outcome("done", values={"b": [1, 2.0], "a": None}))
    assert (job.status, job.leased_by, job.lease_until, job.error_json, job.node) == ("done", None, None, None, None)
    assert json.loads(job.result_json or "") == {"a": None, "b": [1, 2.0]}
    assert job.result_digest == digest({"a": None, "b": [1, 2]})


def test_a_result_beyond_json_is_shown_as_near_as_can_be(store: Store) -> None:
    """A result with values JSON has not is kept readable, and does not keep the job from being done."""
    job = settled(store, running(store), Outcome("done", values={"x": {1}, "y": float("nan"), "z": object}))
    assert job.status == "done"
    assert json.loads(job.result_json or "")["x"] == [1]
    assert job.result_digest


def test_a_pause_and_its_resumption_are_one_attempt(store: Store) -> None:
    """A question brings the job to review; its answer takes the start back, for the one that goes on counts again."""
    job = settled(store, running(store), Outcome("review", questions=[QUESTION, Question("interrupt", "2", None)]))
    assert (job.status, job.attempts, job.leased_by) == ("review", 1, None)
    assert [review.value for review in store.reviews()] == [{"question": "go on?"}, None]
    _, job = store.answer(store.reviews()[0].public_id, "approve")
    assert (job.status, job.attempts) == ("pending", 0)


def test_a_question_answered_meanwhile_needs_no_review(store: Store) -> None:
    """If a question was answered while the job ran it goes on at once."""
    job = running(store)
    settled(store, job, Outcome("review", questions=[QUESTION]))
    store.answer(store.reviews()[0].public_id, "approve")
    again = begin_running(store)
    after = settled(store, again, Outcome("review", questions=[QUESTION, Question("interrupt", "2", None)]))
    assert (after.status, after.attempts) == ("pending", 0)
    assert len(store.reviews(job)) == 2


def test_given_back_by_a_draining_worker(store: Store, clock: ManualClock) -> None:
    """A released job is pending now, and the attempt is not counted."""
    job = settled(store, running(store), Outcome("released"))
    assert (job.status, job.attempts, job.next_run_at) == ("pending", 0, clock.now_ms())
    assert "draining" in store.events(job)[-1]["reason"]


def test_a_transient_failure_waits_longer_each_time_and_then_fails(store: Store, clock: ManualClock) -> None:
    """15 s, then 30 s, each with at most a quarter of jitter, until `max_attempts` failures in a row."""
    job = running(store, max_attempts=3)
    waits: list[int] = []
    for _ in range(2):
        job = settled(store, job, failed_with(ConnectionResetError("gone")))
        assert job.status == "retry"
        waits.append(job.next_run_at - clock.now_ms())
        assert claim(store) == []
        clock.advance(waits[-1])
        (job,) = claim(store)
    assert 15_000 <= waits[0] <= 18_750
    assert 30_000 <= waits[1] <= 37_500
    job = settled(store, job, failed_with(ConnectionResetError("gone")))
    assert job.status == "failed"
    assert "3 failures" in store.events(job)[-1]["reason"]
    assert [kept["kind"] for kept in store.evidence(job)] == ["error"] * 3


def test_progress_between_failures_starts_a_new_count(store: Store, clock: ManualClock) -> None:
    """A job that gets further between its failures is not given up: only failures in a row count."""
    job = running(store, max_attempts=2)
    for _ in range(5):
        job = settled(store, job, failed_with(ConnectionResetError("gone")))
        assert job.status == "retry"
        clock.advance(10**7)
        job = begin_running(store)
    assert job.attempts == 6


def test_a_service_that_names_its_time_is_not_asked_before(store: Store, clock: ManualClock) -> None:
    """`Retry-After` is the least that is waited."""
    verdict = Verdict("retry", 600_000, True, "busy", "status 429")
    job = settled(store, running(store), failed_with(RuntimeError("busy"), verdict))
    assert 600_000 <= job.next_run_at - clock.now_ms() <= 750_000


def test_a_failure_tells_what_where_and_what_next(store: Store) -> None:
    """The evidence of a failure has code, type, message, step, attempt, verdict, cause chain and a next step."""
    try:
        try:
            raise KeyError("deep")
        except KeyError as cause:
            raise PayloadInvalid("no such branch", next_step="name a branch") from cause
    except PayloadInvalid as error:
        job = settled(store, running(store), failed_with(error))
    what = json.loads(job.error_json or "")
    assert job.status == "failed"
    assert what["code"] == "payload_invalid"
    assert what["message"] == "no such branch"
    assert what["next_step"] == "name a branch"
    assert (what["attempt"], what["verdict"]) == (1, "failed")
    assert [link["type"] for link in what["chain"]] == ["everstep.errors.PayloadInvalid", "KeyError"]
    assert "test_settle.py" in what["chain"][0]["where"]
    (kept,) = store.evidence(job)
    assert kept["detail"] == what


def test_an_error_nobody_knows_asks_a_person(store: Store) -> None:
    """In doubt a person decides, and sees the error."""

    class OddError(Exception):
        pass

    job = settled(store, running(store), failed_with(OddError("what?")))
    assert job.status == "review"
    assert store.reviews()[0].value["message"] == "what?"
    assert store.reviews()[0].value["question"]


def test_a_failure_closes_the_questions_that_are_open(store: Store) -> None:
    """When a job fails for good nobody is asked anything about it any more."""
    job = running(store)
    settled(store, job, Outcome("review", questions=[QUESTION, Question("interrupt", "2", None)]))
    store.answer(store.reviews()[0].public_id, "approve")
    job = settled(store, begin_running(store), failed_with(ValueError("bad input")))
    assert job.status == "failed"
    assert store.reviews() == []


def test_a_job_that_is_done_leaves_no_question_open(store: Store) -> None:
    """What an earlier run asked, and nobody answered, needs no answer once the graph has finished without it."""
    settled(store, running(store), Outcome("review", questions=[QUESTION, Question("interrupt", "2", None)]))
    store.answer(store.reviews()[0].public_id, "approve")
    job = settled(store, begin_running(store), Outcome("done", values={}))
    assert (job.status, store.reviews()) == ("done", [])
    assert [review.status for review in store.reviews(job)] == ["answered", "closed"]


def test_an_unknown_effect_is_asked_about(store: Store) -> None:
    """The effect that stopped the run becomes a question; one that is still in flight elsewhere does not."""
    job = running(store)
    effect = in_flight(store, job, "stopped")
    in_flight(store, job, "other")
    unknown = EffectUnknown("nobody knows", key=effect.key)
    after = settled(store, job, Outcome("effect", effect_key=effect.key, error=unknown))
    assert (after.status, after.attempts) == ("review", 1)
    assert [review.subject for review in store.reviews()] == ["stopped"]
    assert {found.key: found.state for found in store.effects(job)} == {"stopped": "unknown", "other": "intended"}


def test_an_effect_found_out_before_the_settlement_needs_nobody(store: Store) -> None:
    """A run stopped by an effect that turned out well after all goes on: no review without a question."""
    job = running(store)
    unknown = EffectUnknown("nobody knows", key="gone")
    after = settled(store, job, Outcome("effect", effect_key="gone", error=unknown))
    assert after.status == "pending"
    assert store.reviews() == []


def test_a_graph_that_finished_past_an_effect_in_doubt_is_not_done(store: Store) -> None:
    """Whatever the graph returned, a job with an effect nobody knows of waits for a person, and is done after."""
    job = running(store)
    in_flight(store, job)
    after = settled(store, job, Outcome("done", values={"x": 1}))
    assert after.status == "review"
    store.answer(store.reviews()[0].public_id, "approve", value=1)
    assert settled(store, begin_running(store), Outcome("done", values={"x": 1})).status == "done"


@pytest.mark.parametrize("error", [ValueError("bad input"), TimeoutError("again")], ids=["failed", "used up"])
def test_no_job_fails_while_an_effect_of_it_is_in_doubt(store: Store, error: Exception) -> None:
    """A failure for good waits for the person who says what became of the effect; then the job goes on with that."""
    job = running(store, max_attempts=1)
    effect = in_flight(store, job)
    after = settled(store, job, failed_with(error))
    assert after.status == "review"
    assert json.loads(after.error_json or "")["message"] == str(error)
    (asked,) = store.reviews()
    assert (asked.kind, asked.subject) == ("effect", effect.key)
    _, job = store.answer(asked.public_id, "approve", value=1)
    assert (job.status, job.failures) == ("pending", 0)
    assert settled(store, begin_running(store), failed_with(error)).status == "failed"


def test_a_job_that_is_given_up_asks_about_its_effect(store: Store, clock: ManualClock) -> None:
    """A job whose workers vanish has failed only if nothing of it is in doubt."""
    job = running(store, max_attempts=1)
    in_flight(store, job)
    clock.advance(1000)
    assert claim(store, "other") == []
    job = store.job(job.public_id)
    assert job.status == "review"
    assert json.loads(job.error_json or "")["code"] == "worker_died"
    assert [review.kind for review in store.reviews()] == ["effect"]


def test_rejecting_an_error_leaves_no_effect_in_doubt(store: Store) -> None:
    """The rejection stands, and the job has failed with it once a person said what became of the effect."""
    job = running(store)
    in_flight(store, job)
    settled(store, job, failed_with(PermissionError("no")))
    (error,) = store.reviews()
    _, job = store.answer(error.public_id, "reject", reason="hopeless", by="ann")
    assert job.status == "review"
    (asked,) = store.reviews()
    assert asked.kind == "effect"
    assert "rejected" in asked.value["why"]
    _, job = store.answer(asked.public_id, "reject")
    assert job.status == "failed"
    assert json.loads(job.error_json or "")["code"] == "rejected"
    assert "hopeless" in json.loads(job.error_json or "")["message"]
    assert store.reviews() == []
    assert [effect.state for effect in store.effects(job)] == ["rejected"]


def test_an_answer_does_not_restart_a_job_whose_error_is_still_asked_about(store: Store) -> None:
    """While nobody said whether to try again, another question's answer is kept and the job waits."""
    job = running(store)
    settled(store, job, Outcome("review", questions=[QUESTION, Question("interrupt", "2", None)]))
    store.answer(store.reviews()[0].public_id, "approve")
    settled(store, begin_running(store), failed_with(PermissionError("no")))
    other, error = store.reviews()
    _, job = store.answer(other.public_id, "approve")
    assert job.status == "review"
    _, job = store.answer(error.public_id, "approve")
    assert job.status == "pending"


def test_an_outcome_of_a_lost_claim_changes_nothing(store: Store, clock: ManualClock) -> None:
    """Every outcome of a run that lost its job is refused, its evidence included."""
    job = running(store)
    clock.advance(1000)
    claim(store, "other")
    before = (store.job_by_row(job.id), store.events(job))
    outcomes = [
        Outcome("done", values={}),
        Outcome("review", questions=[QUESTION]),
        Outcome("effect"),
        failed_with(ValueError("x")),
        failed_with(TimeoutError("x")),
        Outcome("released"),
        Outcome("cancelled"),
    ]
    for outcome in outcomes:
        with pytest.raises(LostClaim):
            settled(store, job, outcome)
    assert (store.job_by_row(job.id), store.events(job)) == before
    assert [kept["kind"] for kept in store.evidence(job)] == ["worker_death"]  # of the take-over, not of the outcomes
    assert store.reviews(job) == []
