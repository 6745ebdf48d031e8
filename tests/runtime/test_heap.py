"""What a worker's process tells the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from everstep.runtime import heap


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """The collector of this process is left as it was found."""
    before = gc.get_threshold()
    heap.keep.cache_clear()
    yield
    heap.keep.cache_clear()
    gc.unfreeze()
    gc.set_threshold(*before)


@pytest.mark.parametrize(
    ("found", "left"), [((700, 10, 10), (10_000, 10, 10)), ((50_000, 5, 5), (50_000, 5, 5)), ((0, 10, 10), (0, 10, 10))]
)
def test_young_objects_are_looked_through_less_often(found: tuple[int, int, int], left: tuple[int, int, int]) -> None:
    """Python's own setting is raised; one by which it looks less often still, or not at all, is somebody's choice."""
    gc.set_threshold(*found)
    heap.keep("start")
    assert gc.get_threshold() == left
    assert gc.get_freeze_count() > 0
