"""What a yes is for: one call with these arguments in this graph, and no other."""

from __future__ import annotations

from typing import Any

import pytest

from everstep import ApprovalRejected, EffectRejected, effect
from everstep.checkpoints.store import Store
from tests.support.approving import paying, say, uses
from tests.support.jobs import Log, beside, chain, result, run, work
from tests.support.questions import asked

pytestmark = pytest.mark.both_databases


def test_other_arguments_are_asked_about_anew(store: Store, world: list[Any]) -> None:
    """A yes is for the arguments that were shown; a node that comes with others asks anew and says why."""
    pay, amounts = paying(world), [7]
    graph = chain(lambda _s: {"log": [pay("ann", amounts[-1])]})
    job = run(store, graph)
    amounts.append(70)
    say(store, "approve")
    work(store, graph)
    assert world == []
    assert asked(store).value["note"] == "asked anew: an earlier answer was given for other arguments (amount)"
    say(store, "approve")
    work(store, graph)
    assert (world, uses(store, job)) == ([("ann", 70)], [("payment.send", "consumed")])


def test_a_yes_to_the_first_arguments_still_counts_when_they_come_back(store: Store, world: list[Any]) -> None:
    """What was approved stays approved, for just that, as long as it was not used."""
    pay, amounts = paying(world), [7]
    graph = chain(lambda _s: {"log": [pay("ann", amounts[-1])]})
    run(store, graph)
    say(store, "approve")
    amounts.append(70)
    work(store, graph)
    amounts.append(7)
    say(store, "reject")
    work(store, graph)
    assert world == [("ann", 7)]


def test_a_graph_that_changed_is_asked_about_anew(store: Store, world: list[Any]) -> None:
    """A yes was given for the graph as it was; once that has another shape, it counts for nothing."""
    pay = paying(world)

    def node(_state: Log) -> Log:
        return {"log": [pay("ann", 7)]}

    job = run(store, chain(node))
    say(store, "approve")
    changed = chain(node, lambda _s: {"log": ["more"]})
    work(store, changed)
    assert asked(store).kind == "fingerprint"
    say(store, "approve")
    work(store, changed)
    assert world == []
    assert asked(store).value["note"] == "asked anew: an earlier answer was given for the graph before it changed"
    say(store, "approve")
    work(store, changed)
    assert (world, result(store, job)) == ([("ann", 7)], ["paid 7 to ann", "more"])


def test_equal_calls_need_a_yes_each(store: Store, world: list[Any]) -> None:
    """The second of two equal calls asks for itself; a no to the first is none to the second."""
    pay = paying(world)

    def node(_state: Log) -> Log:
        log = list[Any]()
        for _ in range(3):
            try:
                log.append(pay("ann", 7))
            except ApprovalRejected:
                log.append("no")
        return {"log": log}

    graph = chain(node)
    job = run(store, graph)
    for decision in ("approve", "reject", "approve"):
        say(store, decision)
        work(store, graph)
    assert result(store, job) == ["paid 7 to ann", "no", "paid 7 to ann"]
    assert uses(store, job) == [("payment.send", "consumed")] * 2


def test_branches_ask_at_the_same_time_and_each_has_its_own_yes(store: Store, world: list[Any]) -> None:
    """Two calls of a fan-out, even equal ones, wait beside one another; each is called after its own answer."""
    pay = paying(world)
    graph = beside(lambda _s: {"log": [pay("ann", 7)]}, lambda _s: {"log": [pay("ann", 7)]})
    job = run(store, graph)
    first, second = store.reviews()
    store.answer(second.public_id, "approve")
    work(store, graph)
    assert (world, [one.public_id for one in store.reviews()]) == ([("ann", 7)], [first.public_id])
    store.answer(first.public_id, "edit", value={"to": "bob", "amount": 7})
    work(store, graph)
    assert world == [("ann", 7), ("bob", 7)]
    assert sorted(result(store, job)) == ["paid 7 to ann", "paid 7 to bob"]


def test_what_surely_did_not_happen_gives_the_yes_back(store: Store, world: list[Any]) -> None:
    """An attempt that the world refused used nothing up: the next attempt at the same call needs no new answer."""
    refusals = [ConnectionRefusedError(), EffectRejected("busy")]

    @effect("payment.send", approval=True)
    def pay(amount: int) -> str:
        if refusals:
            raise refusals.pop()
        world.append(amount)
        return "paid"

    def node(_state: Log) -> Log:
        try:
            return {"log": [pay(7)]}
        except EffectRejected:
            assert uses(store, store.jobs()[0]) == []
            return {"log": [pay(7)]}

    graph = chain(node)
    job = run(store, graph)
    say(store, "approve")
    work(store, graph)
    assert (world, result(store, job), uses(store, job)) == ([7], ["paid"], [("payment.send", "consumed")])


@pytest.mark.parametrize("happened", [True, False])
def test_an_effect_that_may_have_happened_keeps_its_yes_until_a_person_says(
    store: Store, world: list[Any], happened: bool
) -> None:
    """While nobody can say, the yes is reserved; then it is consumed, or serves the same call once more."""

    @effect("payment.send", approval=True)
    def pay(amount: int) -> str:
        world.append(amount)
        if len(world) == 1:
            raise TimeoutError
        return "paid"

    graph = chain(lambda _s: {"log": [pay(7)]})
    job = run(store, graph)
    say(store, "approve")
    work(store, graph)
    assert (asked(store).kind, uses(store, job)) == ("effect", [("payment.send", "reserved")])
    say(store, *(("approve",) if happened else ("reject",)), **({"value": "seen"} if happened else {}))
    assert uses(store, job) == ([("payment.send", "consumed")] if happened else [])
    work(store, graph)
    assert (world, result(store, job)) == (([7], ["seen"]) if happened else ([7, 7], ["paid"]))
    assert uses(store, job) == [("payment.send", "consumed")]


def test_a_probe_is_asked_about_the_edited_arguments(store: Store, world: list[Any]) -> None:
    """What may have happened is what was called: the call as the person edited it."""

    def find(amount: int) -> str | None:
        return f"found {amount}" if amount in world else None

    @effect("payment.send", approval=True, probe=find)
    def pay(amount: int) -> str:
        world.append(amount)
        raise TimeoutError

    graph = chain(lambda _s: {"log": [pay(7)]})
    job = run(store, graph)
    say(store, "edit", value={"amount": 5})
    work(store, graph)
    assert (world, result(store, job), uses(store, job)) == ([5], ["found 5"], [("payment.send", "consumed")])


def test_a_call_again_in_a_graph_that_changed_needs_a_new_yes(store: Store, world: list[Any]) -> None:
    """The provider honours the key, so it could be called again; but for a graph of another shape nobody said so."""

    @effect("payment.send", approval=True, idempotent=True)
    def pay(amount: int) -> str:
        world.append(amount)
        if len(world) == 1:
            raise KeyError
        return "paid"

    def node(_state: Log) -> Log:
        return {"log": [pay(7)]}

    job = run(store, chain(node))
    say(store, "approve")
    work(store, chain(node))
    assert asked(store).kind == "error"
    changed = chain(node, lambda _s: {"log": ["more"]})
    for kind in ("error", "fingerprint"):
        assert asked(store).kind == kind
        say(store, "approve")
        work(store, changed)
    assert "before it changed" in asked(store).value["note"]
    assert (world, uses(store, job)) == ([7], [("payment.send", "reserved")])
    say(store, "approve")
    work(store, changed)
    assert (world, result(store, job)) == ([7, 7], ["paid", "more"])
    assert uses(store, job) == [("payment.send", "consumed")] * 2


def test_a_business_key_does_not_widen_an_approval(store: Store, world: list[Any]) -> None:
    """The key makes it one call a job; the yes is for the arguments all the same."""
    pay, amounts = paying(world, key=lambda to, amount: to), [7]
    graph = chain(lambda _s: {"log": [pay("ann", amounts[-1])]})
    job = run(store, graph)
    say(store, "approve")
    amounts.append(70)
    work(store, graph)
    assert (world, asked(store).value["action_requests"][0]["args"]["amount"]) == ([], 70)
    say(store, "approve")
    work(store, graph)
    assert (world, result(store, job)) == ([("ann", 70)], ["paid 70 to ann"])
