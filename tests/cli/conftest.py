"""What the tests of the commands share: a folder with graphs, and one prepared record with a job in every state."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.folder import Folder

GRAPHS = ("count", "mail", "ask", "tool", "hold", "fails", "garbled", "broken", "lost", "slow", "away", "stop")
STATUSES = {
    "count": "done",
    "mail": "done",
    "ask": "review",
    "tool": "review",
    "fails": "failed",
    "garbled": "failed",
    "broken": "review",
    "lost": "review",
    "away": "retry",
    "stop": "review",
    "hold": "running",
    "slow": "pending",
}


def with_graphs(path: Path) -> Folder:
    """A folder with `graphs.py` and a `langgraph.json` that names its graphs; there is no record yet."""
    shutil.copy(Path(__file__).with_name("graphs.py"), path / "graphs.py")
    return Folder(path).configure(**{name: f"./graphs.py:{name}" for name in GRAPHS})


@dataclass(frozen=True)
class Prepared:
    """A folder whose record holds a job of each graph, and the jobs' ids by graph."""

    folder: Folder
    jobs: dict[str, str]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A folder with graphs and no record."""
    return with_graphs(tmp_path)


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """A record with a job in each of the six states, by a real worker; the one that is running lost its worker."""
    folder = with_graphs(tmp_path_factory.mktemp("prepared"))
    jobs = folder.enqueue(*(graph for graph, status in STATUSES.items() if status != "pending"))
    with folder.worker("--concurrency", "12", "--lease", "3600") as worker:
        worker.until_settled(*(jobs[graph] for graph in jobs if graph != "hold"))
        worker.until_claimed(jobs["hold"])
    return Prepared(folder, {**jobs, **folder.enqueue("slow")})


@pytest.fixture
def copied(prepared: Prepared, tmp_path: Path) -> Prepared:
    """A copy of the prepared folder, to be changed."""
    return Prepared(prepared.folder.copy(tmp_path / "copied"), prepared.jobs)
