"""Tracing that is on: a provider of our own (OpenTelemetry's process-wide one is left alone).

A finished span becomes OTLP bytes at once and waits in its leg's buffer for the leg's next write to the record; or goes
to exporters of one's own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import format_span_id

from everstep.observability import names, root, span_encoding
from everstep.observability.attributes import exportable
from everstep.observability.destinations import Destination
from everstep.observability.guard import harmless
from everstep.observability.leg import Ending, Leg, LegDescription
from everstep.observability.resource import resource
from everstep.observability.span_buffer import FinishedSpan, SpanBuffer
from everstep.observability.span_encoding import SpanEncoder
from everstep.observability.span_ids import SpanIds
from everstep.observability.traced_leg import Correlation, TracedLeg
from everstep.observability.tracing import Tracing


class _Provider(Tracing):
    def __init__(self, service_version: str) -> None:
        self._ids = SpanIds()
        self._provider = TracerProvider(
            resource=resource(service_version), id_generator=self._ids, shutdown_on_exit=False
        )
        self._tracer = self._provider.get_tracer(names.SCOPE, service_version)
        self._scope = InstrumentationScope(names.SCOPE, service_version)

    def is_enabled(self) -> bool:
        return True


class RecordedTracing(_Provider):
    """Tracing into the record, from where it is exported.

    Args:
        destinations: Where the spans are to be exported to.
        service_version: The version that stands on every span's resource.
    """

    def __init__(self, destinations: Sequence[Destination], service_version: str) -> None:
        super().__init__(service_version)
        self._encoder = SpanEncoder(self._provider.resource, names.SCOPE, service_version)
        self._encoded = _Encoded(self._encoder)
        self._provider.add_span_processor(self._encoded)
        self.destinations = tuple(destinations)
        self._news = 0
        self._heard = threading.Condition()

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
        trace = description.trace_id
        self._encoded.begin(trace, buffer, span_encoding.attributes(exportable(root.correlation(description))))
        return TracedLeg(
            self._tracer,
            self._ids,
            description,
            now_ns,
            buffer=buffer,
            ended=self._encoded.on_end,
            over=lambda: self._encoded.end(trace, buffer),
        )

    def _closed(self, description: LegDescription, ending: Ending) -> list[FinishedSpan]:
        buffer = SpanBuffer()
        self._close(description, ending, buffer)
        return buffer.take()

    @harmless
    def _close(self, description: LegDescription, ending: Ending, buffer: SpanBuffer) -> None:
        span = root.closed(description, ending, self._provider.resource, self._scope)
        if self._is_sampled(span):
            _keep(span, self._encoder.encode(span), buffer)

    def _is_sampled(self, span: ReadableSpan) -> bool:
        trace = 0 if span.context is None else span.context.trace_id
        decided = self._provider.sampler.should_sample(None, trace, span.name, span.kind, span.attributes, span.links)
        return decided.decision.is_sampled()


class DirectTracing(_Provider):
    """Tracing to exporters of one's own, each told of a span as it ends."""

    def __init__(self, processors: Sequence[SpanProcessor], service_version: str) -> None:
        super().__init__(service_version)
        for processor in (Correlation(), *processors):
            self._provider.add_span_processor(processor)

    def _leg(self, description: LegDescription, now_ns: Callable[[], int]) -> Leg:
        return TracedLeg(self._tracer, self._ids, description, now_ns)

    def flush(self, timeout_ms: int = 1_000) -> bool:
        return self._provider.force_flush(timeout_ms)

    def shutdown(self) -> None:
        self._provider.shutdown()


class _Encoded(SpanProcessor):
    """Turns each span into bytes as it ends, and puts it with its leg."""

    def __init__(self, encoder: SpanEncoder) -> None:
        self._encoder = encoder
        self._legs: dict[int, tuple[SpanBuffer, bytes]] = {}
        self._lock = threading.Lock()

    def begin(self, trace: str, buffer: SpanBuffer, common: bytes) -> None:
        """Spans of this trace go there, and these attributes stand on each."""
        with self._lock:
            self._legs[int(trace, 16)] = buffer, common

    def end(self, trace: str, buffer: SpanBuffer) -> None:
        """The leg is over."""
        with self._lock:
            if self._legs.get(int(trace, 16), (None,))[0] is buffer:
                del self._legs[int(trace, 16)]

    def on_start(self, span: Span, parent_context: object = None) -> None:
        return None

    @harmless
    def on_end(self, span: ReadableSpan) -> None:
        if span.context is None or not span.context.trace_flags.sampled:
            return
        if leg := self._legs.get(span.context.trace_id):
            buffer, common = leg
            _keep(span, self._encoder.encode(span, common), buffer)


def _keep(span: ReadableSpan, body: bytes, buffer: SpanBuffer) -> None:
    if span.context is None:
        return
    attributes = span.attributes or {}
    namespace = attributes.get(names.CHECKPOINT_NS)
    is_step = attributes.get(names.OBSERVATION_TYPE) == names.TYPE_CHAIN and isinstance(namespace, str)
    buffer.add(
        FinishedSpan(
            span_id=format_span_id(span.context.span_id),
            started_ns=span.start_time or time.time_ns(),
            body=body,
            step_ns=str(namespace) if is_step else None,
        )
    )


def recorded(destinations: Sequence[Destination], service_version: str) -> RecordedTracing:
    """Tracing into the record, to be exported to these destinations."""
    return RecordedTracing(destinations, service_version)


def exporting_to(exporters: Sequence[SpanExporter | SpanProcessor], service_version: str) -> DirectTracing:
    """Tracing to exporters or processors of one's own."""
    processors = [SimpleSpanProcessor(one) if isinstance(one, SpanExporter) else one for one in exporters]
    return DirectTracing(processors, service_version)
