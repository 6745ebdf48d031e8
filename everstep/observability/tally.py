"""What a process has measured so far: of each combination of labels one number, or how values are distributed.

An observation takes a microsecond, as every step of a job makes some. Whoever hands the numbers out (a page for
Prometheus, OTLP) reads them here when they are asked for, and puts them in its form then.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Protocol

from everstep.observability.label_cap import LabelCap
from everstep.observability.measures import Measures
from everstep.observability.metric_names import Metric

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Point:
    """One series.

    Attributes:
        metric: Of what.
        labels: Values of its labels, bounded.
        value: Of a counter what it has grown to, of a gauge what it became last, of a histogram the sum of its values.
        buckets: Of a histogram how many values lie in each bucket; the last has those above all bounds.
        least: Of a histogram the least value.
        most: Of a histogram the greatest.
    """

    metric: Metric
    labels: tuple[str, ...]
    value: float = 0
    buckets: list[int] = field(default_factory=list[int])
    least: float = float("inf")
    most: float = float("-inf")

    @property
    def count(self) -> int:
        """Of a histogram how many values there were."""
        return sum(self.buckets)


class Way(Protocol):
    """How the numbers leave the process."""

    def close(self) -> None:
        """Hand out what is not yet, for a short time, then stop."""
        ...


class Tally(Measures):
    """Measures that somebody wants. Thread-safe; whatever goes wrong in here is told once and swallowed.

    Attributes:
        began_ns: Since when it counts, nanoseconds since the Unix epoch.
    """

    is_on = True

    def __init__(self) -> None:
        self.began_ns = time.time_ns()
        self._cap = LabelCap()
        self._lock = Lock()
        self._points: dict[tuple[str, tuple[str, ...]], Point] = {}
        self._ways: list[Way] = []
        self._told = False

    def add(self, metric: Metric, value: float = 1.0, *labels: str) -> None:
        try:
            with self._lock:
                point = self._points.get((metric.name, labels)) or self._point(metric, labels)
                if metric.kind == "gauge":
                    point.value = value
                    return
                point.value += value
                if metric.kind == "histogram":
                    point.buckets[bisect_left(metric.buckets, value)] += 1
                    point.least, point.most = min(point.least, value), max(point.most, value)
        except Exception:
            level, self._told = logging.DEBUG if self._told else logging.WARNING, True
            _logger.log(level, "%s was not measured; the run goes on.", metric.name, exc_info=True)

    def points(self) -> list[Point]:
        """All series as they are now."""
        with self._lock:
            return [replace(point, buckets=point.buckets.copy()) for point in self._points.values()]

    def leaves_by(self, way: Way) -> None:
        """Have it closed with the tally."""
        self._ways.append(way)

    def close(self) -> None:
        for way in self._ways:
            way.close()

    def _point(self, metric: Metric, labels: tuple[str, ...]) -> Point:
        """The series of labels that come for the first time, or have a value too many."""
        bounded = self._cap.bounded(metric, labels)
        found = self._points.get((metric.name, bounded))
        if found is None:
            found = self._points[metric.name, bounded] = empty(metric, bounded)
        return found


def empty(metric: Metric, labels: tuple[str, ...] = ()) -> Point:
    """A series without a value so far."""
    return Point(metric, labels, buckets=[0] * (len(metric.buckets) + 1 if metric.kind == "histogram" else 0))
