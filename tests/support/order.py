"""In which order tests run that are dealt out to several processes: what takes longest begins first, in all of them.

Each process begins with an even part of all tests in their order, and takes from others when it has done its own. By
folders one of them would have nearly all that is long, and whoever came to such a test last would run on alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")

LONG = (
    "test_run_kills.py",
    "test_acceptance_kills.py",
    "test_kill_matrix.py",
    "test_trace_kills.py",
    "test_docs.py",
    "test_outbox.py",
)
"""Files of tests that take ten seconds and more each."""


def spread(items: Sequence[Item], is_long: Callable[[Item], bool], processes: int) -> list[Item]:
    """The tests in an order whose even parts begin with as many long ones each.

    Args:
        items: All tests.
        is_long: Whether one takes long.
        processes: How many parts there will be.
    """
    long, short = [item for item in items if is_long(item)], [item for item in items if not is_long(item)]
    spread: list[Item] = []
    for part in range(processes):
        first = long[part::processes]
        end = len(items) * (part + 1) // processes - len(spread) - len(first)
        spread += [*first, *short[: max(end, 0)]]
        del short[: max(end, 0)]
    return spread + short
