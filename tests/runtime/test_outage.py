"""A record that cannot be written: one alert, no claims, nothing invented, and all goes on when it can again."""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from everstep.checkpoints.jobs import Job
from everstep.checkpoints.sqlite import raw_connection
from everstep.checkpoints.store import Store
from everstep.errors import StoreUnavailable
from everstep.runtime import run
from everstep.runtime.classify import classify
from everstep.runtime.outage import RecordOutage
from everstep.runtime.settle import RECORD_OUT_MS, Outcome
from everstep.runtime.worker import Worker
from tests.support.disk import fill, small_disk
from tests.support.jobs import Log, chain, moves, result
from tests.support.outside import act, happened, note
from tests.support.record import CONTEXT, begin_running, settled
from tests.support.waiting import PATIENCE, Halt, until

FULL = StoreUnavailable("no space left")


class Seconds:
    """A monotonic clock that a test moves."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_it_is_told_once_and_once_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    """However often and in how many places writes fail, there is one alert; and one line when all passed again."""
    seconds = Seconds()
    outage = RecordOutage(seconds)
    assert outage.wait_s == 0
    for _ in range(50):
        outage.met("claims", FULL)
        outage.met("leases", FULL)
        seconds.now += 1
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "no space left" in caplog.text
    assert "every 60 s" in caplog.text
    outage.passed("leases")
    outage.passed("something else")
    assert len(caplog.records) == 1
    outage.passed("claims")
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert "after 50 s" in caplog.text
    outage.met("claims", FULL)
    assert len(caplog.records) == 3


def test_nothing_is_claimed_for_a_minute_after_a_failure() -> None:
    """The wait counts from the last failure; it ends early when all passed, or when there is a sign of life."""
    seconds = Seconds()
    outage = RecordOutage(seconds)
    outage.met("claims", FULL)
    seconds.now += 20
    assert outage.wait_s == 40
    outage.met("leases", FULL)
    assert outage.wait_s == 60
    outage.look_again()
    assert outage.wait_s == 0
    outage.met("leases", FULL)
    outage.passed("claims")
    assert outage.wait_s == 60
    outage.passed("leases")
    assert outage.wait_s == 0
    assert Worker.outage_backoff_s.__doc__


@pytest.mark.both_databases
def test_a_full_disk_is_no_failure_of_the_job(store: Store) -> None:
    """However often a job meets it, it waits a minute and neither an attempt nor a failure is counted."""
    store.enqueue("graph", {}, max_attempts=1)
    for _ in range(3):
        job = settled(store, begin_running(store), Outcome("error", error=FULL, verdict=classify(FULL)))
        assert (job.status, job.attempts, job.failures) == ("retry", 0, 0)
        assert job.next_run_at == store.clock.now_ms() + RECORD_OUT_MS
        store.clock.advance(RECORD_OUT_MS)  # type: ignore[attr-defined]


# ---- a record that becomes read-only


@contextmanager
def read_only(store: Store) -> Iterator[None]:
    """What the record's writer sends is refused, as after a failover, or by a file system that gave up.

    It is switched between two of the writer's transactions: within one, its failure would refuse the switch, too.
    """
    sqlite = store.url.startswith("sqlite")
    setting = "PRAGMA query_only={}" if sqlite else "SET SESSION default_transaction_read_only={}"

    def switch(value: str) -> None:
        with store._writer._turn:  # pyright: ignore[reportPrivateUsage]
            driver.execute(setting.format(value))
            if not sqlite:
                driver.commit()

    driver: Any = store.write(lambda c: c.connection.driver_connection).result(PATIENCE)
    switch("on")
    try:
        yield
    finally:
        switch("off")


@pytest.mark.both_databases
def test_a_record_that_becomes_read_only_is_waited_for(
    shared: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What ends meanwhile is settled later, what is due is not claimed, nothing is written, and one line tells it."""
    monkeypatch.setattr(run, "SETTLE_RETRY_S", 0.01)
    met: list[str] = []
    real = RecordOutage.met

    def spy(self: RecordOutage, what: str, error: StoreUnavailable) -> None:
        real(self, what, error)
        met.append(what)

    monkeypatch.setattr(RecordOutage, "met", spy)
    halt = Halt()

    def standing(_state: Log) -> Log:
        halt.stand()
        return {"log": ["done"]}

    first, _ = shared.enqueue("graph", {"log": []}, priority=10)
    worker = Worker(shared, {"graph": chain(standing)}, concurrency=2)
    worker.outage_backoff_s = 0.01
    thread = threading.Thread(target=worker.run, kwargs={"until_idle": True})
    thread.start()
    halt.wait_until_reached()
    second, _ = shared.enqueue("other", {"log": []})
    with read_only(shared):
        before = state(shared, first, second)
        halt.release()
        until(lambda: len(met) >= 5, "further tries")
        assert state(shared, first, second) == before
    until(lambda: shared.job(first.public_id).status == "retry", "the settlement")
    assert shared.job(first.public_id).failures == 0
    shared.redrive(first.public_id)
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert result(shared, first) == ["done"]
    told = [record.getMessage() for record in caplog.records if record.name == "everstep.worker"]
    assert len([line for line in told if "claiming stops" in line]) == 1, told
    assert len([line for line in told if "can be written again" in line]) == 1, told


def state(store: Store, *jobs: Job) -> list[Any]:
    """All the record says of the jobs, but how long their leases are."""
    rows = [store.job(job.public_id).__dict__ | {"lease_until": None} for job in jobs]
    return [*rows, *(store.events(job) for job in jobs), *(store.evidence(job) for job in jobs)]


# ---- a disk that is full, in a real worker process


def big(world: str) -> Any:
    """A node whose result takes megabytes, once it may go on; and one after it."""

    def grow(_state: Log) -> Log:
        act(world, "grow")
        Path(world + ".entered").touch()
        until(Path(world + ".go").exists, "the permission to go on")
        return {"log": ["x" * 2_000_000]}

    return chain(grow, lambda _state: {"log": [act(world, "after")]})


def _serve(url: str, world: str) -> None:
    """A worker that tries often, and keeps a list of its tries."""
    logging.basicConfig(filename=world + ".log", level=logging.INFO)
    run.SETTLE_RETRY_S = 0.01
    real = RecordOutage.met

    def noted(self: RecordOutage, what: str, error: StoreUnavailable) -> None:
        real(self, what, error)
        note(world + ".met", what.split()[0])

    RecordOutage.met = noted  # type: ignore[method-assign]
    with Store.open(url) as store:
        worker = Worker(store, {"graph": big(world)}, concurrency=1)
        worker.outage_backoff_s = 0.01
        worker.run(until_idle=True)


def test_a_full_disk_stops_a_worker_and_space_lets_it_go_on(tmp_path: Path) -> None:
    """With no space left a worker says so once, claims and invents nothing; with space both jobs end, each act once."""
    world = str(tmp_path / "world")
    with (
        small_disk(tmp_path / "disk", 24) as disk,
        Store.open(f"sqlite:///{disk / 'record.db'}") as store,
        closing(raw_connection(store.path)) as reader,
    ):
        reader.execute("BEGIN")  # as long as it reads, what is written needs new space
        reader.execute("SELECT count(*) FROM agent_jobs").fetchone()
        first, _ = store.enqueue("graph", {"log": [1]})
        second, _ = store.enqueue("graph", {"log": [2]})
        process = CONTEXT.Process(target=_serve, args=(store.url, world))
        process.start()
        until(Path(world + ".entered").exists, "the worker's entry into the node")
        fill(disk / "filler")
        before = state(store, first, second)
        Path(world + ".go").touch()
        until(lambda: happened(world + ".met").count("the") >= 3, "further tries to settle")
        until(lambda: len(happened(world + ".met")) >= 10, "further tries")
        assert state(store, first, second) == before
        assert moves(store, second) == ["pending"]
        (disk / "filler").unlink()
        until(lambda: store.job(first.public_id).status == "retry", "the settlement")
        store.redrive(first.public_id)
        process.join(PATIENCE)
        assert process.exitcode == 0
        for job in (first, second):
            given, grown, last = result(store, job)
            assert (given, len(grown), last) == (json.loads(job.payload_json)["log"][0], 2_000_000, "after")
            assert store.job(job.public_id).failures == 0
        assert sorted(happened(world)) == ["after", "after", "grow", "grow"]
        told = [line for line in Path(world + ".log").read_text().splitlines() if "everstep" in line]
        assert len([line for line in told if line.startswith("ERROR")]) == 1, told
        assert "no space left" in next(line for line in told if line.startswith("ERROR"))
        assert len([line for line in told if "can be written again" in line]) == 1, told
        reader.execute("COMMIT")
        with closing(sqlite3.connect(store.path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
