"""An exception with those that led to it and those it groups: as data for the record, and as text for people.

Each is a *link*, the outermost first: sub-exceptions behind their group, a cause behind what it caused. All are
bounded, since a stranger's code may chain and group without end, and rid of credentials.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from traceback import FrameSummary
from typing import Any, Final, Literal, TypeAlias, cast

from everstep.credentials import LONGEST_TEXT, without_secrets
from everstep.observability import frames
from everstep.observability.attributes import bounded

Relation: TypeAlias = Literal["cause", "context", "member"]

LINKS: Final = 10
"""Exceptions that are told, in all."""
MEMBERS: Final = 5
"""Sub-exceptions that are told of one group."""
MESSAGE_BYTES, FURTHER_BYTES, LINE_BYTES = 4096, 1024, 500
"""Of a message: of the outermost exception, of the others, and in a line of text."""
OWN_PLACES, PLACES = 5, 20
"""Places that are kept of an exception, the innermost: in the user's own code, and in all."""
PHRASES: Final[Mapping[object, str]] = {
    "cause": "caused by ",
    "context": "while handling ",
    "member": "sub-exception ",
}
"""How a line of text says what one exception is to the one before."""


@dataclass(frozen=True)
class Link:
    """One exception of a chain.

    Attributes:
        kind: Its class, with its module unless it is a builtin.
        message: Its text, without credentials, bounded.
        relation: What it is to the one it stands behind: its `cause` (`raise … from`), its `context` (it was being
            handled), a `member` (a sub-exception of that group); None: it is the outermost.
        depth: How many groups it lies in.
        own: The places to show, the innermost first: of the user's own code, if any link has one (`frames.own`).
        passed: All places, the innermost first.
    """

    kind: str
    message: str
    relation: Relation | None
    depth: int
    own: list[FrameSummary]
    passed: list[FrameSummary]

    def as_dict(self) -> dict[str, Any]:
        """As it is kept in the record."""
        told: dict[str, Any] = {
            "type": self.kind,
            "message": self.message,
            "where": " < ".join(frames.place(frame) for frame in self.own[:OWN_PLACES]),
            "frames": [frames.place(frame) for frame in self.passed[:PLACES]],
        }
        return told if self.relation is None else {**told, "relation": self.relation, "depth": self.depth}


def links(error: BaseException) -> list[Link]:
    """An exception and those it came from or groups, the outermost first."""
    found = list(_walk(error))
    passed = [frames.frames_of(one)[::-1] for one, _, _ in found]
    own = frames.own(passed)
    told: list[Link] = []
    for (one, relation, depth), every, shown in zip(found, passed, own, strict=True):
        limit = FURTHER_BYTES if told else MESSAGE_BYTES
        message = bounded(without_secrets(bounded(text_of(one), LONGEST_TEXT)), limit)
        told.append(Link(kind_of(one), message, relation, depth, shown, every))
    return told


def kind_of(error: BaseException) -> str:
    """An exception's class, with its module unless it is a builtin."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def text_of(error: BaseException) -> str:
    """The error's text, also of one whose own `__str__` raises; of a group with the number of its sub-exceptions."""
    try:
        return str(error) if _members(error) else str(getattr(error, "message", error))
    except Exception as failure:
        return f"(no text: its __str__ raised {type(failure).__name__})"


def heading(link: Mapping[str, Any]) -> str:
    """The line that names a link of a chain, as `Link.as_dict` gives it, set in by its depth."""
    message = bounded(" ".join(str(link.get("message") or "").split()), LINE_BYTES)
    kind = f"{PHRASES.get(link.get('relation'), '')}{link.get('type')}"
    return f"{indent(link)}{kind}: {message}" if message else f"{indent(link)}{kind}"


def indent(link: Mapping[str, Any]) -> str:
    """The blanks before the lines of a link."""
    depth = link.get("depth")
    return "  " * min(depth, LINKS) if isinstance(depth, int) else ""


def raised_at(error: Mapping[str, Any]) -> str:
    """`FILE:LINE FUNCTION` of an error as it is kept: the user's innermost place; empty if none is known."""
    chain: Sequence[Mapping[str, Any]] = error.get("chain") or ()
    places = (str(link.get("where") or "").partition(" < ")[0] for link in chain)
    return next(filter(None, places), "")


def told(error: BaseException) -> str:
    """A line for each link, behind it the places to show, each with its line of source where that can be read."""
    return "\n".join(_lines(error))


def _lines(error: BaseException) -> Iterator[str]:
    for link in links(error):
        kept = link.as_dict()
        yield heading(kept)
        for frame in link.own[:PLACES]:
            yield f"{indent(kept)}  at {frames.place(frame)}"
            if frame.line:
                yield f"{indent(kept)}    | {frame.line}"


def _walk(error: BaseException) -> Iterator[tuple[BaseException, Relation | None, int]]:
    waiting: list[tuple[BaseException, Relation | None, int]] = [(error, None, 0)]
    seen: set[int] = set()
    while waiting and len(seen) < LINKS:
        current, relation, depth = waiting.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current, relation, depth
        if current.__cause__ is not None:
            waiting.append((current.__cause__, "cause", depth))
        elif current.__context__ is not None and not current.__suppress_context__:
            waiting.append((current.__context__, "context", depth))
        for member in reversed(_members(current)[:MEMBERS]):
            waiting.append((member, "member", depth + 1))


def _members(error: BaseException) -> Sequence[BaseException]:
    """The sub-exceptions of a group."""
    return cast("BaseExceptionGroup[BaseException]", error).exceptions if isinstance(error, BaseExceptionGroup) else ()
