"""Budgets of real graphs run by a real worker: where they stop, what is counted, and how they go on."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from langgraph.types import interrupt

from everstep import Budget, JobPolicy, current_job, effect
from everstep import crash as crash_points
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.reviews import Review
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock
from everstep.errors import ReviewAnswerInvalid
from everstep.graphs.policies import Policies
from everstep.runtime import spending
from everstep.runtime.spending import BEAT_MS
from everstep.runtime.worker import Worker
from tests.support.jobs import Log, chain, moves, result, work
from tests.support.models import MeteredModel
from tests.support.outside import note
from tests.support.record import CONTEXT
from tests.support.waiting import PATIENCE, Halt, until

PRICES = Policies.model_validate({"prices": {"metered-1": {"input": 100.0, "output": 1000.0}}})
"""A call of 80 and 20 tokens costs 28,000 millionths of a dollar."""


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


def in_thread(target: Any) -> threading.Thread:
    """A thread that runs it."""
    thread = threading.Thread(target=target)
    thread.start()
    return thread


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


# ---- where it stops


def test_the_step_that_finishes_may_be_the_last_that_is_allowed(store: Store) -> None:
    """A job whose graph finishes with the very step that reaches its limits is done."""
    job = limited(store, tokens=200, steps=2)
    work(store, asking(*[MeteredModel()] * 2))
    assert result(store, job) == [0, 1]
    assert store.reviews(job) == []


def test_a_budget_of_steps_allows_that_many(store: Store) -> None:
    """With a budget of three steps exactly three nodes run."""
    bodies: list[str] = []
    job = limited(store, steps=3)
    work(store, asking(*[MeteredModel()] * 5, bodies=bodies))
    assert (stopped(store, job).value["used"], bodies) == (3, ["0", "1", "2"])


def test_a_budget_of_seconds_counts_running_only(store: Store, clock: ManualClock) -> None:
    """Time under a claim counts, over legs; time in review, and a clock that is set back, do not."""

    def lasting(seconds: int) -> Any:
        def body(_state: Log) -> Log:
            clock.advance(seconds * 1000)
            return {"log": [seconds]}

        return body

    def asks(_state: Log) -> Log:
        return {"log": [interrupt("go on?")]}

    job = limited(store, seconds=100)
    graph = chain(lasting(30), lasting(-20), asks, lasting(69), lasting(1), lasting(5), lasting(5))
    work(store, graph)
    assert store.job(job.public_id).run_ms == 30_000
    clock.advance(3_600_000)
    (review,) = store.reviews(job)
    store.answer(review.public_id, "approve", value="yes")
    work(store, graph)
    assert stopped(store, job).value["used"] == 100
    store.set_budget(job.public_id, {"seconds": 200})
    work(store, graph)
    assert result(store, job) == [30, -20, "yes", 69, 1, 5, 5]
    assert store.job(job.public_id).run_ms == 110_000


def test_nothing_runs_of_a_job_whose_budget_is_used_up(store: Store) -> None:
    """A budget that is used up before a start stops the job there, with the ancestor named whose budget it is."""
    bodies: list[str] = []
    parent = limited(store, tokens=100)
    graph = asking(MeteredModel(), MeteredModel(), bodies=bodies)
    work(store, graph)
    stopped(store, parent)
    child = limited(store, parent=parent, key="child")
    work(store, graph)
    assert bodies == ["0"]
    assert stopped(store, child).value["job"] == parent.public_id
    assert store.job(child.public_id).input_applied == 0
    store.set_budget(parent.public_id, {"tokens": 1000})
    work(store, graph)
    assert (result(store, parent), result(store, child)) == ([0, 1], [0, 1])
    assert store.accounts([parent])[parent.id].used.tokens == 400


def test_a_question_is_asked_before_the_budget(store: Store) -> None:
    """A job that waits for an answer asks for that; answered, it stops for its budget and keeps the answer."""
    model = MeteredModel()

    def asks(_state: Log) -> Log:
        model.invoke("x")
        return {"log": [interrupt("how many?")]}

    job = limited(store, tokens=150)
    graph = chain(asks, lambda _state: {"log": ["end"]})
    work(store, graph)
    (asked,) = store.reviews(job)
    assert asked.kind == "interrupt"
    store.set_budget(job.public_id, {"tokens": 100})
    store.answer(asked.public_id, "respond", value=7)
    work(store, graph)
    store.answer(stopped(store, job).public_id, "approve", value={"tokens": 1000})
    work(store, graph)
    assert result(store, job) == [7, "end"]


def test_a_budget_stops_inside_a_subgraph(store: Store) -> None:
    """An agent that is one node of a graph is stopped between its own steps, and goes on there."""
    bodies: list[str] = []
    inner = asking(*[MeteredModel()] * 3, bodies=bodies)
    job = limited(store, tokens=150)
    graph = chain(inner, lambda _state: {"log": ["end"]})
    work(store, graph)
    assert (stopped(store, job).value["used"], bodies) == (200, ["0", "1"])
    store.set_budget(job.public_id, {"tokens": 1000})
    work(store, graph)
    assert result(store, job)[-4:] == [0, 1, 2, "end"]
    assert bodies == ["0", "1", "2"]


def test_a_limit_that_is_set_while_the_job_runs_holds_at_its_next_step(store: Store) -> None:
    """A person who limits a running job that had no budget need not wait for its end."""
    halt = Halt()

    def stands(_state: Log) -> Log:
        halt.stand()
        return {"log": ["first"]}

    job = limited(store)
    at_work = in_thread(lambda: work(store, chain(stands, lambda _state: {"log": ["second"]})))
    halt.wait_until_reached()
    store.set_budget(job.public_id, {"steps": 1})
    halt.release()
    at_work.join(PATIENCE)
    assert stopped(store, job).value["used"] == 1


# ---- parents and children


def test_a_child_that_a_node_enqueues_shares_the_budget(store: Store) -> None:
    """What a child uses stops its parent at its next step; raising the parent's budget lets both go on."""
    bodies: list[str] = []
    model = MeteredModel()

    @effect("children.enqueue")
    def delegate(name: str) -> str:
        return store.enqueue("child", {"log": [name]}, parent=current_job()).job.public_id

    def delegates(_state: Log) -> Log:
        delegate("a")
        return {"log": ["delegated"]}

    def waits(_state: Log) -> Log:
        (child,) = [job for job in store.jobs() if job.graph == "child"]
        until(lambda: store.job(child.public_id).status == "review", "the child's stop")
        return {"log": ["waited"]}

    graphs = {
        "graph": chain(delegates, waits, lambda _state: {"log": ["end"]}),
        "child": asking(*[model] * 3, bodies=bodies),
    }
    assert current_job() is None
    parent = limited(store, tokens=150)
    Worker(store, graphs).run(until_idle=True)
    (child,) = [job for job in store.jobs() if job.graph == "child"]
    assert child.parent_id == parent.id
    assert (stopped(store, parent).value["used"], stopped(store, child).value["used"]) == (200, 200)
    assert stopped(store, child).value["job"] == parent.public_id
    assert bodies == ["0", "1"]
    _, answered = store.set_budget(parent.public_id, {"tokens": 1000})
    assert len(answered) == 2
    Worker(store, graphs).run(until_idle=True)
    assert result(store, parent) == ["delegated", "waited", "end"]
    assert result(store, child) == ["a", 0, 1, 2]
    assert bodies == ["0", "1", "2"]


# ---- what is counted


def test_a_node_that_fails_has_used_what_it_used(store: Store) -> None:
    """Tokens of attempts that failed count, and stop the job before it tries again."""
    model = MeteredModel()
    bodies: list[str] = []

    def fails(_state: Log) -> Log:
        bodies.append("x")
        model.invoke("x")
        raise ConnectionError("gone")

    job = limited(store, tokens=150)
    work(store, chain(fails))
    assert (stopped(store, job).value["used"], len(bodies)) == (200, 2)
    assert store.job(job.public_id).run_ms == 0, "the backoff is no time of running"


def test_what_was_used_until_a_cancellation_counts(store: Store, clock: ManualClock) -> None:
    """A leg that ends without a last write has its time and tokens counted when it is settled."""
    entered = threading.Event()

    async def stands(_state: Log) -> Log:
        MeteredModel().invoke("x")
        until(lambda: store.job(job.public_id).input_tokens == 80, "the count of the call")
        clock.advance(BEAT_MS - 1)
        entered.set()
        await asyncio.sleep(PATIENCE)
        return {"log": ["late"]}

    job = limited(store)
    at_work = in_thread(lambda: work(store, chain(stands), lease=0.3))
    assert entered.wait(PATIENCE)
    store.cancel(job.public_id)
    at_work.join(PATIENCE)
    ended = store.job(job.public_id)
    assert (ended.status, ended.run_ms, ended.input_tokens) == ("failed", BEAT_MS - 1, 80)


def test_the_cost_that_a_provider_tells_is_taken(store: Store) -> None:
    """A cost in the answer's usage counts, also against prices that say otherwise."""
    told = {"token_usage": {"cost": 0.25}}
    job = limited(store, cost=0.5)
    work(store, asking(*[MeteredModel(told=told)] * 4), policies=PRICES)
    assert stopped(store, job).value["used"] == 0.5
    assert store.job(job.public_id).cost_micros == 500_000


def test_prices_make_the_cost_that_nobody_tells(store: Store) -> None:
    """Tokens times the model's price, also of a job without a budget."""
    job = limited(store)
    work(store, asking(*[MeteredModel()] * 2), policies=PRICES)
    assert store.job(job.public_id).cost_micros == 56_000


def test_a_cost_budget_without_a_price(store: Store) -> None:
    """A model without a price stops the job after its first step; what follows waits for a price, which counts both."""
    bodies: list[str] = []
    job = limited(store, cost=0.06)
    graph = asking(*[MeteredModel()] * 3, bodies=bodies)
    work(store, graph)
    review = stopped(store, job)
    assert (review.value["code"], review.value["limit"], bodies) == ("price_unknown", "cost", ["0"])
    assert review.value["models"] == {"metered-1": {"calls": 1, "input_tokens": 80, "output_tokens": 20}}
    store.answer(review.public_id, "approve")
    work(store, graph)
    again = stopped(store, job)
    assert (again.value["code"], bodies) == ("price_unknown", ["0"])
    assert again.public_id != review.public_id
    store.answer(again.public_id, "approve")
    work(store, graph, policies=PRICES)
    assert result(store, job) == [0, 1, 2]
    assert store.job(job.public_id).cost_micros == 84_000
    assert [row["kind"] for row in store.evidence(job)] == ["priced"]


def test_calls_that_were_priced_later_may_use_the_budget_up(store: Store) -> None:
    """Once their price is known, the calls made before it stop the job that they bring over its limit."""
    bodies: list[str] = []
    job = limited(store, cost=0.02)
    graph = asking(*[MeteredModel()] * 3, bodies=bodies)
    work(store, graph)
    store.answer(stopped(store, job).public_id, "approve")
    work(store, graph, policies=PRICES)
    assert (stopped(store, job).value["code"], stopped(store, job).value["used"]) == ("budget_exceeded", 0.028)
    assert bodies == ["0"]


def test_a_model_that_tells_no_usage_under_a_token_budget(store: Store) -> None:
    """It stops the job after each step in which it was called, since its tokens would count as nothing."""
    job = limited(store, tokens=1000)
    graph = asking(MeteredModel(tokens=None), MeteredModel())
    work(store, graph)
    review = stopped(store, job)
    assert (review.value["code"], review.value["models"]) == ("usage_unknown", ["metered-1"])
    store.answer(review.public_id, "approve")
    work(store, graph)
    assert result(store, job) == [0, 1]


# ---- crashes


def _counted(url: str, bodies: str, crash_at: str | None) -> None:
    crash_points.arm(crash_at)
    spending.BEAT_MS = 10**9  # no heartbeat helps
    with Store.open(url) as store:
        Worker(store, {"graph": counting(store, bodies)}).run(until_idle=True)


def counting(store: Store, bodies: str) -> Any:
    """Four nodes that note each model call outside of the record; the third is killed after its first call, once."""
    model = MeteredModel()

    def node(number: int) -> Any:
        def body(_state: Log) -> Log:
            model.invoke("x")
            note(bodies, f"{number}")
            calls = Path(bodies).read_text().split()
            if number == 2 and calls.count("2") == 1:
                until(lambda: store.jobs()[0].input_tokens == 80 * len(calls), "the count of the call")
                os.kill(os.getpid(), signal.SIGKILL)
            return {"log": [number]}

        return body

    return chain(*(node(number) for number in range(4)))


@pytest.mark.both_databases
def test_use_is_right_after_kills(shared: Store, tmp_path: Path) -> None:
    """Killed at step boundaries and in the middle of a node, a job has used what was called, and stops by that."""
    bodies = str(tmp_path / "bodies")
    job = limited(shared, tokens=350, seconds=1000)
    waited_ms: list[int] = []
    for crash_at in ("checkpoint.after_put@3", "writes.after_put@1", "nowhere", "nowhere"):
        process = CONTEXT.Process(target=_counted, args=(shared.url, bodies, crash_at))
        process.start()
        process.join(PATIENCE)
        current = shared.job(job.public_id)
        assert current.input_tokens + current.output_tokens == 100 * len(Path(bodies).read_text().split())
        waited_ms.append(current.run_ms)
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
    assert len(waited_ms) == 4, "three were killed, the fourth was not"
    assert waited_ms == sorted(waited_ms)
    assert waited_ms[0] > 0
    review = stopped(shared, job)
    assert (review.value["limit"], review.value["used"]) == ("tokens", 400)
    shared.answer(review.public_id, "approve", value={"tokens": 10_000})
    work(shared, counting(shared, bodies))
    assert result(shared, job) == [0, 1, 2, 3]
    calls = Path(bodies).read_text().split()
    assert shared.accounts([job])[job.id].used.tokens == 100 * len(calls)


def test_a_long_node_is_counted_while_it_runs(store: Store, clock: ManualClock) -> None:
    """At heartbeats ten seconds after the last note, the record learns how long a node runs already."""
    halt = Halt()

    def stands(_state: Log) -> Log:
        halt.stand()
        return {"log": ["end"]}

    job = limited(store)
    at_work = in_thread(lambda: work(store, chain(stands), lease=0.3))
    halt.wait_until_reached()
    clock.advance(BEAT_MS)
    until(lambda: store.job(job.public_id).run_ms == BEAT_MS, "the note")
    halt.release()
    at_work.join(PATIENCE)
    assert result(store, job) == ["end"]
