"""Waking streams: those that something happened on, no others, and none is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, delete

from everstep.checkpoints import conversations, events, runs
from everstep.checkpoints.events import Emitted
from everstep.checkpoints.runs import Run, RunRequest
from everstep.checkpoints.schema import events as table
from everstep.checkpoints.schema import runs as run_rows
from everstep.checkpoints.store import Store
from everstep.clock import uuid7
from everstep.errors import RunNotFound
from everstep.server.shared_reads import GOES, MOST, SharedReads
from everstep.server.watch import Waiter, Watch
from tests.support.waiting import PATIENCE


def begin(store: Store) -> Run:
    """A run on a thread of its own."""
    now = store.clock.now_ms()

    def create(connection: Connection) -> Run:
        thread = conversations.ensure(connection, uuid7(now), owner="default", now=now)
        request = RunRequest(graph="graph", assistant_id="graph", input={})
        return runs.create(connection, request, thread_id=thread.thread_id, owner="default", now=now, actor="test")

    return store.write(create).result()


def tell(connection: Connection, run: Run, method: str = "custom") -> None:
    """Write an event of the run."""
    job_id, run_id, thread_id = run.job_id, run.run_id, run.thread_id
    told = [Emitted(method, "1")]
    events.append(connection, told, job_id=job_id, run_id=run_id, thread_id=thread_id, claim_no=1, now=1)


async def settled(*waiters: Waiter) -> None:
    """Until the first look is over, which wakes everybody once; then nobody is woken."""
    for waiter in waiters:
        assert await waiter.wait(PATIENCE)
        waiter.look()


def within(test: Coroutine[Any, Any, None]) -> None:
    """Run a test on an event loop of its own."""
    asyncio.run(asyncio.wait_for(test, PATIENCE))


@pytest.mark.both_databases
def test_an_event_wakes_those_of_its_thread_alone(shared: Store) -> None:
    """Of two who wait for different threads one is woken; all who wait for the same thread are."""
    ours, other = begin(shared), begin(shared)

    async def test() -> None:
        watch = Watch(shared)
        async with AsyncExitStack() as stack:
            threads = (ours.thread_id, ours.thread_id, other.thread_id)
            first, second, elsewhere = [await stack.enter_async_context(watch.waiting(one)) for one in threads]
            await settled(first, second, elsewhere)
            await shared.awrite(lambda connection: tell(connection, ours))
            assert await first.wait(PATIENCE)
            assert await second.wait(PATIENCE)
            assert not await elsewhere.wait(0)

    within(test())


def test_who_waits_for_nothing_costs_no_look(shared: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record is read as often for five hundred who wait as for one."""
    run, reads = begin(shared), 0
    aread = shared.aread

    async def counted(query: Any) -> Any:
        nonlocal reads
        reads += 1
        return await aread(query)

    async def test() -> None:
        watch = Watch(shared)
        async with AsyncExitStack() as stack:
            others = [await stack.enter_async_context(watch.waiting(f"thread {n}")) for n in range(500)]
            waiter = await stack.enter_async_context(watch.waiting(run.thread_id))
            await settled(waiter, *others)
            monkeypatch.setattr(shared, "aread", counted)
            await shared.awrite(lambda connection: tell(connection, run))
            assert await waiter.wait(PATIENCE)
            assert 0 < reads < 100
            assert not any([await other.wait(0) for other in others])

    within(test())


@pytest.mark.both_databases
def test_who_waits_for_a_runs_end_is_woken_by_that_alone(shared: Store) -> None:
    """What a run tells before its end wakes its streams, and nobody who waits for its output."""
    run = begin(shared)

    async def test() -> None:
        watch = Watch(shared)
        async with watch.waiting(run.thread_id) as stream, watch.waiting_for_end(run.thread_id) as output:
            await settled(stream, output)
            await shared.awrite(lambda connection: tell(connection, run))
            assert await stream.wait(PATIENCE)
            assert not await output.wait(0)
            await shared.awrite(lambda connection: tell(connection, run, events.END))
            assert await output.wait(PATIENCE)

    within(test())


def test_who_asks_again_as_the_last_goes_end_is_read_for(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goes that come back in one turn of the loop leave nobody behind who asks at once for more."""
    waiting: list[asyncio.Future[None]] = []

    async def in_turn(query: Callable[[Any], Any]) -> Any:
        answered = asyncio.get_running_loop().create_future()
        waiting.append(answered)
        await answered
        return query(None)

    async def test() -> None:
        monkeypatch.setattr(store, "aread", in_turn)
        reads = SharedReads(store)

        async def asks(times: int) -> int:
            for _ in range(times):
                await reads.read(lambda _connection: None)
            return times

        tasks: list[asyncio.Task[int]] = []
        for number in range(GOES):
            tasks.append(asyncio.create_task(asks(2 if number == 0 else 1)))
            while len(waiting) <= number:
                await asyncio.sleep(0)
        while not all(task.done() for task in tasks):
            all_at_once = list(waiting)
            waiting.clear()
            assert all_at_once, "who asked again is not read for"
            for answered in all_at_once:
                answered.set_result(None)
            for _ in range(20):
                await asyncio.sleep(0)

    within(test())


@pytest.mark.both_databases
def test_who_reads_at_the_same_moment_reads_together(shared: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred who were woken take few connections; one whose query fails is alone, and nobody reads for who left."""
    run, goes, asked = begin(shared), list[int](), list[str]()
    read = shared.read

    def counted(query: Any) -> Any:
        goes.append(1)
        return read(query)

    def query(connection: Connection, name: str) -> str:
        asked.append(name)
        return runs.find(connection, run.run_id if name != "missing" else name).run_id

    async def test() -> None:
        monkeypatch.setattr(shared, "read", counted)
        reads = SharedReads(shared)
        names = ["missing", "gone", *("found" for _ in range(98))]
        tasks = [asyncio.create_task(reads.read(partial(query, name=name))) for name in names]
        await asyncio.sleep(0)  # each has asked, and nobody has read yet
        tasks[1].cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(found[0], RunNotFound)
        assert set(found[2:]) == {run.run_id}
        assert len(goes) <= 100 / MOST + GOES
        assert "gone" not in asked

    within(test())


@pytest.mark.both_databases
def test_events_that_are_deleted_wake_those_who_wait(shared: Store) -> None:
    """So a stream of a run whose events go ends, instead of waiting for ever."""
    run = begin(shared)
    shared.write(lambda connection: tell(connection, run)).result()

    async def test() -> None:
        async with Watch(shared).waiting(run.thread_id) as waiter:
            await settled(waiter)
            await shared.awrite(lambda connection: connection.execute(delete(table)))
            assert await waiter.wait(PATIENCE)

    within(test())


@pytest.mark.both_databases
def test_nothing_wakes_who_waits_for_a_thread_without_events_but_its_end(
    shared: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looks alone wake nobody: a thousand such streams would read the record all the time. Its deletion does."""
    monkeypatch.setattr("everstep.server.watch.LONGEST_S", 0.05)
    run, looks = begin(shared), list[int]()
    look = events.newest_of

    def looked(connection: Any, thread_ids: Any) -> Any:
        looks.append(1)
        return look(connection, thread_ids)

    monkeypatch.setattr(events, "newest_of", looked)

    async def test() -> None:
        async with Watch(shared).waiting(run.thread_id) as waiter:
            await settled(waiter)
            number = len(looks)
            while len(looks) < number + 3:
                assert not await waiter.wait(0.05)
            await shared.awrite(lambda connection: connection.execute(delete(run_rows)))
            assert await waiter.wait(PATIENCE)

    within(test())


@pytest.mark.parametrize("database", ["postgres"])
def test_a_transaction_that_commits_late_is_not_passed_over(shared: Store) -> None:
    """Its event has a smaller id than one that was seen before; who waits for it is woken as well."""
    late, early = begin(shared), begin(shared)

    async def test() -> None:
        watch = Watch(shared)
        async with watch.waiting(late.thread_id) as behind, watch.waiting(early.thread_id) as ahead:
            await settled(behind, ahead)
            engine = shared.database.writing_engine()
            with engine.connect() as connection:
                with connection.begin():
                    tell(connection, late)
                    await shared.awrite(lambda connection: tell(connection, early))
                    assert await ahead.wait(PATIENCE)
                    assert not await behind.wait(0)
                assert await behind.wait(PATIENCE)
            engine.dispose()
        newest = shared.read(lambda c: [events.newest(c, one.thread_id) for one in (late, early)])
        assert newest == sorted(newest)

    within(test())


def test_it_listens_anew_for_whoever_comes_later(shared: Store) -> None:
    """When the last one has left nothing is watched; the next one is woken as the first was."""
    run = begin(shared)

    async def test() -> None:
        watch = Watch(shared)
        for _ in range(3):
            async with watch.waiting(run.thread_id) as waiter:
                await settled(waiter)
                await shared.awrite(lambda connection: tell(connection, run))
                assert await waiter.wait(PATIENCE)

    within(test())
