"""Reading exceptions that other people wrote: an attribute may be missing, or a property that raises itself."""

from __future__ import annotations

from collections.abc import Iterator
from types import FrameType
from typing import Any


def read(holder: Any, name: str) -> Any:
    """The attribute, or None if there is none or reading it fails (as httpx's `request` does when it is not set)."""
    try:
        return getattr(holder, name, None)
    except Exception:
        return None


def libraries_of(error: BaseException) -> Iterator[str]:
    """The top-level packages that the exception's type and its bases come from, the nearest first, each once."""
    seen: set[str] = set()
    for kind in type(error).__mro__:
        library = kind.__module__.partition(".")[0]
        if library not in seen:
            seen.add(library)
            yield library


def frames_of(error: BaseException) -> Iterator[FrameType]:
    """The frames an exception passed through, the outermost first; none if its traceback is gone."""
    traceback = error.__traceback__
    while traceback is not None:
        yield traceback.tb_frame
        traceback = traceback.tb_next


def chain_of(error: BaseException) -> Iterator[BaseException]:
    """An exception and what caused it, explicitly or not, the outermost first; circles end."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
