"""Naming, by path, what LangGraph's serialisation cannot store or would quietly change.

LangGraph's `JsonPlusSerializer` raises on unknown types and on integers beyond 64 bits without saying where; and it
changes some values without a word (a nested Enum becomes its value, a tuple a list, a lone surrogate `?`). Paths look
like `$.orders[3].kind`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

from langgraph.checkpoint.serde.base import SerializerProtocol

from everstep.errors import StateNotSerializable

MAX_REPORTED = 10
MAX_DEPTH = 40

_SURROGATE = re.compile("[\ud800-\udfff]")
_AS_THEY_ARE = frozenset[Any]({type(None), bool, int, float})
_type_of: Callable[[Any], Any] = type


def children(value: Any) -> Iterator[tuple[str, Any]]:
    """The parts of a container, each with its step of the path."""
    if isinstance(value, Mapping):
        for key, item in cast("Mapping[Any, Any]", value).items():
            yield (f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]"), item
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(cast("list[Any]", value)):
            yield f"[{index}]", item
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield f".{field.name}", getattr(value, field.name, None)
    elif hasattr(value, "model_fields_set"):
        yield from ((f".{name}", item) for name, item in vars(value).items())


def refuse(serializer: SerializerProtocol, channel: str, value: Any, error: Exception) -> StateNotSerializable:
    """The error for a channel value that cannot be stored: it names the innermost part that is to blame."""
    path, culprit = f"$.{channel}", value
    for _ in range(MAX_DEPTH):
        for step, item in children(culprit):
            if not _storable(serializer, item):
                path, culprit = path + step, item
                break
        else:
            break
    kind = f"{type(culprit).__module__}.{type(culprit).__qualname__}".removeprefix("builtins.")
    if isinstance(culprit, int):
        what, advice = "is an integer beyond 64 bits", "keep it as a string"
    else:
        what, advice = (
            f"is a {kind}, which cannot be stored",
            "keep plain data in the state, and build such objects inside the node",
        )
    return StateNotSerializable(
        f"{path} {what} ({type(error).__name__}: {error})",
        next_step=f"{advice}; then: everstep retry",
        path=path,
        type=kind,
    )


def _storable(serializer: SerializerProtocol, value: Any) -> bool:
    try:
        serializer.dumps_typed(value)
    except Exception:  # any failure means the same here
        return False
    return True


def is_exact(value: Any, depth: int = MAX_DEPTH) -> bool:
    """Whether a value surely comes back as it is, without a try: it is plain JSON."""
    kind = _type_of(value)
    if kind in _AS_THEY_ARE:
        return True
    if kind is str:
        return value.isascii() or not _SURROGATE.search(value)
    if depth == 0:
        return False
    if kind is list:
        return are_exact(value, depth - 1)
    if kind is dict:
        return all(type(key) is str for key in value) and are_exact(value.values(), depth - 1)
    return False


def are_exact(values: Iterable[Any], depth: int = MAX_DEPTH) -> bool:
    """Whether all of them are so."""
    for value in values:
        kind = _type_of(value)
        if kind in _AS_THEY_ARE or (kind is str and value.isascii()):
            continue  # nearly all are, and a call for each would take longer than to look
        if not is_exact(value, depth):
            return False
    return True


def changes(serializer: SerializerProtocol, channel: str, value: Any) -> list[str]:
    """What would come back changed, in words, at most `MAX_REPORTED` lines."""
    found: list[str] = []
    _compare(value, serializer.loads_typed(serializer.dumps_typed(value)), f"$.{channel}", found, MAX_DEPTH)
    return found


def _compare(before: Any, after: Any, path: str, found: list[str], depth: int) -> None:
    if len(found) >= MAX_REPORTED or depth == 0 or isinstance(before, BaseException):
        return
    if type(before) is not type(after):
        found.append(f"{path}: {type(before).__qualname__} comes back as {type(after).__qualname__}")
    elif isinstance(before, str):
        if before != after:
            found.append(f"{path}: text with a lone surrogate comes back changed")
    else:
        after_parts = dict(children(after))
        for step, item in children(before):
            _compare(item, after_parts.get(step), path + step, found, depth - 1)
