"""An effect that nobody can look at: a person is asked, and no graph goes on past the doubt."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from everstep import effect
from everstep.checkpoints import jobs
from everstep.checkpoints.store import Store
from tests.support.effects import only
from tests.support.jobs import Log, beside, chain, result, run, work
from tests.support.outside import Once

pytestmark = pytest.mark.both_databases


def failing_act(world: list[Any], error: BaseException) -> Any:
    """An effect nobody can look at, that acts and then loses its answer once."""
    timeout = Once(error)

    @effect("world.act")
    def act(text: str) -> str:
        world.append(text)
        timeout()
        return f"did {text}"

    return act


@pytest.mark.parametrize("error", [TimeoutError("no answer"), ConnectionResetError("gone"), RuntimeError("what?")])
def test_what_nobody_can_look_at_is_asked(store: Store, world: list[Any], error: Exception) -> None:
    """An ambiguous error of an effect without a probe goes to review at once, whatever its class would be elsewhere."""
    act = failing_act(world, error)
    job = run(store, chain(lambda _s: {"log": [act("a")]}))
    assert job.status == "review"
    assert world == ["a"]
    (review,) = store.reviews()
    assert review.kind == "effect"
    assert review.value["effect"] == "world.act"
    assert review.value["arguments"] == {"text": "a"}
    assert str(error) in review.value["error"]


@pytest.mark.parametrize("value", ["by hand", None, 0, False, [], {"ref": "abc"}])
def test_a_person_says_that_it_happened(store: Store, world: list[Any], value: Any) -> None:
    """Approved with a value: the node gets exactly that value and nothing is called."""
    act = failing_act(world, TimeoutError("no answer"))
    graph = chain(lambda _s: {"log": [act("a")]})
    job = run(store, graph)
    store.answer(store.reviews()[0].public_id, "approve", value=value)
    work(store, graph)
    (got,) = result(store, job)
    assert got == value
    assert type(got) is type(value)
    assert world == ["a"]
    assert only(store, job).settled_by == "person"


def test_a_person_says_that_it_did_not_happen(store: Store, world: list[Any]) -> None:
    """Rejected: the node calls again, once."""
    act = failing_act(world, TimeoutError("no answer"))
    graph = chain(lambda _s: {"log": [act("a")]})
    job = run(store, graph)
    store.answer(store.reviews()[0].public_id, "reject", reason="I looked")
    work(store, graph)
    assert result(store, job) == ["did a"]
    assert world == ["a", "a"]
    assert only(store, job).calls == 2


def test_several_unknown_effects_are_each_asked_and_answered(store: Store, world: list[Any]) -> None:
    """Two branches in doubt at once are two questions; the job needs both answers, and calls what did not happen."""
    one, two = failing_act(world, TimeoutError("one")), failing_act(world, TimeoutError("two"))
    graph = beside(lambda _s: {"log": [one("one")]}, lambda _s: {"log": [two("two")]})
    job = run(store, graph)
    answers = 0
    while reviews := store.reviews():
        answers += 1
        happened = reviews[0].value["arguments"]["text"] == "one"
        store.answer(reviews[0].public_id, "approve" if happened else "reject", value="seen" if happened else None)
        work(store, graph)
    assert answers == 2
    assert result(store, job) == ["seen", "did two"]
    assert sorted(world) == ["one", "two", "two"]


@pytest.mark.parametrize("declared", [{}, {"idempotent": True}], ids=["blind", "idempotent"])
@pytest.mark.parametrize("caught", [Exception, BaseException])
@pytest.mark.parametrize("again", ["once", "twice"])
def test_a_graph_that_swallows_everything_does_not_go_on_past_an_unknown_effect(
    store: Store, world: list[Any], declared: dict[str, Any], caught: type[BaseException], again: str
) -> None:
    """`except Exception: pass` around an effect, also around a second one, cannot carry the graph past the doubt."""
    timeout = Once(TimeoutError("no answer"))
    later: list[str] = []

    @effect("world.act", **declared)
    def act(text: str) -> str:
        world.append(text)
        timeout()
        return f"did {text}"

    def node(_state: Log) -> Log:
        log = []
        for text in ["a"] if again == "once" else ["a", "b"]:
            try:
                log.append(act(text))
            except caught:
                log.append("swallowed")
        return {"log": log}

    def after(state: Log) -> Log:
        later.append(*state["log"][:1])
        return {"log": ["end"]}

    graph = chain(node, after)
    job = run(store, graph)
    if declared == {}:
        assert job.status == "review"
        assert later == []
        assert world == ["a"]
        store.answer(store.reviews()[0].public_id, "approve", value="did a")
        work(store, graph)
    job = store.job(job.public_id)
    assert result(store, job) == ["did a", *(["did b"] if again == "twice" else []), "end"]
    assert later == ["did a"]
    assert {found.state for found in store.effects(job)} == {"confirmed"}


async def _swallow(act: Callable[[str], Any]) -> str:
    try:
        return await act("a")
    except Exception:
        return "swallowed"


def test_an_async_graph_that_swallows_everything_does_not_go_on_either(store: Store, world: list[Any]) -> None:
    """The same in async nodes, with the last node of the graph doing the swallowing."""
    timeout = Once(TimeoutError("no answer"))

    @effect("world.act")
    async def act(text: str) -> str:
        world.append(text)
        timeout()
        return text

    async def node(_state: Log) -> Log:
        return {"log": [await _swallow(act)]}

    job = run(store, chain(node))
    assert job.status == "review"
    assert store.reviews()[0].kind == "effect"


def test_a_result_that_cannot_be_stored_makes_the_effect_unknown(store: Store, world: list[Any]) -> None:
    """It happened, but its result cannot be replayed: a person gives one that can, and nothing is called again."""

    @effect("world.act")
    def act() -> Any:
        world.append(1)
        return threading.Lock()

    graph = chain(lambda _s: {"log": [act()]})
    job = run(store, graph)
    assert job.status == "review"
    store.answer(store.reviews()[0].public_id, "approve", value="ref")
    work(store, graph)
    assert result(store, job) == ["ref"]
    assert world == [1]


@pytest.mark.parametrize("found", [None, "probed"], ids=["probe: no", "probe: yes"])
@pytest.mark.parametrize("said", ["approve", "reject"])
def test_a_person_may_answer_while_the_probe_looks(
    store: Store, world: list[Any], found: str | None, said: str
) -> None:
    """What a person says while an effect is looked up is heard; if either saw it happen, it is not called again."""
    lost = Once(TimeoutError("lost"))
    answers = False

    def probe() -> str | None:
        if not answers:
            raise TimeoutError("cannot look")
        (asked,) = store.reviews()
        store.answer(asked.public_id, said, **({"value": "said"} if said == "approve" else {}))
        return found

    @effect("push", probe=probe)
    def push() -> str:
        world.append("push")
        lost()
        return "pushed"

    graph = chain(lambda _s: {"log": [push()]})
    store.enqueue("graph", {"log": []}, max_attempts=1)
    work(store, graph)
    (job,) = store.jobs()
    assert job.status == "review"
    store.write(  # what leaves a question open while its job runs: another question of the job was answered
        lambda c: jobs.transition(c, job, "pending", now=store.clock.now_ms(), actor="test", reason="goes on")
    ).result()
    answers = True
    work(store, graph)
    happened = {("approve", None): "said", ("approve", "probed"): "said", ("reject", "probed"): "probed"}
    assert result(store, job) == [happened.get((said, found), "pushed")]
    assert world == ["push"] * (2 if (said, found) == ("reject", None) else 1)
    assert [review.status for review in store.reviews(job)] == ["answered"]
