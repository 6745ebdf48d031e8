"""`effect` in real graphs run by a real worker: nothing happens twice, however a node calls it."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.types import RetryPolicy, Send, interrupt

from everstep import EffectRejected, effect, effect_key
from everstep.checkpoints.store import Store
from tests.support.effects import add_async, only, states
from tests.support.jobs import Log, chain, result, run, work
from tests.support.outside import Once

pytestmark = pytest.mark.both_databases


# ---- replay


def test_a_confirmed_effect_is_not_called_on_replay(store: Store, world: list[Any]) -> None:
    """A node that failed after its effect runs again, and gets the stored result without a call."""
    fail = Once(ConnectionError("later"))

    @effect("world.act")
    def act(text: str) -> dict[str, Any]:
        world.append(text)
        return {"done": text, "number": len(world)}

    def node(_state: Log) -> Log:
        done = act("a")
        fail()
        return {"log": [done]}

    job = run(store, chain(node))
    assert result(store, job) == [{"done": "a", "number": 1}]
    assert world == ["a"]
    assert job.attempts == 2
    assert states(store, job) == [("world.act", "confirmed", 1)]


def test_the_first_call_returns_what_a_replay_would(store: Store, world: list[Any]) -> None:
    """A result that the record keeps as something else (a tuple as a list) is returned like that the first time too."""
    fail = Once(ConnectionError("later"))
    seen: list[Any] = []

    @effect("world.act")
    def act() -> Any:
        world.append(1)
        return {"pair": (1, 2)}

    def node(_state: Log) -> Log:
        seen.append(act())
        fail()
        return {"log": []}

    run(store, chain(node))
    assert seen == [{"pair": [1, 2]}] * 2
    assert world == [1]


def test_a_nodes_retry_policy_runs_its_body_again_without_its_effects(store: Store, world: list[Any]) -> None:
    """LangGraph's own retry of a node finds confirmed effects confirmed, and calls rejected ones again."""
    fail = Once(RuntimeError("again"), times=2)
    reject = Once(EffectRejected("busy"))

    @effect("world.act")
    def act(text: str) -> str:
        if text == "rejected once":
            reject()
        world.append(text)
        return text

    def node(_state: Log) -> Log:
        log = [act("a"), act("a"), act("rejected once")]
        fail()
        return {"log": log}

    policy = RetryPolicy(max_attempts=5, initial_interval=0.0, jitter=False, retry_on=Exception)
    job = run(store, chain(node, node_options={"retry_policy": policy}))
    assert result(store, job) == ["a", "a", "rejected once"]
    assert world == ["a", "a", "rejected once"]
    assert job.attempts == 1
    assert [calls for _, _, calls in states(store, job)] == [1, 1, 2]


def test_equal_calls_in_a_loop_are_each_done_once(store: Store, world: list[Any]) -> None:
    """The same call in each round of a loop, and twice in a node, is as many effects; a replay does none again."""
    fail = Once(ConnectionError("later"))

    @effect("world.act")
    def act(text: str) -> int:
        world.append(text)
        return len(world)

    def node(state: Log) -> Log:
        log = [act("same"), act("same")]
        if len(state["log"]) == 4:
            fail()
        return {"log": log}

    builder = StateGraph(Log)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    builder.add_conditional_edges("node", lambda state: "node" if len(state["log"]) < 6 else "__end__")
    job = run(store, builder.compile())
    assert result(store, job) == [1, 2, 3, 4, 5, 6]
    assert len(world) == 6


def test_equal_calls_in_parallel_branches_are_each_done_once(store: Store, world: list[Any]) -> None:
    """Branches, and tasks sent to one node, that make the same call at the same time have an effect each."""
    fail = Once(ConnectionError("later"))

    @effect("world.act")
    def act(text: str) -> str:
        world.append(text)
        return text

    def branch(_state: Log) -> Log:
        return {"log": [act("same")]}

    def failing(_state: Log) -> Log:
        done = act("same")
        fail()
        return {"log": [done]}

    builder = StateGraph(Log)
    for name, node in (("left", branch), ("right", failing)):
        builder.add_node(name, node)
        builder.add_edge(START, name)
    builder.add_node("sent", branch)
    builder.add_conditional_edges("left", lambda _state: [Send("sent", {}), Send("sent", {})], ["sent"])
    job = run(store, builder.compile())
    assert result(store, job) == ["same"] * 4
    assert world == ["same"] * 4
    assert {state for _, state, _ in states(store, job)} == {"confirmed"}


def test_async_effects_in_async_nodes(store: Store, world: list[Any]) -> None:
    """Async effects, one after another and gathered, sync ones in async nodes: each once, each with its own result."""
    fail = Once(ConnectionError("later"))

    @effect("world.act")
    async def act(text: str) -> str:
        return await add_async(world, text)

    @effect("world.act_sync")
    def act_sync(text: str) -> str:
        world.append(text)
        return text

    async def node(_state: Log) -> Log:
        first = await act("a")
        gathered = await asyncio.gather(act("b"), act("c"), act("b"))
        last = act_sync("d")
        fail()
        return {"log": [first, *gathered, last]}

    job = run(store, chain(node))
    assert result(store, job) == ["a", "b", "c", "b", "d"]
    assert sorted(world) == ["a", "b", "b", "c", "d"]


def test_an_object_with_an_async_call_is_an_async_effect(store: Store, world: list[Any]) -> None:
    """A callable whose `__call__` is async is awaited, and recorded when it is done."""

    class Client:
        async def __call__(self, text: str) -> str:
            return await add_async(world, text)

    act = effect("client.call")(Client())

    async def node(_state: Log) -> Log:
        return {"log": [await act("a")]}

    assert result(store, run(store, chain(node))) == ["a"]
    assert world == ["a"]


def test_threads_inside_a_node_carry_the_attempt_with_their_context(store: Store, world: list[Any]) -> None:
    """A thread pool in a node whose tasks run in a copied context records its effects like the node itself."""
    fail = Once(ConnectionError("later"))
    lock = threading.Lock()

    @effect("world.act")
    def act(text: str) -> str:
        with lock:
            world.append(text)
        return text

    def node(_state: Log) -> Log:
        with ThreadPoolExecutor(3) as pool:
            futures = [pool.submit(copy_context().run, act, text) for text in ("a", "b", "c", "a")]
            log = [future.result() for future in futures]
        fail()
        return {"log": log}

    job = run(store, chain(node))
    assert result(store, job) == ["a", "b", "c", "a"]
    assert sorted(world) == ["a", "a", "b", "c"]
    assert {state for _, state, _ in states(store, job)} == {"confirmed"}


def test_a_thread_without_the_context_is_warned_of(
    store: Store, world: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """A thread a node starts without its context knows of no job: its effect is a plain call, and a warning says so."""

    @effect("world.act")
    def act(text: str) -> str:
        world.append(text)
        return text

    def node(_state: Log) -> Log:
        with ThreadPoolExecutor(1) as pool:
            return {"log": [pool.submit(act, "a").result()]}

    job = run(store, chain(node))
    assert result(store, job) == ["a"]
    assert store.effects(job) == []
    (record,) = [record for record in caplog.records if record.name == "everstep.effect"]
    assert "world.act" in record.getMessage()
    assert "copy_context" in record.getMessage()
    caplog.clear()
    act("b")
    assert [record for record in caplog.records if record.name == "everstep.effect"] == []


def test_an_effect_can_be_a_node(store: Store, world: list[Any]) -> None:
    """A node function that is an effect itself is recorded by its state; what LangGraph injects does not count."""
    fail = Once(ConnectionError("later"))

    @effect("node")
    def node(state: Log, config: RunnableConfig) -> Log:
        assert config["configurable"]["thread_id"]
        world.append(len(state["log"]))
        return {"log": ["done"]}

    def after(_state: Log) -> Log:
        fail()
        return {"log": []}

    job = run(store, chain(node, after))
    assert result(store, job) == ["done"]
    assert world == [0]
    assert "config" not in json.loads(only(store, job).arguments_json)


def test_a_question_inside_an_effect(store: Store, world: list[Any]) -> None:
    """An effect that asks a person did not happen; with the answer it is called again and confirmed."""

    @effect("world.act")
    def act() -> str:
        answer = interrupt("sure?")
        world.append(answer)
        return answer

    graph = chain(lambda _state: {"log": [act()]})
    job = run(store, graph)
    assert job.status == "review"
    assert only(store, job).state == "rejected"
    store.answer(store.reviews()[0].public_id, "respond", value="yes")
    work(store, graph)
    assert result(store, job) == ["yes"]
    assert world == ["yes"]


# ---- outside a job


async def test_outside_a_job_an_effect_is_a_plain_call(world: list[Any]) -> None:
    """Without a job nothing is recorded: sync, async, with its own errors, and the key asked for says so."""

    @effect
    def act(text: str, idempotency_key: str = "none") -> str:
        world.append(text)
        return idempotency_key

    @effect("async.act", idempotent=True)
    async def act_async(text: str) -> tuple[str, int]:
        return await add_async(world, text), 1

    @effect("bad")
    def bad() -> None:
        raise TimeoutError("mine")

    assert act("a") == "none"
    assert await act_async("b") == ("b", 1)
    with pytest.raises(TimeoutError, match="mine"):
        bad()
    with pytest.raises(RuntimeError, match="effect_key"):
        effect_key()
    assert world == ["a", "b"]


def test_an_effect_looks_like_its_function() -> None:
    """Name, docstring and signature stay, so that LangChain and people read the function itself."""
    import inspect

    @effect("world.act")
    def act(text: str, number: int = 3) -> str:
        """Do it."""
        return text

    assert (act.__name__, act.__doc__) == ("act", "Do it.")
    assert list(inspect.signature(act).parameters) == ["text", "number"]


def test_wrong_arguments_are_a_type_error_and_no_effect(store: Store) -> None:
    """A call that does not fit the signature fails like any other, before the ledger hears of it."""

    @effect("world.act")
    def act(text: str) -> str:
        return text

    job = run(store, chain(lambda _s: {"log": [act()]}))  # type: ignore[call-arg]
    assert json.loads(job.error_json or "")["type"] == "TypeError"
    assert store.effects(job) == []
