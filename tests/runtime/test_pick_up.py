"""How an idle worker comes by its work: woken by other processes, on time by the clock, and never by looking often."""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from everstep.checkpoints import jobs, services
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.postgres import Postgres
from everstep.checkpoints.services import Report
from everstep.checkpoints.sqlite import Sqlite
from everstep.checkpoints.store import Store
from everstep.runtime.heartbeat import Heartbeat, Held
from everstep.runtime.worker import Worker
from tests.support.jobs import Log, chain
from tests.support.record import CONTEXT, Gate, claim
from tests.support.waiting import PATIENCE, until

NEVER_S = 3600.0
SOON_MS = 300


def never_look() -> None:
    """In this process workers look for work only when they are woken, or when they know a moment."""
    Sqlite.poll_s = Sqlite.listening_poll_s = Postgres.poll_s = NEVER_S


@pytest.fixture(autouse=True)
def no_polls() -> Iterator[None]:
    """What a test waits for cannot come from a worker that looks by itself."""
    before = Sqlite.poll_s, Sqlite.listening_poll_s, Postgres.poll_s
    never_look()
    yield
    Sqlite.poll_s, Sqlite.listening_poll_s, Postgres.poll_s = before


def says(said: str) -> Any:
    """A graph that says it ran."""
    return chain(lambda _state: Log(log=[said]))


@contextmanager
def working(store: Store, **options: Any) -> Generator[queue.Queue[tuple[int, str]]]:
    """A worker in a thread; gives when it claimed which job."""
    claimed: queue.Queue[tuple[int, str]] = queue.Queue()

    def tell(what: str, job: Job) -> None:
        if what == "claimed":
            claimed.put((store.clock.now_ms(), job.public_id))

    worker = Worker(store, {"graph": says("ran")}, listener=tell, **options)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield claimed
    finally:
        worker.drain()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def idle(store: Store, claimed: queue.Queue[tuple[int, str]]) -> None:
    """Until the worker has run a job and waits for the next, with nothing known of any."""
    job, _ = store.enqueue("graph", {"log": ["first"]}, key="first")
    assert claimed.get(timeout=PATIENCE)[1] == job.public_id
    until(lambda: store.job(job.public_id).status == "done", "the first job's end")


# ---- woken by others


def _enqueue(url: str, name: str, number: int) -> None:
    with Store.open(url) as store:
        for n in range(number):
            store.enqueue("graph", {"log": [name, n]})


def _work(url: str) -> None:
    never_look()
    with Store.open(url) as store:
        Worker(store, {"graph": says("ran")}).run()


@pytest.mark.both_databases
def test_no_wake_up_is_lost(shared: Store) -> None:
    """Four processes enqueue while two that never look by themselves start and work; all of it is done."""
    shared.enqueue("graph", {"log": ["before any listens"]})
    workers = [CONTEXT.Process(target=_work, args=(shared.url,)) for _ in range(2)]
    writers = [CONTEXT.Process(target=_enqueue, args=(shared.url, name, 15)) for name in "abcd"]
    for process in (*workers, *writers):
        process.start()
    for process in writers:
        process.join(PATIENCE)
    until(lambda: len(shared.jobs(status="done")) == 61, "the end of all jobs")
    for process in workers:
        assert process.pid is not None
        process.terminate()
        process.join(PATIENCE)
    assert [process.exitcode for process in (*workers, *writers)] == [0] * 6


@pytest.mark.both_databases
def test_a_killed_worker_disturbs_nobody(shared: Store) -> None:
    """One that was killed while it waited leaves the others woken as before."""
    killed = CONTEXT.Process(target=_work, args=(shared.url,))
    killed.start()
    job, _ = shared.enqueue("graph", {"log": ["killed"]})
    until(lambda: shared.job(job.public_id).status == "done", "the worker's start")
    killed.kill()
    killed.join(PATIENCE)
    assert killed.exitcode == -signal.SIGKILL
    with working(shared) as claimed:
        idle(shared, claimed)
        job, _ = shared.enqueue("graph", {"log": ["next"]})
        assert claimed.get(timeout=PATIENCE)[1] == job.public_id


@pytest.mark.both_databases
def test_a_gate_that_is_opened_wakes(shared: Store) -> None:
    """A person opens a service's gate in another process: the job that waits for it goes on at once."""
    waits_for_service(shared, closed_ms=3_600_000)
    with working(shared) as claimed:
        idle(shared, claimed)
        shared.open_service("api")
        assert claimed.get(timeout=PATIENCE)[1] == shared.jobs()[-1].public_id


@pytest.mark.both_databases
def test_a_retry_on_a_persons_wish_wakes(shared: Store) -> None:
    """A job in backoff that is retried from another process goes on at once."""
    shared.enqueue("graph", {"log": []})
    (job,) = claim(shared)
    in_retry(shared, job, 3_600_000)
    with working(shared) as claimed:
        idle(shared, claimed)
        shared.redrive(job.public_id)
        assert claimed.get(timeout=PATIENCE)[1] == job.public_id


# ---- on time


def in_retry(store: Store, job: Job, wait_ms: int) -> int:
    """A running job is to be tried again after a wait; when that is."""
    now = store.clock.now_ms()
    what: dict[str, Any] = {"now": now, "actor": "worker", "reason": "test", "next_run_at": now + wait_ms}
    return store.write(lambda connection: jobs.transition(connection, job, "retry", **what)).result().next_run_at


def waits_for_service(store: Store, closed_ms: int) -> int:
    """A job met the outage of a service; when that is tried again."""
    store.enqueue("graph", {"log": ["meets it"]})
    (job,) = claim(store)
    now = store.clock.now_ms()
    what: dict[str, Any] = {"now": now, "actor": "worker", "reason": "test", "next_run_at": now}

    def met(connection: Any) -> int:
        out = Report("api", "service_unavailable", "503")
        gate = services.report(connection, job, out, now=now, wait_ms=lambda _tries: closed_ms)
        jobs.transition(connection, job, "retry", error_json='{"service": "api"}', **what)
        return gate.opens_at or 0

    return store.write(met).result()


@pytest.mark.both_databases
def test_a_retry_starts_on_time(shared: Store) -> None:
    """A worker that starts while a job waits starts it when its time has come, and not before."""
    shared.enqueue("graph", {"log": []})
    due = in_retry(shared, claim(shared)[0], SOON_MS)
    with working(shared) as claimed:
        at, _ = claimed.get(timeout=PATIENCE)
    assert at >= due


@pytest.mark.both_databases
def test_a_retry_that_another_process_decides_on_starts_on_time(shared: Store) -> None:
    """A worker that waits for nothing learns of a moment that comes up meanwhile."""
    shared.enqueue("graph", {"log": []})
    (job,) = claim(shared, lease_ms=3_600_000)
    with working(shared) as claimed:
        idle(shared, claimed)
        due = in_retry(shared, job, SOON_MS)
        at, other = claimed.get(timeout=PATIENCE)
    assert (other, at >= due) == (job.public_id, True)


@pytest.mark.both_databases
def test_a_lease_that_runs_out_is_taken_over_on_time(shared: Store) -> None:
    """Of a worker nobody can prove dead the job is taken over when its lease has ended, and not before."""
    shared.enqueue("graph", {"log": []})
    (job,) = claim(shared, "elsewhere", lease_ms=SOON_MS)
    with working(shared) as claimed:
        at, _ = claimed.get(timeout=PATIENCE)
    assert at >= (job.lease_until or 0)


@pytest.mark.both_databases
def test_a_service_is_tried_on_time(shared: Store) -> None:
    """A job that waits for a service tries it when the gate's time has come, and not before."""
    opens_at = waits_for_service(shared, closed_ms=SOON_MS)
    with working(shared) as claimed:
        at, _ = claimed.get(timeout=PATIENCE)
    assert at >= opens_at


# ---- idle


def test_an_idle_heartbeat_writes_nothing(shared: Store) -> None:
    """With nothing to keep it beats beside a writer who holds the record, instead of waiting for its turn."""
    beats: queue.Queue[Held] = queue.Queue()
    heartbeat = Heartbeat(shared, "worker", 60, list, beats.put)
    writing = Gate(shared)
    heartbeat.start()
    try:
        assert [beats.get(timeout=PATIENCE) for _ in range(3)] == [{}, {}, {}]
    finally:
        writing.open()
        heartbeat.stop()
