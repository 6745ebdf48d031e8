"""Measures and record as a page for Prometheus, served over HTTP by a thread of its own."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Sequence
from threading import Thread
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIServer

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from everstep.errors import MetricsAddressUnavailable
from everstep.observability.measures import Sample, Samples
from everstep.observability.metric_names import METRICS, Metric

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family


class PrometheusPage:
    """The page.

    Attributes:
        registry: What is on it.

    Args:
        record: Reads what the record knows, at each scrape.
        measures: Whether this process measures, or only tells of the record; or what alone it measures.
    """

    def __init__(self, record: Samples, *, measures: bool | Sequence[Metric]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Record(record))
        self._instruments: dict[str, Any] = {}
        self._served: tuple[WSGIServer, Thread] | None = None
        if measures:
            if measures is True:
                ProcessCollector(registry=self.registry)
                measures = [metric for metric in METRICS if not metric.from_record]
            self._instruments = {metric.name: _instrument(metric, self.registry) for metric in measures}

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
        prometheus_client.disable_created_metrics()  # of each series when it began, which nobody here asks for
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

    def add(self, metric: Metric, value: float, labels: tuple[str, ...]) -> None:
        """One observation."""
        instrument = self._instruments[metric.name]
        instrument = instrument.labels(*labels) if labels else instrument
        match metric.kind:
            case "counter":
                instrument.inc(value)
            case "gauge":
                instrument.set(value)
            case "histogram":
                instrument.observe(value)

    def close(self) -> None:
        """Serve it no more."""
        if self._served is not None:
            server, thread = self._served
            self._served = None
            server.shutdown()
            server.server_close()
            thread.join(1)


def _instrument(metric: Metric, registry: CollectorRegistry) -> Counter | Gauge | Histogram:
    about: Any = (metric.prometheus, metric.help, metric.prometheus_labels)
    match metric.kind:
        case "counter":
            return Counter(*about, registry=registry)
        case "gauge":
            return Gauge(*about, registry=registry)
        case "histogram":
            return Histogram(*about, registry=registry, buckets=metric.buckets)


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
                family = _family(metric)
                for sample in samples[metric.name]:
                    family.add_metric(sample.labels, sample.value)
                yield family


def _family(metric: Metric) -> GaugeMetricFamily | CounterMetricFamily:
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    return kind(metric.prometheus, metric.help, labels=metric.prometheus_labels)


def _place(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
