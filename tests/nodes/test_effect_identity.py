"""Which calls are the same call: whatever makes a node's body run again, an effect that happened is found again."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import RetryPolicy, interrupt

from everstep import effect
from everstep.checkpoints.store import Store
from everstep.runtime import leg
from tests.support.jobs import PATIENCE, Log, beside, chain, run, work

pytestmark = pytest.mark.both_databases


def test_an_answer_given_while_the_job_runs_repeats_no_effect(store: Store) -> None:
    """A body that runs again within one leg, because its answer came meanwhile, finds its effect again."""
    world: list[str] = []
    answered = threading.Event()

    @effect("charge")
    def charge(order: str) -> str:
        world.append(order)
        return order

    def slow(state: Log) -> Log:
        answer = interrupt("slow?")
        assert answered.wait(PATIENCE)
        return {"log": [answer]}

    def charged(state: Log) -> Log:
        charge("O1")
        return {"log": [interrupt("charged?")]}

    graph = beside(slow, charged)
    job = run(store, graph)
    questions = {review.value: review.public_id for review in store.reviews(job)}
    store.answer(questions["slow?"], "respond", value="a")

    def answer_the_other(event: str, _: Any) -> None:
        if event == "claimed":
            store.answer(questions["charged?"], "respond", value="b")
            answered.set()

    work(store, graph, listener=answer_the_other)
    assert store.job(job.public_id).status == "done"
    assert world == ["O1"]


def test_a_subgraph_that_langgraph_runs_again_repeats_no_effect(store: Store) -> None:
    """LangGraph's retry of a subgraph's node starts it anew; the call it repeats is refused, and a person is asked."""
    world: list[str] = []
    failures = [ConnectionResetError("once")]

    @effect("pay")
    def pay(order: str) -> str:
        world.append(order)
        return order

    def inner(state: Log) -> Log:
        paid = pay("O1")
        if failures:
            raise failures.pop()
        return {"log": [paid]}

    outer = StateGraph(Log)
    policy = RetryPolicy(initial_interval=0.0, jitter=False, retry_on=ConnectionResetError)
    outer.add_node("inner", chain(inner), retry_policy=policy)
    outer.add_edge(START, "inner")
    job = run(store, outer.compile())
    assert (job.status, world) == ("review", ["O1"])
    assert "retry_policy" in (job.error_json or "")


def test_a_call_that_surely_did_not_happen_leaves_its_place_to_the_next(store: Store) -> None:
    """A node that tries again after a refused connection, and is replayed, does not make the refused call as well."""
    world: list[str] = []
    refusals = [ConnectionRefusedError("not yet")]
    failures = [ConnectionResetError("after the call")]

    @effect("pay")
    def pay(order: str) -> str:
        if refusals:
            raise refusals.pop()
        world.append(order)
        return order

    def node(state: Log) -> Log:
        try:
            paid = pay("O1")
        except ConnectionRefusedError:
            paid = pay("O1")
        if failures:
            raise failures.pop()
        return {"log": [paid]}

    job = run(store, chain(node))
    assert job.status == "done"
    assert world == ["O1"]
    assert [effect.state for effect in store.effects(job)] == ["confirmed"]


def test_a_call_that_was_given_up_is_not_made_again_in_the_same_run(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A time limit around an effect leaves it open; the loop cannot call it again before a person has looked."""
    monkeypatch.setattr(leg, "EFFECT_GRACE_S", 0.05)
    world: list[str] = []

    @effect("pay")
    async def pay(order: str) -> str:
        world.append(order)
        await asyncio.Event().wait()
        return order

    async def node(state: Log) -> Log:
        for _ in range(3):
            try:
                await asyncio.wait_for(pay("O1"), 0.05)
            except TimeoutError:
                continue
        return {"log": ["went on"]}

    job = run(store, chain(node))
    assert (job.status, world) == ("review", ["O1"])
    assert [review.kind for review in store.reviews(job)] == ["effect"]


def test_an_effect_around_an_unknown_one_is_not_taken_for_undone(store: Store) -> None:
    """When an effect inside another is unknown, the outer one, which has acted, is unknown too."""
    world: list[str] = []

    @effect("inner")
    def inner() -> str:
        world.append("inner")
        raise RuntimeError("lost")

    @effect("outer")
    def outer() -> str:
        world.append("outer")
        return inner()

    graph = chain(lambda state: {"log": [outer()]})
    job = run(store, graph)
    assert job.status == "review"
    assert {effect.name: effect.state for effect in store.effects(job)} == {"outer": "unknown", "inner": "unknown"}
    for review in store.reviews(job):
        store.answer(review.public_id, "approve", value="happened")
    work(store, graph)
    assert store.job(job.public_id).status == "done"
    assert world == ["outer", "inner"]


def test_an_effect_in_a_graph_that_keeps_its_checkpoints_elsewhere_is_refused(store: Store) -> None:
    """Where a replay could not find an effect again it is not called; a business key makes it safe."""
    world: list[str] = []

    @effect("pay")
    def pay(order: str) -> str:
        world.append(order)
        return order

    @effect("pay", key=lambda order: order)
    def pay_once(order: str) -> str:
        world.append(order)
        return order

    def calling(function: Any) -> Any:
        inner = chain(lambda state: {"log": [function("O1")]}, checkpointer=InMemorySaver())
        return chain(lambda state: {"log": inner.invoke({"log": []}, {"configurable": {"thread_id": "inner"}})["log"]})

    job = run(store, calling(pay))
    assert job.status != "done"
    assert "checkpointer of its own" in (job.error_json or "")
    assert world == []
    store.enqueue("graph", {"log": []}, key="with a business key")
    work(store, calling(pay_once))
    assert world == ["O1"]


def test_a_subgraph_without_checkpoints_runs(store: Store) -> None:
    """A subgraph compiled with `checkpointer=False` runs inside a job, called or as a node."""
    inner = chain(lambda state: {"log": ["inner"]}, checkpointer=False)
    called = run(store, chain(lambda state: {"log": inner.invoke({"log": []})["log"]}))
    assert called.status == "done", called.error_json
    outer = StateGraph(Log)
    outer.add_node("inner", inner)
    outer.add_edge(START, "inner")
    store.enqueue("graph", {"log": ["as a node"]})
    work(store, outer.compile())
    assert {job.status for job in store.jobs()} == {"done"}
