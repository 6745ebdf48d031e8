"""Query parameters are honoured or refused, never dropped: one that a path does not know is answered with 422."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from everstep.errors import RequestInvalid


async def only_known(request: Request) -> None:
    """Refuse a query parameter that the path does not know; as a dependency of a router.

    Raises:
        RequestInvalid: Names the first.
    """
    if not request.query_params:
        return
    route = cast(APIRoute, request.scope["route"])
    known = set(_names(route.dependant))
    for name in request.query_params:
        if name not in known:
            raise RequestInvalid(
                f"query parameter {name} is not supported",
                next_step=f"this path takes: {', '.join(sorted(known)) or 'none'}",
            )


def _names(dependant: Dependant) -> Iterator[str]:
    """What a path function, and whatever it depends on, takes from the query."""
    yield from (parameter.alias for parameter in dependant.query_params)
    for below in dependant.dependencies:
        yield from _names(below)
