"""Which calls of an effect are the same one: its arguments, a business key, and what of them is recorded."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from everstep import EffectRejected, effect
from everstep.checkpoints.schema import metadata
from everstep.checkpoints.store import Store
from tests.support.effects import only, states
from tests.support.jobs import Log, beside, chain, result, run, work
from tests.support.outside import Once
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.both_databases


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
