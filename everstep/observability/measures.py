"""What a process measures, as the code that measures sees it. This one keeps nothing; `Tally` does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from everstep.observability.metric_names import Metric


@dataclass(frozen=True)
class Sample:
    """One value that was read, not measured.

    Attributes:
        metric: Of what.
        value: The value.
        labels: Values of its labels.
    """

    metric: Metric
    value: float
    labels: tuple[str, ...] = ()


Samples = Callable[[], Iterable[Sample]]
"""Reads values at the moment somebody asks for them."""


class Measures:
    """Measures that nobody wants."""

    is_on = False

    def add(self, metric: Metric, value: float = 1.0, *labels: str) -> None:
        """One observation.

        Args:
            metric: Of what: a counter grows by the value, a gauge becomes it, a histogram counts it.
            value: The value, in the metric's unit.
            labels: Values of its labels, in their order.
        """

    def close(self) -> None:
        """Hand out what is not yet, for at most two seconds, then stop."""


NOTHING = Measures()
