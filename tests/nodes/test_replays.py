"""Nodes that do not do the same again: other arguments, another order, calls given up and repeated."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph

from everstep import EffectRejected, effect
from everstep.checkpoints.store import Store
from everstep.errors import EffectInvalid
from everstep.nodes import effect_life
from everstep.nodes.attempt import Attempt, Turn
from tests.support.jobs import Log, chain, result, run, work
from tests.support.outside import Once
from tests.support.record import Gate
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.both_databases


def mail_into(world: list[Any]) -> Callable[[str], str]:
    """An effect that notes whom it was for."""

    @effect("mail")
    def mail(to: str) -> str:
        world.append(to)
        return f"mailed {to}"

    return mail


# ---- other arguments


def varying(world: list[Any]) -> Any:
    """A node that mails another text each time it runs, and fails after the first."""
    mail, fail, texts = mail_into(world), Once(ConnectionError("after the mail")), iter("xyz")

    def node(_state: Log) -> Log:
        answer = mail(f"dear {next(texts)}")
        fail()
        return {"log": [answer]}

    return chain(node)


def test_a_replay_with_other_arguments_is_asked_about(store: Store, world: list[Any]) -> None:
    """A second text is not sent: the question shows both, and approving it sends the new one."""
    graph = varying(world)
    job = run(store, graph)
    assert world == ["dear x"]
    (asked,) = store.reviews()
    assert (job.status, asked.kind, asked.value["code"]) == ("review", "error", "effect_not_repeated")
    assert "dear x" in asked.value["message"]
    assert "dear y" in asked.value["message"]
    store.answer(asked.public_id, "approve")
    work(store, graph)
    assert result(store, job) == ["mailed dear z"]
    assert world == ["dear x", "dear z"]


def test_a_replay_with_other_arguments_can_be_ended(store: Store, world: list[Any]) -> None:
    """Rejected, the job has failed with what it did known."""
    job = run(store, varying(world))
    store.answer(store.reviews()[0].public_id, "reject")
    assert store.job(job.public_id).status == "failed"
    assert [found.state for found in store.effects(job)] == ["confirmed"]
    assert world == ["dear x"]


def test_a_node_that_repeats_what_it_did_goes_on_with_something_new(store: Store, world: list[Any]) -> None:
    """What comes after the repeated calls is new and is called, whatever its arguments are."""
    mail, fail = mail_into(world), Once(ConnectionError("between"))

    def node(_state: Log) -> Log:
        first = [mail("ada"), mail("bob")]
        fail()
        return {"log": [*first, mail("eve")]}

    job = run(store, chain(node))
    assert result(store, job) == ["mailed ada", "mailed bob", "mailed eve"]
    assert world == ["ada", "bob", "eve"]


def test_effects_inside_one_that_is_found_need_not_be_repeated(store: Store, world: list[Any]) -> None:
    """A replay gets the outer effect's result and does not run its body; then what it calls itself is new."""
    mail, fail = mail_into(world), Once(ConnectionError("after both"))

    @effect("mail.all")
    def mail_all() -> list[str]:
        return [mail("ada"), mail("bob")]

    def node(_state: Log) -> Log:
        answers = mail_all()
        fail()
        return {"log": [*answers, mail("eve")]}

    job = run(store, chain(node))
    assert result(store, job) == ["mailed ada", "mailed bob", "mailed eve"]
    assert world == ["ada", "bob", "eve"]


def test_threads_may_ask_in_another_order(store: Store, world: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A new call waits a moment for those of the earlier run to be asked for; nobody is bothered."""
    monkeypatch.setattr(effect_life, "STRAY_LOOKS", 10_000)
    monkeypatch.setattr(effect_life, "STRAY_PAUSE_S", 0.01)
    mail, fail, replay = mail_into(world), Once(ConnectionError("before the last")), []

    def node(_state: Log) -> Log:
        with ThreadPoolExecutor() as pool:
            if replay:
                last = pool.submit(contextvars.copy_context().run, mail, "eve")
                return {"log": [mail("ada"), mail("bob"), last.result(PATIENCE)]}
            replay.append(True)
            first = [mail("ada"), mail("bob")]
            fail()
            return {"log": first}

    job = run(store, chain(node))
    assert result(store, job) == ["mailed ada", "mailed bob", "mailed eve"]
    assert sorted(world) == ["ada", "bob", "eve"]


class To(TypedDict, total=False):
    to: str
    done: str


def test_subgraphs_that_start_in_another_order_repeat_no_effect(store: Store, world: list[Any]) -> None:
    """LangGraph numbers the runs of a subgraph as they start; an effect found at another number is asked about."""
    mail, replay = mail_into(world), []
    inner = StateGraph(To).add_node("mail", lambda state: {"done": mail(state["to"])}).add_edge(START, "mail").compile()

    async def node(_state: Log) -> Log:
        order = ["bob", "ada"] if replay else ["ada"]
        replay.append(True)
        answers = [(await inner.ainvoke({"to": to}))["done"] for to in order]
        if len(order) == 1:
            raise ConnectionError("after the first")
        return {"log": answers}

    job = run(store, chain(node))
    assert world == ["ada"]
    assert job.status == "review"
    assert store.reviews()[0].value["code"] == "effect_not_repeated"


# ---- given up and called again


def _by_wait_for(mail: Callable[[str], str], limit: float) -> Any:
    async def node(_state: Log) -> Log:
        for seconds in (limit, limit, PATIENCE):
            try:
                return {"log": [await asyncio.wait_for(asyncio.to_thread(mail, "ada"), seconds)]}
            except TimeoutError:
                continue
        raise AssertionError("unreachable")

    return node


def _by_pool(mail: Callable[[str], str], limit: float) -> Any:
    def node(_state: Log) -> Log:
        pool = ThreadPoolExecutor()
        for seconds in (limit, limit, PATIENCE):
            try:
                return {"log": [pool.submit(contextvars.copy_context().run, mail, "ada").result(seconds)]}
            except TimeoutError:
                continue
        raise AssertionError("unreachable")

    return node


def _giving_up(mail: Callable[[str], str], limit: float) -> Any:
    async def node(_state: Log) -> Log:
        try:
            return {"log": [await asyncio.wait_for(asyncio.to_thread(mail, "ada"), limit)]}
        except TimeoutError:
            return {"log": ["gave up"]}

    return node


@pytest.mark.parametrize("giving_up", [_by_wait_for, _by_pool, _giving_up])
def test_a_time_limit_around_a_blocking_effect_does_it_once(store: Store, world: list[Any], giving_up: Any) -> None:
    """The thread goes on when its caller does not wait any more: the effect is neither repeated nor forgotten."""
    begun, go_on = threading.Event(), threading.Event()

    @effect("mail")
    def mail(to: str) -> str:
        begun.set()
        assert go_on.wait(PATIENCE)
        world.append(to)
        return f"mailed {to}"

    def node(state: Log) -> Any:
        threading.Timer(2.5, go_on.set).start()
        body = giving_up(mail, 1.0)(state)
        return asyncio.run(body) if asyncio.iscoroutine(body) else body

    async def async_node(state: Log) -> Any:
        threading.Timer(2.5, go_on.set).start()
        return await giving_up(mail, 1.0)(state)

    job = run(store, chain(node if giving_up is _by_pool else async_node))
    assert result(store, job) == ["mailed ada"]
    assert world == ["ada"]
    assert begun.is_set()


@pytest.mark.parametrize("quick", [True, False], ids=["over before anyone looks", "under way"])
def test_a_call_given_up_before_its_intent_was_written_is_not_made_twice(
    store: Store, world: list[Any], monkeypatch: pytest.MonkeyPatch, quick: bool
) -> None:
    """While the record stands, an equal call waits until the one before it is called: then the attempt ends."""
    turns: list[int] = []
    gates: list[Gate] = []
    ended = threading.Event()
    take, block = Attempt.take, Attempt.block

    def taking(self: Attempt, *call: Any) -> Turn:
        turn = take(self, *call)
        turns.append(turn.number)
        if turn.number == 1 and gates:
            threading.Timer(0.3, gates.pop().open).start()  # time to do wrong
        return turn

    def blocking(self: Attempt, reason: BaseException) -> None:
        block(self, reason)
        ended.set()

    monkeypatch.setattr(Attempt, "take", taking)
    monkeypatch.setattr(Attempt, "block", blocking)

    @effect("mail")
    def mail(to: str) -> str:
        world.append(to)
        assert quick or ended.wait(PATIENCE)
        return f"mailed {to}"

    first_run = [True]

    async def node(_state: Log) -> Log:
        if first_run:
            first_run.clear()
            gates.append(await asyncio.to_thread(Gate, store))
            given_up = asyncio.create_task(asyncio.to_thread(mail, "ada"))
            await asyncio.to_thread(until, lambda: turns, "the first call")
            given_up.cancel()  # its thread goes on
        return {"log": [await asyncio.to_thread(mail, "ada")]}

    job = run(store, chain(node))
    assert result(store, job) == ["mailed ada"]
    assert world == ["ada"]
    assert turns[:2] == [0, 1]
    assert [(found.state, found.calls) for found in store.effects(job)] == [("confirmed", 1)]


def test_a_replay_finds_what_was_done_while_the_record_takes_no_writes(store: Store, world: list[Any]) -> None:
    """A caller with a time limit would give up a replay that waited for the writer, and its next call be another."""
    legs: list[str] = []

    @effect("mail")
    def mail(to: str) -> str:
        world.append(to)
        return f"mailed {to}"

    async def node(_state: Log) -> Log:
        legs.append("leg")
        if len(legs) == 1:
            await asyncio.to_thread(mail, "ada")
            raise ConnectionError("after the effect")
        gate = await asyncio.to_thread(Gate, store)
        try:
            return {"log": [await asyncio.wait_for(asyncio.to_thread(mail, "ada"), PATIENCE)]}
        finally:
            gate.open()

    job = run(store, chain(node))
    assert result(store, job) == ["mailed ada"]
    assert world == ["ada"]
    assert len(legs) == 2


def test_equal_calls_at_once_are_each_made(store: Store, world: list[Any]) -> None:
    """Two equal calls that start together are two calls."""

    @effect("ping")
    async def ping(host: str) -> str:
        await asyncio.sleep(0)
        world.append(host)
        return host

    async def node(_state: Log) -> Log:
        return {"log": await asyncio.gather(ping("h"), ping("h"))}

    assert result(store, run(store, chain(node))) == ["h", "h"]
    assert world == ["h", "h"]


# ---- what cannot be an effect


def test_a_sync_function_around_an_async_one_is_refused_before_it_begins(store: Store, world: list[Any]) -> None:
    """A decorator that hides that a function is async: nothing is done, and the error says where `effect` belongs."""

    async def mail(to: str) -> str:
        world.append(to)
        return to

    @effect("mail")
    @functools.wraps(mail)
    def logged(to: str) -> Any:
        return mail(to)

    async def node(_state: Log) -> Log:
        return {"log": [await logged("ada")]}

    job = run(store, chain(node))
    assert world == []
    error = json.loads(job.error_json or "")
    assert "returns a coroutine" in error["message"]
    assert "on the async function itself" in error["next_step"]
    assert [found.state for found in store.effects(job)] == ["rejected"]


def test_a_generator_function_is_refused_at_once() -> None:
    """Its body would never run."""
    with pytest.raises(EffectInvalid, match="generator"):

        @effect("mail")
        def mail(to: str) -> Any:
            yield to


@pytest.mark.parametrize("text", ["remote said \udcff", "remote said \x00"], ids=["surrogate", "nul"])
def test_any_text_of_an_error_can_be_kept(store: Store, text: str) -> None:
    """What a broken program printed does not keep the ledger from saying what happened."""

    @effect("push")
    def push() -> str:
        raise EffectRejected(text)

    job = run(store, chain(lambda _s: {"log": [push()]}))
    (found,) = store.effects(job)
    assert found.state == "rejected"
    assert "remote said" in (found.error or "")
    assert "remote said" in json.loads(job.error_json or "")["message"]
