"""Workers as processes on one record: stopped, killed, drained, cut off in mid-run; on both databases."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from everstep.checkpoints.store import Store
from everstep.runtime.worker import Worker
from tests.support.jobs import Log, chain, moves, result, work
from tests.support.outside import happened, note
from tests.support.record import CONTEXT
from tests.support.waiting import PATIENCE, until
from tests.support.worker_process import Process, gated, go

pytestmark = pytest.mark.both_databases


def test_sigterm_gives_the_job_back_at_its_next_step(shared: Store, tmp_path: Path) -> None:
    """After SIGTERM the node under way ends, the job is pending with no attempt counted, and goes on elsewhere."""
    world = str(tmp_path / "world")
    job, _ = shared.enqueue("graph", {"log": []})
    process = Process(shared, world)
    process.signal(signal.SIGTERM)
    go(world)
    assert process.end() == 0
    given_back = shared.job(job.public_id)
    assert (given_back.status, given_back.attempts, given_back.leased_by) == ("pending", 0, None)
    assert happened(world) == ["a", "b"]
    work(shared, gated(world))
    assert result(shared, job) == ["a", "b", "c"]
    assert happened(world + ".bodies") == ["a", "b", "c"]
    assert shared.job(job.public_id).attempts == 1


def test_a_second_signal_ends_the_worker_at_once(shared: Store, tmp_path: Path) -> None:
    """A second SIGTERM does not wait for the node; the job is taken over at once, as after any proven death."""
    world = str(tmp_path / "world")
    job, _ = shared.enqueue("graph", {"log": []})
    process = Process(shared, world)
    until(lambda: process.signal(signal.SIGTERM), "its end")
    assert process.end() == 128 + signal.SIGTERM
    assert shared.job(job.public_id).status == "running"
    go(world)
    work(shared, gated(world))
    assert result(shared, job) == ["a", "b", "c"]
    assert happened(world) == ["a", "b", "c"]


def test_a_worker_that_wakes_after_its_lease_changes_nothing(shared: Store, tmp_path: Path) -> None:
    """A worker is stopped, its lease expires, another finishes the job; when the first wakes its writes are void."""
    world = str(tmp_path / "world")
    job, _ = shared.enqueue("graph", {"log": []})
    zombie = Process(shared, world, lease=0.6)
    with zombie.stopped(shared):
        go(world)
        work(shared, gated(world))
        assert result(shared, job) == ["a", "b", "c"]
        before = (shared.job(job.public_id), shared.events(job), shared.effects(job), happened(world), rows(shared))
    assert zombie.end() == 0
    after = (shared.job(job.public_id), shared.events(job), shared.effects(job), happened(world), rows(shared))
    assert after == before
    assert happened(world) == ["a", "b", "c"]
    assert moves(shared, job) == ["pending", "running", "running", "done"]


def rows(store: Store) -> list[Any]:
    """All checkpoints and writes."""
    return store.read(
        lambda c: [c.exec_driver_sql(f"SELECT * FROM {table}").fetchall() for table in store.database.checkpoint_tables]
    )


def poisonous(world: str) -> Any:
    """A graph that ends its process for one job, and works for the others."""

    def node(state: Log) -> Log:
        if state["log"] == ["poison"]:
            note(world, "poison")
            os._exit(9)
        return {"log": ["fine"]}

    return chain(lambda _s: {"log": []}, node)


def _serve_poison(url: str, world: str) -> None:
    with Store.open(url) as store:
        Worker(store, {"graph": poisonous(world)}, concurrency=1).run(until_idle=True)


def test_a_job_that_kills_its_workers_fails_and_the_others_are_done(shared: Store, tmp_path: Path) -> None:
    """A node that ends the process is given up after `max_attempts` deaths without progress; other jobs flow."""
    world = str(tmp_path / "world")
    poison, _ = shared.enqueue("graph", {"log": ["poison"]}, max_attempts=3, priority=10)
    others = [shared.enqueue("graph", {"log": [str(number)]}).job for number in range(3)]
    codes: list[int | None] = []
    while len(codes) < 8 and (not codes or codes[-1] != 0):
        process = CONTEXT.Process(target=_serve_poison, args=(shared.url, world))
        process.start()
        process.join(PATIENCE)
        codes.append(process.exitcode)
    failed = shared.job(poison.public_id)
    assert failed.status == "failed"
    assert json.loads(failed.error_json or "")["code"] == "worker_died"
    assert len(happened(world)) == 3
    assert codes == [9, 9, 9, 0]
    assert [result(shared, job) for job in others] == [[str(number), "fine"] for number in range(3)]
