"""Fixtures of every test that needs a record; a module that needs a special one defines its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep.checkpoints.store import Store
from everstep.clock import ManualClock
from tests.support.record import fresh


@pytest.fixture
def clock() -> ManualClock:
    """The time of `store`, which stands still until a test moves it."""
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    """An empty record with a clock of its own."""
    with fresh(tmp_path, clock) as store:
        yield store


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Store]:
    """An empty record that other processes work on too, with the machine's clock."""
    with fresh(tmp_path) as store:
        yield store
