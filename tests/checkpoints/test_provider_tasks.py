"""Paid tasks: made once and charged once, tried again when they failed, submitted by one job, found by their owner."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from sqlalchemy import select

from everstep.checkpoints import jobs, ledger, provider_tasks
from everstep.checkpoints.provider_status import ProviderStatus
from everstep.checkpoints.quote import Quote
from everstep.checkpoints.schema import evidence
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
from tests.support.paid import (
    DONE,
    FAILED,
    OWNER,
    PROVIDER,
    accept,
    again,
    balance,
    create,
    entries,
    give,
    move,
    submitted,
    tell,
)

pytestmark = pytest.mark.both_databases


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
    assert entries(store, task) == [("charge", -200)]
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
    assert entries(store, task) == []


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
    assert entries(store, first) == [("charge", -200), ("refund", 200)]
    assert entries(store, second) == [("charge", -200)]
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
    ended = {"now": store.clock.now_ms(), "actor": "test", "reason": "used up"}
    store.write(lambda c: jobs.fail(c, jobs.lock(c, job.id), **ended)).result()
    task = move(store, task, "submitting", job="another")
    assert (task.state, task.job) == ("submitting", "another")
    assert entries(store, task) == [("charge", -200)]


def test_what_was_surely_not_accepted_may_be_submitted_again(store: Store) -> None:
    """It is as it was before the call, with its charge; so it is when a person says so of an unknown one."""
    give(store, 500)
    task = submitted(store, None)
    assert move(store, task, "not_accepted").state == "created"
    assert move(store, task, "submitting", job="job").state == "submitting"
    assert move(store, task, "unknown").state == "submission_unknown"
    assert move(store, task, "submitting", job="job").state == "submission_unknown"
    assert move(store, task, "not_accepted").state == "created"
    assert entries(store, task) == [("charge", -200)]


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
    assert entries(store, task) == [("charge", -200)]
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
    rows = store.read(lambda connection: connection.execute(select(evidence.c.detail_json)).scalars().all())
    assert [json.loads(row)["provider_task_id"] for row in rows[:1]] == ["film-2"]  # of the record alone, not of owners


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
