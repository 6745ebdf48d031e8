"""How commands show an exception and what caused it: type, message, and where in the user's code it was raised."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click

from everstep.cli.views import text

PLACES = 3
"""Places that are shown of an exception without `--verbose`."""

verbose_option = click.option(
    "--verbose", is_flag=True, help="Of an error show every place it came through, also in libraries."
)


def chain_lines(chain: Sequence[dict[str, Any]], *, verbose: bool) -> Iterator[str]:
    """Lines for each exception of a chain, the outermost first.

    Args:
        chain: As it is kept of an error: `type`, `message`, `where`, `frames`.
        verbose: With the places in libraries.
    """
    for link in chain:
        yield f"{link.get('type') or link.get('code')}: {text(link.get('message', ''), 500)}"
        yield from place_lines(link, verbose=verbose)


def place_lines(link: dict[str, Any], *, verbose: bool) -> Iterator[str]:
    """Lines for the places of one exception, the innermost first."""
    own = [place for place in str(link.get("where") or "").split(" < ") if place]
    every: list[str] = link.get("frames") or own
    shown = every if verbose else own[:PLACES]
    for place in shown:
        yield f"    at {text(place, 300)}"
    if more := len(every) - len(shown):
        yield f"    ({more} more {'place' if more == 1 else 'places'}: --verbose)"
