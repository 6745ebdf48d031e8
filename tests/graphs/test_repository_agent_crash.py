"""The shipped agent, killed with SIGKILL at its outward acts: it always comes to the same one commit."""

from pathlib import Path
from typing import Any

import pytest

from tests.support import agent_process
from tests.support.repositories import commits, git, make_remote

EVERY = 12
"""Of the outward acts of a job, every twelfth is tried, from three different starts; `EVERY = 3` tries all."""


def payload(folder: Path) -> Any:
    """A job on a repository of its own."""
    return {"repository": str(make_remote(folder)), "branch": "main", "operation": "tidy-whitespace"}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str]:
    """How many outward acts a job takes, and the contents it pushes."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    job = payload(folder)
    acts = agent_process.run(folder, job)
    assert acts is not None
    assert acts > 50
    return acts, git(Path(job["repository"]), "rev-parse", "main^{tree}")


@pytest.mark.parametrize("part", range(3))
def test_killed_before_an_outward_act_it_comes_to_the_same(
    tmp_path: Path, uninterrupted: tuple[int, str], part: int
) -> None:
    """Wherever the process is killed, the next one goes on and pushes exactly one commit with the same contents."""
    acts, tree = uninterrupted
    for die_at in range(1 + part * EVERY // 3, acts + 1, EVERY):
        folder = tmp_path / str(die_at)
        folder.mkdir()
        job = payload(folder)
        assert agent_process.run(folder, job, die_at) is None
        assert agent_process.run(folder, job) is not None
        remote = Path(job["repository"])
        assert len(commits(remote)) == 2, die_at
        assert git(remote, "rev-parse", "main^{tree}") == tree, die_at
        assert list((folder / "workspaces").iterdir()) == [], die_at


def test_killed_again_and_again_it_still_finishes(tmp_path: Path, uninterrupted: tuple[int, str]) -> None:
    """A process that dies after every few acts gets there in the end, with one commit."""
    job = payload(tmp_path)
    runs = 1
    while agent_process.run(tmp_path, job, die_at=40) is None:
        runs += 1
        assert runs < 50
    assert runs > 3
    assert len(commits(Path(job["repository"]))) == 2
    assert git(Path(job["repository"]), "rev-parse", "main^{tree}") == uninterrupted[1]
