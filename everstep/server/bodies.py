"""Bodies of requests: JSON in which no name comes twice, and large ones handled beside the event loop.

A router of the server's has `route_class=JsonRoute`. What a path does with all of a body (looking for credentials in
it, or making a digest of it) it does by `apart`, so that one large body does not hold up everybody's requests.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

from fastapi import HTTPException, Request, Response
from fastapi.routing import APIRoute

from everstep.checkpoints.strict_json import DuplicateName, object_of

Given = ParamSpec("Given")
Result = TypeVar("Result")

LARGE_BYTES = 64 * 1024
"""From here on a thread is worth its price: to look for credentials takes about 70 ms a megabyte."""
_read: ContextVar[int] = ContextVar("everstep_body_bytes", default=0)
"""How large the body of the request under way is."""


async def apart(function: Callable[Given, Result], *args: Given.args, **kwargs: Given.kwargs) -> Result:
    """What a function makes of the request's body: computed in a thread if that is large, otherwise here."""
    if _read.get() < LARGE_BYTES:
        return function(*args, **kwargs)
    return await asyncio.to_thread(function, *args, **kwargs)


class JsonRoute(APIRoute):
    """A route whose body is read so."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """What answers a request."""
        handle = super().get_route_handler()

        async def handler(request: Request) -> Response:
            return await handle(_JsonRequest(request.scope, request.receive))

        return handler


class _JsonRequest(Request):
    async def json(self) -> Any:
        """The body as JSON.

        Raises:
            HTTPException: 400; a name comes twice in one object.
        """
        if not hasattr(self, "_json"):
            body = await self.body()
            _read.set(len(body))
            try:
                self._json = await apart(json.loads, body, object_pairs_hook=object_of)
            except DuplicateName as twice:
                raise HTTPException(400, f"the body is not clear: {twice}; keep one of them") from twice
        return self._json
