"""What tests of graphs share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep.graphs.repository_job import WORKSPACES
from tests.support.repositories import make_remote


@pytest.fixture
def untouched_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Gives the process back its import folders, modules and environment."""
    folders, modules, environment = list(sys.path), set(sys.modules), dict(os.environ)
    yield
    sys.path[:] = folders
    for name in set(sys.modules) - modules:
        if name.startswith(("everstep_graph__", "shop", "agent", "library")):
            del sys.modules[name]
    os.environ.clear()
    os.environ.update(environment)


@pytest.fixture
def workspaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the test's own for working copies."""
    folder = tmp_path / "workspaces"
    monkeypatch.setenv(WORKSPACES, str(folder))
    monkeypatch.delenv("EVERSTEP_MODEL", raising=False)
    return folder


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    """A bare repository with three untidy files."""
    return make_remote(tmp_path)
