"""Jobs that wait for a signal or a moment: parked without a worker, woken once, the same in every replay."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from langgraph.types import interrupt

from everstep import effect
from everstep.checkpoints.job import PARKED
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock
from everstep.errors import WaitInvalid
from everstep.nodes.wait import asleep_until, await_for, sleep_until, wait_for
from everstep.runtime.worker import Worker
from tests.support.jobs import Log, beside, chain, moves, result, run, work
from tests.support.record import claim
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.both_databases

HOUR = timedelta(hours=1)


def heard(name: str, **until: Any) -> Any:
    """A node that waits for a signal, and logs what it carried."""

    def node(_state: Log) -> Log:
        arrived = wait_for(name, **until)
        return {"log": [None if arrived is None else arrived.payload]}

    return node


def is_parked(store: Store, job: Job) -> bool:
    """Whether a job waits without a worker, and nothing of it was spent."""
    job = store.job(job.public_id)
    assert (job.leased_by, job.lease_until, job.failures) == (None, None, 0)
    return job.status == "pending" and job.attempts == 0 and job.next_run_at > store.clock.now_ms()


def work_once(store: Store, graph: Any) -> None:
    """Run one leg of the job that is due."""

    def drain(event: str, _job: Job) -> None:
        if event != "claimed":
            worker.drain()

    worker = Worker(store, {"graph": graph}, listener=drain)
    impatient = threading.Timer(PATIENCE, worker.drain)
    impatient.start()
    worker.run()
    assert impatient.is_alive(), "nothing was due"
    impatient.cancel()


def test_a_signal_wakes_the_job(store: Store) -> None:
    """A job that waits is parked: pending, no lease, no attempt spent; the signal lets it go on with its payload."""
    graph = chain(lambda _state: {"log": ["before"]}, heard("paid:17"), lambda _state: {"log": ["after"]})
    job = run(store, graph)
    assert is_parked(store, job)
    assert job.next_run_at == PARKED
    work(store, graph)
    assert moves(store, job) == ["pending", "running", "pending"]  # nothing looked again meanwhile
    signal, emitted = store.emit("paid:17", {"amount": 5}, by="anna")
    assert emitted
    assert store.job(job.public_id).next_run_at == store.clock.now_ms()
    work(store, graph)
    assert result(store, job) == ["before", {"amount": 5}, "after"]
    (wait,) = store.waits(job)
    assert (wait.state, wait.value["id"], wait.value["emitted_by"]) == ("met", signal.public_id, "anna")
    assert store.job(job.public_id).attempts == 1


def test_a_signal_that_came_before_is_heard(store: Store) -> None:
    """Who begins to wait after the signal was emitted goes on at once."""
    store.emit("paid:17", [1, 2])
    assert result(store, run(store, chain(heard("paid:17")))) == [[1, 2]]


def test_the_first_emission_wins(store: Store) -> None:
    """A second emission of a name changes nothing, and is told the first one."""
    first, emitted = store.emit("paid:17", "first", by="anna")
    again, emitted_again = store.emit("paid:17", "second", by="berta")
    assert (emitted, emitted_again, again) == (True, False, first)
    assert result(store, run(store, chain(heard("paid:17")))) == ["first"]


def test_the_moment_ends_a_wait(store: Store, clock: ManualClock) -> None:
    """A wait that is over by its moment gives None, and a signal that comes later does not change that."""
    graph = chain(heard("paid:17", until=HOUR), heard("never", until=timedelta(days=400)))
    job = run(store, graph)
    assert is_parked(store, job)
    assert store.job(job.public_id).next_run_at == clock.now_ms() + 3_600_000
    clock.advance(3_599_999)
    assert claim(store) == []
    clock.advance(1)
    work_once(store, graph)
    assert [wait.state for wait in store.waits(job)] == ["over", "open"]
    store.emit("paid:17", "late")
    store.emit("never", "came")
    work(store, graph)
    assert result(store, job) == [None, "came"]


def test_a_span_counts_from_the_first_time(store: Store, clock: ManualClock) -> None:
    """`sleep_until` of a span does not begin anew when the node's body runs again."""
    runs: list[int] = []

    def sleeps(_state: Log) -> Log:
        runs.append(clock.now_ms())
        sleep_until(HOUR)
        sleep_until(2 * HOUR)
        return {"log": ["woke"]}

    graph = chain(sleeps)
    job = run_until_parked(store, graph)
    began = clock.now_ms()
    clock.advance(3_600_000)
    work_once(store, graph)
    assert store.job(job.public_id).next_run_at == began + 3 * 3_600_000
    clock.advance(7_200_000)
    work_once(store, graph)
    assert result(store, job) == ["woke"]
    assert len(runs) == 3


def run_until_parked(store: Store, graph: Any) -> Job:
    """A job of the graph, run as far as it comes now."""
    job = store.enqueue("graph", {"log": []}).job
    work_once(store, graph)
    assert is_parked(store, job)
    return job


async def both(_state: Log) -> Log:
    """An async node that sleeps, then hears."""
    await asleep_until(datetime(2100, 1, 1, tzinfo=UTC))
    arrived = await await_for("paid:17", until=datetime(2101, 1, 1, tzinfo=UTC))
    return {"log": [arrived and arrived.payload]}


def test_async_nodes_wait(store: Store, clock: ManualClock) -> None:
    """An async node waits until a moment and for a signal, one after the other."""
    graph = chain(both)
    job = run_until_parked(store, graph)
    clock.advance(int(datetime(2100, 1, 1, tzinfo=UTC).timestamp() * 1000) - clock.now_ms())
    work_once(store, graph)
    store.emit("paid:17", "yes")
    work(store, graph)
    assert result(store, job) == ["yes"]


def test_effects_before_a_wait_happen_once(store: Store) -> None:
    """The body runs again when its wait is over; what it did before is not done again."""
    calls: list[str] = []

    @effect("world.act")
    def act() -> str:
        calls.append("act")
        return "acted"

    def node(_state: Log) -> Log:
        acted = act()
        arrived = wait_for("go")
        return {"log": [acted, arrived and arrived.payload, act()]}

    graph = chain(node)
    job = run(store, graph)
    store.emit("go", 1)
    work(store, graph)
    assert result(store, job) == ["acted", 1, "acted"]
    assert calls == ["act", "act"]  # two calls in the body, each once


def test_siblings_go_on(store: Store) -> None:
    """While one branch waits the others run to their ends; each signal moves its own branch."""
    done: list[str] = []

    def other(_state: Log) -> Log:
        done.append("other")
        return {"log": ["other"]}

    graph = beside(heard("a"), heard("b"), other)
    job = run(store, graph)
    assert is_parked(store, job)
    store.emit("b", "b")
    work(store, graph)
    assert is_parked(store, job)
    store.emit("a", "a")
    work(store, graph)
    assert result(store, job) == ["a", "b", "other"]
    assert done == ["other"]


def asks(_state: Log) -> Log:
    """A node that asks a person."""
    return {"log": [interrupt("which?")]}


@pytest.mark.parametrize("signal_first", [True, False])
def test_a_question_beside_a_wait(signal_first: bool, store: Store) -> None:
    """Where one branch waits for a person and another for a signal, either moves the job on, in any order."""
    graph = beside(asks, heard("paid:17"))
    job = run(store, graph)
    assert is_parked(store, job)
    (review,) = store.reviews()
    if signal_first:
        store.emit("paid:17", "paid")
        work(store, graph)
        assert store.job(job.public_id).status == "review"
        store.answer(review.public_id, "respond", value="this")
    else:
        store.answer(review.public_id, "respond", value="this")
        assert store.job(job.public_id).next_run_at == store.clock.now_ms()
        work(store, graph)
        assert is_parked(store, job)
        store.emit("paid:17", "paid")
    work(store, graph)
    assert result(store, job) == ["this", "paid"]


def test_a_wait_after_a_question_and_before_one(store: Store) -> None:
    """Questions and waits of one node do not take each other's answers."""

    def node(_state: Log) -> Log:
        first = interrupt("first?")
        arrived = wait_for("go")
        return {"log": [first, arrived and arrived.payload, interrupt("second?")]}

    graph = chain(node)
    job = run(store, graph)
    store.answer(store.reviews()[0].public_id, "respond", value=1)
    work(store, graph)
    assert is_parked(store, job)
    store.emit("go", 2)
    work(store, graph)
    (review,) = store.reviews()
    store.answer(review.public_id, "respond", value=3)
    work(store, graph)
    assert result(store, job) == [1, 2, 3]


def test_a_wait_inside_a_subgraph(store: Store) -> None:
    """A node of a subgraph waits like any other, also two at once."""
    inner = beside(heard("a"), heard("b"))
    graph = chain(inner, lambda _state: {"log": ["after"]})
    job = run(store, graph)
    for name in ("a", "b"):
        assert is_parked(store, job)
        store.emit(name, name)
        work(store, graph)
    assert result(store, job) == ["a", "b", "after"]


def test_the_signals_of_others_are_not_heard(store: Store) -> None:
    """A signal wakes jobs of its owner alone."""
    graph = chain(heard("paid:17"))
    job = store.enqueue("graph", {"log": []}, owner="berta").job
    work(store, graph)
    store.emit("paid:17", "anna's", owner="anna")
    assert is_parked(store, job)
    store.emit("paid:17", "berta's", owner="berta")
    work(store, graph)
    assert result(store, job) == ["berta's"]


def test_a_cancelled_wait(store: Store) -> None:
    """A parked job is cancelled at once, and a signal does not bring it back."""
    graph = chain(heard("paid:17"))
    job = run(store, graph)
    assert store.cancel(job.public_id).status == "failed"
    store.emit("paid:17")
    work(store, graph)
    assert store.job(job.public_id).status == "failed"


def test_a_signal_beside_the_beginning_of_a_wait_is_heard(store: Store, clock: ManualClock) -> None:
    """However an emission and the beginning of a wait meet, the job is woken, or was never parked."""
    names = [f"signal-{number}" for number in range(20)]
    graph = chain(lambda state: {"log": [(arrived := wait_for(state["log"][0])) and arrived.payload]})
    jobs = [store.enqueue("graph", {"log": [name]}).job for name in names]
    with Store.open(store.url, clock=clock) as other, ThreadPoolExecutor(4) as emitters:
        worker = Worker(store, {"graph": graph}, concurrency=4)
        running = threading.Thread(target=worker.run)
        running.start()
        emitted = [emitters.submit(other.emit, name, name) for name in names]
        for each in emitted:
            assert each.result(PATIENCE)[1]
        until(lambda: all(store.job(job.public_id).status == "done" for job in jobs), "every job's end")
        worker.drain()
        running.join(PATIENCE)
    assert [result(store, job) for job in jobs] == [[name, name] for name in names]


@pytest.mark.parametrize(
    ("wait", "code", "named"),
    [
        (lambda: wait_for("go", until=5.0), "wait_invalid", "5.0"),  # type: ignore[arg-type]
        (lambda: wait_for("go", until=datetime(2100, 1, 1)), "wait_invalid", "time zone"),
        (lambda: wait_for("go", until=timedelta(days=99_999_999)), "wait_invalid", "9999"),
        (lambda: sleep_until(None), "wait_invalid", "no moment"),  # type: ignore[arg-type]
        (lambda: wait_for(None), "signal_invalid", "None"),  # type: ignore[arg-type]
        (lambda: wait_for("everstep.mine"), "signal_invalid", "everstep."),
    ],
)
def test_a_wait_that_is_none_says_so(store: Store, wait: Any, code: str, named: str) -> None:
    """The job's error names what is wrong, instead of waiting for ever or failing somewhere inside."""
    job = run(store, chain(lambda _state: {"log": [wait()]}))
    error = json.loads(store.job(job.public_id).error_json or "")
    assert (error["code"], named in error["message"]) == (code, True), error


def test_outside_a_job_nothing_waits(store: Store) -> None:
    """A graph that runs by itself is told that only jobs can wait; an async node that it must not block its loop."""
    del store
    with pytest.raises(WaitInvalid, match="only a job can wait"):
        chain(heard("go")).invoke({"log": []})

    async def blocks(_state: Log) -> Log:
        sleep_until(HOUR)
        return {}

    with pytest.raises(WaitInvalid, match="event loop"):
        asyncio.run(chain(blocks).ainvoke({"log": []}))
