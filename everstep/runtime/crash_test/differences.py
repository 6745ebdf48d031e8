"""Where two values of JSON data differ, and what differs by itself from one uninterrupted run to the next.

A place is a path such as `messages[2].id`. What differs by itself is known by a pattern: `messages[*].id`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, cast

from everstep.counts import counted

TEXT = 60
WHOLE = "the state"
_INDEX = re.compile(r"\[\d+\]")


@dataclass(frozen=True)
class Difference:
    """One place where two values differ; `expected` and `actual` in short."""

    path: str
    expected: str
    actual: str

    def __str__(self) -> str:
        return f"{self.path}: {self.actual} instead of {self.expected}"


def differences(expected: Any, actual: Any, ignored: frozenset[str] = frozenset()) -> list[Difference]:
    """The places where two values differ, in their order, without those below an ignored pattern.

    Args:
        expected: JSON data.
        actual: JSON data.
        ignored: Patterns, as `patterns` makes them.
    """
    found: list[Difference] = []
    _compare(expected, actual, "", ignored, found)
    return found


def patterns(found: list[Difference]) -> frozenset[str]:
    """What to ignore from now on, because it differs by itself."""
    return frozenset(_pattern(difference.path) for difference in found)


def _pattern(path: str) -> str:
    return _INDEX.sub("[*]", path)


def _compare(expected: Any, actual: Any, path: str, ignored: frozenset[str], found: list[Difference]) -> None:
    if _pattern(path or WHOLE) in ignored:
        return
    if isinstance(expected, dict) and isinstance(actual, dict):
        before, after = cast("dict[str, Any]", expected), cast("dict[str, Any]", actual)
        for name in dict.fromkeys([*before, *after]):
            where = f"{path}.{name}" if path else name
            _compare(before.get(name, _MISSING), after.get(name, _MISSING), where, ignored, found)
        return
    if isinstance(expected, list) and isinstance(actual, list):
        pairs = [*zip(cast("list[Any]", expected), cast("list[Any]", actual), strict=False)]
        if len(pairs) == len(cast("list[Any]", expected)) == len(cast("list[Any]", actual)):
            for index, (before, after) in enumerate(pairs):
                _compare(before, after, f"{path}[{index}]", ignored, found)
            return
    _note(expected, actual, path, found)


def _note(expected: Any, actual: Any, path: str, found: list[Difference]) -> None:
    """Two values that have no places inside to compare."""
    if type(expected) is not type(actual) or expected != actual:  # true is not 1
        found.append(Difference(path or WHOLE, _short(expected), _short(actual)))


class _Missing:
    """The value of a name that is not there."""


_MISSING = _Missing()


def _short(value: Any) -> str:
    if value is _MISSING:
        return "nothing"
    text = json.dumps(value, ensure_ascii=False)
    if len(text) > TEXT:
        text = text[: TEXT - 1] + "…"
    return f"{counted(len(cast('list[Any]', value)), 'item')} {text}" if isinstance(value, list) else text
