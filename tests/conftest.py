"""Fixtures of every test that needs a record; a module that needs a special one defines its own.

A module or test marked `both_databases` runs on SQLite and on a real PostgreSQL.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep.checkpoints.store import Store
from everstep.clock import ManualClock
from tests.support import memory
from tests.support.ending import AT_END
from tests.support.order import LONG, spread
from tests.support.record import record

memory.use()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """How many processes `-n auto` is: one more than cores, as tests wait for disks and for processes of their own."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + 1


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let long tests begin first where several processes share them."""
    if processes := getattr(config, "workerinput", {}).get("workercount", 0):
        items[:] = spread(items, lambda item: item.path.name in LONG, processes)


def pytest_sessionfinish() -> None:
    """End what the tests of this process shared."""
    AT_END.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what is marked on both databases."""
    if "database" in metafunc.fixturenames and metafunc.definition.get_closest_marker("both_databases"):
        metafunc.parametrize("database", ["sqlite", "postgres"])


@pytest.fixture
def database() -> str:
    """Where the record of a test is."""
    return "sqlite"


@pytest.fixture
def clock() -> ManualClock:
    """The time of `store`, which stands still until a test moves it."""
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock, database: str) -> Iterator[Store]:
    """An empty record with a clock of its own."""
    with record(database, tmp_path, clock) as store:
        yield store


@pytest.fixture
def shared(tmp_path: Path, database: str) -> Iterator[Store]:
    """An empty record that other processes work on too, with the machine's clock."""
    with record(database, tmp_path) as store:
        yield store
