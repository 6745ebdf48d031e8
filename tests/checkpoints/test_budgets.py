"""Budgets in the record: what is counted, whom a limit binds, and how a job goes on; on both databases."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from sqlalchemy import Connection, text

from everstep import Budget, JobPolicy
from everstep.checkpoints import budgets
from everstep.checkpoints.budgets import Account, Use
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.reviews import Review
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock
from everstep.errors import JobNotFound, PayloadInvalid, ReviewAnswered, ReviewAnswerInvalid
from everstep.runtime.settle import Outcome
from tests.support.record import begin_running, settled
from tests.support.waiting import Halt, until

pytestmark = pytest.mark.both_databases


def enqueue(store: Store, name: str, parent: Job | None = None, **limits: Any) -> Job:
    """A job of this name."""
    above = None if parent is None else parent.public_id
    policy = JobPolicy(budget=Budget(**limits) if limits else None)
    return store.enqueue("graph", {"name": name}, parent=above, policy=policy).job


def use(store: Store, job: Job, **columns: int) -> bool:
    """Let the job have used this much, as a worker that runs it notes."""
    return store.write(lambda connection: budgets.note(connection, job.id, job.claim_no, **columns)).result()


def running(store: Store, job: Job, **columns: int) -> Job:
    """The job as claimed by a worker, under which it used this much."""
    begun = begin_running(store)
    assert begun.id == job.id, "another job was first"
    assert use(store, begun, **(columns or {"run_ms": 0}))
    return begun


def line(store: Store, job: Job) -> list[Account]:
    """The accounts that bind a job."""
    return store.read(lambda connection: budgets.family(connection, job.id))


def why(store: Store, job: Job) -> dict[str, Any] | None:
    """Why a job must not go on."""
    return budgets.why_stop(line(store, job))


def stopped(store: Store, job: Job) -> Review:
    """The review of a running job that stops for its budget."""
    value = why(store, job)
    assert value is not None
    question = budgets.question(value, job.claim_no)
    assert settled(store, job, Outcome("review", questions=[question])).status == "review"
    return open_review(store, job)


def open_review(store: Store, job: Job) -> Review:
    """Its one open review."""
    (review,) = [found for found in store.reviews(job) if found.status == "open"]
    return review


def status(store: Store, *jobs: Job) -> list[str]:
    """What became of jobs."""
    return [store.job(job.public_id).status for job in jobs]


# ---- what is counted


def test_what_descendants_use_counts(store: Store) -> None:
    """A job's use is its own and that of all its descendants, and of nobody else."""
    parent = enqueue(store, "parent", tokens=1000)
    running(store, parent, step=1, input_tokens=10, output_tokens=5, run_ms=1500, cost_micros=7)
    child = enqueue(store, "child", parent)
    running(store, child, step=2, input_tokens=100, output_tokens=50, run_ms=500, cost_micros=3)
    grandchild = enqueue(store, "grandchild", child)
    running(store, grandchild, step=4, input_tokens=200, output_tokens=0, run_ms=0, cost_micros=1_000_000)
    stranger = enqueue(store, "stranger")
    running(store, stranger, step=100)
    accounts = store.accounts([parent, child, grandchild, stranger])
    assert [accounts[job.id].used for job in (parent, child, grandchild)] == [
        Use(7, 2000, 365, 1_000_010),
        Use(6, 500, 350, 1_000_003),
        Use(4, 0, 200, 1_000_000),
    ]
    assert accounts[stranger.id].used == Use(100, 0, 0, 0)
    assert [account.public_id for account in line(store, grandchild)] == [
        grandchild.public_id,
        child.public_id,
        parent.public_id,
    ]
    assert accounts[grandchild.id].parent == child.public_id
    assert accounts[parent.id].as_dict() == {
        "limits": {"tokens": 1000},
        "used": {"steps": 7, "seconds": 2.0, "tokens": 365, "cost": 1.00001},
        "remaining": {"tokens": 635},
    }


def test_a_run_that_lost_its_job_counts_nothing(store: Store, clock: ManualClock) -> None:
    """What a stale claim notes changes nothing."""
    job = enqueue(store, "job")
    stale = running(store, job, input_tokens=5)
    clock.advance(2000)
    current = begin_running(store, "another")
    assert not use(store, stale, input_tokens=100)
    assert use(store, current, input_tokens=6)
    assert store.job(job.public_id).input_tokens == 6


def test_a_job_without_limits_is_bound_by_none(store: Store) -> None:
    """What neither has a budget nor a parent is not looked into further."""
    free, bound = enqueue(store, "free"), enqueue(store, "bound", steps=1)
    child = enqueue(store, "child", bound)
    found = store.read(lambda c: [budgets.binding(c, job.id) for job in (free, bound, child)])
    assert [len(accounts) for accounts in found] == [0, 1, 2]


def test_a_parent_must_exist(store: Store) -> None:
    """A child of nobody is refused; the same input again is the same job, whoever enqueues it as a child."""
    with pytest.raises(JobNotFound):
        store.enqueue("graph", {}, parent="0197")
    parent = enqueue(store, "parent")
    child = enqueue(store, "child", parent)
    again = store.enqueue("graph", {"name": "child"}, parent=child.public_id)
    assert (again.created, again.job.parent_id) == (False, parent.id)


# ---- whom a limit binds


@pytest.mark.parametrize(
    ("limits", "columns", "used"),
    [
        ({"steps": 3}, {"step": 3}, 3),
        ({"seconds": 1.5}, {"run_ms": 1500}, 1.5),
        ({"tokens": 10}, {"input_tokens": 6, "output_tokens": 4}, 10),
        ({"cost": 0.07}, {"cost_micros": 70_000}, 0.07),
    ],
    ids=["steps", "seconds", "tokens", "cost"],
)
def test_a_limit_is_reached_at_its_number(
    store: Store, limits: dict[str, Any], columns: dict[str, int], used: float
) -> None:
    """A job may go on one below its limit and not at it, and is told so in words that programs read."""
    job = begin_running(store) if enqueue(store, "job", **limits) else None
    assert job is not None
    last = list(columns)[-1]
    use(store, job, **{**columns, last: columns[last] - 1})
    assert why(store, job) is None
    use(store, job, **columns)
    value = why(store, job)
    assert value is not None
    ((limit, number),) = limits.items()
    numbers = {"job": job.public_id, "limit": limit, "budget": number, "used": used, "remaining": 0}
    assert value["code"] == "budget_exceeded"
    assert value["exceeded"] == [numbers]
    assert {name: value[name] for name in numbers} == numbers
    assert f"everstep budget {job.public_id} --{limit} N" in value["next_step"]


def test_a_child_may_use_no_more_than_its_parent_has_left(store: Store) -> None:
    """A child stops at its parent's limit, and its parent at what its children used; the reason names whose it is."""
    parent = running(store, enqueue(store, "parent", tokens=100), input_tokens=40)
    child = running(store, enqueue(store, "child", parent, tokens=1000), input_tokens=59)
    assert (why(store, parent), why(store, child)) == (None, None)
    use(store, child, input_tokens=60)
    for job in (parent, child):
        value = why(store, job)
        assert value is not None
        assert (value["job"], value["used"]) == (parent.public_id, 100)


def test_a_child_has_limits_of_its_own(store: Store) -> None:
    """A child stops at its own limit while its parent has plenty, and its parent goes on."""
    parent = running(store, enqueue(store, "parent", tokens=100))
    child = running(store, enqueue(store, "child", parent, tokens=20), input_tokens=20)
    value = why(store, child)
    assert value is not None
    assert value["job"] == child.public_id
    assert why(store, parent) is None


# ---- how a job goes on


def test_a_stop_that_is_no_longer_due_when_it_is_settled(store: Store) -> None:
    """A budget raised while its job comes to a halt asks nobody: the job is pending, and no start is counted."""
    job = running(store, enqueue(store, "job", steps=3), step=3)
    value = why(store, job)
    assert value is not None
    question = budgets.question(value, job.claim_no)
    store.set_budget(job.public_id, {"steps": 4})
    after = settled(store, job, Outcome("review", questions=[question]))
    assert (after.status, after.attempts, store.reviews(job)) == ("pending", 0, [])


def test_raising_a_budget_lets_all_go_on_that_waited_for_it(store: Store) -> None:
    """Raising an ancestor's limit answers its own review and its descendants', and leaves what another limit holds."""
    parent = running(store, enqueue(store, "parent", tokens=100), input_tokens=50)
    child = running(store, enqueue(store, "child", parent), input_tokens=50)
    own = running(store, enqueue(store, "own", parent, steps=1), step=1)
    stranger = running(store, enqueue(store, "stranger", tokens=1), input_tokens=1)
    waiting = [stopped(store, job) for job in (parent, child, own, stranger)]
    _, none = store.set_budget(parent.public_id, {"tokens": 100})
    assert none == []
    job, answered = store.set_budget(parent.public_id, {"tokens": 200}, by="ada")
    assert [review.public_id for review in answered] == [review.public_id for review in waiting[:2]]
    assert {(review.decision, review.answered_by) for review in answered} == {("approve", "ada")}
    assert job.status == "pending"
    assert status(store, parent, child, own, stranger) == ["pending", "pending", "review", "review"]
    _, answered = store.set_budget(own.public_id, {"steps": 2})
    assert [review.public_id for review in answered] == [waiting[2].public_id]


def test_an_answer_may_raise_the_budget(store: Store) -> None:
    """Approving a child with a value raises the limits of the job that the review is about, and all of it goes on."""
    parent = running(store, enqueue(store, "parent", tokens=100, cost=1.0), input_tokens=50)
    child = running(store, enqueue(store, "child", parent), input_tokens=50)
    stopped(store, parent)
    review = stopped(store, child)
    answered, job = store.answer(review.public_id, "approve", value={"tokens": 200})
    assert (answered.status, job.status) == ("answered", "pending")
    assert status(store, parent, child) == ["pending", "pending"]
    assert store.job(parent.public_id).budget_json == '{"tokens": 200, "cost": 1.0}'
    assert store.job(child.public_id).budget_json is None
    assert job.attempts == 0, "the start that paused goes on"
    with pytest.raises(ReviewAnswered):
        store.answer(review.public_id, "approve")


def test_an_answer_that_is_no_budget(store: Store) -> None:
    """A value that is no limit is refused, the review stays open and the budget as it was."""
    review = stopped(store, running(store, enqueue(store, "job", tokens=100), input_tokens=100))
    wrong: list[Any] = [{}, [], None, 200, {"token": 200}, {"tokens": "200"}, {"tokens": True}, {"tokens": 0}]
    for value in [*wrong, {"tokens": 1.5}]:
        with pytest.raises(ReviewAnswerInvalid) as refused:
            store.answer(review.public_id, "approve", value=value)
        assert refused.value.next_step
    assert store.review(review.public_id) == review
    assert store.job_by_row(review.job_id).budget_json == '{"tokens": 100}'


def test_an_answer_that_raises_too_little(store: Store) -> None:
    """Approving while the limit is still used up is refused with what to raise; nothing is changed by it."""
    job = running(store, enqueue(store, "job", tokens=90), input_tokens=100)
    review = stopped(store, job)
    for value in ({"value": {"tokens": 100}}, {"value": {"steps": 5}}, {}):
        with pytest.raises(ReviewAnswerInvalid, match="still used up: tokens 100 of") as refused:
            store.answer(review.public_id, "approve", **value)
        assert refused.value.next_step == f"raise it: everstep budget {job.public_id} --tokens N"
    assert store.review(review.public_id) == review
    assert store.job(job.public_id).budget_json == '{"tokens": 90}'


def test_limits_of_two_jobs_that_are_used_up(store: Store) -> None:
    """A child that its own limit and its parent's hold goes on when both are raised, and is told of both."""
    parent = running(store, enqueue(store, "parent", steps=5), step=2)
    child = running(store, enqueue(store, "child", parent, steps=3), step=3)
    review = stopped(store, child)
    assert [(one["job"], one["used"]) for one in review.value["exceeded"]] == [
        (child.public_id, 3),
        (parent.public_id, 5),
    ]
    with pytest.raises(ReviewAnswerInvalid, match="still used up: steps 5 of 5"):
        store.answer(review.public_id, "approve", value={"steps": 10})
    assert store.set_budget(child.public_id, {"steps": 10})[1] == []
    assert [one.public_id for one in store.set_budget(parent.public_id, {"steps": 6})[1]] == [review.public_id]
    assert status(store, child) == ["pending"]


def test_a_limit_can_be_taken_away_or_lowered(store: Store) -> None:
    """None takes one limit away and leaves the others; a lower limit holds at once."""
    job = running(store, enqueue(store, "job", steps=100, tokens=50), step=3, input_tokens=10)
    assert store.set_budget(job.public_id, {"tokens": None})[0].budget_json == '{"steps": 100}'
    store.set_budget(job.public_id, {"steps": 3})
    assert why(store, job) is not None
    assert store.set_budget(job.public_id, {"steps": None})[0].budget_json is None
    for wrong in ({}, {"step": 4}, {"steps": -1}):
        with pytest.raises(PayloadInvalid):
            store.set_budget(job.public_id, wrong)


def test_a_rejected_budget_ends_the_job(store: Store) -> None:
    """Rejecting fails the job with what was asked as its cause; its children are not touched."""
    parent = running(store, enqueue(store, "parent", tokens=100), input_tokens=100)
    child = running(store, enqueue(store, "child", parent))
    _, job = store.answer(stopped(store, parent).public_id, "reject", reason="too dear")
    assert job.status == "failed"
    assert '"code": "rejected"' in (job.error_json or "")
    assert '"budget_exceeded"' in (job.error_json or "")
    assert status(store, child) == ["running"]


# ---- what nobody can count


def test_a_cost_nobody_knows_stops_a_job_with_a_cost_limit(store: Store) -> None:
    """Calls without a price stop a job under a cost limit, its own or above it, until that limit is taken away."""
    parent = enqueue(store, "parent", cost=1.0)
    running(store, parent)
    child = running(store, enqueue(store, "child", parent))
    unpriced = {"m-1": {"calls": 1, "input_tokens": 10, "output_tokens": 2}}
    value = budgets.why_stop(line(store, child), without_price=unpriced)
    assert value is not None
    assert (value["code"], value["job"], value["limit"], value["models"]) == (
        "price_unknown",
        parent.public_id,
        "cost",
        unpriced,
    )
    assert budgets.why_stop(line(store, enqueue(store, "free")), without_price=unpriced) is None
    settled(store, child, Outcome("review", questions=[budgets.question(value, child.claim_no)]))
    review = open_review(store, child)
    assert store.set_budget(parent.public_id, {"cost": 2.0})[1] == [], "a higher limit tells no price"
    assert [one.public_id for one in store.set_budget(parent.public_id, {"cost": None})[1]] == [review.public_id]


@pytest.mark.parametrize(("limits", "stops"), [({"tokens": 5}, True), ({"cost": 1.0}, True), ({"steps": 5}, False)])
def test_calls_that_tell_no_usage(store: Store, limits: dict[str, Any], stops: bool) -> None:
    """A model that tells no usage stops a job whose tokens or cost are limited; approving accepts it as not counted."""
    job = running(store, enqueue(store, "job", **limits))
    value = budgets.why_stop(line(store, job), without_usage={"m-1"})
    assert (value is not None) == stops
    if value is not None:
        assert (value["code"], value["models"]) == ("usage_unknown", ["m-1"])
        settled(store, job, Outcome("review", questions=[budgets.question(value, job.claim_no)]))
        assert store.answer(open_review(store, job).public_id, "approve")[1].status == "pending"


# ---- both at once


def test_no_job_waits_for_a_budget_that_is_being_raised(store: Store) -> None:
    """A child that comes to a halt while its parent's budget is raised elsewhere goes on: one of the two sees it."""
    parent = running(store, enqueue(store, "parent", tokens=100), input_tokens=50)
    child = running(store, enqueue(store, "child", parent), input_tokens=50)
    value = why(store, child)
    assert value is not None
    question = budgets.question(value, child.claim_no)
    halt = Halt()

    def raising(connection: Connection) -> None:
        budgets.raise_(connection, parent.public_id, {"tokens": 200}, now=store.clock.now_ms(), by="ada")
        halt.stand()

    with Store.open(store.url, clock=store.clock) as beside:
        raised = store.write(raising)
        halt.wait_until_reached()
        halting = threading.Thread(
            target=lambda: settled(beside, child, Outcome("review", questions=[question])), daemon=True
        )
        halting.start()
        if store.url.startswith("postgresql"):
            waits = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
            until(
                lambda: not halting.is_alive() or beside.read(lambda c: c.execute(waits).scalar_one()),
                "the settlement",
            )
        halt.release()
        raised.result()
        halting.join(60)
    assert status(store, child) == ["pending"]
    assert store.reviews(child) == []
