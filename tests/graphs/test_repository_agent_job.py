"""The shipped agent as a job of a worker: effects in the ledger, reviews in the record, kills between them."""

from pathlib import Path
from typing import Any

import pytest

from everstep.checkpoints.jobs import Job
from everstep.checkpoints.store import Store
from tests.support.agent_process import record, work
from tests.support.repositories import UNTIDY, add_commit, commits, make_remote


def submit(folder: Path, remote: Path | str, **more: Any) -> None:
    """Enqueue a job of the agent."""
    with Store.open(record(folder)) as store:
        store.enqueue("agent", {"repository": str(remote), "branch": "main", "operation": "tidy-whitespace", **more})


def look(folder: Path) -> tuple[Job, dict[str, str], list[Any]]:
    """The job, its effects and their states, and its reviews."""
    with Store.open(record(folder)) as store:
        (job,) = store.jobs()
        return job, {effect.name: effect.state for effect in store.effects(job)}, store.reviews(job)


def test_a_job_is_done_with_one_confirmed_push(tmp_path: Path) -> None:
    """Run by a worker, the agent's push is one confirmed effect, and its result says what was pushed."""
    remote = make_remote(tmp_path)
    submit(tmp_path, remote)
    assert not work(tmp_path)
    job, effects, reviews = look(tmp_path)
    assert (job.status, effects, reviews) == ("done", {"git.push": "confirmed"}, [])
    assert job.attempts == 1
    assert len(commits(remote)) == 2


@pytest.mark.parametrize(
    "crash_at",
    [
        "job.claimed",
        "checkpoint.before_put@1",
        "checkpoint.before_put@3",
        "checkpoint.after_put@7",
        "writes.after_put@6",
        "effect.intended:git.push",
        "effect.called:git.push",
        "effect.confirmed:git.push",
        "job.before_settle",
    ],
)
def test_a_killed_worker_costs_nothing(tmp_path: Path, crash_at: str) -> None:
    """Killed anywhere, also between the push and its confirmation, the job ends with one commit and nobody is asked."""
    remote = make_remote(tmp_path)
    submit(tmp_path, remote)
    assert work(tmp_path, crash_at), "the crash point was not reached"
    assert not work(tmp_path)
    job, effects, reviews = look(tmp_path)
    assert (job.status, effects, reviews) == ("done", {"git.push": "confirmed"}, [])
    assert job.attempts == 2
    assert len(commits(remote)) == 2


def test_a_high_risk_change_waits_in_review_and_goes_on_when_approved(tmp_path: Path) -> None:
    """The job leaves the worker for review, keeps until a person approves, and then pushes."""
    remote = make_remote(tmp_path, {**UNTIDY, "shop/billing.py": b"PRICE = 1 \n"})
    submit(tmp_path, remote)
    work(tmp_path)
    job, effects, reviews = look(tmp_path)
    assert (job.status, effects) == ("review", {})
    with Store.open(record(tmp_path)) as store:
        store.answer(reviews[0].public_id, "approve")
    work(tmp_path)
    job, effects, _ = look(tmp_path)
    assert (job.status, effects) == ("done", {"git.push": "confirmed"})
    assert len(commits(remote)) == 2


def test_a_repository_that_is_not_there_fails_the_job_at_once(tmp_path: Path) -> None:
    """Invalid input is not tried again."""
    submit(tmp_path, tmp_path / "nothing.git")
    work(tmp_path)
    job, _, _ = look(tmp_path)
    assert (job.status, job.attempts) == ("failed", 1)


def test_a_branch_that_moved_while_a_person_thought_is_for_a_person(tmp_path: Path) -> None:
    """Somebody pushed before the approval came: the job does not push over it, and asks again."""
    remote = make_remote(tmp_path, {**UNTIDY, "shop/billing.py": b"PRICE = 1 \n"})
    submit(tmp_path, remote)
    work(tmp_path)
    theirs = add_commit(remote)
    with Store.open(record(tmp_path)) as store:
        store.answer(store.reviews()[0].public_id, "approve")
    work(tmp_path)
    job, effects, reviews = look(tmp_path)
    assert (job.status, effects) == ("review", {"git.push": "rejected"})
    assert len(reviews) == 2
    assert commits(remote)[0] == theirs
