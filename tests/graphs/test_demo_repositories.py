"""The repositories of the demo: real source, made the same everywhere, with work for the agent."""

import importlib.metadata
from pathlib import Path

import pytest

from everstep.errors import RepositoryInvalid
from everstep.graphs.demo_repositories import DEMO_PACKAGES, make_repositories
from everstep.graphs.repository_job import validate
from tests.support.repositories import commits, git


def test_each_package_gives_a_job_of_more_than_forty_steps(tmp_path: Path) -> None:
    """Of every package of the demo the real files are in the repository, and enough of them need the operation."""
    for demo in make_repositories(tmp_path, DEMO_PACKAGES):
        validate(demo.payload)
        assert len(demo.files) == demo.payload.get("max_files") == 24
        assert demo.payload["repository"] == str(demo.remote)
        assert len(commits(demo.remote)) == 1
        tracked = git(demo.remote, "ls-tree", "-r", "--name-only", "main").split("\n")
        assert set(demo.files) <= set(tracked)
        assert not any(".dist-info" in path or path.endswith(".pyc") for path in tracked)
        installed = importlib.metadata.distribution(demo.package)
        for path in demo.files[:3]:
            assert (demo.source / path).read_bytes() == Path(str(installed.locate_file(path))).read_bytes()


def test_the_same_package_gives_the_same_commit(tmp_path: Path) -> None:
    """Author, date and order are fixed, so what is found in one demo is found in another."""
    first, second = (make_repositories(tmp_path / name, ["rich"]) for name in ("one", "two"))
    assert commits(first[0].remote) == commits(second[0].remote)


def test_what_cannot_be_made_is_told(tmp_path: Path) -> None:
    """A package that is not installed, a folder that is taken, a package without work: each is told, nothing lost."""
    with pytest.raises(RepositoryInvalid, match="not installed"):
        make_repositories(tmp_path, ["no-such-package"])
    make_repositories(tmp_path, ["mako"])
    (tmp_path / "mako" / "mine.txt").write_text("mine")
    with pytest.raises(RepositoryInvalid, match="is there already"):
        make_repositories(tmp_path, ["mako"])
    assert (tmp_path / "mako" / "mine.txt").exists()
    with pytest.raises(RepositoryInvalid, match="no operation applies"):
        make_repositories(tmp_path, ["opentelemetry-proto"])
