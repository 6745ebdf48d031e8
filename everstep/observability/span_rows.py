"""A stored span read back: of its attributes only those that are neither content nor told elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Status

from everstep.observability import names
from everstep.observability.attributes import exportable
from everstep.observability.enclosing import Enclosing
from everstep.observability.stored_form import otlp

_CONTENT: Final = frozenset(
    {
        names.INPUT_MESSAGES,
        names.OUTPUT_MESSAGES,
        names.TOOL_ARGUMENTS,
        names.TOOL_RESULT,
        names.OBSERVATION_OUTPUT,
    }
)
_SHOWN: Final = ("everstep.", "gen_ai.", "error.")


@dataclass(frozen=True)
class StoredSpan:
    """A span as it was stored.

    Attributes:
        span_id: Its id, hexadecimal.
        parent_id: The span around it; empty for the root of a leg.
        name: Its name.
        started_ns: When it began, UTC nanoseconds.
        ended_ns: When it ended; None if it has no end yet.
        is_error: Whether its status is ERROR.
        is_warning: Whether its failure is one that was tried again.
        message: `Type: message` of a failure, else what it says of itself.
        stack: The stack trace of its exception, of the user's own frames only where that is told apart.
        whole_stack: The stack trace with all frames.
        attributes: What `everstep.*`, `gen_ai.*` and `error.*` tell, without content (prompts, answers, arguments,
            results), which is in the record only where capturing it was switched on.
    """

    span_id: str
    parent_id: str
    name: str
    started_ns: int
    ended_ns: int | None
    is_error: bool
    is_warning: bool
    message: str
    stack: str | None
    whole_stack: str | None
    attributes: Mapping[str, str | int | float | bool]


def read(body: bytes) -> Iterator[StoredSpan]:
    """The spans in a stored body; one that cannot be read holds none."""
    group = ResourceSpans()
    try:
        group.ParseFromString(otlp(body))
    except Exception:  # protobuf's DecodeError is another class in each of its implementations
        return
    for scope in group.scope_spans:
        for span in scope.spans:
            told = {one.key: _plain(one.value) for one in span.attributes if one.key not in _CONTENT}
            is_error = span.status.code == Status.StatusCode.STATUS_CODE_ERROR
            is_warning = told.get(names.OBSERVATION_LEVEL) == names.LEVEL_WARNING
            whole = _stack(span.events)
            yield StoredSpan(
                span_id=span.span_id.hex(),
                parent_id=span.parent_span_id.hex(),
                name=span.name,
                started_ns=span.start_time_unix_nano,
                ended_ns=span.end_time_unix_nano or None,
                is_error=is_error and not is_warning,
                is_warning=is_warning,
                message=span.status.message or str(told.get(names.OBSERVATION_STATUS_MESSAGE) or ""),
                stack=str(told.get(names.observation_metadata("stacktrace")) or "") or whole,
                whole_stack=whole,
                attributes={key: value for key, value in told.items() if key.startswith(_SHOWN) and value is not None},
            )


def of_lost(lost: Enclosing) -> StoredSpan:
    """A span that is not stored, by what those inside it tell of it."""
    told = {
        key: value
        for key, value in exportable(lost.attributes).items()
        if key.startswith(_SHOWN) and isinstance(value, (str, int, float))
    }
    return StoredSpan(
        span_id=lost.span_id,
        parent_id=lost.parent_id,
        name=lost.name,
        started_ns=lost.started_ns,
        ended_ns=None,
        is_error=False,
        is_warning=False,
        message="",
        stack=None,
        whole_stack=None,
        attributes=told,
    )


def _stack(events: Any) -> str | None:
    for event in events:
        if event.name == names.EXCEPTION_EVENT:
            for one in event.attributes:
                if one.key == names.EXCEPTION_STACKTRACE:
                    return str(one.value.string_value)
    return None


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind is None or kind in ("bytes_value", "kvlist_value"):
        return None
    if kind == "array_value":
        return ", ".join(str(_plain(one)) for one in value.array_value.values)
    told = getattr(value, kind)
    return None if isinstance(told, float) and not math.isfinite(told) else told
