"""Attributes, spans and senders as OTLP bytes, from spans as the record keeps them (`stored_form`).

OpenTelemetry's encoder is made for its own spans. Here the fields are written by hand, a third of what filling messages
takes; their numbers are those of `opentelemetry/proto/trace/v1/trace.proto`, which can never change.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, SpanFlags

from everstep.observability.attributes import exportable
from everstep.observability.place import Place
from everstep.observability.varint import varint

_TIME: Final = struct.Struct("<cQ")
_DOUBLE: Final = struct.Struct("<cd")
_HERE: Final = int(SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK)
_ELSEWHERE: Final = _HERE | int(SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK)
_WORD: Final = struct.Struct("<cI")
_ALL_BITS: Final = (1 << 64) - 1
_MOST_KEYS: Final = 1_000
_keys: dict[str, bytes] = {}


def sender(schema_url: str, about: Mapping[str, Any], scope: str, version: str) -> tuple[bytes, bytes]:
    """Who sends, and by what: the beginnings of a `ResourceSpans` and of the `ScopeSpans` in it."""
    told = Resource.FromString(attributes(about, tag=b"\x0a"))
    group = ResourceSpans(resource=told, schema_url=schema_url)
    by = ScopeSpans(scope=InstrumentationScope(name=scope, version=version))
    return group.SerializeToString(), by.SerializeToString()


def group(sent: tuple[bytes, bytes], span: bytes) -> bytes:
    """A `ResourceSpans` with one span: protobuf messages are joined by putting one's bytes behind the other's."""
    resource, scope = sent
    return resource + _sized(b"\x12", scope + _sized(b"\x12", span))


def span(trace_id: bytes, common: bytes, told: Mapping[str, Any]) -> bytes:
    """A span.

    Args:
        trace_id: Its trace.
        common: Attributes of all spans of the leg, encoded.
        told: The span; see `stored_form`.
    """
    parts = [b"\x0a\x10", trace_id, b"\x12\x08", bytes.fromhex(told["id"])]
    if "in" in told:
        parts += (b"\x22\x08", bytes.fromhex(told["in"]))
    began, ended = told["at"]
    own: dict[str, Any] = told.get("told", {})
    if "step" in told:
        own = {**exportable(Place(*told["step"]).step_attributes()), **own}
    parts += (_text(b"\x2a", told["name"]), b"\x30", bytes((told.get("kind", 0) + 1,)))  # OTLP has 0 for none
    parts += (_TIME.pack(b"\x39", began), _TIME.pack(b"\x41", ended), attributes(own), common)
    for name, at, more in told.get("events", ()):
        event = (_TIME.pack(b"\x09", at), _text(b"\x12", name), attributes(more, tag=b"\x1a"))
        parts.append(_sized(b"\x5a", b"".join(event)))
    for trace, other, is_remote, more in told.get("links", ()):
        flags = _WORD.pack(b"\x35", _ELSEWHERE if is_remote else _HERE)
        link = (b"\x0a\x10", bytes.fromhex(trace), b"\x12\x08", bytes.fromhex(other), attributes(more, tag=b"\x22"))
        parts.append(_sized(b"\x6a", b"".join((*link, flags))))
    for tag, number in zip((b"\x50", b"\x60", b"\x70"), told.get("dropped", ()), strict=False):
        if number:
            parts.append(tag + varint(number))
    code, message = told.get("status", (0, ""))
    said = (_text(b"\x12", message) if message else b"") + (bytes((0x18, code)) if code else b"")
    parts += (_sized(b"\x7a", said), b"\x85", _WORD.pack(b"\x01", _HERE))
    return b"".join(parts)


def attributes(values: Mapping[str, Any], tag: bytes = b"\x4a") -> bytes:
    """Attributes as fields of a span.

    Args:
        values: Texts, numbers, truth values, and lists of them.
        tag: Of the field they are, where it is not a span's.
    """
    parts: list[bytes] = []
    for key, value in values.items():
        inner = _value(value)
        pair = (_keys.get(key) or _new_key(key)) + varint(len(inner)) + inner
        parts += (tag, varint(len(pair)), pair)
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
            return _sized(b"\x2a", b"".join(_sized(b"\x0a", _value(one)) for one in value))


def _text(tag: bytes, text: str) -> bytes:
    return _sized(tag, text.encode("utf-8", "replace"))


def _sized(tag: bytes, content: bytes) -> bytes:
    return tag + varint(len(content)) + content
