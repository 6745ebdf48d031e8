"""A change of high-risk paths is accepted by a person only, who saw it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from everstep.checkpoints.store import Store
from tests.support.accepted import FAILS, Agent, asked, enqueue, outcomes, result, write
from tests.support.jobs import work
from tests.support.outside import happened
from tests.support.repositories import git


@pytest.fixture
def repository(folder: Path) -> Path:
    """The same folder as a repository with one commit, tagged `start`."""
    write(README="start", auth__login_py="old", shop_py="old")(folder)
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=start")
    git(folder, "tag", "start")
    return folder


@pytest.mark.both_databases
def test_a_change_of_high_risk_paths_needs_a_person(store: Store, repository: Path) -> None:
    """What passed is not done while no person has seen which delicate paths changed; approval ends it, unrepeated."""
    agent = Agent(write(auth__login_py="new", shop_py="new"))
    job = enqueue(store, repository, FAILS.replace("exit 3", "exit 0"), base="start")
    work(store, agent.graph)
    review = asked(store, job)
    told = {name: review.value[name] for name in ("code", "paths", "number_of_paths")}
    assert told == {"code": "high_risk_paths", "paths": ["auth/login.py"], "number_of_paths": 1}
    assert review.value["base"] == git(repository, "rev-parse", "start")
    assert len(review.value["digest"]) == 64
    store.answer(review.public_id, "approve")
    work(store, agent.graph)
    assert len(result(store, job)["messages"]) == 2
    assert happened(str(repository / "runs")) == ["run"]
    assert outcomes(store, job) == ["review", "accepted"]


def test_an_approval_is_for_what_was_seen(store: Store, repository: Path) -> None:
    """A high-risk file that changed after the question was asked is verified and asked about again."""
    agent = Agent(write(auth__login_py="new"))
    job = enqueue(store, repository, "test -e README", base="start")
    work(store, agent.graph)
    first = asked(store, job)
    write(auth__login_py="and newer")(repository)
    store.answer(first.public_id, "approve")
    work(store, agent.graph)
    second = asked(store, job)
    assert second.public_id != first.public_id
    assert second.value["digest"] != first.value["digest"]
    store.answer(second.public_id, "approve")
    work(store, agent.graph)
    assert result(store, job)
    assert len(agent.told) == 1


def test_a_rejected_change_has_failed_and_is_asked_about_again(store: Store, repository: Path) -> None:
    """Rejected, the job has failed with the paths; retried, the same change is a new question."""
    agent = Agent(write(auth__login_py="new"))
    job = enqueue(store, repository, base="start")
    work(store, agent.graph)
    store.answer(asked(store, job).public_id, "reject")
    error = json.loads(store.job(job.public_id).error_json or "")
    assert error["cause"]["paths"] == ["auth/login.py"]
    store.redrive(job.public_id)
    work(store, agent.graph)
    assert asked(store, job).value["code"] == "high_risk_paths"


def test_a_person_can_send_a_change_back(store: Store, repository: Path) -> None:
    """`respond` tells the agent to leave the path alone; when it did, the job is done."""
    agent = Agent(write(auth__login_py="new", shop_py="new"), write(auth__login_py="old"))
    job = enqueue(store, repository, base="start")
    work(store, agent.graph)
    store.answer(asked(store, job).public_id, "respond", value="leave auth alone")
    work(store, agent.graph)
    assert result(store, job)["messages"][2]["content"] == "leave auth alone"


@pytest.mark.parametrize(
    ("patterns", "status"), [(None, "review"), ((), "done"), (("*.md",), "done"), (("shop.*",), "review")]
)
def test_which_paths_are_high_risk_is_the_policys(
    store: Store, repository: Path, patterns: tuple[str, ...] | None, status: str
) -> None:
    """Own patterns stand in place of the defaults; an empty list says that none is."""
    job = enqueue(store, repository, base="start", high_risk=patterns)
    work(store, Agent(write(auth__login_py="new", shop_py="new")).graph)
    assert store.job(job.public_id).status == status


@pytest.mark.parametrize("base", ["no-such-revision", "0" * 40, "-x", "start"])
def test_what_nobody_can_tell_is_never_accepted_silently(store: Store, repository: Path, base: str) -> None:
    """An unknown base, or a folder that is no repository any more, is a question with what git said."""

    def breaks(folder: Path) -> None:
        if base == "start":
            (folder / ".git").rename(folder / "gone")

    job = enqueue(store, repository, "test -e README", base=base)
    work(store, Agent(breaks).graph)
    review = asked(store, job)
    assert review.value["code"] == "high_risk_unknown"
    assert review.value["why_unknown"]
    store.answer(review.public_id, "approve")
    work(store, Agent(breaks).graph)
    assert result(store, job)


def test_approval_of_a_failed_result_does_not_approve_paths_nobody_saw(store: Store, repository: Path) -> None:
    """The failure's review shows the high-risk paths; its approval covers these, and others are asked about."""
    agent = Agent(write(auth__login_py="new"))
    job = enqueue(store, repository, FAILS, base="start", returns=0)
    work(store, agent.graph)
    review = asked(store, job)
    assert (review.value["code"], review.value["paths"]) == ("acceptance_failed", ["auth/login.py"])
    write(Dockerfile="FROM scratch")(repository)
    store.answer(review.public_id, "approve")
    work(store, agent.graph)
    assert asked(store, job).value["paths"] == ["Dockerfile", "auth/login.py"]
    store.answer(asked(store, job).public_id, "approve")
    work(store, agent.graph)
    assert result(store, job)
    assert happened(str(repository / "runs")) == ["run"]
