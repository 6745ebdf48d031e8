"""Tracing that is on, by a provider of our own: OpenTelemetry's process-wide one is left alone.

What goes to the record waits in its leg's buffer for the leg's next write; exporters of
one's own are told of each span as it ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from opentelemetry.sdk.trace import SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter

from everstep.observability import names, root, stored_form
from everstep.observability.destinations import Destination
from everstep.observability.enclosing import Enclosing
from everstep.observability.guard import harmless
from everstep.observability.leg import Ending, Leg, LegDescription
from everstep.observability.resource import resource
from everstep.observability.span_buffer import FinishedSpan, SpanBuffer
from everstep.observability.span_ids import SpanIds
from everstep.observability.span_makers import Correlation, RecordedSpans, SdkSpans, finished
from everstep.observability.traced_leg import TracedLeg
from everstep.observability.tracing import Tracing


class RecordedTracing(Tracing):
    """Tracing into the record, from where it is exported.

    Args:
        destinations: Where the spans are to be exported to.
        service_version: The version that stands on every span's resource.
    """

    def __init__(self, destinations: Sequence[Destination], service_version: str) -> None:
        provider = TracerProvider(resource=resource(service_version), shutdown_on_exit=False)  # reads the environment
        self._sampler, self._limits = provider.sampler, SpanLimits()
        self._sent_by = stored_form.sender(provider.resource, names.SCOPE, service_version)
        self.destinations = tuple(destinations)
        self._news = 0
        self._heard = threading.Condition()

    def is_enabled(self) -> bool:
        return True

    def is_recorded(self) -> bool:
        return True

    def news(self) -> None:
        with self._heard:
            self._news += 1
            self._heard.notify_all()

    def wait_for_news(self, seen: int, seconds: float) -> int:
        with self._heard:
            self._heard.wait_for(lambda: self._news != seen, seconds)
            return self._news

    def _leg(self, description: LegDescription, now_ns: Callable[[], int]) -> Leg:
        buffer = SpanBuffer()
        maker = RecordedSpans(self._sent_by, self._sampler, self._limits, buffer)
        return TracedLeg(maker, description, now_ns, buffer=buffer)

    def _closed(self, description: LegDescription, ending: Ending, lost: Sequence[Enclosing]) -> list[FinishedSpan]:
        kept: list[FinishedSpan] = []
        self._close(description, ending, lost, kept)
        return kept

    @harmless
    def _close(
        self, description: LegDescription, ending: Ending, lost: Sequence[Enclosing], kept: list[FinishedSpan]
    ) -> None:
        span = root.closed(description, ending, self._limits)
        decided = self._sampler.should_sample(None, span.trace_id, span.name, span.kind, span.attributes, span.links)
        if decided.decision.is_sampled():
            leg = stored_form.shared(span.trace_id, {})
            inside = (root.unfinished(description, ending, one, self._limits) for one in lost)
            kept += [finished(one, stored_form.stored(self._sent_by, leg, one)) for one in (span, *inside)]


class DirectTracing(Tracing):
    """Tracing to exporters of one's own, each told of a span as it ends."""

    def __init__(self, processors: Sequence[SpanProcessor], service_version: str) -> None:
        self._ids = SpanIds()
        self._provider = TracerProvider(
            resource=resource(service_version), id_generator=self._ids, shutdown_on_exit=False
        )
        self._tracer = self._provider.get_tracer(names.SCOPE, service_version)
        for processor in (Correlation(), *processors):
            self._provider.add_span_processor(processor)

    def is_enabled(self) -> bool:
        return True

    def _leg(self, description: LegDescription, now_ns: Callable[[], int]) -> Leg:
        return TracedLeg(SdkSpans(self._tracer, self._ids), description, now_ns)

    def flush(self, timeout_ms: int = 1_000) -> bool:
        return self._provider.force_flush(timeout_ms)

    def shutdown(self) -> None:
        self._provider.shutdown()


def recorded(destinations: Sequence[Destination], service_version: str) -> RecordedTracing:
    """Tracing into the record, to be exported to these destinations."""
    return RecordedTracing(destinations, service_version)


def exporting_to(exporters: Sequence[SpanExporter | SpanProcessor], service_version: str) -> DirectTracing:
    """Tracing to exporters or processors of one's own."""
    processors = [SimpleSpanProcessor(one) if isinstance(one, SpanExporter) else one for one in exporters]
    return DirectTracing(processors, service_version)
