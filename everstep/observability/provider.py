"""Tracing that is on: a provider of our own (OpenTelemetry's process-wide one is left alone) and its destinations."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Mapping, Sequence
from typing import Final

import requests
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter
from requests.auth import AuthBase, HTTPBasicAuth

from everstep.observability import names
from everstep.observability.delivery import Delivery
from everstep.observability.destinations import Destination, LangfuseDestination
from everstep.observability.leg import Leg, LegDescription
from everstep.observability.span_ids import SpanIds
from everstep.observability.traced_leg import Correlation, TracedLeg
from everstep.observability.tracing import Tracing

INGESTION_VERSION: Final[Mapping[str, str]] = {"x-langfuse-ingestion-version": "4"}
"""Asks Langfuse for its direct write: without it spans may take ten minutes to show."""


class ExportedTracing(Tracing):
    """Tracing to one or more destinations.

    Args:
        deliveries: The destinations.
        service_version: The version that stands on every span's resource.
    """

    def __init__(self, deliveries: Sequence[Delivery], service_version: str) -> None:
        self._deliveries = deliveries
        self._ids = SpanIds()
        self._provider = TracerProvider(
            resource=_resource(service_version), id_generator=self._ids, shutdown_on_exit=False
        )
        self._provider.add_span_processor(Correlation())
        for delivery in deliveries:
            self._provider.add_span_processor(delivery)
        self._tracer = self._provider.get_tracer(names.SCOPE, service_version)
        atexit.register(self.shutdown)

    def is_enabled(self) -> bool:
        return True

    def _leg(self, description: LegDescription) -> Leg:
        return TracedLeg(self._tracer, self._ids, description)

    def flush(self, timeout_ms: int = 1_000) -> bool:
        deadline = time.monotonic() + timeout_ms / 1_000
        threads = [delivery.begin_flush() for delivery in self._deliveries]
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0))
        return not any(thread.is_alive() for thread in threads)

    def shutdown(self, timeout_ms: int = 1_500) -> None:
        atexit.unregister(self.shutdown)
        deadline = time.monotonic() + timeout_ms / 1_000
        threads = [delivery.begin_shutdown() for delivery in self._deliveries]
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0))
        for delivery in self._deliveries:
            delivery.abandon()

    def dropped_spans(self) -> int:
        return sum(delivery.dropped for delivery in self._deliveries)


def exporting_to(exporters: Sequence[SpanExporter], service_version: str) -> ExportedTracing:
    """Tracing to exporters of one's own."""
    return ExportedTracing([Delivery(type(one).__name__, one) for one in exporters], service_version)


def sending_to(destinations: Sequence[Destination], service_version: str) -> ExportedTracing:
    """Tracing to the destinations of the environment.

    Raises:
        Exception: Whatever the exporter makes of an unusable certificate, header or endpoint.
    """
    return ExportedTracing([Delivery(one.name, _exporter(one)) for one in destinations], service_version)


def _exporter(destination: Destination) -> SpanExporter:
    if isinstance(destination, LangfuseDestination):
        session = requests.Session()
        session.auth = _OnlyLangfuse(destination)
        return OTLPSpanExporter(endpoint=destination.endpoint, session=session, compression=Compression.Gzip)
    return OTLPSpanExporter()


class _OnlyLangfuse(AuthBase):
    """Signs a request for Langfuse and strips what `OTEL_EXPORTER_OTLP_HEADERS` holds for another backend.

    The exporter adds those to all its requests, and they commonly hold that backend's key.
    """

    _own: Final = frozenset(
        "accept accept-encoding connection content-encoding content-length content-type host user-agent".split()
    )

    def __init__(self, destination: LangfuseDestination) -> None:
        self._basic = HTTPBasicAuth(destination.public_key, destination.secret_key)

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        for name in [name for name in request.headers if name.lower() not in self._own]:
            del request.headers[name]
        request.headers.update(INGESTION_VERSION)
        return self._basic(request)


def _resource(service_version: str) -> Resource:
    """Who sends the spans; `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` win over our own words."""
    environment = os.environ.get("LANGFUSE_TRACING_ENVIRONMENT")
    release = os.environ.get("LANGFUSE_RELEASE")
    ours = {
        "service.name": "everstep",
        "service.version": service_version,
        **({names.ENVIRONMENT: environment} if environment else {}),
        **({names.RELEASE: release} if release else {}),
    }
    told = Resource.create({}).attributes
    named = {key: value for key, value in told.items() if not (key == "service.name" and _is_default(value))}
    return Resource({**ours, **named})


def _is_default(service_name: object) -> bool:
    return str(service_name).startswith("unknown_service")
