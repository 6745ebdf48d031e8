"""Figures: several measurements of one thing, and how they are shown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """The measurements of one thing.

    Attributes:
        values: One for each run, in the order of the runs.
    """

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """Their median."""
        return statistics.median(self.values)

    def text(self, digits: int = 0) -> str:
        """The median, and the smallest and largest if they differ."""
        middle = f"{self.median:,.{digits}f}"
        lowest, highest = f"{min(self.values):,.{digits}f}", f"{max(self.values):,.{digits}f}"
        return middle if lowest == highest else f"{middle} ({lowest}–{highest})"


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of them do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1)]


def ratio(ours: float, theirs: float) -> str:
    """How many times `theirs` ours is."""
    if theirs == 0:
        return "–"
    times = ours / theirs
    return f"{times:.0f} ×" if times >= 20 else f"{times:.1f} ×" if times >= 2 else f"{times:.2f} ×"


def both_orders(items: Sequence[str], run: int) -> list[str]:
    """The order of a run: forwards, then backwards, and so on, so that none always goes first."""
    return list(items) if run % 2 == 0 else list(reversed(items))
