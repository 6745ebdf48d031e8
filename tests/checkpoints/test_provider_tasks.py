"""Paid tasks: made once and charged once, settled once by whoever tells first, and given back when they failed."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from everstep.checkpoints import ledger, provider_tasks
from everstep.checkpoints.provider_status import ProviderStatus
from everstep.checkpoints.provider_tasks import ProviderTask
from everstep.checkpoints.quote import Quote
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock
from everstep.errors import (
    CreditInvalid,
    GenerationRefused,
    InsufficientCredit,
    PayloadInvalid,
    ProviderTaskConflict,
    ProviderTaskNotFound,
    SubmissionConflict,
)
from tests.support.provider_tasks import (
    DONE,
    FAILED,
    OWNER,
    PENDING,
    PROVIDER,
    accept,
    again,
    amounts,
    balance,
    create,
    give,
    submitted,
    tell,
    told,
)

pytestmark = pytest.mark.both_databases


def move(store: Store, task: ProviderTask, how: str, **more: Any) -> ProviderTask:
    """One of the moves of whoever submits."""
    now = store.clock.now_ms()
    return store.write(lambda c: getattr(provider_tasks, how)(c, task, now=now, **more)).result()


# ---- making one


def test_a_task_is_made_and_charged_in_one_transaction(store: Store) -> None:
    """The row and the charge come together, with the request and the price as they were."""
    give(store, 500)
    task, made = create(store, 200)
    assert made
    assert (task.state, task.amount, task.currency) == ("created", 200, "EUR")
    assert task.request == {"prompt": "a cat"}
    assert task.quote is not None
    assert task.quote.version == "2027-01"
    assert amounts(store, task) == [("charge", -200)]
    assert balance(store) == 300


def test_the_same_key_is_the_same_task(store: Store) -> None:
    """Who comes second with a key gets the first one's task, also from another job, and pays nothing."""
    give(store, 500)
    first, _ = create(store, 200)
    second, made = create(store, 300, job="another job")
    assert not made
    assert second == first
    assert balance(store) == 300


def test_the_key_of_another_owner_is_another_task(store: Store) -> None:
    """Keys are an owner's own."""
    give(store, 500)
    give(store, 500, owner="bob")
    assert create(store)[0].id != create(store, owner="bob")[0].id
    assert (balance(store), balance(store, "bob")) == (300, 300)


@pytest.mark.parametrize("other", [{"request": {"prompt": "a dog"}}, {"provider": "another"}])
def test_a_key_that_comes_with_another_request_is_refused(store: Store, other: dict[str, Any]) -> None:
    """Neither the first request's result nor a second task is what such a caller wants."""
    give(store, 500)
    task, _ = create(store)
    with pytest.raises(SubmissionConflict) as refused:
        create(store, **other)
    assert refused.value.ids["task"] == task.public_id
    assert balance(store) == 300


def test_a_price_beyond_the_credit_is_refused_and_nothing_is_stored(store: Store) -> None:
    """The error tells balance, price and currency; a grant later the same call makes the task."""
    give(store, 199)
    with pytest.raises(InsufficientCredit, match=r"has 1\.99 EUR; the price is 2\.00 EUR") as refused:
        create(store, 200)
    assert [refused.value.ids[name] for name in ("owner", "balance", "price", "currency")] == [OWNER, 199, 200, "EUR"]
    assert store.read(lambda c: provider_tasks.listed(c)) == []
    assert store.read(lambda c: [entry.kind for entry in ledger.entries(c)]) == ["grant"]
    give(store, 1, "more")
    assert create(store, 200)[1]
    assert balance(store) == 0


@pytest.mark.parametrize("free", [{"quote": None}, {"amount": 0}])
def test_what_costs_nothing_leaves_no_entry(store: Store, free: dict[str, Any]) -> None:
    """Without a price, or with a price of 0, nobody needs an account."""
    task = submitted(store, **free)
    assert tell(store, task, FAILED).changed
    assert amounts(store, task) == []


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"request": {"x": float("nan")}}, PayloadInvalid),
        ({"submission_key": ""}, PayloadInvalid),
        ({"generation": 0}, PayloadInvalid),
        ({"generation": 2}, GenerationRefused),
        ({"amount": -1}, CreditInvalid),
        ({"amount": 2**53}, CreditInvalid),
        ({"quote": Quote(5, "eur", 2, "1")}, CreditInvalid),
    ],
)
def test_what_cannot_be_a_task_is_refused(store: Store, wrong: dict[str, Any], error: type[Exception]) -> None:
    """Nothing is stored of it."""
    give(store, 500)
    with pytest.raises(error):
        create(store, **wrong)
    assert balance(store) == 500


# ---- trying again


@pytest.mark.parametrize("state", ["created", "submitting", "submission_unknown", "pending", "succeeded"])
def test_only_what_failed_is_tried_again(store: Store, state: str) -> None:
    """While the task before may still come to something, another generation would pay twice."""
    give(store, 500)
    task, _ = create(store)
    if state != "created":
        task = move(store, task, "submitting", job="job")
    if state == "submission_unknown":
        task = move(store, task, "unknown")
    if state in ("pending", "succeeded"):
        task = accept(store, task)
    if state == "succeeded":
        task = tell(store, task, DONE).task
    assert task.state == state
    with pytest.raises(GenerationRefused, match=f"generation 1 is {state}"):
        create(store, generation=2)
    assert balance(store) == 300


def test_another_try_of_what_failed_pays_anew(store: Store) -> None:
    """Each generation has a charge and a key for the provider of its own; the request stays what it was."""
    give(store, 500)
    first = tell(store, submitted(store), FAILED).task
    with pytest.raises(SubmissionConflict):
        create(store, generation=2, request={"prompt": "a dog"})
    second, made = create(store, generation=2)
    assert made
    assert second.provider_key != first.provider_key
    assert amounts(store, first) == [("charge", -200), ("refund", 200)]
    assert amounts(store, second) == [("charge", -200)]
    assert store.read(lambda c: provider_tasks.by_submission(c, OWNER, "cat")) == second
    assert store.read(lambda c: provider_tasks.by_submission(c, OWNER, "cat", 1)) == first
    with pytest.raises(GenerationRefused):
        create(store, generation=3)


# ---- submitting


def test_only_its_own_job_submits_a_task(store: Store) -> None:
    """Another job that came with the key sees it as it is, and the first one goes on."""
    give(store, 500)
    job = store.enqueue("graph", {"n": 1}).job
    task, _ = create(store, job=job.public_id)
    assert move(store, task, "submitting", job="another").state == "created"
    assert move(store, task, "submitting", job=job.public_id).state == "submitting"
    assert move(store, task, "submitting", job=job.public_id).state == "submitting"
    assert move(store, task, "submitting", job="another").job == job.public_id


def test_a_task_whose_job_ended_before_it_submitted_is_adopted(store: Store) -> None:
    """The next job with the key submits it, for the price that was paid."""
    give(store, 500)
    job = store.enqueue("graph", {"n": 1}).job
    task, _ = create(store, job=job.public_id)
    store.cancel(job.public_id)
    task = move(store, task, "submitting", job="another")
    assert (task.state, task.job) == ("submitting", "another")
    assert amounts(store, task) == [("charge", -200)]


def test_what_was_surely_not_accepted_may_be_submitted_again(store: Store) -> None:
    """It is as it was before the call, with its charge; so it is when a person says so of an unknown one."""
    give(store, 500)
    task = submitted(store, None)
    assert move(store, task, "not_accepted").state == "created"
    assert move(store, task, "submitting", job="job").state == "submitting"
    assert move(store, task, "unknown").state == "submission_unknown"
    assert move(store, task, "submitting", job="job").state == "submission_unknown"
    assert move(store, task, "not_accepted").state == "created"
    assert amounts(store, task) == [("charge", -200)]


def test_what_is_known_is_not_forgotten_by_a_late_submitter(store: Store) -> None:
    """A webhook may have told the end before the submit's answer is lost, or refused."""
    give(store, 500)
    task = submitted(store, None)
    accept(store, task)
    for how in ("unknown", "not_accepted"):
        assert move(store, task, how).state == "pending"
    tell(store, task, FAILED)
    for how in ("unknown", "not_accepted"):
        assert move(store, task, how).state == "failed"
    assert move(store, task, "submitting", job="job").state == "failed"


def test_an_unknown_submission_is_not_refunded(store: Store, clock: ManualClock) -> None:
    """Time alone changes nothing about it."""
    give(store, 500)
    task = submitted(store, None)
    move(store, task, "unknown")
    clock.advance(10**9)
    assert amounts(store, task) == [("charge", -200)]
    assert again(store, task).next_poll_at is None


def test_an_accepted_task_is_asked_for(store: Store, clock: ManualClock) -> None:
    """Accepting it twice is nothing."""
    give(store, 500)
    task = submitted(store)
    now = clock.now_ms()
    assert (task.state, task.provider_task_id) == ("pending", "film-1")
    assert (task.submitted_at, task.next_poll_at) == (now, now + 2000)
    clock.advance(1000)
    assert accept(store, task) == task


def test_a_second_id_is_a_second_submission(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """It is evidence and an error in the log; what the provider says of the second one is not believed."""
    give(store, 500)
    job = store.enqueue("graph", {"n": 1}).job
    task = submitted(store, job=job.public_id)
    with caplog.at_level(logging.ERROR, "everstep.provider"):
        assert accept(store, task, "film-2") == task
    assert "submitted twice" in caplog.text
    told_second = tell(store, task, ProviderStatus("failed", provider_task_id="film-2"))
    assert (told_second.changed, told_second.contradiction) == (False, True)
    assert again(store, task) == task
    kept = store.evidence(job)
    assert [(one["kind"], one["detail"]["what"]) for one in kept] == [("provider", "second_id")] * 2
    assert kept[0]["detail"]["provider_task_id"] == "film-2"


def test_an_id_belongs_to_one_task(store: Store) -> None:
    """A person who links the wrong task, or a provider that mixes two up, changes neither."""
    give(store, 500)
    submitted(store)
    other = submitted(store, None, submission_key="dog")
    with pytest.raises(ProviderTaskConflict):
        accept(store, other)
    answer = tell(store, other, ProviderStatus("succeeded", provider_task_id="film-1"))
    assert (answer.changed, answer.contradiction) == (False, True)
    assert again(store, other).state == "submitting"


def test_the_same_id_at_another_provider_is_another_task(store: Store) -> None:
    """Ids are a provider's own."""
    give(store, 500)
    submitted(store)
    other = submitted(store, submission_key="dog", provider="another")
    assert other.state == "pending"


# ---- its end


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
    assert amounts(store, task) == [("charge", -200)]


def test_a_failure_is_refunded_once(store: Store) -> None:
    """Exactly the charge comes back, however often and by whomever it is told."""
    give(store, 500)
    task = submitted(store)
    for source in ("poll", "webhook", "admin", "poll"):
        tell(store, task, FAILED, source)
    task = again(store, task)
    assert (task.state, task.settled_by, task.error) == ("failed", "poll", {"code": "no_cat"})
    assert amounts(store, task) == [("charge", -200), ("refund", 200)]
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
    assert amounts(store, task) == [("charge", -200), ("refund", 200)]


# ---- finding


def test_tasks_are_found_by_id_and_owner(store: Store) -> None:
    """A prefix does; another owner's is not there."""
    give(store, 500)
    task, _ = create(store)
    assert store.read(lambda c: provider_tasks.find(c, task.public_id[:13])) == task
    assert store.read(lambda c: provider_tasks.find(c, task.public_id, owner=OWNER)) == task
    for wrong, owner in ((task.public_id, "bob"), ("ffff", None)):
        with pytest.raises(ProviderTaskNotFound):
            store.read(lambda c, wrong=wrong, owner=owner: provider_tasks.find(c, wrong, owner=owner))


def test_tasks_are_listed_newest_first(store: Store) -> None:
    """By whatever is asked for, page by page."""
    give(store, 900)
    tasks = [create(store, submission_key=f"film {number}")[0] for number in range(3)]
    ids = [task.id for task in reversed(tasks)]
    assert [task.id for task in store.read(lambda c: provider_tasks.listed(c, owner=OWNER, limit=2))] == ids[:2]
    assert [task.id for task in store.read(lambda c: provider_tasks.listed(c, before=ids[1]))] == ids[2:]
    assert len(store.read(lambda c: provider_tasks.listed(c, provider=PROVIDER, state="created", job="job"))) == 3
    assert store.read(lambda c: provider_tasks.listed(c, state="pending")) == []


def test_an_interface_sees_no_ids_of_the_provider(store: Store) -> None:
    """Neither the provider's id nor the key it was given."""
    give(store, 500)
    task = submitted(store)
    shown = json.dumps(task.view())
    assert "film-1" not in shown
    assert task.provider_key not in shown
    assert task.public_id in shown


# ---- asking


def take(store: Store, holder: str = "a", limit: int = 10) -> list[ProviderTask]:
    """Take what is due."""
    now = store.clock.now_ms()
    return store.write(
        lambda c: provider_tasks.take_due(c, PROVIDER, holder=holder, now=now, lease_ms=5000, limit=limit)
    ).result()


def put_back(store: Store, task: ProviderTask, holder: str = "a", failure: str | None = None) -> bool:
    """It was asked for."""
    now = store.clock.now_ms()
    return store.write(
        lambda c: provider_tasks.polled(c, task, holder=holder, now=now, next_poll_at=now + 3000, failure=failure)
    ).result()


def test_what_is_due_is_taken_by_one(store: Store, clock: ManualClock) -> None:
    """Until its lease ends; then another may, and the first one's word counts no more."""
    give(store, 900)
    tasks = [submitted(store, f"film-{n}", submission_key=f"film {n}") for n in range(3)]
    assert take(store) == []
    assert store.read(lambda c: provider_tasks.next_poll(c, providers=[PROVIDER], now=0)) == tasks[0].next_poll_at
    clock.advance(2000)
    taken = take(store, limit=2)
    assert [task.id for task in taken] == [task.id for task in tasks[:2]]
    assert [task.id for task in take(store, "b")] == [tasks[2].id]
    assert take(store, "b") == []
    clock.advance(5000)
    again_taken = take(store, "b")
    assert len(again_taken) == 3
    assert not put_back(store, taken[0])
    assert put_back(store, again_taken[0], "b")
    task = again(store, tasks[0])
    assert (task.leased_by, task.next_poll_at, task.polls) == (None, clock.now_ms() + 3000, 2)


def test_what_ended_meanwhile_is_not_asked_for_again(store: Store, clock: ManualClock) -> None:
    """A webhook that comes while somebody asks ends it; whoever asked changes nothing."""
    give(store, 500)
    task = submitted(store)
    clock.advance(2000)
    (taken,) = take(store)
    tell(store, task, DONE, "webhook")
    assert not put_back(store, taken)
    clock.advance(10**9)
    assert take(store) == []
    assert store.read(lambda c: provider_tasks.next_poll(c, providers=[PROVIDER], now=0)) is None


def test_failures_of_asking_are_counted_until_there_is_an_answer(store: Store, clock: ManualClock) -> None:
    """They are no failure of the task, and hold no credentials."""
    give(store, 500)
    submitted(store)
    for number in (1, 2):
        clock.advance(5000)
        (taken,) = take(store)
        assert put_back(store, taken, failure="503 for Bearer abcdefghijklmnop.qrstu1")
        task = again(store, taken)
        assert (task.state, task.poll_failures, task.poll_error) == ("pending", number, "503 for ***")
    clock.advance(5000)
    (taken,) = take(store)
    assert put_back(store, taken)
    assert (again(store, taken).poll_failures, again(store, taken).poll_error) == (0, None)


def test_the_next_poll_is_that_of_ones_own_providers(store: Store) -> None:
    """Whoever knows no provider has nothing to ask for."""
    give(store, 500)
    submitted(store)
    assert store.read(lambda c: provider_tasks.next_poll(c, providers=["another"], now=0)) is None
    assert store.read(lambda c: provider_tasks.next_poll(c, providers=[], now=0)) is None
    late = store.clock.now_ms() + 10**6
    assert store.read(lambda c: provider_tasks.next_poll(c, providers=[PROVIDER], now=late)) == late
