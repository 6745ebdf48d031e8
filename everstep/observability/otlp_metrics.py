"""Measures and record as OTLP metrics, sent by OpenTelemetry's own reader; loaded only when the environment asks.

The standard variables configure it: endpoint, headers, timeout, certificates, `OTEL_METRIC_EXPORT_INTERVAL`.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any, Final
from uuid import uuid4

from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import Counter, Histogram, ObservableCounter
from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from everstep.observability import otlp_settings
from everstep.observability.measures import Samples
from everstep.observability.names import SCOPE
from everstep.observability.otlp_points import OtlpPoints, Temporality
from everstep.observability.resource import resource
from everstep.observability.tally import Point, Tally

_logger = logging.getLogger(__name__)

SHUTDOWN_S: Final = 1.5


class OtlpMetrics:
    """Sends every metric at an interval, and once more at the end.

    Args:
        record: Reads what the record knows, at each export.
        service_version: The version that stands on the resource.
        tally: What this process measures; None if it only tells of the record.

    Raises:
        Exception: Whatever the exporter makes of an unusable certificate, header or endpoint.
    """

    def __init__(self, record: Samples, service_version: str, tally: Tally | None = None) -> None:
        self._record = record
        self._tally = tally
        self._resource = resource(service_version, **{"service.instance.id": str(uuid4())})
        self._scope = InstrumentationScope(SCOPE, service_version)
        self._exporter = _ToldOnce(_exporter())
        self._points = OtlpPoints(self._exporter.temporality, time.time_ns() if tally is None else tally.began_ns)
        self._reader = PeriodicExportingMetricReader(self._exporter)
        self._reader._set_collect_callback(self._collected)  # pyright: ignore[reportPrivateUsage]

    def close(self) -> None:
        """Send what is not yet, for a short time, then give it up."""
        thread = threading.Thread(target=lambda: self._reader.shutdown(), name="everstep-otlp-metrics", daemon=True)
        thread.start()
        thread.join(SHUTDOWN_S)
        self._exporter.abandon()

    def _collected(self, *_reader: object, **_limits: object) -> MetricsData:
        """As OpenTelemetry's own provider of metrics, which would take a dozen times as long for each observation."""
        try:
            record = [Point(sample.metric, sample.labels, sample.value) for sample in self._record()]
        except Exception:
            _logger.warning("The record is not told of by OTLP", exc_info=True)
            record = []
        measured = [] if self._tally is None else self._tally.points()
        metrics = self._points.metrics([*record, *measured], time.time_ns())
        scope = ScopeMetrics(self._scope, metrics, "")
        return MetricsData([ResourceMetrics(self._resource, [scope], self._resource.schema_url)])


def _exporter() -> OTLPMetricExporter:
    """OpenTelemetry's, with the settings it would log the text of, or take though they cannot work, read by us."""
    headers = otlp_settings.headers("METRICS")
    with otlp_settings.hushed():
        return OTLPMetricExporter(
            headers=headers,
            timeout=otlp_settings.timeout_s("METRICS"),
            compression=Compression(otlp_settings.compression("METRICS")),
        )


class _ToldOnce(MetricExporter):
    """Says once that metrics do not arrive and once that they do again, not at every export."""

    def __init__(self, exporter: OTLPMetricExporter) -> None:
        super().__init__()
        told: Any = exporter._preferred_temporality  # pyright: ignore[reportPrivateUsage]
        self.temporality = Temporality(told[Counter], told[Histogram], told[ObservableCounter])
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
