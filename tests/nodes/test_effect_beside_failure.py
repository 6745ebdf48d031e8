"""Effects under way while their job fails beside them: they go on to their end, and none begins a second time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from everstep import effect
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.store import Store
from everstep.runtime import leg
from everstep.runtime.leg import Leg
from tests.support.effects import add_async, states
from tests.support.jobs import Log, beside, chain, result, run
from tests.support.outside import Once
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.both_databases


@pytest.mark.parametrize("declared", [{}, {"probe": True}])
def test_a_leg_that_failed_waits_for_the_effects_beside_it(
    store: Store, world: list[Any], declared: dict[str, Any]
) -> None:
    """While a branch is in an effect in its thread, a branch that failed does not let the next leg begin."""
    entered, failed_once, go = threading.Event(), Once(ConnectionError("beside")), threading.Event()
    beats: list[str] = []

    @effect("slow", probe=(lambda: "found" if world else None) if declared else None)
    def slow() -> str:
        entered.set()
        assert go.wait(PATIENCE)
        world.append(1)
        return "done"

    def failing(_state: Log) -> Log:
        assert entered.wait(PATIENCE)
        threading.Timer(0.3, go.set).start()
        failed_once()
        return {"log": ["other"]}

    def listener(event: str, _job: Job) -> None:
        beats.append(f"{event} {len(world)}")

    job = run(store, beside(lambda _s: {"log": [slow()]}, failing), listener=listener)
    assert result(store, job) == ["done", "other"]
    assert world == [1]
    assert beats == ["claimed 0", "retry 1", "claimed 1", "done 1"]
    assert states(store, job) == [("slow", "confirmed", 1)]


async def _released(world: list[Any], go: asyncio.Event, text: str) -> str:
    """What an effect does that takes as long as `go` says."""
    await go.wait()
    world.append(text)
    return text


async def _in_thread(world: list[Any], go: asyncio.Event, text: str) -> str:
    """The same with its work in a thread, which no cancellation reaches."""
    loop = asyncio.get_running_loop()
    return await asyncio.to_thread(lambda: asyncio.run_coroutine_threadsafe(_released(world, go, text), loop).result())


def cut_off(call: Callable[[], Awaitable[str]], entered: asyncio.Event, go: asyncio.Event) -> Any:
    """A graph whose one node fails once `call` was entered: its caller is cancelled, and soon it may go on."""
    fail = Once(ConnectionError("beside"))

    async def acting(_state: Log) -> Log:
        try:
            return {"log": [await call()]}
        finally:
            asyncio.get_running_loop().call_later(0.05, go.set)

    async def failing(_state: Log) -> Log:
        await entered.wait()
        fail()
        return {"log": ["other"]}

    return beside(acting, failing)


@pytest.mark.parametrize("call", [_released, _in_thread], ids=["awaits", "thread"])
@pytest.mark.parametrize("probed", [False, True], ids=["no probe", "probe"])
def test_an_async_effect_beside_a_failing_node_goes_on_to_its_end(
    store: Store, world: list[Any], call: Any, probed: bool
) -> None:
    """A branch that fails cancels its siblings; an effect under way there is waited for, never begun a second time."""
    entered, go = asyncio.Event(), asyncio.Event()
    happened_at: list[str] = []

    @effect("slow", probe=(lambda: "slow" if world else None) if probed else None)
    async def slow() -> str:
        entered.set()
        return await call(world, go, "slow")

    job = run(store, cut_off(slow, entered, go), listener=lambda event, _: happened_at.append(f"{event} {len(world)}"))
    assert result(store, job) == ["slow", "other"]
    assert world == ["slow"]
    assert happened_at == ["claimed 0", "retry 1", "claimed 1", "done 1"]
    assert store.events(job)[2]["reason"].startswith("ConnectionError:")
    assert states(store, job) == [("slow", "confirmed", 1)]


def test_what_an_effect_left_in_a_thread_is_waited_for(
    store: Store, world: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that does not end in time is cancelled; the thread it waits for is not, and ends before anyone looks."""
    monkeypatch.setattr(leg, "EFFECT_GRACE_S", 0.05)
    entered, go, fail = asyncio.Event(), threading.Event(), Once(ConnectionError("beside"))

    def body() -> str:
        assert go.wait(PATIENCE)
        world.append("slow")
        return "slow"

    @effect("slow", probe=lambda: "found" if world else None)
    async def slow() -> str:
        entered.set()
        try:
            return await asyncio.to_thread(body)
        finally:
            asyncio.get_running_loop().call_later(0.05, go.set)

    async def acting(_state: Log) -> Log:
        return {"log": [await slow()]}

    async def failing(_state: Log) -> Log:
        await entered.wait()
        fail()
        return {"log": ["other"]}

    job = run(store, beside(acting, failing))
    assert result(store, job) == ["found", "other"]
    assert world == ["slow"]
    assert states(store, job) == [("slow", "confirmed", 1)]


def test_a_time_limit_of_the_node_does_not_hide_what_its_effect_did(store: Store, world: list[Any]) -> None:
    """A node that gives an effect up and goes on is stopped: the effect ends, and the next run gets its result."""
    go = asyncio.Event()

    @effect("slow")
    async def slow() -> str:
        return await _released(world, go, "slow")

    async def node(_state: Log) -> Log:
        try:
            async with asyncio.timeout(PATIENCE if go.is_set() else 0.01):  # only the first run is cut off
                return {"log": [await slow()]}
        except TimeoutError:
            go.set()
            return {"log": ["gave up"]}

    job = run(store, chain(node, lambda _s: {"log": ["after"]}))
    assert result(store, job) == ["slow", "after"]
    assert world == ["slow"]
    assert states(store, job) == [("slow", "confirmed", 1)]


def test_an_effect_inside_one_that_its_caller_gave_up_is_still_called(store: Store, world: list[Any]) -> None:
    """What goes on to its end goes on whole: the effects it consists of are not refused in its middle."""
    entered, go = asyncio.Event(), asyncio.Event()

    @effect("inner")
    async def inner() -> str:
        return await add_async(world, "inner")

    @effect("outer")
    async def outer() -> str:
        entered.set()
        await go.wait()
        return f"outer of {await inner()}"

    job = run(store, cut_off(outer, entered, go))
    assert result(store, job) == ["outer of inner", "other"]
    assert world == ["inner"]


def test_no_effect_begins_in_a_thread_whose_run_is_over(
    store: Store, world: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sync branch that lives on in its thread begins no effect between the end of its run and its settlement."""
    fail, begun, over, tried, settled = Once(ConnectionError("beside")), *(threading.Event() for _ in range(4))
    settled_as = Leg.outcome

    def outcome(of: Leg) -> Any:
        """The last thing before the settlement is written."""
        over.set()
        assert tried.wait(PATIENCE)
        return settled_as(of)

    @effect("late")
    def late() -> str:
        tried.set()
        assert settled.wait(PATIENCE)
        world.append("late")
        return "late"

    def lingering(_state: Log) -> Log:
        begun.set()
        assert tried.is_set() or over.wait(PATIENCE)
        try:
            return {"log": [late()]}
        finally:
            tried.set()

    async def failing(_state: Log) -> Log:
        await asyncio.to_thread(begun.wait, PATIENCE)
        fail()
        return {"log": ["other"]}

    monkeypatch.setattr(Leg, "outcome", outcome)
    job = run(store, beside(lingering, failing), listener=lambda event, _: settled.set() if event == "retry" else None)
    assert result(store, job) == ["late", "other"]
    assert states(store, job) == [("late", "confirmed", 1)]
    assert world == ["late"]
