"""Measures and record as OTLP metrics, sent by OpenTelemetry's own reader; loaded only when the environment asks.

The standard variables configure it: endpoint, headers, timeout, certificates, `OTEL_METRIC_EXPORT_INTERVAL`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final
from uuid import uuid4

from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)

from everstep.observability import otlp_settings
from everstep.observability.measures import Samples
from everstep.observability.metric_names import METRICS, Metric
from everstep.observability.names import SCOPE
from everstep.observability.resource import resource

_logger = logging.getLogger(__name__)

SHUTDOWN_S: Final = 1.5


class OtlpMetrics:
    """Sends every metric at an interval, and once more at the end.

    Args:
        record: Reads what the record knows, at each export.
        service_version: The version that stands on the resource.
        measures: Whether this process measures, or only tells of the record.

    Raises:
        Exception: Whatever the exporter makes of an unusable certificate, header or endpoint.
    """

    def __init__(self, record: Samples, service_version: str, *, measures: bool) -> None:
        self._record = record
        self._exporter = _ToldOnce(_exporter())
        self._provider = MeterProvider(
            [PeriodicExportingMetricReader(self._exporter)],
            resource=resource(service_version, **{"service.instance.id": str(uuid4())}),
            shutdown_on_exit=False,
        )
        meter = self._provider.get_meter(SCOPE, service_version)
        self._instruments: dict[str, Any] = {}
        for metric in METRICS:
            about = {"name": metric.name, "unit": metric.unit, "description": metric.help}
            if metric.from_record:
                observable = (
                    meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
                )
                observable(callbacks=[self._observe(metric)], **about)
            elif measures and metric.kind == "histogram":
                self._instruments[metric.name] = meter.create_histogram(
                    **about, explicit_bucket_boundaries_advisory=metric.buckets
                ).record
            elif measures and metric.kind == "counter":
                self._instruments[metric.name] = meter.create_counter(**about).add
            elif measures:
                self._instruments[metric.name] = meter.create_gauge(**about).set

    def add(self, metric: Metric, value: float, labels: tuple[str, ...]) -> None:
        """One observation."""
        self._instruments[metric.name](value, _attributes(metric, labels))

    def close(self) -> None:
        """Send what is not yet, for a short time, then give it up."""
        thread = threading.Thread(target=self._provider.shutdown, name="everstep-otlp-metrics", daemon=True)
        thread.start()
        thread.join(SHUTDOWN_S)
        self._exporter.abandon()

    def _observe(self, metric: Metric) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_options: CallbackOptions) -> Iterable[Observation]:
            return [
                Observation(sample.value, _attributes(metric, sample.labels))
                for sample in self._record()
                if sample.metric is metric
            ]

        return observe


def _exporter() -> OTLPMetricExporter:
    """OpenTelemetry's, with the settings it would log the text of, or take though they cannot work, read by us."""
    headers = otlp_settings.headers("METRICS")
    with otlp_settings.hushed():
        return OTLPMetricExporter(
            headers=headers,
            timeout=otlp_settings.timeout_s("METRICS"),
            compression=Compression(otlp_settings.compression("METRICS")),
        )


def _attributes(metric: Metric, labels: tuple[str, ...]) -> dict[str, str]:
    """The labels; one that is empty, as in Prometheus, is none."""
    return {name: value for name, value in zip(metric.labels, labels, strict=True) if value}


class _ToldOnce(MetricExporter):
    """Says once that metrics do not arrive and once that they do again, not at every export."""

    def __init__(self, exporter: OTLPMetricExporter) -> None:
        super().__init__(exporter._preferred_temporality, exporter._preferred_aggregation)  # pyright: ignore[reportPrivateUsage]
        self._exporter = exporter
        self._is_failing = False
        self._is_over = False

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> MetricExportResult:
        if self._is_over:
            return MetricExportResult.FAILURE
        try:
            with _library:
                result = self._exporter.export(metrics_data, timeout_millis)
            reason = None if result is MetricExportResult.SUCCESS else _library.last_message
        except Exception as error:
            result, reason = MetricExportResult.FAILURE, f"{type(error).__name__}: {error}"
        if (reason is not None) != self._is_failing and not self._is_over:
            if reason is not None:
                _logger.warning("Metrics do not arrive by OTLP (%s). Runs go on.", reason)
            else:
                _logger.info("Metrics arrive by OTLP again.")
        self._is_failing = reason is not None
        return result

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        self.abandon()

    def abandon(self) -> None:
        """Stop retrying."""
        if not self._is_over:
            self._is_over = True
            self._exporter.shutdown()


class _Hushed(threading.local):
    """Keeps the exporter library from logging our every failed export and retry; its other users are not touched."""

    is_on = False
    last_message = "no reason given"

    def __enter__(self) -> None:
        self.is_on = True

    def __exit__(self, *_: object) -> None:
        self.is_on = False

    def filter(self, entry: logging.LogRecord) -> bool:
        """Let an entry pass unless it comes from one of our exports, whose last word is kept."""
        if self.is_on:
            self.last_message = entry.getMessage()
        return not self.is_on


_library = _Hushed()
logging.getLogger("opentelemetry.exporter.otlp.proto.http.metric_exporter").addFilter(_library.filter)
