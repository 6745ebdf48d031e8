"""Spans stored and sent: what OpenTelemetry's own span and encoder make of the same."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.trace import (
    INVALID_SPAN_CONTEXT,
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from everstep.observability import span_rows, stored_form
from everstep.observability.attributes import exportable
from everstep.observability.leg_span import LegSpan
from everstep.observability.place import Place

TEXT = "grüße " * 100
RESOURCE = Resource({"service.name": "tests", "places": ["a", "b"]}, "https://schema.example")
SENDER = stored_form.sender(RESOURCE, "everstep", "1.2.3")
BEGAN = 1_700_000_000_000_000_000
PARENT = 3


def context(number: int, *, is_remote: bool) -> SpanContext:
    """The context of some span."""
    return SpanContext(number << 64, number, is_remote, TraceFlags(TraceFlags.SAMPLED))


def both(
    attributes: dict[str, Any], limits: SpanLimits | None = None, *, parent: int | None = None
) -> tuple[LegSpan, Any]:
    """A span of ours and one of OpenTelemetry's, with the same ids."""
    within = Context()
    if parent is not None:
        within = set_span_in_context(NonRecordingSpan(context(parent, is_remote=False)), within)
    links = [Link(context(5, is_remote=True), {"kind": "child"}), Link(context(6, is_remote=False))]
    provider = TracerProvider(resource=RESOURCE, shutdown_on_exit=False, span_limits=limits)
    theirs = provider.get_tracer("everstep", "1.2.3").start_span(
        "step 1 näme", context=within, kind=SpanKind.CLIENT, attributes=attributes, links=links, start_time=BEGAN
    )
    ids = theirs.get_span_context()
    ours = LegSpan(
        ids.trace_id,
        ids.span_id,
        parent,
        "step 1 näme",
        {key: tuple(value) if isinstance(value, list) else value for key, value in attributes.items()},
        BEGAN,
        limits or SpanLimits(),
        kind=SpanKind.CLIENT,
        links=links,
    )
    assert ours.get_span_context()[:2] == ids[:2]
    return ours, theirs


def sent(span: LegSpan, common: dict[str, Any] | None = None) -> ResourceSpans:
    """What a destination gets of a span of ours."""
    body = stored_form.stored(SENDER, stored_form.shared(span.trace_id, common or {}), span)
    return ResourceSpans.FromString(stored_form.otlp(body))


def check(ours: LegSpan, theirs: Any) -> None:
    """Both, ended, are the same bytes read back."""
    for span in (ours, theirs):
        span.end(BEGAN + 2)
        assert not span.is_recording()
    assert isinstance(theirs, ReadableSpan)
    assert sent(ours) == encode_spans([theirs]).resource_spans[0]


@pytest.mark.parametrize("parent", [None, PARENT])
def test_a_span_is_encoded_as_opentelemetry_does(parent):
    """Attributes of every type, links, and a parent or none."""
    attributes = {"text": TEXT, "empty": "", "yes": True, "no": False, "n": -(2**63), "zero": 0, "one": 1, "x": 0.5}
    numbers = {"many": 2**63 - 1, "1": 1.0, "minus": -1, "inf": float("inf"), "🙂" * 300: "x" * 70_000}
    check(*both({**attributes, **numbers, "list": ["a", "b"], "none": []}, parent=parent))


def speak(span: Span) -> None:
    """What users' code and instrumented libraries may say of the current span."""
    span.set_attribute("own", 1)
    span.set_attribute("own", "2")
    span.set_attributes({"numbers": [1, 2], "yes": True})
    span.update_name("another")
    span.add_event("seen", {"what": "it"}, timestamp=BEGAN + 1)
    span.add_event("seen again", timestamp=BEGAN + 1)
    span.add_link(context(9, is_remote=True), {"kind": "later"})
    span.set_status(Status(StatusCode.ERROR, "it went wrong"))
    span.set_status(StatusCode.UNSET)


def test_what_user_code_says_of_the_current_span_stands_on_it():
    """Attributes, a name, events, links and a status, as they would on OpenTelemetry's own span."""
    ours, theirs = both({"own": 0})
    for span in (ours, theirs):
        speak(span)
    check(ours, theirs)


def test_an_exception_is_recorded_with_its_trace():
    """`record_exception` tells class, text and stack, as an event."""
    ours, theirs = both({})
    try:
        raise KeyError("canary")
    except KeyError as error:
        for span in (ours, theirs):
            span.record_exception(error, {"more": "x"}, timestamp=BEGAN + 1)
    check(ours, theirs)


@pytest.mark.parametrize("last", [StatusCode.OK, StatusCode.ERROR])
def test_ok_is_the_last_word_of_a_status(last):
    """After `OK` nothing changes a status any more; a description belongs to errors alone."""
    ours, theirs = both({})
    for span in (ours, theirs):
        span.set_status(Status(last, None if last is StatusCode.OK else "why"))
        span.set_status(Status(StatusCode.ERROR, "later"))
    check(ours, theirs)


def test_an_ended_span_says_nothing_more():
    """What is set after the end is not on the span, and a second end changes nothing."""
    ours, theirs = both({"own": 0})
    for span in (ours, theirs):
        span.end(BEGAN + 2)
        speak(span)
    check(ours, theirs)


def test_the_limits_of_opentelemetry_hold():
    """Attributes, their length, events and links are bounded as the environment says, and what is lost is counted."""
    limits = SpanLimits(
        max_span_attributes=3, max_events=1, max_links=2, max_event_attributes=1, max_span_attribute_length=5
    )
    ours, theirs = both({"a": "long enough", "b": 1}, limits)
    for span in (ours, theirs):
        span.set_attributes({"c": 1, "d": "also long"})
        span.add_event("first", timestamp=BEGAN + 1)
        span.add_event("second", {"a": 1}, timestamp=BEGAN + 1)
        span.add_link(context(9, is_remote=True))
    check(ours, theirs)


def test_what_is_no_attribute_is_made_one():
    """Text that is no Unicode, numbers beyond 64 bits and objects can be said, and read back."""
    ours, _ = both({})
    ours.set_attributes({"half": "\ud800", "huge": 2**70, "object": object, "none": None, "": "nameless"})
    ours.end(BEGAN + 2)
    (span,) = sent(ours).scope_spans[0].spans
    told = {one.key: one.value.string_value for one in span.attributes}
    assert told == {"half": "?", "huge": str(2**70), "object": str(object)}


class Mute(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise ValueError("no text")


def test_what_makes_no_sense_harms_nobody():
    """Whatever a node says of the current span, the node goes on, and what else was said of the span is sent."""
    ours, _ = both({"own": 1})
    wrong: Any = ours
    wrong.set_attribute("mute", Mute())
    wrong.set_attributes(None)
    wrong.set_attribute(5, "no name")
    wrong.add_event(None, {5: "no name", "why": "because"}, 0.5)
    wrong.add_event("too early", None, -1)
    wrong.add_link(None)
    wrong.add_link(INVALID_SPAN_CONTEXT, {"to": "nothing"})
    wrong.record_exception(Mute())
    wrong.record_exception("no exception")
    wrong.set_status("ERROR")
    wrong.set_status(StatusCode.ERROR, KeyError("why"))
    wrong.update_name(7)
    wrong.end(float(BEGAN))
    (span,) = sent(ours).scope_spans[0].spans
    assert (span.name, span.end_time_unix_nano, span.status.message) == ("7", BEGAN, "'why'")
    assert [one.key for one in span.attributes] == ["own"]
    assert [(one.name, len(one.attributes), one.time_unix_nano) for one in span.events] == [
        ("None", 1, 0),
        ("too early", 0, 0),
    ]
    assert len(span.links) == 2


@pytest.mark.parametrize("parent", [None, PARENT])
def test_what_opentelemetrys_span_is_asked_can_be_asked(parent: int | None):
    """Code that looks at the current span finds its status, parent and times where OpenTelemetry's own has them."""
    ours, theirs = both({"own": 1}, parent=parent)
    for span in (ours, theirs):
        assert span.end_time is None
        speak(span)
        span.end(BEGAN + 2)
    assert (ours.start_time, ours.end_time) == (theirs.start_time, theirs.end_time)
    assert ours.context[:2] == theirs.context[:2]
    assert ours.context.trace_flags.sampled
    assert (ours.parent and ours.parent.span_id) == (theirs.parent and theirs.parent.span_id) == parent
    assert (ours.status.status_code, ours.status.description) == (theirs.status.status_code, theirs.status.description)
    assert (ours.name, ours.kind, ours.status.is_ok) == (theirs.name, theirs.kind, theirs.status.is_ok)


def test_what_is_common_to_a_leg_stands_on_its_spans():
    """What all spans of a leg share is read back behind a span's own."""
    (ours, theirs), common = both({"own": 1}), {"everstep.leg": 2, "session.id": TEXT}
    for span in (ours, theirs):
        span.end(BEGAN + 2)
    expected = encode_spans([theirs]).resource_spans[0]
    for key, value in common.items():
        pair = expected.scope_spans[0].spans[0].attributes.add(key=key)
        setattr(pair.value, "string_value" if isinstance(value, str) else "int_value", value)
    assert sent(ours, common) == expected


def test_a_steps_place_stands_for_its_attributes():
    """A step's span is stored in a few hundred bytes, and sent with all that says where in the graph it is."""
    place = Place(3, "work", 2, "work:1f1ecf4c-6429-679b-8002-bbf933507811", "1f1ecf4c-6429-679b-8002-bbf933507811")
    _, theirs = both({**exportable(place.step_attributes()), "own": 1})
    ids = theirs.get_span_context()
    links = [Link(context(5, is_remote=True), {"kind": "child"}), Link(context(6, is_remote=False))]
    ours = LegSpan(
        ids.trace_id,
        ids.span_id,
        None,
        "step 1 näme",
        {"own": 1},
        BEGAN,
        SpanLimits(),
        place=place,
        kind=SpanKind.CLIENT,
        links=links,
    )
    check(ours, theirs)


def test_a_span_of_an_earlier_version_is_read_and_sent_as_it_is():
    """Records hold OTLP bytes of versions before: they are given as they are."""
    _, theirs = both({"everstep.node": "work"})
    theirs.end(BEGAN + 2)
    body = encode_spans([theirs]).resource_spans[0].SerializeToString()
    assert stored_form.otlp(body) == body
    assert [one.attributes for one in span_rows.read(body)] == [{"everstep.node": "work"}]


@pytest.mark.parametrize("body", [b"", b"[", b"[1]\n[2]\n{}", b'["",{},"a","b"]\n["00",{}]\nnull', b"\xff\xff"])
def test_a_body_that_cannot_be_read_holds_up_no_other(body):
    """It holds no spans, and what is sent in its place is nothing."""
    assert list(span_rows.read(body)) == []
    if body.startswith(b"["):
        assert stored_form.otlp(body) == b""
