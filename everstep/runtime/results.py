"""Values of a graph as JSON data, for people and scripts: results, interrupt values, error chains."""

from __future__ import annotations

import base64
import dataclasses
import math
from collections.abc import Mapping
from datetime import date, time
from enum import Enum
from typing import Any, cast

from langgraph.types import Interrupt

from everstep.observability import frames

MAX_DEPTH = 100
TEXT_BYTES = 4096
OWN_PLACES, PLACES = 5, 20
"""Places that are kept of an exception: in the user's own code, and in all."""


def json_ready(value: Any, depth: int = MAX_DEPTH) -> Any:
    """The value as JSON data. What has no JSON form becomes text; NaN and infinities become strings."""
    if value is None or isinstance(value, (bool, str)):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, Enum):
        return json_ready(value.value, depth)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (date, time)):
        return value.isoformat()
    if depth == 0:
        return repr(value)[:TEXT_BYTES]
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {str(key): json_ready(item, depth - 1) for key, item in items}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [json_ready(item, depth - 1) for item in cast("list[Any]", value)]
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    if isinstance(value, Interrupt):  # as LangGraph's clients know it
        told = {"value": json_ready(value.value, depth - 1), "id": value.id}
        schema = getattr(cast("Any", value), "response_schema", None)
        return told if schema is None else {**told, "response_schema": json_ready(schema, depth - 1)}
    if hasattr(value, "model_dump"):
        return json_ready(value.model_dump(), depth - 1)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: json_ready(getattr(value, field.name), depth - 1) for field in dataclasses.fields(value)}
    return str(value)[:TEXT_BYTES]


def text_of(error: BaseException) -> str:
    """The error's text, also of one whose own `__str__` raises."""
    try:
        return str(getattr(error, "message", error))
    except Exception as failure:
        return f"(no text: its __str__ raised {type(failure).__name__})"


def error_chain(error: BaseException) -> list[dict[str, Any]]:
    """An exception and its causes, outermost first; bounded.

    Returns:
        Of each `type`, `message`, `where` (the places in the user's own code, the innermost first, with ` < ` between)
        and `frames` (all places, those of libraries included, the innermost first).
    """
    chain: list[dict[str, Any]] = []
    current: BaseException | None = error
    while current is not None and len(chain) < 5:
        passed = frames.frames_of(current)[::-1]
        chain.append(
            {
                "type": f"{type(current).__module__}.{type(current).__qualname__}".removeprefix("builtins."),
                "message": text_of(current)[:TEXT_BYTES],
                "where": " < ".join(frames.place(frame) for frame in frames.own(passed)[:OWN_PLACES]),
                "frames": [frames.place(frame) for frame in passed[:PLACES]],
            }
        )
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return chain
