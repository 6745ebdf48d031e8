"""Spans as bytes: the same as OpenTelemetry's own encoder makes of them."""

from __future__ import annotations

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from everstep.observability import span_encoding
from everstep.observability.span_encoding import SpanEncoder

TEXT = "grüße " * 100
PROVIDER = TracerProvider(resource=Resource({"service.name": "tests", "places": ["a", "b"]}), shutdown_on_exit=False)
ENCODER = SpanEncoder(PROVIDER.resource, "everstep", "1.2.3")


def context(number: int, *, is_remote: bool) -> SpanContext:
    """The context of some span."""
    return SpanContext(number << 64, number, is_remote, TraceFlags(TraceFlags.SAMPLED))


def span(attributes: dict[str, object], *, parent: SpanContext | None = None) -> ReadableSpan:
    """A span that failed, with an event and links."""
    within = Context() if parent is None else set_span_in_context(NonRecordingSpan(parent), Context())
    made = PROVIDER.get_tracer("everstep", "1.2.3").start_span(
        "step 1 näme",
        context=within,
        kind=SpanKind.CLIENT,
        attributes=attributes,  # pyright: ignore[reportArgumentType]
        links=[Link(context(5, is_remote=True), {"kind": "child"}), Link(context(6, is_remote=False))],
        start_time=1_700_000_000_000_000_000,
    )
    made.set_status(Status(StatusCode.ERROR, "it went wrong"))
    made.add_event("exception", {"exception.type": "ValueError"}, timestamp=1_700_000_000_000_000_001)
    made.end(1_700_000_000_000_000_002)
    assert isinstance(made, ReadableSpan)
    return made


def encoded_by_library(one: ReadableSpan) -> ResourceSpans:
    """What OpenTelemetry makes of it."""
    return encode_spans([one]).resource_spans[0]


def test_a_span_is_encoded_as_opentelemetry_does():
    """Attributes of every type, events, links, status, and a parent that is here, elsewhere, or not at all."""
    attributes = {"text": TEXT, "empty": "", "yes": True, "no": False, "n": -(2**63), "zero": 0, "x": 0.5}
    for parent in (None, context(3, is_remote=False), context(3, is_remote=True)):
        one = span({**attributes, "list": ["a", "b"], "none": []}, parent=parent)
        assert ResourceSpans.FromString(ENCODER.encode(one)) == encoded_by_library(one)


def test_what_is_common_to_a_leg_stands_on_its_spans():
    """Attributes that were encoded once are read back behind a span's own."""
    one, common = span({"own": 1}), {"everstep.leg": 2, "session.id": TEXT}
    expected = encoded_by_library(one)
    for key, value in common.items():
        pair = expected.scope_spans[0].spans[0].attributes.add(key=key)
        setattr(pair.value, "string_value" if isinstance(value, str) else "int_value", value)
    assert ResourceSpans.FromString(ENCODER.encode(one, span_encoding.attributes(common))) == expected
