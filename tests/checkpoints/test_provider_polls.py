"""Who asks a provider for a task, and when: one at a time, under a lease, until it has ended."""

from __future__ import annotations

from dataclasses import replace

import pytest

from everstep.checkpoints import provider_tasks
from everstep.checkpoints.provider_tasks import ProviderTask
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock
from tests.support.paid import (
    DONE,
    PENDING,
    PROVIDER,
    again,
    entries,
    give,
    submitted,
    tell,
    told,
)

pytestmark = pytest.mark.both_databases


def take(store: Store, holder: str = "a", limit: int = 10) -> list[ProviderTask]:
    """Take what is due."""
    now = store.clock.now_ms()
    return store.write(
        lambda c: provider_tasks.take_due(c, PROVIDER, holder=holder, now=now, lease_ms=5000, limit=limit)
    ).result()


def put_back(store: Store, task: ProviderTask, holder: str = "a", failure: str | None = None) -> bool:
    """It was asked for."""
    now = store.clock.now_ms()
    return store.write(
        lambda c: provider_tasks.polled(c, task, holder=holder, now=now, next_poll_at=now + 3000, failure=failure)
    ).result()


def test_what_is_due_is_taken_by_one(store: Store, clock: ManualClock) -> None:
    """Until its lease ends; then another may, and the first one's word counts no more."""
    give(store, 900)
    tasks = [submitted(store, f"film-{n}", submission_key=f"film {n}") for n in range(3)]
    assert take(store) == []
    assert store.read(lambda c: provider_tasks.next_poll(c, providers=[PROVIDER], now=0)) == tasks[0].next_poll_at
    clock.advance(2000)
    taken = take(store, limit=2)
    assert [task.id for task in taken] == [task.id for task in tasks[:2]]
    assert [task.id for task in take(store, "b")] == [tasks[2].id]
    assert take(store, "b") == []
    clock.advance(5000)
    again_taken = take(store, "b")
    assert len(again_taken) == 3
    assert not put_back(store, taken[0])
    assert put_back(store, again_taken[0], "b")
    task = again(store, tasks[0])
    assert (task.leased_by, task.next_poll_at, task.polls) == (None, clock.now_ms() + 3000, 2)


def test_what_ended_meanwhile_is_not_asked_for_again(store: Store, clock: ManualClock) -> None:
    """A webhook that comes while somebody asks ends it; whoever asked changes nothing."""
    give(store, 500)
    task = submitted(store)
    clock.advance(2000)
    (taken,) = take(store)
    tell(store, task, DONE, "webhook")
    assert not put_back(store, taken)
    clock.advance(10**9)
    assert take(store) == []
    assert store.read(lambda c: provider_tasks.next_poll(c, providers=[PROVIDER], now=0)) is None


def test_failures_of_asking_are_counted_until_there_is_an_answer(store: Store, clock: ManualClock) -> None:
    """They are no failure of the task, and hold no credentials."""
    give(store, 500)
    submitted(store)
    for number in (1, 2):
        clock.advance(5000)
        (taken,) = take(store)
        assert put_back(store, taken, failure="503 for Bearer abcdefghijklmnop.qrstu1")
        task = again(store, taken)
        assert (task.state, task.poll_failures, task.poll_error) == ("pending", number, "503 for ***")
    clock.advance(5000)
    (taken,) = take(store)
    assert put_back(store, taken)
    assert (again(store, taken).poll_failures, again(store, taken).poll_error) == (0, None)


def test_the_next_poll_is_that_of_ones_own_providers(store: Store) -> None:
    """Whoever knows no provider has nothing to ask for."""
    give(store, 500)
    submitted(store)
    assert store.read(lambda c: provider_tasks.next_poll(c, providers=["another"], now=0)) is None
    assert store.read(lambda c: provider_tasks.next_poll(c, providers=[], now=0)) is None
    late = store.clock.now_ms() + 10**6
    assert store.read(lambda c: provider_tasks.next_poll(c, providers=[PROVIDER], now=late)) == late


@pytest.mark.parametrize("holders", [("a", "b"), ("a", "a")], ids=["two workers", "one worker twice"])
@pytest.mark.parametrize("late", [True, False], ids=["the first answer is late", "the first answer is first"])
def test_two_questions_that_cross_after_one_is_wanted_at_once(
    store: Store, clock: ManualClock, holders: tuple[str, str], late: bool
) -> None:
    """An event asks for it while it is asked for: the lease is the second's, and an end counts once."""
    give(store, 500)
    task = submitted(store)
    clock.advance(2000)
    (first,) = take(store, holders[0])
    tell(store, task, replace(PENDING, retry_after_ms=0), "webhook")
    (second,) = take(store, holders[1])
    assert (second.polls, again(store, task).leased_by) == (2, holders[1])
    if not late:
        assert not put_back(store, first, holders[0]), "its lease is another's"
        assert again(store, task).leased_by == holders[1]
    assert tell(store, task, DONE).changed
    assert not put_back(store, second, holders[1])
    if late:
        assert not put_back(store, first, holders[0])
        assert not tell(store, task, DONE).changed
    ended = again(store, task)
    assert (ended.state, ended.next_poll_at, ended.leased_by) == ("succeeded", None, None)
    assert [kind for kind, _ in entries(store, task)] == ["charge"]
    assert told(store, task) is not None
    clock.advance(10**6)
    assert take(store) == []
