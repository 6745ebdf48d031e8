"""How a span stands in the record: three lines of JSON, which cost a step next to nothing and become OTLP when needed.

The first says who sends: schema, resource, scope and its version. The second what all spans of the leg share: the trace
and their attributes. The third is the span, without what is not there:

- `id`, `in`: its own id and that of the span around it, hexadecimal; `name`; `kind`, unless it is internal;
- `at`: when it began and when it ended, nanoseconds since the Unix epoch;
- `step`: of a step's own span its `Place`, which stands for thirteen attributes; `told`: its other attributes;
- `events`: name, moment, attributes; `links`: trace, span, whether it is remote, attributes;
- `under`: the spans around it, but for the root (`enclosing`);
- `status`: code and message; `dropped`: how many attributes, events and links the limits cost it.

Records of earlier versions hold OTLP bytes instead, which are given as they are.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from opentelemetry.sdk.resources import Resource

from everstep.observability import enclosing, span_encoding
from everstep.observability.leg_span import LegSpan

_logger = logging.getLogger(__name__)

_FIRST: Final = b"["
"""What no OTLP message of ours begins with."""
_written: Final = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def sender(resource: Resource, scope: str, version: str) -> str:
    """The first line: who sends."""
    return _written([resource.schema_url, dict(resource.attributes), scope, version])


def shared(trace_id: int, common: Mapping[str, Any]) -> str:
    """The second line: what all spans of a leg share.

    Args:
        trace_id: Their trace.
        common: Attributes of each, fit for export.
    """
    return _written([f"{trace_id:032x}", common])


def stored(sent_by: str, leg: str, span: LegSpan) -> bytes:
    """A span that has ended.

    Args:
        sent_by: See `sender`.
        leg: See `shared`.
        span: The span.
    """
    told: dict[str, Any] = {
        "id": f"{span.span_id:016x}",
        "name": span.name,
        "at": (span.started_ns, span.ended_ns or 0),
    }
    if span.parent_id is not None:
        told["in"] = f"{span.parent_id:016x}"
    if span.around is not None:
        told["under"] = enclosing.chain(span.around)
    if span.place is not None:
        told["step"] = span.place
    if span.kind.value:
        told["kind"] = span.kind.value
    if span.attributes:
        told["told"] = dict(span.attributes)
    if span.events:
        told["events"] = [(one.name, one.at_ns, one.attributes) for one in span.events]
    if span.links:
        told["links"] = [
            (f"{to.trace_id:032x}", f"{to.span_id:016x}", to.is_remote, dict(link.attributes or {}))
            for link in span.links
            for to in (link.context,)
        ]
    if span.code.value:
        told["status"] = (span.code.value, span.message)
    if span.dropped_attributes or span.dropped_events or span.dropped_links:
        told["dropped"] = (span.dropped_attributes, span.dropped_events, span.dropped_links)
    return f"{sent_by}\n{leg}\n{_written(told)}".encode()


def otlp(body: bytes) -> bytes:
    """A stored span as OTLP `ResourceSpans`; one that cannot be read is a sender that sends nothing."""
    if not body.startswith(_FIRST):
        return body
    try:
        first, second, third = body.split(b"\n", 2)
        trace_id, common = _leg(second)
        return span_encoding.group(_sender(first), span_encoding.span(trace_id, common, json.loads(third)))
    except Exception as error:  # a bad row must hold up no other
        _logger.warning("a stored span cannot be read: %s: %s", type(error).__name__, error)
        return b""


@lru_cache(maxsize=64)
def _sender(line: bytes) -> tuple[bytes, bytes]:
    schema_url, resource, scope, version = json.loads(line)
    return span_encoding.sender(schema_url, resource, scope, version)


@lru_cache(maxsize=256)
def _leg(line: bytes) -> tuple[bytes, bytes]:
    trace_id, common = json.loads(line)
    return bytes.fromhex(trace_id), span_encoding.attributes(common)
