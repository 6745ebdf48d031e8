"""Values of a graph as JSON data, for people and scripts: results and interrupt values."""

from __future__ import annotations

import base64
import dataclasses
import math
from collections.abc import Mapping
from datetime import date, time
from enum import Enum
from typing import Any, cast

from langgraph.types import Interrupt

MAX_DEPTH = 100
TEXT_BYTES = 4096


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
