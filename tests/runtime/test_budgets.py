"""Budgets of real graphs run by a real worker: where they stop, what is counted, and how they go on."""

from __future__ import annotations

from typing import Any

import pytest

from everstep import Budget, JobPolicy
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.reviews import Review
from everstep.checkpoints.store import Store
from everstep.errors import ReviewAnswerInvalid
from tests.support.jobs import Log, chain, moves, result, work
from tests.support.models import MeteredModel


def asking(*models: Any, bodies: list[str] | None = None) -> Any:
    """A graph that calls one model in each of its nodes."""

    def node(number: int, model: Any) -> Any:
        def body(_state: Log) -> Log:
            if bodies is not None:
                bodies.append(f"{number}")
            model.invoke("go on?")
            return {"log": [number]}

        return body

    return chain(*(node(number, model) for number, model in enumerate(models)))


def limited(store: Store, *, parent: Job | None = None, key: str | None = None, **limits: Any) -> Job:
    """A job with a budget."""
    policy = JobPolicy(budget=Budget(**limits) if limits else None)
    above = None if parent is None else parent.public_id
    return store.enqueue("graph", {"log": []}, policy=policy, parent=above, key=key).job


def stopped(store: Store, job: Job) -> Review:
    """The review that a job's budget waits for."""
    assert store.job(job.public_id).status == "review"
    (review,) = [found for found in store.reviews(job) if found.status == "open"]
    assert review.kind == "budget"
    return review


def test_a_budget_of_tokens_stops_after_the_step_that_reached_it(store: Store) -> None:
    """The step that reaches the limit is stored, the next does not begin, and the review says why in fixed words."""
    bodies: list[str] = []
    job = limited(store, tokens=150)
    graph = asking(*[MeteredModel()] * 4, bodies=bodies)
    work(store, graph)
    review = stopped(store, job)
    assert bodies == ["0", "1"]
    assert store.job(job.public_id).step == 2
    told = {name: review.value[name] for name in ("code", "job", "limit", "budget", "used", "remaining")}
    assert told == {
        "code": "budget_exceeded",
        "job": job.public_id,
        "limit": "tokens",
        "budget": 150,
        "used": 200,
        "remaining": 0,
    }
    with pytest.raises(ReviewAnswerInvalid, match="still used up: tokens 200 of 150"):
        store.answer(review.public_id, "approve")
    assert stopped(store, job) == review
    store.answer(review.public_id, "approve", value={"tokens": 1000})
    work(store, graph)
    assert result(store, job) == [0, 1, 2, 3]
    assert bodies == ["0", "1", "2", "3"]
    assert store.job(job.public_id).attempts == 1
    assert moves(store, job) == ["pending", "running", "review", "pending", "running", "done"]
