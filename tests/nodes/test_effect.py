"""`effect` in real graphs run by a real worker: nothing happens twice, and nothing goes on past what nobody knows."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.types import RetryPolicy, Send, interrupt

from everstep import EffectRejected, effect, effect_key
from everstep.checkpoints import jobs
from everstep.checkpoints.effects import Effect
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.schema import metadata
from everstep.checkpoints.store import Store
from everstep.runtime import leg
from everstep.runtime.leg import Leg
from tests.support.jobs import Log, beside, chain, result, run, work
from tests.support.outside import Once

pytestmark = pytest.mark.both_databases

PATIENCE = 20.0


def states(store: Store, job: Job) -> list[tuple[str, str, int]]:
    """The job's effects: name, state, calls."""
    return [(found.name, found.state, found.calls) for found in store.effects(job)]


def only(store: Store, job: Job) -> Effect:
    """The job's only effect."""
    (found,) = store.effects(job)
    return found


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


async def _act(world: list[Any], text: str) -> str:
    await asyncio.sleep(0)
    world.append(text)
    return text


def test_async_effects_in_async_nodes(store: Store, world: list[Any]) -> None:
    """Async effects, one after another and gathered, sync ones in async nodes: each once, each with its own result."""
    fail = Once(ConnectionError("later"))

    @effect("world.act")
    async def act(text: str) -> str:
        return await _act(world, text)

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
            return await _act(world, text)

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


# ---- arguments and keys


def test_how_the_arguments_are_passed_does_not_matter(store: Store, world: list[Any]) -> None:
    """Positional, by name, or left to the default: it is the same call, so a replay may differ in that."""
    replay: list[int] = []
    fail = Once(ConnectionError("later"))

    @effect("git.push")
    def push(remote: str, branch: str = "main", *more: int, force: bool = False, **options: Any) -> str:
        world.append((remote, branch, more, force, options))
        return branch

    def node(_state: Log) -> Log:
        replay.append(1)
        log = [push("origin")] if len(replay) == 1 else [push(branch="main", remote="origin", force=False)]
        fail()
        return {"log": log}

    assert result(store, run(store, chain(node))) == ["main"]
    assert len(world) == 1


@dataclass
class Point:
    x: int
    y: int


@pytest.mark.parametrize(
    "argument",
    [
        None,
        1.5,
        "é",
        ["a", {"b": (1, 2)}],
        b"bytes",
        Path("a/b"),
        Point(1, 2),
        {"z": 1, "a": 2},
        {3, 1, 2},
        2**80,
        date(2027, 1, 2),
        datetime(2027, 1, 2, tzinfo=UTC),
        UUID(int=5),
        Decimal("1.50"),
        {1: "a"},
    ],
    ids=repr,
)
def test_arguments_of_many_kinds_are_the_same_in_a_replay(store: Store, world: list[Any], argument: Any) -> None:
    """Data of every usual kind has one canonical form: the replay finds the call."""
    fail = Once(ConnectionError("later"))

    @effect("world.act")
    def act(value: Any) -> None:
        world.append(value)

    def node(_state: Log) -> Log:
        act(argument)
        fail()
        return {"log": ["end"]}

    assert result(store, run(store, chain(node))) == ["end"]
    assert world == [argument]


def test_arguments_that_look_alike_are_told_apart(store: Store) -> None:
    """`{1: …}` and `{"1": …}`, 1 and "1", None and "None" are different arguments."""

    @effect("world.act")
    def act(value: Any) -> str:
        return "done"

    alike: list[Any] = [{1: "a"}, {"1": "a"}, 1, "1", None, "None", True, "True"]
    job = run(store, chain(lambda _s: {"log": [act(value) for value in alike]}))
    assert len({found.arguments_digest for found in store.effects(job)}) == len(alike)


def test_an_argument_without_a_canonical_form_is_refused_before_the_call(store: Store, world: list[Any]) -> None:
    """An argument that is not the same in every replay is an EffectInvalid with advice, and nothing is done."""

    @effect("world.act")
    def act(value: Any) -> None:
        world.append(value)

    job = run(store, chain(lambda _state: {"log": [act({"deep": [object()]})]}))
    error = json.loads(job.error_json or "")
    assert error["code"] == "effect_invalid"
    assert "value.deep[0]" in error["message"]
    assert "key" in error["next_step"]
    assert (world, store.effects(job)) == ([], [])


def test_a_business_key_stands_for_the_arguments(store: Store, world: list[Any]) -> None:
    """With a key of the user's own a job makes one call for each key, wherever and with whatever arguments."""

    @effect("invoice.send", key=lambda invoice, thing: f"invoice {invoice}")
    def send(invoice: int, thing: Any) -> str:
        world.append(invoice)
        return f"sent {invoice}"

    @effect("hello", key="once")
    def hello(text: str) -> str:
        world.append(text)
        return text

    def node(_state: Log) -> Log:
        return {"log": [send(1, object()), send(1, object()), send(2, object()), hello("a"), hello("b")]}

    job = run(store, chain(node, node))
    assert result(store, job) == ["sent 1", "sent 1", "sent 2", "a", "a"] * 2
    assert world == [1, 2, "a"]
    again, _ = store.enqueue("graph", {"log": ["another job"]})
    work(store, chain(node, node))
    assert store.job(again.public_id).status == "done"
    assert world == [1, 2, "a"] * 2


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_one_business_key_at_the_same_time_is_one_call(store: Store, world: list[Any], kind: str) -> None:
    """Branches that make the call of one key at the same time: one calls, the other waits and gets its result."""
    entered, go = threading.Event(), threading.Event()

    def slow() -> str:
        entered.set()
        assert go.wait(PATIENCE)
        world.append(1)
        return f"result {len(world)}"

    if kind == "sync":

        @effect("pay", key="invoice 7")
        def pay() -> str:
            return slow()

        def node(_state: Log) -> Log:
            return {"log": [pay()]}

        def late(_state: Log) -> Log:
            assert entered.wait(PATIENCE)
            with ThreadPoolExecutor(1) as pool:
                paying = pool.submit(copy_context().run, pay)
                go.set()
                return {"log": [paying.result()]}

    else:

        @effect("pay", key="invoice 7")
        async def pay_async() -> str:
            return await asyncio.to_thread(slow)

        async def node(_state: Log) -> Log:
            return {"log": [await pay_async()]}

        async def late(_state: Log) -> Log:
            await asyncio.to_thread(entered.wait, PATIENCE)
            paying = asyncio.create_task(pay_async())
            await asyncio.sleep(0)
            go.set()
            return {"log": [await paying]}

    job = run(store, beside(node, late))
    assert result(store, job) == ["result 1", "result 1"]
    assert states(store, job) == [("pay", "confirmed", 1)]


def test_arguments_with_the_names_of_injected_ones_count(store: Store, world: list[Any]) -> None:
    """A `config` or `store` of the user's own is an argument like any other: it is shown, and tells calls apart."""

    @effect("shop.set")
    def set_up(store: str, config: dict[str, Any]) -> str:
        world.append((store, config["colour"]))
        return config["colour"]

    job = run(store, chain(lambda _s: {"log": [set_up("a", {"colour": "red"}), set_up("a", {"colour": "blue"})]}))
    assert result(store, job) == ["red", "blue"]
    assert [json.loads(found.arguments_json) for found in store.effects(job)] == [
        {"store": "a", "config": {"colour": colour}} for colour in ("red", "blue")
    ]
    assert len({found.arguments_digest for found in store.effects(job)}) == 2


CANARY = "hunter2-canary"
TOKEN = "ghp_" + "a1B2" * 9


def test_credentials_in_arguments_and_errors_do_not_enter_the_record(store: Store, world: list[Any]) -> None:
    """What is named or formed like a credential is shown as `***`: it is nowhere in the database."""

    @effect("login")
    def login(user: str, password: str, header: str) -> str:
        world.append(password)
        raise TimeoutError(f"https://me:{CANARY}@host/ did not answer; {TOKEN}")

    job = run(store, chain(lambda _s: {"log": [login("me", CANARY, f"Bearer {TOKEN}")]}))
    assert world == [CANARY]
    assert job.status == "review"
    assert json.loads(only(store, job).arguments_json) == {"user": "me", "password": "***", "header": "***"}
    store.answer(store.reviews()[0].public_id, "reject")

    @effect("login")
    def refused(user: str) -> str:
        raise EffectRejected(f"https://me:{CANARY}@host/ refused {TOKEN}")

    run(store, chain(lambda _s: {"log": [refused("me")]}), {"log": ["second"]})
    store.write(lambda c: None).result()
    tables = (*metadata.tables, *store.database.checkpoint_tables)
    everything = repr(store.read(lambda c: [c.exec_driver_sql(f"SELECT * FROM {table}").all() for table in tables]))
    assert "did not answer" in everything
    assert CANARY not in everything
    assert TOKEN not in everything
    if store.url.startswith("sqlite"):
        for file in store.path.parent.iterdir():
            assert CANARY.encode() not in file.read_bytes()
            assert TOKEN.encode() not in file.read_bytes()


def test_arguments_too_long_to_read_are_shortened(store: Store) -> None:
    """The record keeps a readable beginning of huge arguments, and their digest."""

    @effect("world.act")
    def act(text: str) -> int:
        return len(text)

    job = run(store, chain(lambda _s: {"log": [act("x" * 1_000_000)]}))
    assert result(store, job) == [1_000_000]
    assert len(only(store, job).arguments_json) < 10_000


# ---- what nobody knows


Probe = Callable[..., Any]


def probes(world: list[Any]) -> dict[str, Probe]:
    """A look at the world, sync and async."""

    def look(text: str) -> str | None:
        return f"found {text}" if text in world else None

    async def look_async(text: str) -> str | None:
        await asyncio.sleep(0)
        return look(text)

    return {"sync": look, "async": look_async}


@pytest.mark.parametrize("probe", ["sync", "async"])
@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("happened", [True, False])
def test_an_ambiguous_error_is_settled_by_the_probe(
    store: Store, world: list[Any], probe: str, kind: str, happened: bool
) -> None:
    """After a timeout the probe looks: what it finds is the result; if it finds nothing the call is made again."""
    timeout = Once(TimeoutError("no answer"))

    def body(text: str) -> str:
        if happened:
            world.append(text)
        timeout()
        world.append(text)
        return f"did {text}"

    node: Any
    if kind == "sync":

        @effect("world.act", probe=probes(world)[probe])
        def act(text: str) -> str:
            return body(text)

        def node(_state: Log) -> Log:
            return {"log": [act("a")]}

    else:

        @effect("world.act", probe=probes(world)[probe])
        async def act_async(text: str) -> str:
            return body(text)

        async def node(_state: Log) -> Log:
            return {"log": [await act_async("a")]}

    job = run(store, chain(node))
    assert world == ["a"]
    assert result(store, job) == ["found a" if happened else "did a"]
    assert job.attempts == (1 if happened else 2)
    assert only(store, job).settled_by == ("probe" if happened else "call")


def test_a_sync_effect_with_an_async_probe_on_the_event_loop(store: Store, world: list[Any]) -> None:
    """A sync effect called in an async node can have an async probe, though the loop is busy with the node."""
    timeout = Once(TimeoutError("no answer"))

    @effect("world.act", probe=probes(world)["async"])
    def act(text: str) -> str:
        world.append(text)
        timeout()
        return text

    async def node(_state: Log) -> Log:
        return {"log": [act("a")]}

    assert result(store, run(store, chain(node))) == ["found a"]


@pytest.mark.parametrize("swallow", [True, False])
def test_a_probe_that_fails_leaves_the_effect_open_and_looks_again(
    store: Store, world: list[Any], swallow: bool
) -> None:
    """While the probe itself fails nothing is called and the graph does not go on; then it settles the effect."""
    timeout, away = Once(TimeoutError("no answer")), Once(ConnectionError("away"), times=2)

    def look(text: str) -> str | None:
        away()
        return f"found {text}" if text in world else None

    @effect("world.act", probe=look)
    def act(text: str) -> str:
        world.append(text)
        timeout()
        return text

    def node(_state: Log) -> Log:
        try:
            return {"log": [act("a")]}
        except ConnectionError:
            if swallow:
                return {"log": ["swallowed"]}
            raise

    job = run(store, chain(node, lambda state: {"log": [f"after {state['log'][0]}"]}))
    assert result(store, job) == ["found a", "after found a"]
    assert world == ["a"]
    assert job.attempts == 3
    assert only(store, job).settled_by == "probe"


def test_a_provider_that_honours_keys_is_called_again_with_the_same_key(store: Store, world: list[Any]) -> None:
    """An idempotent effect whose answer was lost is called by the next attempt with the key of the first call."""
    timeout = Once(TimeoutError("no answer"))

    @effect("pay", idempotent=True)
    def pay(amount: int, idempotency_key: str = "") -> int:
        assert effect_key() == idempotency_key
        world.append(idempotency_key)
        timeout()
        return amount

    job = run(store, chain(lambda _s: {"log": [pay(7)]}))
    assert result(store, job) == [7]
    assert len(world) == 2
    assert set(world) == {only(store, job).key}
    assert "idempotency_key" not in json.loads(only(store, job).arguments_json)
    assert only(store, job).calls == 2


def test_a_node_that_tries_an_idempotent_effect_again_itself_makes_no_second_one(
    store: Store, world: list[Any]
) -> None:
    """A loop of the user's own around a call whose answer was lost does not pay again under another key."""
    timeout = Once(TimeoutError("no answer"))

    @effect("pay", idempotent=True)
    def pay(amount: int, idempotency_key: str = "") -> int:
        world.append(idempotency_key)
        timeout()
        return amount

    def node(_state: Log) -> Log:
        for _ in range(5):
            try:
                return {"log": [pay(7)]}
            except TimeoutError:
                continue
        return {"log": ["gave up"]}

    job = run(store, chain(node))
    assert result(store, job) == [7]
    assert len(set(world)) == 1
    assert states(store, job) == [("pay", "confirmed", 2)]


def test_an_effect_that_was_rejected_may_be_caught(store: Store, world: list[Any]) -> None:
    """EffectRejected says that nothing happened, so the graph may go another way; the ledger says the same."""

    @effect("world.act")
    def act() -> str:
        raise EffectRejected("the account is closed")

    def node(_state: Log) -> Log:
        try:
            return {"log": [act()]}
        except EffectRejected as error:
            return {"log": [error.message]}

    job = run(store, chain(node))
    assert result(store, job) == ["the account is closed"]
    assert (only(store, job).state, only(store, job).settled_by) == ("rejected", "call")


@pytest.mark.parametrize(
    "error", [EffectRejected("no"), ConnectionRefusedError("no")], ids=lambda error: str(type(error))
)
def test_an_effect_that_surely_did_not_happen_is_called_again(store: Store, world: list[Any], error: Exception) -> None:
    """A refused connection, and EffectRejected, leave the world untouched: whoever lets the job go on calls again."""
    refuse = Once(error)

    @effect("world.act")
    def act() -> str:
        refuse()
        world.append(1)
        return "done"

    graph = chain(lambda _s: {"log": [act()]})
    job = run(store, graph)
    if job.status == "review":
        assert store.reviews()[0].kind == "error"
        store.answer(store.reviews()[0].public_id, "approve")
        work(store, graph)
    job = store.job(job.public_id)
    assert result(store, job) == ["done"]
    assert world == [1]
    assert only(store, job).calls == 2


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


# ---- effects beside a failure


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


@pytest.mark.parametrize("call", [_released, _in_thread], ids=["awaits", "thread"])
@pytest.mark.parametrize("probed", [False, True], ids=["no probe", "probe"])
def test_an_async_effect_beside_a_failing_node_goes_on_to_its_end(
    store: Store, world: list[Any], call: Any, probed: bool
) -> None:
    """A branch that fails cancels its siblings; an effect under way there is waited for, never begun a second time."""
    entered, go, fail = asyncio.Event(), asyncio.Event(), Once(ConnectionError("beside"))
    happened_at: list[str] = []

    @effect("slow", probe=(lambda: "slow" if world else None) if probed else None)
    async def slow() -> str:
        entered.set()
        return await call(world, go, "slow")

    async def acting(_state: Log) -> Log:
        try:
            return {"log": [await slow()]}
        finally:
            asyncio.get_running_loop().call_later(0.05, go.set)

    async def failing(_state: Log) -> Log:
        await entered.wait()
        fail()
        return {"log": ["other"]}

    job = run(store, beside(acting, failing), listener=lambda event, _: happened_at.append(f"{event} {len(world)}"))
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
    entered, go, fail = asyncio.Event(), asyncio.Event(), Once(ConnectionError("beside"))

    @effect("inner")
    async def inner() -> str:
        return await _act(world, "inner")

    @effect("outer")
    async def outer() -> str:
        entered.set()
        await go.wait()
        return f"outer of {await inner()}"

    async def acting(_state: Log) -> Log:
        try:
            return {"log": [await outer()]}
        finally:
            asyncio.get_running_loop().call_later(0.05, go.set)

    async def failing(_state: Log) -> Log:
        await entered.wait()
        fail()
        return {"log": ["other"]}

    job = run(store, beside(acting, failing))
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


# ---- outside a job


async def test_outside_a_job_an_effect_is_a_plain_call(world: list[Any]) -> None:
    """Without a job nothing is recorded: sync, async, with its own errors, and the key asked for says so."""

    @effect
    def act(text: str, idempotency_key: str = "none") -> str:
        world.append(text)
        return idempotency_key

    @effect("async.act", idempotent=True)
    async def act_async(text: str) -> tuple[str, int]:
        return await _act(world, text), 1

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
