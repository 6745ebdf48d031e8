"""What a settlement claims for the place of its job: nobody forgets it, and it takes no settlement with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Any

import pytest
from sqlalchemy import Connection

from everstep.checkpoints.jobs import Job, LostClaim
from everstep.checkpoints.store import Store
from everstep.errors import StoreUnavailable
from everstep.runtime import claiming
from everstep.runtime.claiming import Claiming
from everstep.runtime.worker import Worker
from tests.support.jobs import chain, moves, result, work

pytestmark = pytest.mark.both_databases
ClaimNext = Callable[[Claiming, Connection, Collection[int]], list[Job]]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look holds, however slow the machine is."""
    monkeypatch.setattr(claiming, "FRESH_S", 3600.0)


def saying(_state: Any) -> Any:
    """A node."""
    return {"log": ["said"]}


def enqueued(store: Store, count: int) -> list[Job]:
    """So many jobs."""
    return [store.enqueue("graph", {"log": []}, key=str(number)).job for number in range(count)]


def test_what_a_settlement_claimed_as_its_worker_was_cancelled_is_given_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settlement is committed and told; the next job waits again, and its start does not count."""
    first, second = enqueued(store, 2)
    told: list[tuple[str, str]] = []
    claim_next: ClaimNext = Claiming.claim_next

    async def embedded() -> None:
        loop = asyncio.get_running_loop()

        def cancelling(mine: Claiming, connection: Connection, running: Collection[int]) -> list[Job]:
            claimed = claim_next(mine, connection, running)
            asyncio.run_coroutine_threadsafe(cancel(), loop).result()
            return claimed

        async def cancel() -> None:
            task.cancel()
            for _ in range(20):  # until the worker, and by it the run, was told
                await asyncio.sleep(0)

        monkeypatch.setattr(Claiming, "claim_next", cancelling)
        worker = Worker(
            store,
            {"graph": chain(saying)},
            concurrency=1,
            listener=lambda event, job: told.append((event, job.public_id)),
        )
        task = asyncio.create_task(worker.run_async())
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(embedded())
    assert told == [("claimed", first.public_id), ("done", first.public_id)]
    assert moves(store, second) == ["pending", "running", "pending"]
    waiting = store.job(second.public_id)
    assert (waiting.status, waiting.attempts, waiting.leased_by) == ("pending", 0, None)


def test_what_a_worker_claimed_as_it_was_told_and_cancelled_is_given_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was idle, and what tells it of a job claims that; as it ends before it hears so, the job waits again."""
    monkeypatch.setattr("everstep.runtime.claiming.FRESH_S", 3600.0)  # a machine under load looked a second ago
    told: list[str] = []
    ring: Callable[[Claiming, Callable[[], None]], bool] = Claiming.ring

    async def embedded() -> None:
        loop = asyncio.get_running_loop()

        def cancelling(mine: Claiming, wake: Callable[[], None]) -> bool:
            claims = ring(mine, wake)
            if claims:
                loop.call_soon_threadsafe(task.cancel)
            return claims

        monkeypatch.setattr(Claiming, "ring", cancelling)
        worker = Worker(store, {"graph": chain(saying)}, listener=lambda event, _job: told.append(event))
        task = asyncio.create_task(worker.run_async())
        while not worker._claiming._offered:  # pyright: ignore[reportPrivateUsage]
            await asyncio.sleep(0.01)
        await asyncio.to_thread(enqueued, store, 1)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(embedded())
    (job,) = store.jobs()
    assert "done" not in told
    assert moves(store, job) == ["pending", "running", "pending"]
    assert (job.status, job.attempts, job.leased_by) == ("pending", 0, None)


def test_what_a_settlement_claimed_whose_commit_was_not_heard_of_is_given_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection breaks after the commit: the job is settled, and the next one runs in this worker."""
    monkeypatch.setattr("everstep.runtime.run.SETTLE_RETRY_S", 0.01)
    jobs = enqueued(store, 3)
    write, deaf = store.write, list[str]()

    def writing(operation: Callable[[Connection], Any], *, patient: bool = False) -> Future[Any]:
        heard: Future[Any] = Future()

        def hear(written: Future[Any]) -> None:
            error = written.exception()
            if error is not None:
                heard.set_exception(error)
                return
            match written.result():
                case (Job(public_id=settled), [_]) if not deaf:
                    deaf.append(settled)
                    heard.set_exception(StoreUnavailable("it broke after the commit", next_step=""))
                case value:
                    heard.set_result(value)

        write(operation, patient=patient).add_done_callback(hear)
        return heard

    monkeypatch.setattr(store, "write", writing)
    work(store, chain(saying), concurrency=1)
    assert deaf == [jobs[0].public_id]
    assert [result(store, job) for job in jobs] == [["said"]] * 3
    assert moves(store, jobs[1]) == ["pending", "running", "pending", "running", "done"]
    assert [(job.attempts, job.worker_deaths) for job in store.jobs()] == [(1, 0)] * 3


def fail_by_statement(connection: Connection) -> None:
    """On PostgreSQL it spoils the transaction."""
    connection.exec_driver_sql("SELECT nothing FROM nowhere")


def fail_by_claim(_connection: Connection) -> None:
    """As if the job to be claimed had changed meanwhile."""
    raise LostClaim("the next one")


@pytest.mark.parametrize("fail", [fail_by_statement, fail_by_claim])
def test_a_settlement_is_not_lost_to_a_claim_that_fails(
    store: Store, monkeypatch: pytest.MonkeyPatch, fail: Callable[[Connection], None]
) -> None:
    """It is made without the claim, and the worker claims by itself."""
    jobs = enqueued(store, 3)
    claim_next: ClaimNext = Claiming.claim_next
    failed: list[int] = []

    def failing(mine: Claiming, connection: Connection, running: Collection[int]) -> list[Job]:
        claimed = claim_next(mine, connection, running)
        if not failed:
            failed.append(1)
            fail(connection)
        return claimed

    monkeypatch.setattr(Claiming, "claim_next", failing)
    work(store, chain(saying), concurrency=1)
    assert failed
    assert [moves(store, job) for job in jobs] == [["pending", "running", "done"]] * 3
