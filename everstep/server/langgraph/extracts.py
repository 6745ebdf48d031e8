"""Parts of threads that a search is to pick out: paths such as `values.messages[-1].content`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from everstep.errors import RequestInvalid

MOST_PATHS = 10
LONGEST_PATH = 500
ROOTS = ("values", "metadata", "config", "interrupts", "error")
_PART = re.compile(r"\.?([^.\[\]]+)|\[(-?\d{1,9})\]")

Path = Sequence[str | int]


def parsed(text: str) -> Path:
    """A path from its text.

    Raises:
        RequestInvalid: It is none, or leads from nothing a thread has.
    """
    parts: list[str | int] = []
    at = 0
    while at < len(text) <= LONGEST_PATH:
        found = _PART.match(text, at)
        if found is None:
            break
        name, index = found.groups()
        parts.append(name if index is None else int(index))
        at = found.end()
    if at != len(text) or not parts or parts[0] not in ROOTS:
        raise RequestInvalid(
            f"extract has {text[:80]!r}, which is no path",
            next_step=f"begin with {', '.join(ROOTS)}, then .key and [index]",
            field="extract",
        )
    return parts


def extract(view: Mapping[str, Any], paths: Mapping[str, Path]) -> dict[str, Any]:
    """What stands at each path; None where nothing does."""
    return {alias: _at(view, path) for alias, path in paths.items()}


def _at(value: Any, path: Path) -> Any:
    for part in path:
        if isinstance(part, str) and isinstance(value, Mapping):
            value = cast("Mapping[str, Any]", value).get(part)
        elif isinstance(part, int) and isinstance(value, list):
            items = cast("list[Any]", value)
            value = items[part] if -len(items) <= part < len(items) else None
        else:
            return None
    return value
