"""Spans as OTLP bytes, one at a time.

OpenTelemetry's encoder is made for batches: for a span alone it would encode the resource anew each time. Here what is
the same for all spans is encoded once, and so is what is the same for all of a leg: protobuf messages are joined by
putting one's bytes behind the other's. The fields are written by hand, a third of what filling messages takes; their
numbers are those of `opentelemetry/proto/trace/v1/trace.proto`, which can never change.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource as ResourceMessage
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, SpanFlags
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import SpanContext

from everstep.observability.leg_span import LegSpan
from everstep.observability.varint import varint

_NESTED: Final = b"\x12"
"""The tag of `ResourceSpans.scope_spans` as of `ScopeSpans.spans`: field number 2, with a length."""
_TIMES: Final = struct.Struct("<cQcQ")
_TIME: Final = struct.Struct("<cQ")
_DOUBLE: Final = struct.Struct("<cd")
_HERE: Final = int(SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK)
_ELSEWHERE: Final = _HERE | int(SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK)
_WORD: Final = struct.Struct("<I")
_ALL_BITS: Final = (1 << 64) - 1
_MOST_KEYS: Final = 1_000
_keys: dict[str, bytes] = {}


class SpanEncoder:
    """Encodes the spans of one sender.

    Args:
        resource: Who sends.
        scope: The name of what makes the spans.
        version: Its version.
    """

    def __init__(self, resource: Resource, scope: str, version: str) -> None:
        told = ResourceMessage.FromString(attributes(resource.attributes, tag=b"\x0a"))
        self._sender = ResourceSpans(resource=told, schema_url=resource.schema_url).SerializeToString()
        self._scope = ScopeSpans(scope=InstrumentationScope(name=scope, version=version)).SerializeToString()

    def encode(self, span: LegSpan, common: bytes = b"") -> bytes:
        """OTLP `ResourceSpans` with this span alone.

        Args:
            span: A span that has ended.
            common: Attributes it has besides; see `attributes`.
        """
        own = _encoded(span)
        scope = b"".join((self._scope, _NESTED, varint(len(own) + len(common)), own, common))
        return b"".join((self._sender, _NESTED, varint(len(scope)), scope))


def attributes(values: Mapping[str, Any], tag: bytes = b"\x4a") -> bytes:
    """Attributes as fields of a span, say those that many spans have, for `SpanEncoder.encode`.

    Args:
        values: Texts, numbers, truth values, and sequences of them.
        tag: Of the field they are, where it is not a span's.
    """
    parts: list[bytes] = []
    encoded: dict[object, bytes] = {}
    for key, value in dict(values).items():
        sort = value if isinstance(value, str) else (value.__class__.__name__, value)  # 1 is True, and both are 1.0
        if (inner := encoded.get(sort)) is None:  # as a rule each stands there twice
            plain = _value(value)
            inner = encoded[sort] = varint(len(plain)) + plain
        head = _keys.get(key) or _new_key(key)
        parts += (tag, varint(len(head) + len(inner)), head, inner)
    return b"".join(parts)


def _new_key(key: str) -> bytes:
    """The key of a pair, and the tag of its value; ours are few, users' may be any."""
    head = _text(b"\x0a", key) + b"\x12"
    if len(_keys) < _MOST_KEYS:
        _keys[key] = head
    return head


def _value(value: Any) -> bytes:
    """An `AnyValue`."""
    match value:
        case str():
            return _text(b"\x0a", value)
        case bool():
            return b"\x10\x01" if value else b"\x10\x00"
        case int():
            return b"\x18" + varint(value & _ALL_BITS)
        case float():
            return _DOUBLE.pack(b"\x21", value)
        case _:
            entries = [_value(one) for one in value]
            return _sized(b"\x2a", b"".join(_sized(b"\x0a", one) for one in entries))


def _encoded(span: LegSpan) -> bytes:
    parts = [b"\x0a\x10", span.trace_id.to_bytes(16), b"\x12\x08", span.span_id.to_bytes(8)]
    if span.parent_id is not None:
        parts += (b"\x22\x08", span.parent_id.to_bytes(8))
    kind = bytes((span.kind.value + 1,))  # OTLP has 0 for none
    times = _TIMES.pack(b"\x39", span.started_ns, b"\x41", span.ended_ns or 0)
    parts += (_text(b"\x2a", span.name), b"\x30", kind, times, attributes(span.attributes))
    for event in span.events:
        name, told = _text(b"\x12", event.name), attributes(event.attributes, tag=b"\x1a")
        parts.append(_sized(b"\x5a", b"".join((_TIME.pack(b"\x09", event.at_ns), name, told))))
    for link in span.links:
        parts.append(_sized(b"\x6a", _link(link.context, attributes(link.attributes or {}, tag=b"\x22"))))
    for tag, number in (
        (b"\x50", span.dropped_attributes),
        (b"\x60", span.dropped_events),
        (b"\x70", span.dropped_links),
    ):
        if number:
            parts.append(tag + varint(number))
    said = _text(b"\x12", span.message) if span.message else b""
    code = bytes((0x18, span.status.value)) if span.status.value else b""
    parts += (_sized(b"\x7a", said + code), b"\x85\x01", _WORD.pack(_HERE))
    return b"".join(parts)


def _link(context: SpanContext, told: bytes) -> bytes:
    flags = _WORD.pack(_ELSEWHERE if context.is_remote else _HERE)
    ids = (b"\x0a\x10", context.trace_id.to_bytes(16), b"\x12\x08", context.span_id.to_bytes(8))
    return b"".join((*ids, told, b"\x35", flags))


def _text(tag: bytes, text: str) -> bytes:
    return _sized(tag, text.encode("utf-8", "replace"))


def _sized(tag: bytes, content: bytes) -> bytes:
    return tag + varint(len(content)) + content
