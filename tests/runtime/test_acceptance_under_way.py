"""Workers that drain, lose the job or die while a job's commands run."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from everstep.checkpoints.store import Store
from everstep.clock import ManualClock
from everstep.runtime.worker import Worker
from tests.support.accepted import NOTHING, Agent, enqueue, outcomes, result
from tests.support.jobs import work
from tests.support.outside import happened
from tests.support.record import claim
from tests.support.waiting import PATIENCE, until

WAITS = "sh -c 'echo $$ >> pids; while [ ! -e go ]; do sleep 0.05; done'"


class AtWork:
    """A worker in a thread of this process, whose job's command is running."""

    def __init__(self, store: Store, folder: Path, graph: Any, runs: int = 1, **options: Any) -> None:
        self.worker = Worker(store, {"graph": graph}, **options)
        self.thread = threading.Thread(target=self.worker.run, kwargs={"until_idle": True})
        self.folder, self.runs = folder, runs

    def __enter__(self) -> AtWork:
        self.thread.start()
        until(lambda: len(happened(str(self.folder / "pids"))) >= self.runs, "the command")
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.worker.drain()
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive(), "the worker did not end"

    def ended(self) -> bool:
        """Whether the last command's process is gone."""
        try:
            os.kill(int(happened(str(self.folder / "pids"))[-1]), 0)
        except ProcessLookupError:
            return True
        return False


def test_a_draining_worker_gives_the_job_back_and_the_commands_run_again(shared: Store, folder: Path) -> None:
    """Commands under way are stopped, the start is not counted, and the next worker runs them from the beginning."""
    agent = Agent(NOTHING)
    job = enqueue(shared, folder, WAITS)
    with AtWork(shared, folder, agent.graph) as first:
        first.worker.drain()
    assert first.ended()
    after = shared.job(job.public_id)
    assert (after.status, after.attempts, after.returns, outcomes(shared, job)) == ("pending", 0, 0, [])
    with AtWork(shared, folder, agent.graph, runs=2):
        (folder / "go").touch()
    assert result(shared, job)
    assert (len(agent.told), len(happened(str(folder / "pids")))) == (1, 2)


def test_a_cancelled_job_stops_its_commands(shared: Store, folder: Path) -> None:
    """Cancelling ends the command with its children, and the job is cancelled, not judged."""
    job = enqueue(shared, folder, WAITS)
    with AtWork(shared, folder, Agent(NOTHING).graph, lease=0.6) as running:
        shared.cancel(job.public_id)
    assert running.ended()
    after = shared.job(job.public_id)
    assert (after.status, json.loads(after.error_json or "")["code"]) == ("failed", "cancelled")
    assert outcomes(shared, job) == []


def test_a_command_longer_than_the_lease_keeps_the_claim(shared: Store, folder: Path) -> None:
    """Heartbeats go on while commands run, and the worker does other jobs."""
    job = enqueue(shared, folder, WAITS)
    with AtWork(shared, folder, Agent(NOTHING).graph, lease=0.4):
        other = shared.enqueue("graph", {"messages": [{"role": "user", "content": "b"}], "folder": str(folder)}).job
        until(lambda: shared.job(other.public_id).status == "done", "the other job")
        first = shared.job(job.public_id).lease_until or 0
        until(lambda: (shared.job(job.public_id).lease_until or 0) > first + 800, "the renewal of the lease")
        assert claim(shared, "another") == []
        (folder / "go").touch()
    assert result(shared, job)
    assert shared.job(job.public_id).claim_no == 1


@pytest.mark.both_databases
def test_the_judgement_of_a_lost_claim_changes_nothing(store: Store, clock: ManualClock, folder: Path) -> None:
    """A worker that lost the job while commands ran writes neither evidence nor feedback."""
    job = enqueue(store, folder, WAITS.replace("done'", "done; exit 1'"))
    with AtWork(store, folder, Agent(NOTHING).graph, lease=3600.0) as running:
        clock.advance(2 * 3600 * 1000)
        (taken,) = claim(store, "another", lease_ms=10**9)
        (folder / "go").touch()
        until(lambda: running.worker.lost_claims, "the loss")
        running.worker.drain()
    now = store.job_by_row(job.id)
    assert (now.claim_no, now.status, now.returns, now.input_applied) == (taken.claim_no, "running", 0, 1)
    assert outcomes(store, job) == []


def test_a_job_whose_worker_is_killed_during_a_command_is_verified_again(shared: Store, folder: Path) -> None:
    """Nothing is known of a verification that was cut short: the next worker runs the commands anew."""
    from tests.support.record import CONTEXT

    job = enqueue(shared, folder, "sh -c 'echo run >> runs; test -e killed || { touch killed; kill -9 $PPID; }'")
    process = CONTEXT.Process(target=_work_here, args=(shared.url,))
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == -signal.SIGKILL
    work(shared, Agent(NOTHING).graph)
    assert result(shared, job)
    assert happened(str(folder / "runs")) == ["run", "run"]
    assert outcomes(shared, job) == ["accepted"]


def _work_here(url: str) -> None:
    with Store.open(url) as store:
        Worker(store, {"graph": Agent(NOTHING).graph}).run(until_idle=True)
