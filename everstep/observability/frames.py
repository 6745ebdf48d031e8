"""Whose code an exception passed through: the user's own frames tell what went wrong; those around them are folded.

Most frames of a traceback are not the user's: LangGraph and LangChain call a node through many functions, Everstep's
guards lie between, and an error is often raised deep within a library.
"""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path, PurePath
from traceback import FrameSummary, StackSummary, TracebackException
from typing import Final

_EVERSTEP: Final = PurePath(Path(__file__).parents[1])
_PYTHON: Final = tuple(PurePath(path) for name in ("stdlib", "platstdlib") if (path := sysconfig.get_path(name)))
_INSTALLED: Final = ("site-packages", "dist-packages")
_CALLERS: Final = frozenset({"everstep", "langchain", "langchain_core", "langgraph", "python"})
"""Who calls the user's code."""
_INNERMOST: Final = 3
"""Frames that are kept of a traceback that is too long, whosever they are."""


def frames_of(error: BaseException) -> list[FrameSummary]:
    """The frames an exception passed through, the outermost first; their source is not read."""
    return list(StackSummary.extract(traceback.walk_tb(error.__traceback__), lookup_lines=False))


def own(chain: Sequence[Sequence[FrameSummary]]) -> list[list[FrameSummary]]:
    """Of each exception of a chain the user's own frames: neither of installed packages, nor of Python or Everstep.

    Where no exception has any, the graph may be an installed package itself: then those of all packages but LangGraph
    and LangChain. Where there are none of these either, all. So a wrapper's frames hide nobody's who raised its cause.
    """
    owners = [[(_owner(frame.filename), frame) for frame in frames] for frames in chain]
    users = [[frame for owner, frame in frames if owner == ""] for frames in owners]
    packages = [[frame for owner, frame in frames if owner not in _CALLERS] for frames in owners]
    return next((told for told in (users, packages) if any(told)), [list(frames) for frames in chain])


def place(frame: FrameSummary) -> str:
    """`FILE:LINE FUNCTION`."""
    return f"{frame.filename}:{frame.lineno} {frame.name}"


def python_s(error: BaseException, limit: int) -> str:
    """An exception's traceback as Python writes it; of one longer than `limit` characters without what is in libraries.

    Each exception of the chain then has the user's own frames and the three innermost, in order.
    """
    told = TracebackException.from_exception(error)
    whole = "".join(told.format())
    if len(whole) <= limit:
        return whole
    links: list[TracebackException] = []
    waiting: list[TracebackException | None] = [told]
    while waiting:
        link = waiting.pop()
        if link is not None:
            links.append(link)
            waiting += [link.__cause__, link.__context__, *(link.exceptions or ())]
    for link, shown in zip(links, own([link.stack for link in links]), strict=True):
        kept = {id(frame) for frame in (*shown, *link.stack[-_INNERMOST:])}
        link.stack = StackSummary.from_list([frame for frame in link.stack if id(frame) in kept])
    return "".join(told.format())


@lru_cache(maxsize=4096)
def _owner(filename: str) -> str:
    """The installed package a file belongs to, or `python`; empty for the user's own."""
    path = PurePath(filename)
    for place_of_packages in _INSTALLED:
        if place_of_packages in path.parts[:-1]:
            last = len(path.parts) - 1 - path.parts[::-1].index(place_of_packages)
            return path.parts[last + 1].removesuffix(".py")
    if path.is_relative_to(_EVERSTEP):
        return "everstep"
    is_python = filename.startswith("<frozen ") or any(path.is_relative_to(folder) for folder in _PYTHON)
    return "python" if is_python else ""
