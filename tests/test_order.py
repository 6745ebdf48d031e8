"""The order of tests over several processes."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.support.order import LONG, spread


@given(st.lists(st.booleans()), st.integers(1, 9))
def test_no_test_is_lost_and_each_part_begins_with_long_ones(long: list[bool], processes: int) -> None:
    """The parts have every test once, and each its share of the long ones, before all others of it."""
    items = list(enumerate(long))
    ordered = spread(items, lambda item: item[1], processes)
    assert sorted(ordered) == items
    share = sum(long) // processes
    for part in range(processes):
        begin = len(items) * part // processes
        assert all(is_long for _, is_long in ordered[begin : begin + share])


def test_the_long_ones_are_there() -> None:
    """Each file that is named exists."""
    found = {path.name for path in Path(__file__).parent.rglob("test_*.py")}
    assert set(LONG) <= found
