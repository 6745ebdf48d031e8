"""Numbers of the moment in OpenTelemetry's form: totals since the beginning, or what came since the export before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import sub
from typing import Any, NamedTuple

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    NumberDataPoint,
    Sum,
)
from opentelemetry.sdk.metrics.export import Metric as OtlpMetric

from everstep.observability.metric_names import METRICS, Metric
from everstep.observability.tally import Point, empty


class Temporality(NamedTuple):
    """Which numbers are told as totals, and which as what came since.

    Attributes:
        counter: Counters of this process.
        histogram: Its histograms.
        of_record: Counters of the record.
    """

    counter: AggregationTemporality
    histogram: AggregationTemporality
    of_record: AggregationTemporality

    def of(self, metric: Metric) -> AggregationTemporality:
        """That of a metric."""
        return self.histogram if metric.kind == "histogram" else self.of_record if metric.from_record else self.counter


class OtlpPoints:
    """Puts series in OpenTelemetry's form, and remembers what it told.

    Args:
        temporality: How they are told.
        began_ns: Since when they are counted, nanoseconds since the Unix epoch.
    """

    def __init__(self, temporality: Temporality, began_ns: int) -> None:
        self._temporality = temporality
        self._began_ns = began_ns
        self._told_ns = began_ns
        self._told: dict[tuple[str, tuple[str, ...]], Point] = {}

    def metrics(self, points: Sequence[Point], now_ns: int) -> list[OtlpMetric]:
        """All metrics that have a series.

        Args:
            points: The series.
            now_ns: Nanoseconds since the Unix epoch.
        """
        of: dict[str, list[Point]] = {}
        for point in points:
            of.setdefault(point.metric.name, []).append(point)
        metrics = [
            OtlpMetric(metric.name, metric.help, metric.unit, self._data(metric, of[metric.name], now_ns))
            for metric in METRICS
            if metric.name in of
        ]
        self._told_ns = now_ns
        return metrics

    def _data(self, metric: Metric, points: list[Point], now_ns: int) -> Gauge | Sum | Histogram:
        if metric.kind == "gauge":
            return Gauge([_number(point, self._began_ns, now_ns) for point in points])
        temporality, since_ns = self._temporality.of(metric), self._began_ns
        if temporality is AggregationTemporality.DELTA:
            points, since_ns = [self._since(point) for point in points], self._told_ns
        if metric.kind == "counter":
            return Sum([_number(point, since_ns, now_ns) for point in points], temporality, is_monotonic=True)
        return Histogram([_histogram(point, since_ns, now_ns) for point in points if point.count], temporality)

    def _since(self, point: Point) -> Point:
        """What came since the export before; the least and the greatest of that nobody knows."""
        key = point.metric.name, point.labels
        before, self._told[key] = self._told.get(key) or empty(point.metric, point.labels), point
        nothing = empty(point.metric)
        return replace(
            point,
            value=point.value - before.value,
            buckets=list(map(sub, point.buckets, before.buckets)),
            least=nothing.least,
            most=nothing.most,
        )


def _number(point: Point, since_ns: int, now_ns: int) -> NumberDataPoint:
    return NumberDataPoint(_attributes(point), since_ns, now_ns, point.value)


def _histogram(point: Point, since_ns: int, now_ns: int) -> HistogramDataPoint:
    is_known = point.least <= point.most
    extremes: Any = (point.least, point.most) if is_known else (None, None)
    least, most = extremes
    return HistogramDataPoint(
        _attributes(point),
        since_ns,
        now_ns,
        count=point.count,
        sum=point.value,
        bucket_counts=point.buckets,
        explicit_bounds=point.metric.buckets,
        min=least,
        max=most,
    )


def _attributes(point: Point) -> dict[str, str]:
    """The labels; one that is empty, as in Prometheus, is none."""
    return {name: value for name, value in zip(point.metric.labels, point.labels, strict=True) if value}
