"""What a process measures, as the code that measures sees it. This one keeps nothing; `Collected` passes it on.

Whatever goes wrong in here is told once and swallowed: measuring never harms a run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from everstep.observability.label_cap import LabelCap
from everstep.observability.metric_names import Metric

_logger = logging.getLogger(__name__)


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


class Sink(Protocol):
    """Where observations go."""

    def add(self, metric: Metric, value: float, labels: tuple[str, ...]) -> None:
        """One observation, its labels bounded."""
        ...

    def close(self) -> None:
        """Hand out what is not yet, for a short time, then stop."""
        ...


class Collected(Measures):
    """Measures that go somewhere; safe to use from many threads.

    Args:
        sinks: Where to.
    """

    is_on = True

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = sinks
        self._cap = LabelCap()
        self._told = False

    def add(self, metric: Metric, value: float = 1.0, *labels: str) -> None:
        try:
            bounded = self._cap.bounded(metric, labels)
            for sink in self._sinks:
                sink.add(metric, value, bounded)
        except Exception:
            level, self._told = logging.DEBUG if self._told else logging.WARNING, True
            _logger.log(level, "%s was not measured; the run goes on.", metric.name, exc_info=True)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()
