"""Several processes at one paid task at the same time: one row, one charge, one end, one refund."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest

from everstep.checkpoints import ledger, provider_events, provider_tasks
from everstep.checkpoints.provider_status import ProviderEvent, ProviderStatus
from everstep.checkpoints.store import Store
from everstep.errors import GenerationRefused, InsufficientCredit, ProviderTaskConflict
from tests.support.paid import (
    DONE,
    FAILED,
    OWNER,
    PENDING,
    PROVIDER,
    again,
    balance,
    create,
    entries,
    give,
    price,
    send,
    submitted,
    tell,
    told,
)
from tests.support.postgres import fresh_postgres
from tests.support.transactions import Held, stands
from tests.support.waiting import PATIENCE, Halt

ACTORS = 6


@contextmanager
def actors(store: Store) -> Generator[list[Store]]:
    """The record, opened by several."""
    with ExitStack() as opened:
        yield [opened.enter_context(Store.open(store.url, clock=store.clock)) for _ in range(ACTORS)]


def at_once(stores: list[Store], act: Callable[[Store, int], Any]) -> list[Any]:
    """What each gets who acts at the same moment: a value, or the error."""
    barrier = threading.Barrier(len(stores))

    def one(number: int) -> Any:
        barrier.wait(PATIENCE)
        try:
            return act(stores[number], number)
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(stores)) as threads:
        return list(threads.map(one, range(len(stores))))


def adds_up(store: Store) -> None:
    """Every balance is the sum of its entries."""
    assert store.read(ledger.mismatches) == []


@pytest.mark.both_databases
def test_many_who_come_with_one_key_make_one_task(store: Store) -> None:
    """One makes and pays it, all others are given it."""
    give(store, 1000)
    with actors(store) as stores:
        for number in range(5):
            made = at_once(stores, lambda one, _, key=f"film {number}": create(one, 200, submission_key=key))
            assert Counter(new for _, new in made) == {True: 1, False: ACTORS - 1}
            assert len({task.id for task, _ in made}) == 1
    assert balance(store) == 0
    adds_up(store)


@pytest.mark.both_databases
def test_many_who_spend_the_last_credit_never_spend_more(store: Store) -> None:
    """Who comes too late is told what is left, and nothing of theirs is stored."""
    give(store, 450)
    with actors(store) as stores:
        made = at_once(stores, lambda one, number: create(one, 200, submission_key=f"film {number}"))
    refused = [error for error in made if isinstance(error, InsufficientCredit)]
    assert (len(refused), {error.ids["balance"] for error in refused} <= {50, 250, 450}) == (ACTORS - 2, True)
    assert len(store.read(provider_tasks.listed)) == 2
    assert balance(store) == 50
    adds_up(store)


@pytest.mark.both_databases
def test_of_many_ends_one_wins(store: Store) -> None:
    """Poll, webhook and a person tell different ends: one is stored, with its refund or without, and one signal."""
    give(store, 1000)
    with actors(store) as stores:
        for number in range(5):
            task = submitted(store, f"film-{number}", submission_key=f"film {number}")

            def end(one: Store, actor: int, task: Any = task, name: str = f"film-{number}") -> bool:
                status = DONE if actor % 2 else FAILED
                if actor < 2:
                    return tell(one, task, status).changed
                return send(one, status, f"{name} {actor}", provider_task_id=name).changed

            changed = at_once(stores, end)
            assert sorted(changed) == [False] * (ACTORS - 1) + [True]
            ended = again(store, task)
            assert ended.state == ("succeeded" if changed.index(True) % 2 else "failed")
            kinds = [kind for kind, _ in entries(store, task)]
            assert kinds == (["charge"] if ended.state == "succeeded" else ["charge", "refund"])
            signal = told(store, task)
            assert signal is not None
            assert signal.payload == {"state": ended.state}
    adds_up(store)


@pytest.mark.both_databases
def test_a_failure_and_another_try_meet(store: Store) -> None:
    """The next generation is made only after the refund, and pays once."""
    give(store, 200)
    task = submitted(store)
    with actors(store) as stores:

        def act(one: Store, actor: int) -> Any:
            return tell(one, task, FAILED).changed if actor % 2 else create(one, generation=2)[1]

        outcomes = at_once(stores, act)
        assert all(one in (True, False) or isinstance(one, GenerationRefused) for one in outcomes)
        if not any(outcomes[actor] is True for actor in range(0, ACTORS, 2)):
            assert create(store, generation=2)[1]
    assert balance(store) == 0
    adds_up(store)


@pytest.mark.both_databases
def test_one_grant_of_many(store: Store) -> None:
    """Who repeats a grant at the same moment gives nothing more; others' add up."""
    with actors(store) as stores:
        given = at_once(stores, lambda one, number: give(one, 100, "same" if number % 2 else f"own {number}")[1])
    assert Counter(given)[True] == ACTORS // 2 + 1
    assert balance(store) == 100 * (ACTORS // 2 + 1)
    adds_up(store)


@pytest.mark.both_databases
def test_a_due_task_is_taken_by_one_of_many(store: Store) -> None:
    """Nobody waits for what another is taking."""
    give(store, 10_000)
    for number in range(12):
        submitted(store, f"film-{number}", submission_key=f"film {number}")
    now = store.clock.now_ms() + 10_000

    def act(one: Store, actor: int) -> list[int]:
        taken = one.write(
            lambda c: provider_tasks.take_due(c, PROVIDER, holder=f"{actor}", now=now, lease_ms=5000, limit=4)
        )
        return [task.id for task in taken.result()]

    with actors(store) as stores:
        taken = [task for of_one in at_once(stores, act) for task in of_one]
    assert len(taken) == len(set(taken))


@pytest.mark.both_databases
def test_whatever_many_do_at_once_money_is_right(store: Store) -> None:
    """They make, submit, are told, try again and grant, all on the same few tasks, and nobody meets an odd error.

    Transactions that wait for each other in a circle are run again by their writer.
    """
    job = store.enqueue("graph", {}).job.public_id
    give(store, 2000)
    refused = (GenerationRefused, InsufficientCredit, ProviderTaskConflict)

    def act(one: Store, actor: int) -> None:
        chance = random.Random(actor)
        for number in range(40):
            key, film = f"film {chance.randrange(3)}", f"film-{chance.randrange(9)}"
            status = chance.choice([PENDING, DONE, FAILED])
            tasks = one.read(provider_tasks.listed)
            task = chance.choice(tasks) if tasks else None
            with suppress(*refused):
                match chance.randrange(6):
                    case 0:
                        create(one, 200, submission_key=key, generation=chance.randint(1, 3), job=job)
                    case 1:
                        submitted(one, film, submission_key=key, job=job)
                    case 2:
                        about = {"provider_key": task.provider_key} if task and chance.random() < 0.5 else {}
                        send(one, status, f"{actor} {number}", provider_task_id=film, **about)
                    case 3 if task:
                        tell(one, task, replace(status, provider_task_id=chance.choice([None, film])))
                    case 4:
                        give(one, 100, f"more {chance.randrange(5)}")
                    case _:
                        now = one.clock.now_ms() + 60_000
                        due: dict[str, Any] = {"holder": f"{actor}", "now": now, "lease_ms": 1, "limit": 3}
                        one.write(lambda c, due=due: provider_tasks.take_due(c, PROVIDER, **due)).result()

    with actors(store) as stores:
        assert at_once(stores, act) == [None] * ACTORS
    tasks = store.read(provider_tasks.listed)
    assert any(task.is_final for task in tasks)
    for task in tasks:
        assert sum(amount for _, amount in entries(store, task)) == (0 if task.state == "failed" else -task.amount)
        assert (told(store, task) is not None) == task.is_final
    ids = {task.provider_task_id for task in tasks}
    for event in store.read(lambda c: provider_events.listed(c, state="parked", limit=1000)):
        assert event.provider_task_id not in ids
    adds_up(store)


# ---- on PostgreSQL, where transactions overlap


@pytest.fixture
def beside() -> Iterator[tuple[Store, Store]]:
    """A record, opened by two processes."""
    with fresh_postgres() as store, Store.open(store.url, clock=store.clock) as other:
        yield store, other


def meet(stores: tuple[Store, Store], first: Callable[[Any], Any], second: Callable[[Any], Any]) -> Any:
    """One transaction has done its work when the other begins, and commits when that is done or waits."""
    held = Held(stores[1], first)
    other: Future[Any] = stores[0].write(second)
    stands(stores[0], other)
    held.commit()
    return other.result()


@pytest.mark.parametrize("event_first", [True, False])
def test_an_event_that_comes_as_its_task_learns_the_id_is_not_lost(
    beside: tuple[Store, Store], event_first: bool
) -> None:
    """Each of the two transactions would see nothing of the other, were they not one after another."""
    store = beside[0]
    give(store, 500)
    task = submitted(store, None)
    event = ProviderEvent("event", DONE, "film-1")

    def comes(connection: Any) -> Any:
        return provider_events.take(connection, PROVIDER, event, now=1)

    def learns(connection: Any) -> Any:
        return provider_tasks.accepted(connection, task, "film-1", now=1, next_poll_at=2)

    meet(beside, *((comes, learns) if event_first else (learns, comes)))
    assert again(store, task).state == "succeeded"
    assert store.read(lambda c: provider_events.listed(c, state="parked")) == []


def test_an_event_that_comes_twice_at_once_is_taken_once(beside: tuple[Store, Store]) -> None:
    """The second one waits for the first, and is told that it is a duplicate."""
    give(beside[0], 500)
    submitted(beside[0])
    event = ProviderEvent("event", FAILED, "film-1")

    def comes(connection: Any) -> Any:
        return provider_events.take(connection, PROVIDER, event, now=1)

    assert meet(beside, comes, comes).duplicate
    assert balance(beside[0]) == 500


def test_an_end_that_comes_as_another_is_written_waits_and_is_a_contradiction(beside: tuple[Store, Store]) -> None:
    """It decides by the row as the first one left it."""
    give(beside[0], 500)
    task = submitted(beside[0])

    def ends(status: ProviderStatus) -> Callable[[Any], Any]:
        return lambda c: provider_tasks.reconcile(c, task, status, source="poll", actor="x", now=1)

    second = meet(beside, ends(FAILED), ends(DONE))
    assert (second.changed, second.contradiction, second.task.state) == (False, True, "failed")


def makes(key: str) -> Callable[[Any], Any]:
    """Make a task for 2.00."""
    asked: dict[str, Any] = {"owner": OWNER, "submission_key": key, "generation": 1, "job": "job", "request": {}}
    return lambda c: provider_tasks.create(c, **asked, provider=PROVIDER, quote=price(200), now=1, actor="x")


def test_a_charge_that_meets_another_waits_and_sees_what_is_left(beside: tuple[Store, Store]) -> None:
    """Either would be covered alone."""
    give(beside[0], 300)
    with pytest.raises(InsufficientCredit):
        meet(beside, makes("cat"), makes("dog"))
    assert balance(beside[0]) == 100
    adds_up(beside[0])


def test_a_key_whose_first_comer_is_rolled_back_is_the_seconds(beside: tuple[Store, Store]) -> None:
    """Who waited for it makes the task, and is not told of one that never was."""
    store, other = beside
    give(store, 500)
    halt = Halt()

    def fails(connection: Any) -> None:
        makes("cat")(connection)
        halt.stand()
        raise KeyError("a crash")

    first = other.write(fails)
    halt.wait_until_reached()
    second: Future[Any] = store.write(makes("cat"))
    stands(store, second)
    halt.release()
    with pytest.raises(KeyError):
        first.result()
    assert second.result()[1]
    assert balance(store) == 300
