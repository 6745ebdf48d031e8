"""The spans around a span: each stored one tells of those that it lies in, as they are stored later, or never.

A span is stored when it ends, so that what a worker was doing as it was killed is missing, while what had ended inside
it is there. From this the missing ones can be made: with their ids, their names and when they began, without a guess.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Set
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from everstep.clock import rfc3339
from everstep.observability import names
from everstep.observability.place import Place

if TYPE_CHECKING:
    from everstep.observability.leg_span import LegSpan

UNNAMED: Final = "not kept"
"""The name of a span of which only the id is known, as records of earlier versions tell no more."""
_IN: Final = b'"in":"'
_TOLD: Final = (
    names.OPERATION,
    names.TOOL_NAME,
    names.AGENT_NAME,
    names.REQUEST_MODEL,
    names.EFFECT_NAME,
    names.EFFECT_KEY_DIGEST,
)


class Enclosing(NamedTuple):
    """A span as one inside it tells of it.

    Attributes:
        span_id: Its id, hexadecimal.
        parent_id: The span around it.
        name: Its name.
        started_ns: When it began, nanoseconds since the Unix epoch.
        place: Of a step's own span, which step.
        told: What tells its kind.
    """

    span_id: str
    parent_id: str
    name: str
    started_ns: int
    place: Place | None
    told: dict[str, Any]

    @property
    def attributes(self) -> dict[str, object]:
        """What is known of it, as its span would say it."""
        return {**({} if self.place is None else self.place.step_attributes()), **self.told}


def died_within(started_ns: int, *, apart: bool = False) -> str:
    """What is said of something during which its worker died.

    Args:
        started_ns: When it began, nanoseconds since the Unix epoch.
        apart: Whether it was the process of the job alone, and its worker lived.
    """
    who = "its process" if apart else "worker"
    return f"unfinished since {rfc3339(started_ns // 1_000_000)}: {who} died"


def chain(span: LegSpan) -> list[tuple[Any, ...]]:
    """A span and those around it, the outermost first, without the root of the leg; fit for JSON."""
    found: list[tuple[Any, ...]] = []
    around: LegSpan | None = span
    while around is not None:
        which = f"{around.span_id:016x}", around.started_ns
        if around.place is not None:
            found.append((*which, around.place))
        else:
            told = {key: around.attributes[key] for key in _TOLD if key in around.attributes}
            found.append((*which, around.name, told))
        around = around.around
    return found[::-1]


def missing(bodies: Iterable[bytes], known: Set[str], root_id: str) -> list[Enclosing]:
    """The spans around stored ones that are not stored themselves, without the root of the leg; outer ones first.

    Args:
        bodies: The stored spans of a leg.
        known: The ids of those that are stored.
        root_id: The id of the leg's root.
    """
    found: dict[str, Enclosing] = {}
    for body in bodies:
        if _parent(body) in known:
            continue  # whose own row tells of what is around it
        for one in around(body, root_id):
            if one.span_id not in known and one.span_id != root_id:
                found.setdefault(one.span_id, one)
    return list(found.values())


def _parent(body: bytes) -> str | None:
    """The span around one, if its stored form tells it: found without reading the rest, as a leg may have many."""
    at = body.find(_IN, body.find(b"\n", body.find(b"\n") + 1)) if body.startswith(b"[") else -1
    return None if at < 0 else body[at + len(_IN) : at + len(_IN) + 16].decode("ascii", "replace")


def around(body: bytes, root_id: str) -> list[Enclosing]:
    """What a stored span tells of the spans around it, the outermost first; nothing of the root of its leg.

    Args:
        body: The span as it is stored (`stored_form`).
        root_id: The id of the leg's root.
    """
    try:
        if not body.startswith(b"["):
            return _of_otlp(body, root_id)
        told: dict[str, Any] = json.loads(body.split(b"\n", 2)[2])
        return _of_chain(told, root_id)
    except Exception:  # a bad row must hold up no other; who exports it tells of it
        return []


def _of_chain(told: Mapping[str, Any], root_id: str) -> list[Enclosing]:
    if (parent := told.get("in", root_id)) == root_id:
        return []
    found: list[Enclosing] = []
    outer = root_id
    for span_id, started_ns, what, *rest in told.get("under", ()):
        if rest:
            found.append(Enclosing(span_id, outer, what, started_ns, None, rest[0]))
        else:
            place = Place(*what)
            found.append(Enclosing(span_id, outer, names.step_span(place.step, place.node), started_ns, place, {}))
        outer = span_id
    return found or [Enclosing(parent, root_id, UNNAMED, told["at"][0], None, {})]


def _of_otlp(body: bytes, root_id: str) -> list[Enclosing]:
    from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans  # who traces nothing does without it

    return [
        Enclosing(span.parent_span_id.hex(), root_id, UNNAMED, span.start_time_unix_nano, None, {})
        for scope in ResourceSpans.FromString(body).scope_spans
        for span in scope.spans
        if span.parent_span_id
    ]
