"""Where the spans of one leg come from: cheap ones for the record, OpenTelemetry's own for exporters of one's own."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final

from opentelemetry.context import Context, create_key, get_current, set_value
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor
from opentelemetry.sdk.trace import Span as SdkSpan
from opentelemetry.sdk.trace.sampling import Sampler
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    set_span_in_context,
)

from everstep.observability import names, root, stored_form
from everstep.observability.attributes import exportable
from everstep.observability.failure import Failure
from everstep.observability.leg import LegDescription
from everstep.observability.leg_span import LegSpan
from everstep.observability.place import Place
from everstep.observability.span_buffer import FinishedSpan, SpanBuffer
from everstep.observability.span_ids import SpanIds

_CORRELATION: Final = create_key("everstep-leg")


class SpanMaker(ABC):
    """Makes the spans of one leg. Attributes that it is given are fit for export."""

    @abstractmethod
    def root(
        self, about: LegDescription, name: str, attributes: dict[str, Any], links: Sequence[Link], started_ns: int
    ) -> Span:
        """The leg's own span, with the ids that follow from the leg."""

    @abstractmethod
    def child(
        self,
        parent: Span,
        name: str,
        attributes: dict[str, Any],
        started_ns: int,
        *,
        place: Place | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        links: Sequence[Link] = (),
    ) -> Span:
        """A span within another one of the leg; if it is a step's own, its place says which."""

    @abstractmethod
    def end_root(self, span: Span, told: Mapping[str, Any], failure: Failure | None, ended_ns: int) -> None:
        """The leg is over; what was told may yet be told otherwise where the root goes to the record.

        Args:
            span: The leg's own span.
            told: What its attributes say of the end.
            failure: What went wrong.
            ended_ns: Nanoseconds since the Unix epoch.
        """


class RecordedSpans(SpanMaker):
    """Spans that are put in the record's form as they end, and wait in a buffer for the record.

    The decision to sample is the root's, for all of its trace: every sampler that the environment can name says the
    same of a trace's other spans.

    Args:
        sent_by: Who sends them; see `stored_form.sender`.
        sampler: Decides whether the leg is recorded.
        limits: How much a span may hold.
        buffer: Where they wait.
    """

    def __init__(self, sent_by: str, sampler: Sampler, limits: SpanLimits, buffer: SpanBuffer) -> None:
        self._sent_by = sent_by
        self._sampler = sampler
        self._limits = limits
        self._buffer = buffer
        self._leg = ""

    def root(
        self, about: LegDescription, name: str, attributes: dict[str, Any], links: Sequence[Link], started_ns: int
    ) -> Span:
        trace_id, span_id = int(about.trace_id, 16), int(about.root_span_id, 16)
        self._leg = stored_form.shared(trace_id, exportable(root.correlation(about)))
        decided = self._sampler.should_sample(None, trace_id, name, SpanKind.INTERNAL, attributes, links)
        if not decided.decision.is_sampled():
            return NonRecordingSpan(SpanContext(trace_id, span_id, is_remote=False))
        return LegSpan(trace_id, span_id, None, name, attributes, started_ns, self._limits, links=links)

    def child(
        self,
        parent: Span,
        name: str,
        attributes: dict[str, Any],
        started_ns: int,
        *,
        place: Place | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        links: Sequence[Link] = (),
    ) -> Span:
        if not isinstance(parent, LegSpan):
            return parent  # not sampled
        # From the operating system: a node that seeds `random` would make another source repeat itself.
        span_id = int.from_bytes(os.urandom(8)) or 1
        return LegSpan(
            parent.trace_id,
            span_id,
            parent.span_id,
            name,
            attributes,
            started_ns,
            self._limits,
            place=place,
            kind=kind,
            links=links,
            around=None if parent.parent_id is None else parent,
            keep=self._keep,
        )

    def end_root(self, span: Span, told: Mapping[str, Any], failure: Failure | None, ended_ns: int) -> None:
        if not isinstance(span, LegSpan):
            return
        ended = span.copy()
        ended.set_attributes(told)
        if failure is not None:
            record(ended, failure, ended_ns)
        ended.end(ended_ns)
        self._keep(ended)

    def _keep(self, span: LegSpan) -> None:
        self._buffer.add(finished(span, stored_form.stored(self._sent_by, self._leg, span)))


class SdkSpans(SpanMaker):
    """OpenTelemetry's own spans, for processors that want them.

    Args:
        tracer: Makes them.
        ids: The tracer's source of ids.
    """

    def __init__(self, tracer: Tracer, ids: SpanIds) -> None:
        self._tracer = tracer
        self._ids = ids
        self._context = Context()

    def root(
        self, about: LegDescription, name: str, attributes: dict[str, Any], links: Sequence[Link], started_ns: int
    ) -> Span:
        self._context = set_value(_CORRELATION, exportable(root.correlation(about)), Context())
        with self._ids.use(about.trace_id, about.root_span_id):
            return self._tracer.start_span(
                name, context=self._context, attributes=attributes, links=links, start_time=started_ns
            )

    def child(
        self,
        parent: Span,
        name: str,
        attributes: dict[str, Any],
        started_ns: int,
        *,
        place: Place | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        links: Sequence[Link] = (),
    ) -> Span:
        if place is not None:
            attributes = {**exportable(place.step_attributes()), **attributes}
        context = set_span_in_context(parent, self._context)
        return self._tracer.start_span(
            name, context=context, kind=kind, attributes=attributes, links=links, start_time=started_ns
        )

    def end_root(self, span: Span, told: Mapping[str, Any], failure: Failure | None, ended_ns: int) -> None:
        span.set_attributes(told)
        if failure is not None:
            record(span, failure, ended_ns)
        span.end(ended_ns)


class Correlation(SpanProcessor):
    """Puts session, trace name, tags and job on every span of a leg: Langfuse filters spans, not traces."""

    def on_start(self, span: SdkSpan, parent_context: Context | None = None) -> None:
        attributes = get_current().get(_CORRELATION) if parent_context is None else parent_context.get(_CORRELATION)
        if isinstance(attributes, dict):
            span.set_attributes(attributes)  # pyright: ignore[reportUnknownArgumentType]

    def on_end(self, span: ReadableSpan) -> None:
        return None


def record(span: Span, failure: Failure, moment_ns: int | None = None) -> None:
    """Write a failure on a span: status, error type, and the stack trace as an event and, for Langfuse, as metadata."""
    span.set_status(Status(StatusCode.ERROR, failure.description))
    span.set_attributes(failure.attributes)
    span.add_event(names.EXCEPTION_EVENT, failure.event, timestamp=moment_ns)


def finished(span: LegSpan, body: bytes) -> FinishedSpan:
    """A span that has ended, for the record."""
    namespace = None if span.place is None else span.place.checkpoint_ns
    return FinishedSpan(f"{span.span_id:016x}", span.started_ns, body, namespace)
