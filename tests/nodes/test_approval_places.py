"""Where an effect asks for its approval: beside questions of its node, in subgraphs, threads, async, without a job."""

from __future__ import annotations

import asyncio
import functools
import threading
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, RetryPolicy, interrupt

from everstep import ApprovalRejected, effect, review
from everstep.checkpoints.store import Store
from everstep.errors import EffectInvalid, ReviewAnswered
from tests.support.approving import paying, say
from tests.support.jobs import Log, beside, chain, result, run, work
from tests.support.questions import asked

pytestmark = pytest.mark.both_databases


def test_questions_of_the_node_and_of_its_effects_do_not_mix(store: Store, world: list[Any]) -> None:
    """`review` and `interrupt` before, between and after such effects each get their own answer."""
    pay = paying(world)

    def node(_state: Log) -> Log:
        log: list[Any] = [review("first?").type, pay("ann", 1), interrupt("second?"), pay("bob", 2)]
        return {"log": [*log, review("third?").type]}

    graph = chain(node)
    job = run(store, graph)
    for decision, more in (
        ("reject", {}),
        ("approve", {}),
        ("respond", {"value": "two"}),
        ("approve", {}),
        ("reject", {}),
    ):
        say(store, decision, **more)
        work(store, graph)
    assert result(store, job) == ["reject", "paid 1 to ann", "two", "paid 2 to bob", "reject"]
    assert world == [("ann", 1), ("bob", 2)]


def test_it_works_in_a_subgraph_and_behind_a_retry_policy(store: Store, world: list[Any]) -> None:
    """LangGraph tries the node again by itself: the same call uses its own yes, once."""
    failures = [ConnectionResetError()]

    @effect("payment.send", approval=True)
    def pay(amount: int) -> str:
        world.append(amount)
        return "paid"

    def node(_state: Log) -> Log:
        log = [pay(7), pay(7)]
        if failures:
            raise failures.pop()
        return {"log": log}

    policy = RetryPolicy(initial_interval=0.01, jitter=False)
    graph = chain(chain(node, node_options={"retry_policy": policy}))
    job = run(store, graph)
    for _ in range(2):
        say(store, "approve")
        work(store, graph)
    assert (world, result(store, job)) == ([7, 7], ["paid", "paid"])
    assert not failures


@pytest.mark.parametrize("together", [False, True])
def test_async_effects_ask_as_well(store: Store, world: list[Any], together: bool) -> None:
    """One after the other or at once in one node: each call has its own yes."""

    @effect("payment.send", approval=True)
    async def pay(amount: int) -> str:
        world.append(amount)
        await asyncio.sleep(0)
        return f"paid {amount}"

    async def node(_state: Log) -> Log:
        if together:
            return {"log": list(await asyncio.gather(pay(1), pay(2)))}
        return {"log": [await pay(1), await pay(2)]}

    graph = chain(node)
    job = run(store, graph)
    for _ in range(2):
        say(store, "approve")
        work(store, graph)
    assert (sorted(world), result(store, job)) == ([1, 2], ["paid 1", "paid 2"])


def test_inside_another_effect_nothing_can_be_asked(store: Store, world: list[Any]) -> None:
    """The outer effect would be called again for the answer: that is refused before the inner one is called."""
    pay = paying(world)

    @effect("order.close")
    def close() -> str:
        return pay("ann", 7)

    job = run(store, chain(lambda _s: {"log": [close()]}))
    assert world == []
    assert store.job(job.public_id).status == "review"
    assert any(
        "inside another effect" in text for text in [asked(store).value_json, store.job(job.public_id).error_json or ""]
    )


def test_the_question_may_be_worded_by_a_function_or_a_text(store: Store, world: list[Any]) -> None:
    """True asks by the effect's name; a text is asked as it is."""
    for number, (wording, text) in enumerate(
        ((True, "Let it happen?"), ("Really?", "Really?"), (lambda: "Now?", "Now?"))
    ):
        do = effect("it", approval=wording)(functools.partial(world.append, 1))
        job = run(store, chain(lambda _s, do=do: {"log": [do()]}), {"log": [number]})
        (row,) = store.reviews(job)
        assert row.value["action_requests"][0]["description"] == text
    assert world == []


def test_without_a_job_it_asks_as_langgraph_does(world: list[Any]) -> None:
    """In a graph that runs by itself an interrupt asks; a call by hand is the person's own."""
    pay = paying(world)
    graph = chain(lambda _s: {"log": [pay("ann", 7)]}, checkpointer=InMemorySaver())
    thread: Any = {"configurable": {"thread_id": "1"}}
    (asks,) = graph.invoke({"log": []}, thread)["__interrupt__"]
    assert asks.value["action_requests"][0]["args"] == {"to": "ann", "amount": 7}
    assert world == []
    edit = {"type": "edit", "edited_action": {"name": "payment.send", "args": {"to": "bob", "amount": 7}}}
    assert graph.invoke(Command(resume={"decisions": [edit]}), thread)["log"] == ["paid 7 to bob"]
    assert pay("eve", 1) == "paid 1 to eve"
    thread["configurable"]["thread_id"] = "2"
    graph.invoke({"log": []}, thread)
    with pytest.raises(ApprovalRejected):
        graph.invoke(Command(resume={"type": "reject"}), thread)
    assert world == [("bob", 7), ("eve", 1)]


def test_a_thread_of_its_own_does_not_get_around_the_question(store: Store, world: list[Any]) -> None:
    """Where jobs run, a call that nothing ties to its job is refused rather than made."""
    pay, errors = paying(world), list[Any]()

    def call() -> None:
        try:
            pay("ann", 7)
        except EffectInvalid as error:
            errors.append(error)

    def node(_state: Log) -> Log:
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        return {"log": ["over"]}

    job = run(store, chain(node))
    assert (world, len(errors), result(store, job)) == ([], 1, ["over"])


def test_a_question_that_is_no_longer_asked_is_closed(store: Store, world: list[Any]) -> None:
    """A branch that comes with other arguments, run again for another's answer, leaves no stale question open."""
    pay, amounts = paying(world), [7]
    graph = beside(lambda _s: {"log": [pay("ann", amounts[-1])]}, lambda _s: {"log": [review("beside?").type]})
    job = run(store, graph)
    stale = next(one for one in store.reviews() if "approval" in one.value)
    amounts.append(70)
    store.answer(next(one for one in store.reviews() if one != stale).public_id, "approve")
    work(store, graph)
    assert asked(store).value["action_requests"][0]["args"]["amount"] == 70
    with pytest.raises(ReviewAnswered, match="asks something else now"):
        store.answer(stale.public_id, "approve")
    say(store, "approve")
    amounts.append(7)  # asked about once more: the same question, open again
    work(store, graph)
    assert (asked(store).public_id, world) == (stale.public_id, [])
    say(store, "approve")
    work(store, graph)
    assert (world, store.job(job.public_id).status) == ([("ann", 7)], "done")
