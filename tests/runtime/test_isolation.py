"""Jobs in processes of their own: bystanders of a death, the culprit's evidence, drain, cancel, and lost workers."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from everstep import GraphCatalogue, Worker
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock
from everstep.errors import IsolationImpossible
from everstep.runtime.failed_starts import FailedStarts
from tests.cli.forked import Started
from tests.support.isolated_graphs import acted, noted, write
from tests.support.jobs import chain, work
from tests.support.record import claim
from tests.support.waiting import PATIENCE, until


@contextmanager
def worker(store: Store, folder: Path, *options: str) -> Iterator[Started]:
    """`everstep worker --until-idle` in the folder."""
    given = {**os.environ, "EVERSTEP_STORE": store.url}
    process = Started(["worker", "--until-idle", *options], folder=folder, environment=given, with_errors=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.close()


def ran(store: Store, folder: Path, *options: str) -> tuple[int, str, str]:
    """A worker's exit code, and what it wrote to stdout and stderr."""
    with worker(store, folder, *options) as process:
        out, err = process.communicate(timeout=2 * PATIENCE)
        return process.returncode, out, err


def submitted(store: Store, *names: str, **more: Any) -> dict[str, Job]:
    """A job of the graph for each name."""
    return {name: store.enqueue("steps", {"name": name, "log": []}, **more).job for name in names}


def now(store: Store, job: Job) -> Job:
    """The job as it is now."""
    return store.job(job.public_id)


def log_of(store: Store, job: Job) -> Any:
    """What a job that is done put together."""
    assert now(store, job).status == "done"
    return json.loads(now(store, job).result_json or "")["log"]


def gone(pid: int) -> bool:
    """Whether a process has ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.parametrize(
    ("database", "culprit", "known"),
    [
        ("sqlite", "exit", {"exit_code": 9}),
        ("sqlite", "segfault", {"signal": "SIGSEGV"}),
        ("sqlite", "kill", {"signal": "SIGKILL"}),
        ("postgres", "kill", {"signal": "SIGKILL"}),
    ],
)
def test_bystanders_of_a_death_go_on_and_the_culprit_fails_with_evidence(
    shared: Store, tmp_path: Path, culprit: str, known: dict[str, Any]
) -> None:
    """Three long jobs share a worker with one that kills it: they are done without a failure, it has failed."""
    write(tmp_path)
    (tmp_path / "bystanders").write_text("long-1 long-2 long-3")  # none of their effects is under way then
    jobs = submitted(shared, "long-1", "long-2", "long-3", culprit)
    first, _, _ = ran(shared, tmp_path)
    assert first not in (0, 1)
    (tmp_path / "go").touch()
    code, _, told = ran(shared, tmp_path)
    assert code == 0, told
    for name in ("long-1", "long-2", "long-3"):
        job = now(shared, jobs[name])
        assert log_of(shared, job) == [name, "second", "third"]
        assert (job.failures, job.worker_deaths, job.suspect) == (0, 0, 0)
        assert job.attempts <= 2
    failed = now(shared, jobs[culprit])
    error = json.loads(failed.error_json or "")
    assert (failed.status, failed.failures, error["code"], error["deaths"]) == ("failed", 0, "worker_died", 3)
    assert {name: error.get(name) for name in known} == known
    assert error["node"] == "second"
    assert error["peak_memory_bytes"] > 1_000_000
    assert sorted(acted(tmp_path)) == sorted(jobs)
    kept = [found for found in shared.evidence(failed) if found["kind"] == "worker_death"]
    assert [found["detail"]["beside"] for found in kept][-3:] == [0, 0, 0]
    processes = [pid for node, pid in noted(tmp_path, culprit) if node == "second"]
    assert len(set(processes)) == len(processes) == 4


def test_every_job_has_a_process_of_its_own(shared: Store, tmp_path: Path) -> None:
    """With `--isolate` no two jobs share a process, events are told as ever, and what nodes print stays off stdout."""
    write(tmp_path)
    jobs = submitted(shared, "a", "b", "ask")
    code, out, told = ran(shared, tmp_path, "--isolate", "--json")
    assert code == 0, told
    events = [json.loads(line) for line in out.splitlines()]
    assert sorted((event["event"], event["id"]) for event in events) == sorted(
        [("claimed", job.public_id) for job in jobs.values()]
        + [("done", jobs["a"].public_id), ("done", jobs["b"].public_id), ("review", jobs["ask"].public_id)]
    )
    processes = [{pid for _, pid in noted(tmp_path, name)} for name in jobs]
    assert [len(each) for each in processes] == [1, 1, 1]
    assert len(set.union(*processes)) == 3
    (review,) = shared.reviews()
    shared.answer(review.public_id, "respond", value="yes")
    assert ran(shared, tmp_path, "--isolate")[0] == 0
    assert log_of(shared, jobs["ask"]) == ["ask", "yes", "third"]
    assert sorted(acted(tmp_path)) == ["a", "ask", "b"]


def test_a_job_ends_with_its_killed_worker_and_is_taken_over_at_once(shared: Store, tmp_path: Path) -> None:
    """SIGKILL for the worker ends the process of its job, too; the next worker goes on, and nothing is done twice."""
    write(tmp_path)
    jobs = submitted(shared, "long")
    with worker(shared, tmp_path, "--isolate") as process:
        until(lambda: len(noted(tmp_path, "long")) == 2, "the second node")
        pid = noted(tmp_path, "long")[-1][1]
        assert pid != process.pid
        assert "/" in (now(shared, jobs["long"]).leased_by or "")
        process.kill()
        process.wait()
        until(lambda: gone(pid), "the end of the job's process")
    (tmp_path / "go").touch()
    assert ran(shared, tmp_path)[0] == 0
    assert log_of(shared, jobs["long"]) == ["long", "second", "third"]
    assert acted(tmp_path) == ["long"]
    assert now(shared, jobs["long"]).failures == 0


def test_a_drain_is_passed_on(shared: Store, tmp_path: Path) -> None:
    """SIGTERM to the worker gives its isolated jobs back at their next step, with the attempt not counted."""
    write(tmp_path)
    jobs = submitted(shared, "long")
    with worker(shared, tmp_path, "--isolate") as process:
        until(lambda: len(noted(tmp_path, "long")) == 2, "the second node")
        process.terminate()
        assert process.stderr is not None
        told = ""
        while "is given back at its next step" not in told:  # its process knows of the drain
            line = process.stderr.readline()
            assert line, told
            told += line
        (tmp_path / "go").touch()
        _, rest = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, told + rest
    job = now(shared, jobs["long"])
    assert (job.status, job.attempts, job.worker_deaths) == ("pending", 0, 0)
    assert [node for node, _ in noted(tmp_path, "long")] == ["first", "second"]


def test_a_second_signal_ends_worker_and_jobs(shared: Store, tmp_path: Path) -> None:
    """A second SIGTERM ends the worker at once, and the processes of its jobs with it."""
    write(tmp_path)
    submitted(shared, "long")
    with worker(shared, tmp_path, "--isolate") as process:
        until(lambda: len(noted(tmp_path, "long")) == 2, "the second node")
        pid = noted(tmp_path, "long")[-1][1]

        def ended() -> bool:
            process.terminate()
            return process.poll() is not None

        until(ended, "its end")
        assert process.returncode == 128 + signal.SIGTERM
        until(lambda: gone(pid), "the end of the job's process")


def test_a_job_in_its_own_process_is_cancelled(shared: Store, tmp_path: Path) -> None:
    """A cancelled job ends there too, in mid-node, and the worker goes on."""
    write(tmp_path)
    jobs = submitted(shared, "long")
    with worker(shared, tmp_path, "--isolate") as process:
        until(lambda: len(noted(tmp_path, "long")) == 2, "the second node")
        shared.cancel(jobs["long"].public_id)
        _, told = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, told
    job = now(shared, jobs["long"])
    assert (job.status, json.loads(job.error_json or "")["code"]) == ("failed", "cancelled")


def test_a_blocked_job_is_killed_when_it_was_cancelled(
    shared: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that blocks its event loop for ever cannot be cancelled; its process can be killed."""
    monkeypatch.setattr("everstep.runtime.isolation.CANCEL_S", 0.1)
    configuration = write(tmp_path)
    jobs = submitted(shared, "block")

    def listen(event: str, job: Job) -> None:
        if event == "claimed":
            cancel_later(shared, job, tmp_path)

    Worker(shared, GraphCatalogue.from_config(configuration), isolate=True, listener=listen).run(until_idle=True)
    job = now(shared, jobs["block"])
    assert (job.status, json.loads(job.error_json or "")["code"]) == ("failed", "cancelled")


def cancel_later(store: Store, job: Job, folder: Path) -> None:
    """Cancel the job once it stands in its last node."""

    def wait() -> None:
        until(lambda: [node for node, _ in noted(folder, job.payload["name"])][-1:] == ["third"], "the third node")
        store.cancel(job.public_id)

    threading.Thread(target=wait, daemon=True).start()


def test_a_process_that_stands_still_loses_its_lease_and_the_job_goes_on(shared: Store, tmp_path: Path) -> None:
    """A stopped process keeps no lease; its worker kills it and the job is run again."""
    configuration = write(tmp_path)
    jobs = submitted(shared, "long")
    stopped: list[int] = []

    def stop() -> None:
        until(lambda: len(noted(tmp_path, "long")) == 2, "the second node")
        stopped.append(noted(tmp_path, "long")[-1][1])
        os.kill(stopped[0], signal.SIGSTOP)
        (tmp_path / "go").touch()

    thread = threading.Thread(target=stop, daemon=True)
    thread.start()
    catalogue = GraphCatalogue.from_config(configuration)
    Worker(shared, catalogue, isolate=True, lease=2.0).run(until_idle=True)
    thread.join()
    assert log_of(shared, jobs["long"]) == ["long", "second", "third"]
    assert gone(stopped[0])
    assert acted(tmp_path) == ["long"]


def test_an_async_node_that_exits_ends_its_own_process_only(shared: Store, tmp_path: Path) -> None:
    """`sys.exit()` in an async node of an isolated job costs that job's process; the other job is done."""
    write(tmp_path)
    jobs = submitted(shared, "leave", "a", max_attempts=1)
    code, _, told = ran(shared, tmp_path, "--isolate")
    assert code == 0, told
    assert log_of(shared, jobs["a"]) == ["a", "second", "third"]
    error = json.loads(now(shared, jobs["leave"]).error_json or "")
    assert (error["code"], error["exit_code"], error["node"]) == ("worker_died", 3, "third")


def test_a_process_that_cannot_begin_burns_nothing(shared: Store, tmp_path: Path) -> None:
    """A process that ends before it has the claim is no death of its job: the job is given back, and nothing counts."""
    configuration = write(tmp_path)
    jobs = submitted(shared, "a")
    catalogue = GraphCatalogue.from_config(configuration)
    told: list[str] = []
    running = Worker(shared, catalogue, isolate=True, listener=lambda event, _: (told.append(event), running.drain()))
    configuration.unlink()
    running.run()
    job = now(shared, jobs["a"])
    assert told == ["claimed", "pending"]
    assert (job.status, job.attempts, job.failures, job.worker_deaths) == ("pending", 0, 0, 0)
    assert job.next_run_at > job.updated_at


def test_a_worker_that_can_start_no_process_ends(
    shared: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no process begins, the worker ends and says why; its jobs wait, and nothing counts against them."""
    monkeypatch.setattr("everstep.runtime.failed_starts.FOR_S", 0.0)
    configuration = write(tmp_path)
    jobs = submitted(shared, "a", "b", "c")
    running = Worker(shared, GraphCatalogue.from_config(configuration), isolate=True)
    configuration.unlink()
    with pytest.raises(IsolationImpossible, match="3 starts in a row failed; the last one exited with code"):
        running.run()
    found = [now(shared, job) for job in jobs.values()]
    assert {(job.status, job.attempts, job.failures, job.worker_deaths) for job in found} == {("pending", 0, 0, 0)}


def test_a_start_that_succeeds_forgets_those_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only processes that fail in a row, and for some time, end a worker."""
    starts = FailedStarts()
    assert [starts.after(False, "x") for _ in range(10)] == [None] * 10
    monkeypatch.setattr("everstep.runtime.failed_starts.FOR_S", 0.0)
    starts.after(True, "")
    assert [starts.after(False, "x") is None for _ in range(3)] == [True, True, False]


def test_graphs_that_no_file_names_cannot_be_isolated(shared: Store) -> None:
    """A worker that was given graphs as objects says so at once."""
    with pytest.raises(ValueError, match="from_config"):
        Worker(shared, {"graph": chain(lambda _: {"log": []})}, isolate=True)


def test_without_a_file_a_suspect_runs_while_nothing_else_does(store: Store, clock: ManualClock) -> None:
    """A worker that cannot start processes runs suspects one at a time, with nothing beside them."""
    for number in range(3):
        store.enqueue("graph", {"log": [str(number)]})
    assert len(claim(store, "dead", lease_ms=1000, limit=3)) == 3
    clock.advance(1000)
    running: set[int] = set()
    most: list[int] = []

    def listener(event: str, job: Job) -> None:
        (running.add if event == "claimed" else running.discard)(job.id)
        most.append(len(running))

    work(store, chain(lambda _: {"log": ["ran"]}), listener)
    assert {job.status for job in store.jobs()} == {"done"}
    assert max(most) == 1
    assert {(job.failures, job.suspect, job.worker_deaths) for job in store.jobs()} == {(0, 0, 0)}
