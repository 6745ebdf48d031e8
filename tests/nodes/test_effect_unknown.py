"""An effect that may have happened: probed, called again with its key, or left open until somebody can look."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from everstep import EffectRejected, effect, effect_key
from everstep.checkpoints.store import Store
from tests.support.effects import only, states
from tests.support.jobs import Log, chain, result, run, work
from tests.support.outside import Once

pytestmark = pytest.mark.both_databases

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
