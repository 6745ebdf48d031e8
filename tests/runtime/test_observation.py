"""Asking providers how paid tasks are: when, how often, by whom, and what a failure or an odd answer does."""

from __future__ import annotations

import asyncio
import functools
import logging
import random
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.checkpoints import provider_polls, provider_tasks, signals
from everstep.checkpoints.provider_status import ProviderStatus
from everstep.checkpoints.provider_task import ProviderTask
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock
from everstep.errors import ProviderTaskMissing, ProviderUnusable
from everstep.nodes.providers.registry import Entry, Providers
from everstep.runtime import polling
from everstep.runtime.observation import AT_ONCE, LEASE_MS, Observation
from everstep.runtime.polling import MISSING_AT, QUERY_S, TOLD, Pace, Poll
from tests.support.paid import DONE, FAILED, PENDING, PRICE, Scripted, again, entries, task_of
from tests.support.record import record
from tests.support.waiting import until

PACE = Pace()


def observation(store: Store, provider: Scripted, *, rate: float | None = None, burst: int = 1) -> Observation:
    """A poller of one provider."""
    providers = Providers({provider.name: Entry(lambda: provider, rate=rate, burst=burst)})
    return Observation(store, providers, randomness=random.Random(1))


def job_of(store: Store) -> str:
    """A job that tasks may name."""
    return store.enqueue("graph", {"log": []}).job.public_id


# ---- when


@given(st.integers(0, 10_000), st.none() | st.integers(0, 10_000_000), st.integers(0, 2**32))
def test_waits_grow_to_a_limit(polls: int, retry_after: int | None, seed: int) -> None:
    """Each wait is 1.6 times the one before up to five minutes, plus a quarter at most, and never below Retry-After."""
    delay = PACE.delay_ms(polls, retry_after, random.Random(seed))
    wait = max(min(int(2_000 * 1.6 ** min(polls, 64)), 300_000), retry_after or 0)
    assert wait <= delay <= wait + wait // 4


def test_no_wait_is_longer_than_a_day() -> None:
    """A provider that asks for three years is asked again in a day, and the jitter."""
    day = 86_400_000
    assert day <= PACE.delay_ms(0, 99_999_999_000, random.Random(1)) <= day + day // 4


@pytest.mark.both_databases
async def test_a_task_is_asked_for_until_it_ends(store: Store, clock: ManualClock) -> None:
    """It is asked for when it is due and not before, its progress kept, its end stored once with result and signal."""
    provider, task = Scripted(), task_of(store, to="pending")
    provider.says["at-film"] = [ProviderStatus("pending", progress=40), PENDING, DONE]
    poller = observation(store, provider)
    due = await poller.until_asked()
    assert provider.asked["at-film"] == 1
    assert again(store, task).progress == 40
    assert due is not None
    assert PACE.delay_ms(1, None, random.Random()) >= 3_200 <= due - clock.now_ms() <= 4_000
    assert await poller.until_asked() == due, "nothing is due"
    waits = [due - clock.now_ms()]
    for _ in range(2):
        clock.advance(due - clock.now_ms())
        due = await poller.until_asked() or clock.now_ms()
        waits.append(due - clock.now_ms())
    assert provider.asked["at-film"] == 3
    assert waits[1] > waits[0]
    ended = again(store, task)
    assert (ended.state, ended.result, ended.settled_by, ended.next_poll_at) == ("succeeded", DONE.result, "poll", None)
    assert entries(store, task) == [("charge", -PRICE)]
    assert await poller.until_asked() is None


@pytest.mark.both_databases
async def test_what_fails_is_refunded_once(store: Store) -> None:
    """A poll that finds a failure refunds the charge, and another poll or event afterwards changes nothing."""
    provider, task = Scripted(), task_of(store, to="pending")
    provider.says["at-film"] = [FAILED]
    await observation(store, provider).until_asked()
    settled = again(store, task)
    assert (settled.state, settled.error) == ("failed", FAILED.error)
    told = store.write(
        lambda c: provider_tasks.reconcile(c, task, FAILED, source="webhook", actor="w", now=store.clock.now_ms())
    ).result()
    assert (told.changed, told.contradiction) == (False, False)
    assert entries(store, task) == [("charge", -PRICE), ("refund", PRICE)]


async def test_the_provider_is_not_asked_before_it_wants(store: Store, clock: ManualClock) -> None:
    """Retry-After holds in an answer and in an error, also beyond our own longest wait."""
    provider = Scripted()
    provider.says["at-a"] = [ProviderStatus("pending", retry_after_ms=3_600_000)]
    request = httpx.Request("GET", "http://127.0.0.1/a")
    busy = httpx.Response(429, headers={"retry-after": "1800"}, request=request)
    provider.says["at-b"] = [httpx.HTTPStatusError("busy", request=request, response=busy)]
    calm, refused = task_of(store, "a", to="pending"), task_of(store, "b", to="pending")
    await observation(store, provider).until_asked()
    assert (again(store, calm).next_poll_at or 0) >= clock.now_ms() + 3_600_000
    assert (again(store, refused).next_poll_at or 0) >= clock.now_ms() + 1_800_000


@pytest.mark.both_databases
async def test_a_provider_that_asks_for_no_wait_gets_ours(store: Store, clock: ManualClock) -> None:
    """`Retry-After: 0` in a poll's answer does not make it asked again at once, and again; a message's does, once."""
    provider, task = Scripted(), task_of(store, to="pending")
    soon = ProviderStatus("pending", retry_after_ms=0)
    provider.says["at-film"] = [soon, soon, DONE]
    poller = observation(store, provider)
    due = await poller.until_asked()
    assert provider.asked.total() == 1
    assert due is not None
    assert due > clock.now_ms()
    tell = functools.partial(provider_tasks.reconcile, source="webhook", actor="w", now=clock.now_ms())
    store.write(lambda connection: tell(connection, task, soon)).result()
    assert again(store, task).next_poll_at == clock.now_ms()
    assert await poller.until_asked() != clock.now_ms()
    assert provider.asked.total() == 2


# ---- what a failure does


@pytest.mark.both_databases
async def test_a_failing_query_fails_no_task(store: Store, clock: ManualClock) -> None:
    """Failures are counted, the last one kept without its secrets, an answer forgets them; the task stays pending."""
    provider, task = Scripted(), task_of(store, to="pending")
    provider.says["at-film"] = [ConnectionError("no route, token=sk-0123456789abcdef0123456789abcdef"), PENDING]
    poller = observation(store, provider)
    for failures in (1, 2):
        provider.says["at-film"].insert(0, provider.says["at-film"][0])
        due = await poller.until_asked() or 0
        failed = again(store, task)
        assert (failed.state, failed.poll_failures) == ("pending", failures)
        assert (failed.poll_error or "").startswith("ConnectionError: no route")
        assert "0123456789abcdef" not in (failed.poll_error or "")
        clock.advance(due - clock.now_ms())
    provider.says["at-film"] = [PENDING]
    await poller.until_asked()
    well = again(store, task)
    assert (well.poll_failures, well.poll_error, well.polls) == (0, None, 3)
    assert entries(store, task) == [("charge", -PRICE)]


@pytest.mark.both_databases
@pytest.mark.parametrize("state", ["pending", "succeeded"])
async def test_an_answer_about_another_task_is_a_failed_question(store: Store, clock: ManualClock, state: Any) -> None:
    """It settles nothing and is no evidence of a second submission; the task is asked for again later."""
    provider, task = Scripted(), task_of(store, to="pending", job=(job := job_of(store)))
    provider.says["at-film"] = [ProviderStatus(state, "at-another"), DONE]
    due = await observation(store, provider).until_asked() or 0
    seen = again(store, task)
    assert (seen.state, seen.poll_failures, seen.leased_by) == ("pending", 1, None)
    assert "another task's id" in (seen.poll_error or "")
    assert store.evidence(store.job(job)) == []
    clock.advance(due - clock.now_ms())
    await observation(store, provider).until_asked()
    assert again(store, task).state == "succeeded"


@pytest.mark.both_databases
async def test_a_failure_is_noted_whatever_its_words(store: Store) -> None:
    """What no database can hold is replaced in the words of an error, which is counted as any other."""
    provider, task = Scripted(), task_of(store, to="pending")
    provider.says["at-film"] = [ValueError("a\0b\ud800c")]
    await observation(store, provider).until_asked()
    assert (again(store, task).poll_failures, again(store, task).poll_error) == (1, "ValueError: a\ufffdb?c")


async def test_a_task_the_provider_does_not_know_is_a_persons(
    store: Store, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """After five such answers that is evidence and an error in the log, once; it goes on slowly, and nothing is failed.

    When the provider knows it again, it goes on as if nothing had been.
    """
    provider = Scripted()
    job = store.job(job_of(store))
    task = task_of(store, to="pending", job=job.public_id)
    provider.otherwise = ProviderTaskMissing("no such task")
    poller = observation(store, provider)
    for _ in range(MISSING_AT + 2):
        due = await poller.until_asked() or 0
        clock.advance(due - clock.now_ms())
    lost = again(store, task)
    assert (lost.state, lost.poll_error, lost.poll_failures) == ("pending", TOLD, MISSING_AT + 2)
    assert [one["kind"] for one in store.evidence(job)] == ["provider"]
    assert [line.levelno for line in caplog.records if "no such task" in line.message].count(logging.ERROR) == 1
    asked = provider.asked["at-film"]
    await poller.until_asked()
    assert provider.asked["at-film"] == asked + 1
    assert (again(store, task).next_poll_at or 0) >= clock.now_ms() + 300_000
    assert entries(store, task) == [("charge", -PRICE)]
    provider.otherwise = DONE
    clock.advance(400_000)
    await poller.until_asked()
    assert again(store, task).state == "succeeded"


async def test_one_that_hangs_holds_up_no_other(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query without an answer ends at its time limit; others of its provider, and other providers, are asked."""
    monkeypatch.setattr(polling, "QUERY_S", 0.2)
    stuck, well = Scripted("stuck"), Scripted("well")
    stuck.hangs = {"at-0"}
    well.otherwise = stuck.otherwise = DONE
    tasks = [task_of(store, str(number), to="pending", provider="stuck") for number in range(AT_ONCE + 2)]
    other = task_of(store, "other", to="pending", provider="well")
    poller = Observation(store, Providers.of(stuck, well))
    poller.start()
    try:
        until(lambda: all(again(store, task).is_final for task in [*tasks[1:], other]), "the others' ends")
        until(lambda: again(store, tasks[0]).poll_failures, "the time limit")
    finally:
        poller.stop()
    assert again(store, tasks[0]).poll_error == "no answer in 0 s"
    assert stuck.most_at_once <= AT_ONCE


async def test_a_provider_that_cannot_be_made_is_told_once(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """Without its key a provider is asked nothing, and the log tells it once; others are asked."""

    def make() -> Scripted:
        raise ProviderUnusable("films has no key", next_step="set FILMS_KEY")

    well = Scripted("well")
    well.otherwise = DONE
    task, other = task_of(store, to="pending"), task_of(store, "other", to="pending", provider="well")
    poller = Observation(store, Providers({"films": Entry(make), "well": Entry(lambda: well)}))
    poller.start()
    try:
        until(lambda: again(store, other).is_final, "the other's end")
        until(lambda: "FILMS_KEY" in caplog.text, "the line")
        task_of(store, "one more", to="pending")  # wakes it
    finally:
        poller.stop()
    assert [line.levelno for line in caplog.records if "films has no key" in line.message].count(logging.ERROR) == 1
    assert again(store, task).polls == 0


# ---- by whom


def taken(store: Store, holder: str = "somebody") -> ProviderTask:
    """The one task that is due, taken."""
    (task,) = store.write(
        lambda c: provider_polls.take_due(
            c, "films", holder=holder, now=store.clock.now_ms(), lease_ms=LEASE_MS, limit=9
        )
    ).result()
    return task


@pytest.mark.both_databases
async def test_no_query_after_its_lease(store: Store, clock: ManualClock) -> None:
    """Who comes to ask when the lease is over does not ask: the task is somebody else's."""
    provider = Scripted()
    task_of(store, to="pending")
    task = taken(store)
    poll = Poll(store, provider, PACE, "somebody", random.Random(1))
    clock.advance(LEASE_MS)
    assert await poll.ask(task) == "late"
    assert provider.asked.total() == 0
    other = taken(store, "another")
    assert await Poll(store, provider, PACE, "another", random.Random(1)).ask(other) == "pending"
    assert provider.asked.total() == 1
    assert QUERY_S * 1000 < LEASE_MS


@pytest.mark.both_databases
async def test_an_answer_that_comes_late(store: Store, clock: ManualClock) -> None:
    """Whoever lost the lease while it asked sets no time and no failure; an end that it learned counts all the same."""
    provider = Scripted()
    task_of(store, to="pending")
    late = taken(store)
    poll = Poll(store, provider, PACE, "somebody", random.Random(1))
    asking = asyncio.Event()
    answered = asyncio.Event()

    async def query(_task: str) -> ProviderStatus:
        asking.set()
        await answered.wait()
        return provider.otherwise if isinstance(provider.otherwise, ProviderStatus) else PENDING

    provider.query = query  # type: ignore[method-assign]
    for status, state in ((PENDING, "pending"), (DONE, "succeeded")):
        provider.otherwise = status
        asking.clear(), answered.clear()
        question = asyncio.create_task(poll.ask(late))
        await asking.wait()
        clock.advance(LEASE_MS)
        before = taken(store, f"another {state}")
        answered.set()
        await question
        now = again(store, late)
        assert now.state == state
        if state == "pending":
            assert (now.leased_by, now.next_poll_at) == (before.leased_by, before.next_poll_at)
            late = taken_again(store, clock)
    assert entries(store, late) == [("charge", -PRICE)]


def taken_again(store: Store, clock: ManualClock) -> ProviderTask:
    """The task once more, by the first holder."""
    clock.advance(LEASE_MS)
    return taken(store)


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
async def test_many_tasks_are_asked_for_within_the_rate(tmp_path: Path, database: str) -> None:
    """Two pollers with records of their own ask for 500 tasks at 50 a second with bursts of 10: each once a round.

    In no second more than the rate and one burst.
    """
    clock = ManualClock()
    rate, burst, number = 50, 10, 500
    provider = Scripted()
    times: list[int] = []
    query = provider.query

    async def counted(provider_task_id: str) -> ProviderStatus:
        times.append(clock.now_ms())
        return await query(provider_task_id)

    provider.query = counted  # type: ignore[method-assign]
    with record(database, tmp_path, clock) as first, Store.open(first.url, clock=clock) as second:
        for one in range(number):
            task_of(first, str(one), to="pending")
        pollers = [observation(store, provider, rate=rate, burst=burst) for store in (first, second)]
        began = clock.now_ms()
        while len(provider.asked) < number:
            due = await asyncio.gather(*(poller.until_asked() for poller in pollers))
            soonest = min(at for at in due if at is not None)
            clock.advance(max(soonest - clock.now_ms(), 1))
            assert clock.now_ms() < began + 60_000
    assert set(provider.asked) == {f"at-{one}" for one in range(number)}
    for start in times:
        assert sum(start <= at < start + 1000 for at in times) <= rate + burst
    took = clock.now_ms() - began
    assert took >= (number - burst) * 1000 // rate - 1000 // rate
    assert took <= 2 * number * 1000 // rate, "and the rate is used"


async def test_a_task_is_waited_for_no_longer_than_its_end(shared: Store) -> None:
    """A poller that sleeps is woken when a task is accepted: it does not wait for its next look."""
    provider = Scripted()
    provider.otherwise = DONE
    poller = Observation(shared, Providers.of(provider))
    poller.start()
    try:
        task = task_of(shared, to="pending")
        until(lambda: again(shared, task).is_final, "its end")
    finally:
        poller.stop()
    signal = shared.read(lambda c: signals.find(c, "ada", task.signal))
    assert signal is not None


async def test_without_providers_nothing_runs(store: Store) -> None:
    """Where none is configured the poller has no thread and does nothing."""
    poller = Observation(store, Providers())
    poller.start()
    assert await poller.until_asked() is None
    poller.stop()
