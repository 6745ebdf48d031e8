"""The worker: leases that hold, signals, zombies, poison, outages; with real processes where a process matters."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from contextlib import suppress
from email.utils import formatdate
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

from everstep import effect
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock
from everstep.errors import StoreUnavailable
from everstep.runtime import leg
from everstep.runtime.worker import Worker
from tests.support.jobs import Log, beside, chain, moves, result, run, work
from tests.support.record import claim
from tests.support.waiting import PATIENCE, Halt, until


class InThread:
    """A worker in a thread of this process."""

    def __init__(self, store: Store, graph: Any, **options: Any) -> None:
        self.worker = Worker(store, {"graph": graph}, **options)
        self.thread = threading.Thread(target=self.worker.run, kwargs={"until_idle": True})

    def __enter__(self) -> InThread:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive(), "the worker did not become idle"


# ---- leases


def standing(halt: Halt, bodies: list[int], said: str = "done") -> Any:
    """A node that counts how often its body runs, and stands until it may go on."""

    def body(_state: Log) -> Log:
        bodies.append(1)
        halt.stand()
        return {"log": [said]}

    return body


@pytest.mark.parametrize("kind", ["a thread", "the event loop"])
def test_a_node_that_blocks_longer_than_its_lease_keeps_its_claim(shared: Store, kind: str) -> None:
    """A node that blocks its thread, or even the whole event loop, is not taken for dead: its lease is renewed."""
    halt = Halt()
    bodies: list[int] = []
    block = standing(halt, bodies)

    async def block_the_loop(state: Log) -> Log:
        return block(state)

    job, _ = shared.enqueue("graph", {"log": []})
    with InThread(shared, chain(block if kind == "a thread" else block_the_loop), lease=0.4):
        halt.wait_until_reached()
        first = shared.job(job.public_id).lease_until
        assert first is not None
        until(lambda: (shared.job(job.public_id).lease_until or 0) > first + 800, "the renewal of the lease")
        assert claim(shared, "another") == []
        halt.release()
    assert result(shared, job) == ["done"]
    assert bodies == [1]
    assert moves(shared, job) == ["pending", "running", "done"]


def test_a_worker_whose_clock_jumps_does_not_take_over_from_itself(store: Store, clock: ManualClock) -> None:
    """If time jumps over the lease, as after a sleep, the worker goes on with what it runs and renews it."""
    halt = Halt()
    bodies: list[int] = []
    block = standing(halt, bodies)

    job, _ = store.enqueue("graph", {"log": []})
    with InThread(store, chain(block), lease=30.0):
        halt.wait_until_reached()
        clock.advance(3_600_000)
        until(lambda: (store.job(job.public_id).lease_until or 0) > clock.now_ms(), "the renewal of the lease")
        halt.release()
    assert result(store, job) == ["done"]
    assert bodies == [1]
    assert store.job(job.public_id).claim_no == 1


def test_a_run_whose_job_was_taken_over_is_stopped(store: Store, clock: ManualClock) -> None:
    """A worker that learns it lost a job stops its run, stores nothing more of it, and does not touch the job."""
    entered, stopped = threading.Event(), threading.Event()

    async def endless(_state: Log) -> Log:
        entered.set()
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            stopped.set()
        return {"log": ["late"]}

    job, _ = store.enqueue("graph", {"log": []})
    in_thread = InThread(store, chain(endless), lease=0.3)
    in_thread.thread.start()
    assert entered.wait(PATIENCE)
    now = clock.now_ms()

    def steal(connection: Any) -> None:
        connection.exec_driver_sql(
            "UPDATE agent_jobs SET claim_no = claim_no + 1, leased_by = 'thief', lease_until = ?", (now + 10**9,)
        )

    store.write(steal).result()
    assert stopped.wait(PATIENCE)
    until(lambda: in_thread.worker.lost_claims == 1, "the loss")
    stolen = store.job(job.public_id)
    assert (stolen.status, stolen.leased_by, stolen.claim_no) == ("running", "thief", 2)
    in_thread.worker.drain()
    in_thread.thread.join(PATIENCE)
    assert not in_thread.thread.is_alive()


# ---- cancel


def test_a_running_job_is_cancelled_in_mid_node(store: Store) -> None:
    """A request to cancel stops an async node where it waits; the job has failed as cancelled, others go on."""
    entered = threading.Event()

    async def endless(state: Log) -> Log:
        if state["log"] == ["short"]:
            return {"log": ["done"]}
        entered.set()
        await asyncio.sleep(PATIENCE)
        return {"log": ["late"]}

    job, _ = store.enqueue("graph", {"log": []})
    with InThread(store, chain(endless), lease=0.3):
        assert entered.wait(PATIENCE)
        short, _ = store.enqueue("graph", {"log": ["short"]})
        assert store.cancel(job.public_id).status == "running"
        ended = until(lambda: store.jobs(status="failed"), "the end of the job")
    assert json.loads(ended[0].error_json or "")["code"] == "cancelled"
    assert result(store, short) == ["short", "done"]


def test_a_job_cancelled_in_mid_effect_waits_for_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancelled while an effect is under way that ends in a moment: it is recorded, and nobody need be asked."""
    halt, arrived, wait = Halt(), threading.Event(), leg.Leg.quiet

    async def quiet(of: leg.Leg) -> None:
        arrived.set()
        await wait(of)

    @effect("slow")
    def slow() -> str:
        halt.stand()
        return "done"

    monkeypatch.setattr(leg.Leg, "quiet", quiet)
    job, _ = store.enqueue("graph", {"log": []})
    with InThread(store, chain(lambda _s: {"log": [slow()]}), lease=0.3):
        halt.wait_until_reached()
        store.cancel(job.public_id)
        assert arrived.wait(PATIENCE)
        halt.release()
    assert store.job(job.public_id).status == "failed"
    assert json.loads(store.job(job.public_id).error_json or "")["code"] == "cancelled"
    assert [found.state for found in store.effects(job)] == ["confirmed"]


def test_a_job_cancelled_in_mid_effect_asks_what_became_of_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancelled while a thread of an effect is under way for long: a person settles it, a late result does not."""
    monkeypatch.setattr(leg, "EFFECT_GRACE_S", 0.05)
    halt, came_back = Halt(), threading.Event()

    @effect("slow")
    def slow() -> str:
        halt.stand()
        return "done"

    def node(_state: Log) -> Log:
        try:
            return {"log": [slow()]}
        finally:
            came_back.set()

    job, _ = store.enqueue("graph", {"log": []})
    with InThread(store, chain(node), lease=0.3):
        halt.wait_until_reached()
        store.cancel(job.public_id)
        until(lambda: store.job(job.public_id).status == "review", "the review")
        halt.release()
        assert came_back.wait(PATIENCE)
    (found,) = store.effects(job)
    assert found.state == "unknown"
    _, ended = store.answer(store.reviews()[0].public_id, "approve", value="done")
    assert ended.status == "failed"
    assert json.loads(ended.error_json or "")["code"] == "cancelled"


# ---- drain, concurrency, what is left alone


def test_draining_in_the_middle_of_a_graph(store: Store) -> None:
    """`drain()` from any thread gives the job back between two steps; what was done is not done again."""
    bodies: list[str] = []

    def first(_state: Log) -> Log:
        bodies.append("first")
        in_thread.worker.drain()
        return {"log": ["first"]}

    def second(_state: Log) -> Log:
        bodies.append("second")
        return {"log": ["second"]}

    graph = chain(first, second)
    job, _ = store.enqueue("graph", {"log": []})
    with InThread(store, graph) as in_thread:
        pass
    assert store.job(job.public_id).status == "pending"
    assert bodies == ["first"]
    work(store, graph)
    assert result(store, job) == ["first", "second"]
    assert bodies == ["first", "second"]


def test_a_job_claimed_as_the_drain_begins_is_given_back(store: Store) -> None:
    """A drain that begins while jobs are being claimed holds for those too."""
    bodies: list[int] = []

    def listener(event: str, _job: Job) -> None:
        if event == "claimed" and not worker._draining:
            worker.drain()

    graph = chain(*[lambda _s: bodies.append(1) or {"log": []}] * 50)
    worker = Worker(store, {"graph": graph}, concurrency=4, listener=listener)
    for number in range(4):
        store.enqueue("graph", {"log": [str(number)]})
    worker.run()
    assert {job.status for job in store.jobs()} == {"pending"}
    assert len(bodies) <= 8


def test_as_many_jobs_at_once_as_allowed_and_no_more(store: Store) -> None:
    """With concurrency 3 three jobs run at the same time, and never four."""
    barrier, lock = threading.Barrier(3), threading.Lock()
    now, most = [0], [0]

    def node(_state: Log) -> Log:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        barrier.wait(PATIENCE)
        with lock:
            now[0] -= 1
        return {"log": ["done"]}

    for number in range(9):
        store.enqueue("graph", {"log": [str(number)]})
    work(store, chain(node), concurrency=3)
    assert {job.status for job in store.jobs()} == {"done"}
    assert most == [3]


def test_blocking_nodes_do_not_starve_each_other(store: Store) -> None:
    """Many jobs whose sync nodes have parallel branches that wait for one another all get their threads."""
    count = 8
    barrier = threading.Barrier(count * 2)

    def node(_state: Log) -> Log:
        barrier.wait(PATIENCE)
        return {"log": ["x"]}

    for number in range(count):
        store.enqueue("graph", {"log": [str(number)]})
    work(store, beside(node, node), concurrency=count)
    assert {job.status for job in store.jobs()} == {"done"}


def test_jobs_of_other_graphs_are_left_alone(store: Store) -> None:
    """A worker that lacks a graph leaves its jobs pending, and is idle all the same."""
    other, _ = store.enqueue("unknown", {"log": []})
    job = run(store, chain(lambda _s: {"log": ["done"]}))
    assert job.status == "done"
    assert store.job(other.public_id) == other


@pytest.mark.parametrize("options", [{"concurrency": 0}, {"concurrency": -1}, {"lease": 0}, {"lease": -1.0}])
def test_a_worker_that_could_not_work_is_refused(store: Store, options: dict[str, Any]) -> None:
    """Concurrency below one and a lease of no length are refused."""
    with pytest.raises(ValueError, match="concurrency"):
        Worker(store, {}, **options)


def test_what_a_listener_hears(store: Store) -> None:
    """A listener is told of each claim and of each settlement, with the job as it is then."""
    heard: list[tuple[str, str]] = []
    graph = chain(lambda _s: {"log": [interrupt("?")]})
    job, _ = store.enqueue("graph", {"log": []})
    work(store, graph, lambda event, told: heard.append((event, told.status)))
    store.answer(store.reviews(job)[0].public_id, "approve")
    work(store, graph, lambda event, told: heard.append((event, told.status)))
    assert heard == [("claimed", "running"), ("review", "review"), ("claimed", "running"), ("done", "done")]


# ---- failures


class Busy(Exception):
    """What an SDK raises for 429, with the response's headers."""

    def __init__(self, retry_after: str | None = None) -> None:
        super().__init__("too many requests")
        headers = {} if retry_after is None else {"retry-after": retry_after}
        self.response = type("Response", (), {"status_code": 429, "headers": headers})()


@pytest.mark.parametrize(
    ("retry_after", "least", "most"),
    [(None, 15_000, 18_750), ("7", 15_000, 18_750), ("120", 120_000, 150_000), ("soon", 15_000, 18_750)],
)
def test_a_busy_service_is_left_in_peace(
    store: Store, clock: ManualClock, retry_after: str | None, least: int, most: int
) -> None:
    """A 429 is retried after the backoff, and never before the time the service asked for."""
    waits: list[int] = []
    busy = [Busy(retry_after)]

    def node(_state: Log) -> Log:
        if busy:
            raise busy.pop()
        return {"log": ["done"]}

    job, _ = store.enqueue("graph", {"log": []})
    began = clock.now_ms()
    work(store, chain(node), lambda event, told: waits.append(told.next_run_at - began) if event == "retry" else None)
    assert result(store, job) == ["done"]
    assert least <= waits[0] <= most


def test_a_date_in_retry_after_is_read_by_the_records_clock(store: Store, clock: ManualClock) -> None:
    """An HTTP date is compared with the clock that decides when jobs are due."""
    waits: list[int] = []
    busy = [Busy(formatdate(clock.now_ms() / 1000 + 300, usegmt=True))]

    def node(_state: Log) -> Log:
        if busy:
            raise busy.pop()
        return {"log": ["done"]}

    store.enqueue("graph", {"log": []})
    began = clock.now_ms()
    work(store, chain(node), lambda event, told: waits.append(told.next_run_at - began) if event == "retry" else None)
    assert 299_000 <= waits[0] <= 376_000


def test_a_job_waits_for_its_backoff_without_a_worker(store: Store, clock: ManualClock) -> None:
    """A job in backoff holds no worker and no lease, and runs when it is due and not before."""
    busy = [Busy()]

    def node(_state: Log) -> Log:
        if busy:
            raise busy.pop()
        return {"log": ["done"]}

    job, _ = store.enqueue("graph", {"log": []})
    with InThread(store, chain(node)):
        waiting = until(lambda: store.jobs(status="retry"), "the backoff")[0]
        assert waiting.leased_by is None
        other, _ = store.enqueue("graph", {"log": ["other"]})
        until(lambda: store.job(other.public_id).status == "done", "the other job")
        assert store.job(job.public_id).status == "retry"
        clock.advance(waiting.next_run_at - clock.now_ms())
    assert result(store, job) == ["done"]


class Notice(logging.Handler):
    """Waits for a line of the log."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text, self.seen = text, threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self.text in record.getMessage():
            self.seen.set()


def test_a_job_is_settled_when_the_disk_has_room_again(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the disk full at the end of a run nothing is invented; with space it is settled and goes on."""
    monkeypatch.setattr("everstep.runtime.run.SETTLE_RETRY_S", 0.01)
    notice = Notice("claiming stops")
    logging.getLogger("everstep.worker").addHandler(notice)
    halt = Halt()
    bodies: list[int] = []
    job, _ = store.enqueue("graph", {"log": []})
    try:
        with InThread(store, chain(standing(halt, bodies, "x" * 100_000)), lease=0.3):
            halt.wait_until_reached()
            fill_the_disk(store)
            halt.release()
            assert notice.seen.wait(PATIENCE)
            assert store.job(job.public_id).status == "running"
            limit_pages(store, 1_000_000)
            until(lambda: store.job(job.public_id).status == "retry", "the settlement")
            clock.advance(60_000)
    finally:
        logging.getLogger("everstep.worker").removeHandler(notice)
    assert result(store, job) == ["x" * 100_000]
    assert len(bodies) == 2
    assert store.read(lambda c: c.exec_driver_sql("PRAGMA integrity_check").scalar_one()) == "ok"


def limit_pages(store: Store, pages: int) -> None:
    """As if the disk had room for so many pages."""
    store.write(lambda c: c.exec_driver_sql(f"PRAGMA max_page_count={pages}")).result()


def fill_the_disk(store: Store) -> None:
    """Leave no page free, nor room on the last one of the evidence, so that no failure can be written either."""
    limit_pages(store, store.read(lambda c: c.exec_driver_sql("PRAGMA page_count").scalar_one()))
    insert = "INSERT INTO evidence (job_id, claim_no, kind, detail_json, at) VALUES (1, 1, 'fill', ?, 0)"
    with suppress(StoreUnavailable):
        while True:
            store.write(lambda c: c.exec_driver_sql(insert, ("x" * 200,))).result()


def test_a_node_that_cancels_itself_is_a_failure_like_another(store: Store) -> None:
    """CancelledError out of a node, that nobody asked for, does not leave the job hanging."""

    async def node(_state: Log) -> Log:
        raise asyncio.CancelledError

    job = run(store, chain(node))
    assert job.status in ("review", "failed")


# ---- size


class Big(TypedDict, total=False):
    blob: str
    count: int
    log: Annotated[list[str], lambda old, new: (old + new)[-3:]]


def counting(steps: int) -> Any:
    """A loop of so many steps, with an effect at its end."""
    builder = StateGraph(Big)
    builder.add_node("step", lambda state: {"count": state["count"] + 1, "log": [f"step {state['count']}"]})
    builder.add_edge(START, "step")
    builder.add_conditional_edges("step", lambda state: "step" if state["count"] < steps else "__end__")
    return builder.compile()


def test_a_thousand_steps(store: Store) -> None:
    """A job of 1,000 steps needs no setting, and its step is told as it goes."""
    job, _ = store.enqueue("graph", {"count": 0, "blob": "", "log": []})
    work(store, counting(1000))
    done = store.job(job.public_id)
    assert done.status == "done", done.error_json
    assert json.loads(done.result_json or "")["count"] == 1000
    assert done.step == 1000


def test_a_state_of_a_quarter_of_a_megabyte(store: Store) -> None:
    """A large state is carried through many steps, and a worker that drains in between."""
    blob = "é" * 130_000
    job, _ = store.enqueue("graph", {"count": 0, "blob": blob, "log": []})
    worker = Worker(store, {"graph": counting(40)}, listener=lambda _event, _job: worker.drain())
    worker.run()
    assert store.job(job.public_id).status == "pending"
    work(store, counting(40))
    done = json.loads(store.job(job.public_id).result_json or "")
    assert (done["count"], done["blob"]) == (40, blob)
    assert done["log"] == ["step 37", "step 38", "step 39"]
