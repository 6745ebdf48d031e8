"""How commands show an exception, what led to it and what it groups: type, message, and where in the user's code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import click

from everstep.cli.views import text
from everstep.counts import counted

EXCEPTIONS, PLACES = 5, 3
"""Further exceptions, and places of each, that are shown without `--verbose`."""
LINE = 300
_FRAME = re.compile(r'^[ |]*File "([^"\n]+)", line (\d+), in (\S+)$', re.MULTILINE)

verbose_option = click.option(
    "--verbose", is_flag=True, help="Of an error show every place it came through, also in libraries."
)


def chain_lines(chain: Sequence[dict[str, Any]], *, verbose: bool) -> Iterator[str]:
    """Lines for each exception of a chain, the outermost first.

    Args:
        chain: As it is kept of an error (`exception_chain.Link.as_dict`).
        verbose: With the places in libraries.
    """
    from everstep.observability.exception_chain import PHRASES, indent

    for link in chain:
        kind = f"{PHRASES.get(link.get('relation'), '')}{link.get('type') or link.get('code')}"
        yield f"{indent(link)}{kind}: {text(link.get('message', ''), 500)}"
        yield from place_lines(link, verbose=verbose)


def place_lines(link: dict[str, Any], *, verbose: bool) -> Iterator[str]:
    """Lines for the places of one exception, the innermost first."""
    from everstep.observability.exception_chain import indent

    own = [place for place in str(link.get("where") or "").split(" < ") if place]
    every: list[str] = link.get("frames") or own
    shown = every if verbose else own[:PLACES]
    for place in shown:
        yield f"{indent(link)}    at {text(place, LINE)}"
    if more := len(every) - len(shown):
        what = ("more place", "more places") if shown else ("place in libraries", "places in libraries")
        yield f"{indent(link)}    ({counted(more, *what)}: --verbose)"


def stack_lines(stack: str, whole: str, *, verbose: bool) -> Iterator[str]:
    """Lines for a failure as a trace holds it; the outermost exception itself has been named.

    Args:
        stack: What `exception_chain.told` wrote, or the record's evidence in the same form; of a span that an older
            release wrote, a traceback of the user's own frames.
        whole: The same with the places in libraries, or the traceback as Python wrote it.
        verbose: Show the whole, line by line.
    """
    if verbose:
        yield from map(_one_line, whole.splitlines()[0 if _is_python_s(whole) else 1 :])
        return
    if _is_python_s(stack):
        shown, left_out = [f"at {file}:{line} {of}" for file, line, of in _FRAME.findall(stack)[: -PLACES - 1 : -1]], 0
    else:
        shown, left_out = _shortened(stack.splitlines()[1:])
    yield from map(_one_line, shown)
    every = len(_FRAME.findall(whole)) if _is_python_s(whole) else _places(whole.splitlines())
    more = every - _places(shown)
    left = [counted(left_out, "more exception")] * (left_out > 0) + [counted(more, "more place")] * (more > 0)
    if left:
        yield f"({', '.join(left)}: --verbose)"


def _is_python_s(stack: str) -> bool:
    return bool(_FRAME.search(stack))


def _places(lines: Sequence[str]) -> int:
    return sum(line.lstrip().startswith("at ") for line in lines)


def _one_line(line: str) -> str:
    """A line for a terminal, with the blanks it begins with."""
    told = line.lstrip(" ")
    return f"{' ' * (len(line) - len(told))}{text(told, LINE)}"


def _shortened(lines: Sequence[str]) -> tuple[list[str], int]:
    """The first exceptions with the first places of each, and how many exceptions are left out."""
    shown: list[str] = []
    exceptions = places = 0
    for line in lines:
        told = line.lstrip()
        if told.startswith("at "):
            places += 1
            if places <= PLACES and exceptions <= EXCEPTIONS:
                shown.append(line)
        elif not told.startswith("| "):
            exceptions, places = exceptions + 1, 0
            if exceptions <= EXCEPTIONS:
                shown.append(line)
    return shown, max(exceptions - EXCEPTIONS, 0)
