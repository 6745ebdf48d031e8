"""Observing paid work: the job is parked, woken by the task's end, and sees the same in every replay."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from everstep.checkpoints import claims
from everstep.checkpoints.store import Store
from everstep.errors import CancelUnsupported, EffectRejected
from everstep.nodes.provider import (
    cancel_task,
    cancel_task_sync,
    observe_task,
    observe_task_sync,
    submit_task,
    submit_task_sync,
)
from everstep.nodes.providers.registry import Providers
from everstep.runtime.worker import Worker
from examples.provider_simulator.server import simulating
from tests.support.jobs import Log, chain, result
from tests.support.simulated import asking, simulated, task
from tests.support.waiting import until


@contextmanager
def working(store: Store, graph: Any, providers: Providers) -> Generator[Worker]:
    """A worker that works while entered."""
    worker = Worker(store, {"graph": graph}, concurrency=1, providers=providers)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield worker
    finally:
        worker.drain()
        thread.join()


def parked(store: Store) -> bool:
    """Whether the one job waits, and holds no worker."""
    (job,) = store.jobs()
    states = [wait.state for wait in store.waits(job)]
    return job.status == "pending" and job.leased_by is None and states.count("open") == 1


@pytest.mark.parametrize("sync", [False, True])
def test_a_job_is_parked_until_its_task_has_ended(shared: Store, sync: bool) -> None:
    """Waiting holds no worker and costs no attempt; the task's end wakes the job, which sees result and no ids."""
    with simulating() as simulator:
        graph = asking({"end": "never"}, sync=sync, observe=True)
        job, _ = shared.enqueue("graph", {"log": []})
        with working(shared, graph, simulated(simulator.url)):
            until(lambda: parked(shared), "the parked job")
            (there,) = simulator.book.tasks.values()
            simulator.end(there, "succeeded")
            until(lambda: shared.job(job.public_id).status == "done", "the job's end")
        _, seen = result(shared, job)
        assert (seen["state"], seen["result"]["media_type"]) == ("succeeded", "application/octet-stream")
        assert there.id not in str(seen)
        assert shared.job(job.public_id).attempts == 1
        assert (task(shared).settled_by, sum(simulator.book.made.values())) == ("poll", 1)


def test_a_task_that_fails_is_seen_as_such(shared: Store) -> None:
    """The job goes on with the provider's reason; a failed task is no failed job."""
    with simulating() as simulator:
        job, _ = shared.enqueue("graph", {"log": []})
        graph = asking({"polls": 1, "end": "failed"}, observe=True)
        with working(shared, graph, simulated(simulator.url)):
            until(lambda: shared.job(job.public_id).status == "done", "the job's end")
        seen = result(shared, job)[1]
        assert (seen["state"], seen["error"]["code"]) == ("failed", "content_refused")


def test_the_end_of_a_window_is_no_end_and_stays_what_was_seen(shared: Store) -> None:
    """A window that is over gives `pending`, also in a replay after the task has ended; a second one sees the end."""
    seen: list[str] = []
    with simulating() as simulator:

        async def node(state: Log) -> Log:
            asked = await submit_task("sim", {"prompt": "x", "simulate": {"end": "never"}}, key="film")
            first = await observe_task(asked, window=0.05)
            if not seen:
                simulator.end(next(iter(simulator.book.tasks.values())), "succeeded")
            seen.append(first["state"])
            second = await observe_task(asked)
            return {"log": [first["state"], second["state"]]}

        job, _ = shared.enqueue("graph", {"log": []})
        with working(shared, chain(node), simulated(simulator.url)):
            until(lambda: shared.job(job.public_id).status == "done", "the job's end")
        assert set(seen) == {"pending"}
        assert result(shared, job) == ["pending", "succeeded"]
        assert sum(simulator.book.received.values()) == 1


@pytest.mark.parametrize("sync", [False, True])
def test_a_task_can_be_cancelled(shared: Store, sync: bool) -> None:
    """The provider is asked once, in however many replays; what the task is then is observed."""
    with simulating() as simulator:
        request = {"prompt": "x", "simulate": {"end": "never"}}

        async def cancelling(state: Log) -> Log:
            asked = await submit_task("sim", request, key="film")
            cancelled = await cancel_task(asked)
            return {"log": [cancelled, (await observe_task(asked))["state"]]}

        def cancelling_in_thread(state: Log) -> Log:
            asked = submit_task_sync("sim", request, key="film")
            cancelled = cancel_task_sync(asked["id"])
            return {"log": [cancelled, observe_task_sync(asked)["state"]]}

        job, _ = shared.enqueue("graph", {"log": []})
        graph = chain(cancelling_in_thread if sync else cancelling)
        with working(shared, graph, simulated(simulator.url)):
            until(lambda: shared.job(job.public_id).status == "done", "the job's end")
        assert result(shared, job) == [True, "failed"]
        assert len(simulator.book.cancelled) == 1


def test_a_provider_that_cannot_cancel_is_not_asked(shared: Store) -> None:
    """It says so by False; the task goes on."""
    with simulating() as simulator:
        providers = simulated(simulator.url)
        provider = providers.get("sim")

        async def refuse(provider_task_id: str) -> None:
            raise CancelUnsupported("no")

        provider.cancel = refuse  # type: ignore[method-assign]

        async def node(state: Log) -> Log:
            asked = await submit_task("sim", {"prompt": "x", "simulate": {"end": "never"}}, key="film")
            return {"log": [await cancel_task(asked)]}

        job, _ = shared.enqueue("graph", {"log": []})
        with working(shared, chain(node), providers):
            until(lambda: shared.job(job.public_id).status == "done", "the job's end")
        assert result(shared, job) == [False]
        assert task(shared).state == "pending"


def test_a_lost_claim_changes_no_state_but_an_id_is_noted(shared: Store) -> None:
    """A worker that lost its job in mid-submit notes the id that it learned, and nothing else; the next finds it."""
    with simulating(findable=False, idempotent=False) as simulator:
        providers = simulated(simulator.url, "neither")
        provider, submit = providers.get("sim"), providers.get("sim").submit
        job, _ = shared.enqueue("graph", {"log": []})

        async def submit_and_lose(request: Any, *, key: str) -> Any:
            submitted = await submit(request, key=key)
            if not lost:
                lost.append(True)
                held = {"now": shared.clock.now_ms(), "lease_ms": 1, "limit": 1, "dead_workers": [worker.id]}
                (other,) = await shared.awrite(lambda connection: claims.claim(connection, worker="other", **held))
                assert other.claim_no == 2
            return submitted

        lost: list[bool] = []
        provider.submit = submit_and_lose  # type: ignore[method-assign]
        with working(shared, asking({"end": "never"}), providers) as worker:
            until(lambda: shared.job(job.public_id).status == "done", "the job's end")
        assert task(shared).state == "pending"
        assert sum(simulator.book.received.values()) == 1


def test_what_an_own_provider_says_was_not_sent(shared: Store) -> None:
    """`EffectRejected` of a provider of one's own: the task is created again, and the next try submits."""
    with simulating() as simulator:
        providers = simulated(simulator.url, "neither")
        provider, submit = providers.get("sim"), providers.get("sim").submit
        refused: list[bool] = []

        async def refuse_once(request: Any, *, key: str) -> Any:
            if not refused:
                refused.append(True)
                raise EffectRejected("no room")
            return await submit(request, key=key)

        provider.submit = refuse_once  # type: ignore[method-assign]

        async def node(state: Log) -> Log:
            request = {"prompt": "x", "simulate": {"end": "never"}}
            try:
                asked = await submit_task("sim", request, key="film")
            except EffectRejected:
                assert task(shared).state == "created"
                asked = await submit_task("sim", request, key="film")
            return {"log": [asked["state"]]}

        job, _ = shared.enqueue("graph", {"log": []})
        with working(shared, chain(node), providers):
            until(lambda: shared.job(job.public_id).status == "done", "the job's end")
        assert (result(shared, job), task(shared).state) == (["pending"], "pending")
