"""`everstep retry` and `cancel` in every state, and a worker that is told to stop."""

from __future__ import annotations

import signal
import subprocess

import pytest

from tests.cli.conftest import STATUSES, Prepared
from tests.cli.folder import COMMAND, Folder, environment, is_refused
from tests.cli.test_jobs import JOB, has_shape


def test_retry_lets_failed_and_waiting_jobs_go_on(copied: Prepared) -> None:
    """`retry` makes a failed job and one in backoff pending and due now, with the error and the failures forgotten."""
    fails, away = copied.folder.all_json(("retry", copied.jobs["fails"]), ("retry", copied.jobs["away"]))
    for job in (fails, away):
        has_shape(job, JOB)
        assert (job["status"], job["error"], job["claim_no"]) == ("pending", None, 1)
        assert job["next_run_at"] == job["updated_at"]
    assert fails["failures"] == 0
    with copied.folder.worker() as worker:
        assert worker.until_settled(copied.jobs["fails"])[copied.jobs["fails"]] == "failed"
    said = copied.folder.run("retry", copied.jobs["fails"])
    assert (said.code, said.out) == (0, f"{copied.jobs['fails']} pending: a worker will take it: everstep worker\n")


@pytest.mark.parametrize(
    "command", [("retry", ("count", "ask", "hold", "slow")), ("cancel", ("count", "fails"))], ids=lambda pair: pair[0]
)
def test_other_states_are_a_conflict(command: tuple[str, tuple[str, ...]], prepared: Prepared) -> None:
    """`retry` of a job that neither failed nor waits, and `cancel` of one that ended, exit 65 and change nothing."""
    name, graphs = command
    for graph, ran in zip(
        graphs, prepared.folder.all(*((name, prepared.jobs[graph]) for graph in graphs)), strict=True
    ):
        is_refused(ran, 65, "job_state_conflict")
        assert f"is {STATUSES[graph]}" in ran.err or "waits for a person" in ran.err
    assert {job["graph"]: job["status"] for job in prepared.folder.json("jobs")} == STATUSES
    error = prepared.folder.run(name, prepared.jobs["count"], "--json").error
    assert (error["job"], error["status"]) == (prepared.jobs["count"], "done")
    for ran in prepared.folder.all((name, "f00"), (name, prepared.jobs["count"][:4])):
        is_refused(ran, 66, "job_not_found")


def test_cancel_ends_what_nothing_runs(copied: Prepared) -> None:
    """`cancel` ends a pending, a waiting and a reviewed job at once; their open reviews can no longer be answered."""
    asked = {review["job"]: review["id"] for review in copied.folder.json("review")}
    cancelled = copied.folder.all_json(*(("cancel", copied.jobs[graph]) for graph in ("slow", "away", "ask", "broken")))
    for job in cancelled:
        has_shape(job, JOB)
        assert (job["status"], job["error"]["code"]) == ("failed", "cancelled")
        assert job["cancel_requested_at"] is not None
    closed = copied.folder.run("review", "approve", asked[copied.jobs["ask"]])
    is_refused(closed, 65, "review_answered")
    assert "closed" in closed.err


def test_cancel_with_an_unknown_effect_waits_for_its_review(copied: Prepared) -> None:
    """A job whose effect nobody knows the outcome of stays in review when cancelled, and fails once that is settled."""
    job = copied.jobs["lost"]
    said = copied.folder.run("cancel", job)
    assert (said.code, said.out) == (0, f"{job} review: an effect is in flight: settle its review first\n")
    (review,) = copied.folder.json("show", job)["reviews"]
    settled = copied.folder.json("review", "reject", review["id"])
    assert settled["job_status"] == "failed"
    assert copied.folder.json("show", job)["error"]["code"] == "cancelled"


def test_a_running_job_is_stopped_by_its_worker(folder: Folder) -> None:
    """`cancel` of a running job is a request; its worker ends the job, or asks about the effect that is in flight."""
    with (folder.path / "graphs.py").open("a") as graphs:  # which is waited for, for half a minute
        graphs.write("\nfrom everstep.runtime import leg\nleg.EFFECT_GRACE_S = 0.5\n")
    jobs = folder.enqueue("hold", "slow")
    with folder.worker("--lease", "15") as worker:  # it looks every five seconds
        worker.until_claimed(*jobs.values())
        requested = {graph: folder.json("cancel", job) for graph, job in jobs.items()}
        for job in requested.values():
            assert job["cancel_requested_at"] is not None
        settled = worker.until_settled(*jobs.values())
        assert settled == {jobs["hold"]: "failed", jobs["slow"]: "review"}
        again = folder.submit("count")
        assert worker.until_settled(again)[again] == "done"
    held, slow = (folder.json("show", job) for job in jobs.values())
    assert held["error"]["code"] == "cancelled"
    assert [(effect["name"], effect["state"]) for effect in slow["effects"]] == [("pay.slowly", "unknown")]
    assert [(review["kind"], review["status"]) for review in slow["reviews"]] == [("effect", "open")]


def test_a_job_without_its_worker_can_be_cancelled(copied: Prepared) -> None:
    """The cancellation of a job whose worker is dead is carried out by the next worker, which does not run it."""
    job = copied.jobs["hold"]
    said = copied.folder.run("cancel", job)
    assert (said.code, said.out) == (0, f"{job} running: requested; its worker will stop it\n")
    copied.folder.all_json(("cancel", copied.jobs["slow"]), ("cancel", copied.jobs["away"]))
    ran = copied.folder.run("worker", "--until-idle", "--json")
    assert (ran.code, ran.out) == (0, "")
    ended = copied.folder.json("show", job)
    assert (ended["status"], ended["error"]["code"], ended["claim_no"]) == ("failed", "cancelled", 1)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["SIGTERM", "SIGINT"])
def test_a_second_signal_ends_a_worker_at_once(number: signal.Signals, code: int, folder: Folder) -> None:
    """The first signal waits for the next step of what runs; the second ends the worker with the documented code."""
    job = folder.enqueue("hold")["hold"]
    with folder.worker() as worker:
        worker.until_claimed(job)
        worker.process.send_signal(number)
        assert worker.process.stderr is not None
        while "draining" not in (line := worker.process.stderr.readline()):
            assert line, "the worker ended at the first signal"
        worker.process.send_signal(number)
        assert worker.process.wait() == code
    assert folder.json("show", job)["status"] == "running"


def test_a_worker_with_nothing_to_do_leaves_at_the_first_signal(folder: Folder) -> None:
    """A worker that runs nothing exits 0 on SIGTERM, and says on stderr, not on stdout, who it is and what it did."""
    job = folder.enqueue("count")["count"]
    process = subprocess.Popen(
        [*COMMAND, "worker"],
        cwd=folder.path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    lines = [process.stderr.readline() for _ in range(3)]
    assert str(folder.path / "everstep.db") in lines[0]
    assert [line.split()[:2] for line in lines[1:]] == [["claimed", job], ["done", job]]
    process.terminate()
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "")
