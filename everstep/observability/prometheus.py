"""Measures and record as a page for Prometheus, served over HTTP by a thread of its own."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from math import inf
from threading import Thread
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIServer

import prometheus_client
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString  # pyright: ignore[reportUnknownVariableType]

from everstep.errors import MetricsAddressUnavailable
from everstep.observability.measures import Sample, Samples
from everstep.observability.metric_names import MEASURED, METRICS, Metric
from everstep.observability.tally import Point, Tally, empty

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family


class PrometheusPage:
    """The page.

    Attributes:
        registry: What is on it.

    Args:
        record: Reads what the record knows, at each scrape.
        tally: What this process measures; None if it only tells of the record.
        shown: What is shown from the beginning, with 0, as far as it has no labels.
        of_process: Whether memory and processor time of the process are on it, too.
    """

    def __init__(
        self,
        record: Samples,
        tally: Tally | None = None,
        *,
        shown: Sequence[Metric] = MEASURED,
        of_process: bool = True,
    ) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Record(record))
        self._served: tuple[WSGIServer, Thread] | None = None
        if tally is not None:
            if of_process:
                ProcessCollector(registry=self.registry)
            self.registry.register(_Measured(tally, shown))

    def serve(self, host: str, port: int) -> str:
        """Begin to serve it.

        Args:
            host: Where to listen; a name or an address.
            port: Which port; 0 takes a free one.

        Returns:
            Its URL.

        Raises:
            MetricsAddressUnavailable: Another process has the port, or this machine has no such address.
        """
        try:
            self._served = prometheus_client.start_http_server(port, host, registry=self.registry)
        except (OSError, OverflowError) as error:
            taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
            raise MetricsAddressUnavailable(
                f"metrics cannot be served at {_place(host, port)}: {error}",
                next_step="another process listens there; give another port, or 0 for a free one"
                if taken
                else "give an address of this machine and a port that this user may listen at",
            ) from error
        return f"http://{_place(host, self._served[0].server_port)}/metrics"

    def close(self) -> None:
        """Serve it no more."""
        if self._served is not None:
            server, thread = self._served
            self._served = None
            server.shutdown()
            server.server_close()
            thread.join(1)


class _Record(Collector):
    def __init__(self, record: Samples) -> None:
        self._record = record

    def describe(self) -> Iterable[Family]:
        return [_family(metric) for metric in METRICS if metric.from_record]

    def collect(self) -> Iterator[Family]:
        samples: dict[str, list[Sample]] = {}
        for sample in self._record():
            samples.setdefault(sample.metric.name, []).append(sample)
        for metric in METRICS:
            if metric.name in samples:
                family: Any = _family(metric)
                for sample in samples[metric.name]:
                    family.add_metric(sample.labels, sample.value)
                yield family


class _Measured(Collector):
    def __init__(self, tally: Tally, shown: Sequence[Metric]) -> None:
        self._tally = tally
        self._shown = shown

    def describe(self) -> Iterable[Family]:
        return [_family(metric) for metric in self._shown]

    def collect(self) -> Iterator[Family]:
        points: dict[str, list[Point]] = {}
        for point in self._tally.points():
            points.setdefault(point.metric.name, []).append(point)
        for metric in self._shown:
            family = _family(metric)
            for point in points.get(metric.name, [] if metric.labels else [empty(metric)]):
                if isinstance(family, HistogramMetricFamily):
                    bounds = [str(floatToGoString(bound)) for bound in (*metric.buckets, inf)]
                    family.add_metric(
                        point.labels, list(zip(bounds, accumulate(point.buckets), strict=True)), point.value
                    )
                else:
                    family.add_metric(point.labels, point.value)
            yield family


def _family(metric: Metric) -> HistogramMetricFamily | GaugeMetricFamily | CounterMetricFamily:
    about: Any = (metric.prometheus, metric.help)
    match metric.kind:
        case "histogram":
            return HistogramMetricFamily(*about, labels=metric.prometheus_labels)
        case "counter":
            return CounterMetricFamily(*about, labels=metric.prometheus_labels)
        case "gauge":
            return GaugeMetricFamily(*about, labels=metric.prometheus_labels)


def _place(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
