"""How a paid task ends: once, by whoever tells it first, with its refund if it failed; what contradicts is evidence."""

from __future__ import annotations

import json
import logging

import pytest

from everstep.checkpoints.provider_status import ProviderStatus
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock
from everstep.errors import (
    ProviderTaskConflict,
)
from tests.support.paid import (
    DONE,
    FAILED,
    PENDING,
    accept,
    again,
    balance,
    create,
    entries,
    give,
    move,
    submitted,
    tell,
    told,
)

pytestmark = pytest.mark.both_databases


def test_success_is_stored_once(store: Store, clock: ManualClock) -> None:
    """Result, digest and signal are there, the price stays paid, and nobody asks any more."""
    give(store, 500)
    task = submitted(store)
    done = tell(store, task, DONE, "webhook")
    assert done.changed
    task = done.task
    assert (task.state, task.settled_by, task.result) == ("succeeded", "webhook", DONE.result)
    assert (task.progress, task.next_poll_at, task.finished_at) == (100, None, clock.now_ms())
    assert len(task.result_digest or "") == 64
    signal = told(store, task)
    assert signal is not None
    assert signal.payload == {"state": "succeeded"}
    assert entries(store, task) == [("charge", -200)]


def test_a_failure_is_refunded_once(store: Store) -> None:
    """Exactly the charge comes back, however often and by whomever it is told."""
    give(store, 500)
    task = submitted(store)
    for source in ("poll", "webhook", "admin", "poll"):
        tell(store, task, FAILED, source)
    task = again(store, task)
    assert (task.state, task.settled_by, task.error) == ("failed", "poll", {"code": "no_cat"})
    assert entries(store, task) == [("charge", -200), ("refund", 200)]
    assert balance(store) == 500
    assert told(store, task) is not None


@pytest.mark.parametrize(("first", "second"), [(DONE, FAILED), (FAILED, DONE)])
def test_the_first_end_stands(
    store: Store, first: ProviderStatus, second: ProviderStatus, caplog: pytest.LogCaptureFixture
) -> None:
    """What contradicts it is evidence of the job and a line of the log, and changes neither row nor money."""
    give(store, 500)
    job = store.enqueue("graph", {"n": 1}).job
    ended = tell(store, submitted(store, job=job.public_id), first).task
    before = balance(store)
    with caplog.at_level(logging.WARNING, "everstep.provider"):
        answer = tell(store, ended, second, "webhook")
    assert (answer.changed, answer.contradiction) == (False, True)
    assert again(store, ended) == ended
    assert balance(store) == before
    (kept,) = store.evidence(job)
    assert kept["detail"]["what"] == "contradiction"
    assert (kept["detail"]["stands"], kept["detail"]["status"]["state"]) == (first.state, second.state)
    assert second.state in caplog.text


def test_the_same_end_again_is_nothing(store: Store) -> None:
    """Nor is one that tells the result in other words, such as an address that was signed anew, or one on its way."""
    give(store, 500)
    job = store.enqueue("graph", {"n": 1}).job
    ended = tell(store, submitted(store, job=job.public_id), DONE).task
    for status in (DONE, ProviderStatus("succeeded", result={"url": "other"}), PENDING):
        answer = tell(store, ended, status)
        assert (answer.changed, answer.contradiction) == (False, False)
    assert again(store, ended) == ended
    assert store.evidence(job) == []


def test_a_contradiction_of_a_job_that_was_deleted_is_logged(store: Store) -> None:
    """The task outlives its job."""
    give(store, 500)
    ended = tell(store, submitted(store, job="long gone"), DONE).task
    assert tell(store, ended, FAILED).contradiction


@pytest.mark.parametrize("state", ["submitting", "submission_unknown"])
def test_the_end_may_come_before_the_submit_is_answered(store: Store, state: str) -> None:
    """The provider's id is learned with it, and the answer that comes later is nothing new."""
    give(store, 500)
    task = submitted(store, None)
    if state == "submission_unknown":
        move(store, task, "unknown")
    answer = tell(store, task, ProviderStatus("failed", provider_task_id="film-1"), "webhook")
    assert (answer.changed, answer.task.state, answer.task.provider_task_id) == (True, "failed", "film-1")
    assert accept(store, task) == answer.task
    assert balance(store) == 500


def test_news_before_the_submit_is_answered_makes_it_pending(store: Store) -> None:
    """With the provider's id somebody can ask for it, though its submitter may be dead; without, nobody can."""
    give(store, 500)
    task = submitted(store, None)
    assert not tell(store, task, PENDING, "webhook").changed
    task = tell(store, task, ProviderStatus("pending", provider_task_id="film-1", progress=10), "webhook").task
    assert (task.state, task.progress) == ("pending", 10)
    assert task.next_poll_at is not None


def test_nothing_is_believed_of_what_was_not_submitted(store: Store) -> None:
    """Unless the provider's id is told: then it was, whatever we thought."""
    give(store, 500)
    task, _ = create(store)
    assert not tell(store, task, DONE).changed
    assert again(store, task) == task
    answer = tell(store, task, ProviderStatus("succeeded", provider_task_id="film-1"))
    assert (answer.changed, answer.task.state) == (True, "succeeded")


def test_progress_only_grows(store: Store) -> None:
    """What comes late or is out of range does not set it back."""
    give(store, 500)
    task = submitted(store)
    seen = [
        tell(store, task, ProviderStatus("pending", progress=told)).task.progress for told in (None, 0, 40, 10, 400)
    ]
    assert seen == [None, 0, 40, 40, 100]


def test_a_result_of_any_json_is_kept(store: Store) -> None:
    """What has no canonical form, such as a large integer or half a character, does not keep a task from its end."""
    give(store, 500)
    odd = {"n": 2**70, "text": "\ud800", "list": [None, 1.5]}
    task = tell(store, submitted(store), ProviderStatus("succeeded", result=odd)).task
    assert task.result == odd
    assert len(task.result_digest or "") == 64


def test_an_error_is_kept_without_credentials(store: Store) -> None:
    """Providers repeat in their errors what they were sent."""
    give(store, 500)
    error = {
        "message": "bad key sk-abcdefghijklmnopqrstuvwx0123",
        "more": ["Bearer abcdefghijklmnop.qrstu1"],
        "api_key": "abcdefghijklmn",
    }
    task = tell(store, submitted(store), ProviderStatus("failed", error=error)).task
    assert "abcdefghijklmn" not in json.dumps(task.error)
    assert task.error["message"].startswith("bad key")


def test_what_was_never_submitted_can_be_withdrawn(store: Store) -> None:
    """It has failed and is refunded; what was submitted cannot be."""
    give(store, 500)
    task, _ = create(store)
    task = move(store, task, "withdraw", error={"code": "cancelled"}, actor="ann")
    assert (task.state, task.settled_by, task.error) == ("failed", "withdrawn", {"code": "cancelled"})
    assert balance(store) == 500
    assert told(store, task) is not None
    other = submitted(store, None, submission_key="dog")
    for _ in range(2):
        with pytest.raises(ProviderTaskConflict):
            move(store, other, "withdraw", error=None, actor="ann")
        other = move(store, other, "unknown")
    assert balance(store) == 300


def test_an_answer_after_a_person_settled_it_is_evidence(store: Store) -> None:
    """The id is known from then on, so that what the provider says later is matched; the end stands."""
    give(store, 500)
    job = store.enqueue("graph", {"n": 1}).job
    task = submitted(store, None, job=job.public_id)
    tell(store, task, FAILED, "admin")
    late = accept(store, task)
    assert (late.state, late.provider_task_id, late.next_poll_at) == ("failed", "film-1", None)
    assert [one["detail"]["what"] for one in store.evidence(job)] == ["accepted_after_end"]
    assert entries(store, task) == [("charge", -200), ("refund", 200)]


def test_what_is_kept_of_a_contradiction_tells_owners_no_ids(store: Store) -> None:
    """A second id, and what is said under the known one, are for whoever runs the program alone."""
    give(store, 500)
    job = store.enqueue("graph", {"log": []}).job
    task = submitted(store, "film-1", job=job.public_id)
    tell(store, task, DONE)
    tell(store, task, ProviderStatus("failed", "film-1", error="no"))
    tell(store, task, ProviderStatus("pending", "film-2"))
    kept = store.evidence(job)
    assert [one["detail"]["what"] for one in kept] == ["contradiction", "second_id"]
    assert "film-" not in str(kept)
