"""A span of a leg that goes to the record: what OpenTelemetry's own span is to user code, at a fraction of its cost.

It is the current span while a node runs, so what a node or an instrumented library says of "the current span" (an
attribute, an event, a status) stands on it, and spans made by another provider become its children. Whatever they say
harms no run, and what they may read of OpenTelemetry's own span they find here. It keeps to the limits that
OpenTelemetry's `OTEL_SPAN_*` and `OTEL_ATTRIBUTE_*` variables set.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from opentelemetry.sdk.trace import SpanLimits
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from everstep.observability import names
from everstep.observability.attributes import NAME_LIMIT, STATUS_LIMIT, bounded, primitive
from everstep.observability.guard import harmless, swallowed
from everstep.observability.place import Place

SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)


class Event(NamedTuple):
    """Something that happened in a span; `at_ns` is nanoseconds since the Unix epoch."""

    name: str
    attributes: Mapping[str, Any]
    at_ns: int


def _kept_by_nobody(_span: LegSpan) -> None:
    return None


class LegSpan(Span):
    """One span. What the program sets is made fit for export before (`attributes.exportable`); what others set, here.

    Args:
        trace_id: Its trace.
        span_id: Its id.
        parent_id: The span it lies in; None for the root of a leg.
        name: Its name.
        attributes: What is known at its start, fit for export; the span's own from now on.
        started_ns: Nanoseconds since the Unix epoch.
        limits: How much it may hold.
        place: Of a step's own span, which step it is; that counts for no limit.
        kind: Its kind.
        links: To other spans.
        around: The span it lies in, if that is one of these and not the root.
        keep: Called once, when it has ended.
    """

    __slots__ = (
        "_keep",
        "_limits",
        "around",
        "attributes",
        "code",
        "dropped_attributes",
        "dropped_events",
        "dropped_links",
        "ended_ns",
        "events",
        "kind",
        "links",
        "message",
        "name",
        "parent_id",
        "place",
        "span_id",
        "started_ns",
        "trace_id",
    )

    def __init__(
        self,
        trace_id: int,
        span_id: int,
        parent_id: int | None,
        name: str,
        attributes: dict[str, Any],
        started_ns: int,
        limits: SpanLimits,
        *,
        place: Place | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        links: Sequence[Link] = (),
        around: LegSpan | None = None,
        keep: Callable[[LegSpan], None] = _kept_by_nobody,
    ) -> None:
        self.trace_id = trace_id
        self.span_id = span_id
        self.parent_id = parent_id
        self.name = name
        self.attributes = attributes
        self.started_ns = started_ns
        self.ended_ns: int | None = None
        self.place = place
        self.kind = kind
        self.links = list(links)
        self.around = around
        self.events: list[Event] = []
        self.code = StatusCode.UNSET
        self.message = ""
        self.dropped_attributes = self.dropped_events = self.dropped_links = 0
        self._limits = limits
        self._keep = keep
        if limits.max_span_attribute_length is not None or len(attributes) > (limits.max_span_attributes or 0):
            self._limit()

    def copy(self) -> LegSpan:
        """The span as it is, open; the copy's end is nobody's business."""
        made = LegSpan(
            self.trace_id,
            self.span_id,
            self.parent_id,
            self.name,
            dict(self.attributes),
            self.started_ns,
            self._limits,
            place=self.place,
            kind=self.kind,
            links=self.links,
        )
        made.events, made.code, made.message = list(self.events), self.code, self.message
        made.dropped_attributes, made.dropped_events = self.dropped_attributes, self.dropped_events
        made.dropped_links = self.dropped_links
        return made

    # ---- OpenTelemetry's interface, for whoever asks for the current span

    def get_span_context(self) -> SpanContext:
        return SpanContext(self.trace_id, self.span_id, False, SAMPLED)

    def is_recording(self) -> bool:
        return self.ended_ns is None

    def set_attribute(self, key: str, value: Any) -> None:
        self.set_attributes({key: value})

    @harmless
    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        if self.ended_ns is None:
            self.attributes.update(_fit(attributes))
            self._limit()

    @harmless
    def add_event(self, name: str, attributes: Mapping[str, Any] | None = None, timestamp: int | None = None) -> None:
        if self.ended_ns is not None:
            return
        told = _first(_cut(_fit(attributes), self._limits.max_attribute_length), self._limits.max_event_attributes)
        self.events.append(Event(bounded(str(name), NAME_LIMIT), told, _moment(timestamp)))
        self.dropped_events += _trim(self.events, self._limits.max_events)

    @harmless
    def add_link(self, context: SpanContext | None, attributes: Mapping[str, Any] | None = None) -> None:
        if self.ended_ns is not None or context is None or not context.is_valid:
            return
        self.links.append(Link(context, _first(_fit(attributes), self._limits.max_link_attributes)))
        self.dropped_links += _trim(self.links, self._limits.max_links)

    @harmless
    def update_name(self, name: str) -> None:
        if self.ended_ns is None:
            self.name = bounded(str(name), NAME_LIMIT)

    @harmless
    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        code: object = status.status_code if isinstance(status, Status) else status
        if self.ended_ns is not None or self.code is StatusCode.OK or code not in (StatusCode.OK, StatusCode.ERROR):
            return  # what OpenTelemetry says of a status: Ok is the last word, and nothing can be unsaid
        told = status.description if isinstance(status, Status) else description
        self.code = code
        self.message = bounded(str(told or ""), STATUS_LIMIT) if code is StatusCode.ERROR else ""

    @harmless
    def record_exception(
        self,
        exception: BaseException,
        attributes: Mapping[str, Any] | None = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        kind = type(exception)
        told = {
            names.EXCEPTION_TYPE: kind.__qualname__
            if kind.__module__ == "builtins"
            else f"{kind.__module__}.{kind.__qualname__}",
            names.EXCEPTION_MESSAGE: str(exception),
            names.EXCEPTION_STACKTRACE: "".join(traceback.format_exception(exception)),
            "exception.escaped": str(escaped),
        }
        self.add_event(names.EXCEPTION_EVENT, {**told, **(attributes or {})}, timestamp)

    def end(self, end_time: int | None = None) -> None:
        if self.ended_ns is not None:
            return
        try:
            self.ended_ns = _moment(end_time)
            self._keep(self)
        except Exception:
            swallowed("LegSpan.end")

    # ---- what OpenTelemetry's own span can be asked besides

    @property
    def context(self) -> SpanContext:
        """As `get_span_context`."""
        return self.get_span_context()

    @property
    def parent(self) -> SpanContext | None:
        """The span around it."""
        return None if self.parent_id is None else SpanContext(self.trace_id, self.parent_id, False, SAMPLED)

    @property
    def status(self) -> Status:
        """What became of it."""
        return Status(self.code, self.message or None)

    @property
    def start_time(self) -> int:
        """When it began, nanoseconds since the Unix epoch."""
        return self.started_ns

    @property
    def end_time(self) -> int | None:
        """When it ended; None while it is open."""
        return self.ended_ns

    # ---- limits

    def _limit(self) -> None:
        self.attributes = _cut(self.attributes, self._limits.max_span_attribute_length)
        most = self._limits.max_span_attributes
        while most is not None and len(self.attributes) > most:  # the oldest go, as with OpenTelemetry
            del self.attributes[next(iter(self.attributes))]
            self.dropped_attributes += 1


def _fit(attributes: Mapping[str, Any] | None) -> dict[str, Any]:
    """What others tell, fit for export."""
    return {
        bounded(key): fit
        for key, value in (attributes or {}).items()
        if isinstance(key, str) and key and (fit := primitive(value)) is not None  # pyright: ignore[reportUnnecessaryIsInstance]
    }


def _moment(given: int | None) -> int:
    """Nanoseconds that OTLP can carry; now, if nobody says otherwise."""
    return time.time_ns() if given is None else min(max(int(given), 0), 2**64 - 1)


def _cut(attributes: dict[str, Any], length: int | None) -> dict[str, Any]:
    if length is None:
        return attributes
    return {key: value[:length] if isinstance(value, str) else value for key, value in attributes.items()}


def _first(attributes: dict[str, Any], most: int | None) -> dict[str, Any]:
    return attributes if most is None else dict(list(attributes.items())[-most:] if most else ())


def _trim(entries: list[Any], most: int | None) -> int:
    """Let the oldest go, until there are not more than so many; how many went."""
    excess = 0 if most is None else max(len(entries) - most, 0)
    del entries[:excess]
    return excess
