"""Spans as OTLP bytes, one at a time.

OpenTelemetry's encoder is made for batches: for a span alone it would encode the resource anew each time. Here what is
the same for all spans is encoded once, and so is what is the same for all of a leg: protobuf messages are joined by
putting one's bytes behind the other's. Messages are filled in place, which takes a tenth of the time of making the
parts first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, SpanFlags
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext

from everstep.observability.varint import varint

_NESTED: Final = b"\x12"
"""The tag of `ResourceSpans.scope_spans` as of `ScopeSpans.spans`: field number 2, with a length."""
_KNOWN: Final = SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK


class SpanEncoder:
    """Encodes the spans of one sender.

    Args:
        resource: Who sends.
        scope: The name of what makes the spans.
        version: Its version.
    """

    def __init__(self, resource: Resource, scope: str, version: str) -> None:
        sender = ResourceSpans(schema_url=resource.schema_url)
        sender.resource.SetInParent()
        _fill(sender.resource.attributes, resource.attributes)
        self._sender = sender.SerializeToString()
        self._scope = ScopeSpans(scope=InstrumentationScope(name=scope, version=version)).SerializeToString()

    def encode(self, span: ReadableSpan, common: bytes = b"") -> bytes:
        """OTLP `ResourceSpans` with this span alone.

        Args:
            span: A span that has ended.
            common: Attributes it has besides; see `attributes`.
        """
        own = _encoded(span)
        scope = b"".join((self._scope, _NESTED, varint(len(own) + len(common)), own, common))
        return b"".join((self._sender, _NESTED, varint(len(scope)), scope))


def attributes(values: Mapping[str, Any]) -> bytes:
    """Attributes that many spans have, for `SpanEncoder.encode`."""
    made = Span()
    _fill(made.attributes, values)
    return made.SerializeToString()


def _encoded(span: ReadableSpan) -> bytes:
    made: Any = Span()
    _identify(made, span.context)
    if span.parent is not None:
        made.parent_span_id = span.parent.span_id.to_bytes(8)
    made.flags = _flags(span.parent)
    made.name = span.name
    made.kind = span.kind.value + 1  # OTLP has 0 for none
    made.start_time_unix_nano = span.start_time or 0
    made.end_time_unix_nano = span.end_time or 0
    _fill(made.attributes, span.attributes)
    for event in span.events:
        one = made.events.add(name=event.name, time_unix_nano=event.timestamp)
        _fill(one.attributes, event.attributes)
    for link in span.links:
        one = made.links.add(flags=_flags(link.context))
        _identify(one, link.context)
        _fill(one.attributes, link.attributes)
    made.status.code = span.status.status_code.value
    made.status.message = span.status.description or ""
    made.dropped_attributes_count = span.dropped_attributes
    made.dropped_events_count = span.dropped_events
    made.dropped_links_count = span.dropped_links
    return made.SerializeToString()


def _identify(made: Any, context: SpanContext | None) -> None:
    if context is not None:
        made.trace_id = context.trace_id.to_bytes(16)
        made.span_id = context.span_id.to_bytes(8)


def _flags(context: SpanContext | None) -> int:
    is_remote = context is not None and context.is_remote
    return _KNOWN | SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK if is_remote else _KNOWN


def _fill(pairs: Any, values: Mapping[str, Any] | None) -> None:
    for key, value in (values or {}).items():
        pair = pairs.add()
        pair.key = key
        _put(pair.value, value)


def _put(place: Any, value: Any) -> None:
    match value:
        case str():
            place.string_value = value
        case bool():
            place.bool_value = value
        case int():
            place.int_value = value
        case float():
            place.double_value = value
        case _:
            place.array_value.SetInParent()
            for one in value:
                _put(place.array_value.values.add(), one)
