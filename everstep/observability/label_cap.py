"""Keeps the number of series bounded, whatever names come from outside: a name too many is counted as `other`."""

from __future__ import annotations

from threading import Lock
from typing import Final

from everstep.observability.attributes import bounded
from everstep.observability.metric_names import OPEN_LABELS, Metric

VALUES: Final = 100
"""Distinct values of one label, over all metrics; the first ones that come."""
SERIES: Final = 1_000
"""Distinct combinations of labels of one metric."""
LENGTH: Final = 128
"""Bytes of one value."""
OTHER: Final = "other"


class LabelCap:
    """Remembers which values it let through; thread-safe."""

    def __init__(self) -> None:
        self._values: dict[str, set[str]] = {}
        self._series: dict[str, set[tuple[str, ...]]] = {}
        self._lock = Lock()

    def bounded(self, metric: Metric, labels: tuple[str, ...]) -> tuple[str, ...]:
        """The labels, with `other` for a value too many.

        Raises:
            ValueError: The metric has another number of labels.
        """
        if len(labels) != len(metric.labels):
            raise ValueError(f"{metric.name} has the labels {metric.labels}, not {labels}")
        if not labels:
            return labels
        with self._lock:
            known = self._series.setdefault(metric.name, set())
            if labels in known:
                return labels
            fit = tuple(self._value(name, value) for name, value in zip(metric.labels, labels, strict=True))
            if fit not in known and len(known) >= SERIES:
                pairs = zip(metric.labels, fit, strict=True)
                return tuple(OTHER if name in OPEN_LABELS else value for name, value in pairs)
            known.add(fit)
            return fit

    def _value(self, name: str, value: str) -> str:
        if name not in OPEN_LABELS:
            return value
        known, value = self._values.setdefault(name, set()), bounded(value, LENGTH)
        if value not in known:
            if len(known) >= VALUES:
                return OTHER
            known.add(value)
        return value
