"""Values made fit for export: bounded, valid Unicode, within 64 bits.

One span that cannot be encoded would cost the whole batch it travels in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias, cast

Scalar: TypeAlias = str | bool | int | float
Value: TypeAlias = Scalar | tuple[Scalar, ...]

ATTRIBUTE_LIMIT: Final = 64 * 1024
"""Bytes of UTF-8 that one attribute may hold."""
NAME_LIMIT: Final = 256
"""Bytes of UTF-8 in a span's name."""
STATUS_LIMIT: Final = 2 * 1024
"""Bytes of UTF-8 in a status description."""
STACK_LIMIT: Final = 8 * 1024
"""Bytes of UTF-8 in a stack trace."""

_CUT = " … {} bytes cut … "


def bounded(text: str, limit: int = ATTRIBUTE_LIMIT) -> str:
    """The text as valid UTF-8 of at most `limit` bytes; a longer one loses its middle.

    A quarter of the room goes to the head, the rest to the tail: there a stack trace says what was raised.
    """
    if len(text) <= limit and text.isascii():  # as nearly all is
        return text
    data = text.encode("utf-8", "replace")
    if len(data) <= limit:
        return data.decode()
    room = max(limit - len(_CUT.format(len(data)).encode()), 0)
    head, tail = data[: room // 4], data[len(data) - (room - room // 4) :]
    cut = len(data) - len(head) - len(tail)
    return head.decode("utf-8", "ignore") + _CUT.format(cut) + tail.decode("utf-8", "ignore")


def exportable(attributes: Mapping[str, object]) -> dict[str, Value]:
    """The attributes that OTLP can carry: None is left out, text is bounded, integers beyond 64 bits become text."""
    fit: dict[str, Value] = {}
    for key, value in attributes.items():
        kind = type(value)
        if kind is str:  # as most are
            fit[key] = bounded(cast(str, value))
        elif value is None:
            continue
        elif kind is bool or kind is float:
            fit[key] = cast("bool | float", value)
        elif isinstance(value, list | tuple):
            fit[key] = _texts(cast("Iterable[object]", value))
        else:
            fit[key] = _scalar(value)
    return fit


def primitive(value: object) -> Value | None:
    """A value that somebody else sets on a span, made fit; None if it says nothing. Lists keep their types."""
    if isinstance(value, list | tuple):
        entries = [_scalar(one) for one in cast("Iterable[object]", value) if one is not None]
        return tuple(entries)
    return None if value is None else _scalar(value)


def _scalar(value: object) -> Scalar:
    match value:
        case bool() | float():
            return value
        case int():
            return value if -(2**63) <= value < 2**63 else bounded(str(value))
        case str():
            return bounded(value)
        case bytes():
            return bounded(value.decode("utf-8", "replace"))
        case _:
            return bounded(str(value))


def _texts(values: Iterable[object]) -> tuple[str, ...]:
    return tuple(bounded(str(value)) for value in values)
