"""What differs between the wire and what path functions see.

- A body is JSON whatever its content type says: LangGraph Studio sends `text/plain`, `curl -d` a form's.
- An address in an answer leads back here, also where the application is mounted under a prefix.
"""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_TAKEN_FOR_JSON = ("", "text/plain", "application/x-www-form-urlencoded", "application/octet-stream")
_ADDRESSES = ("location", "content-location")
_RAW = "/everstep/triggers/"


class Wire:
    """Middleware: bodies as JSON, addresses with the prefix.

    Args:
        app: What is behind.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        prefix = scope.get("root_path", "")
        path = scope["path"].removeprefix(prefix)
        given = Headers(scope=scope).get("content-type", "").partition(";")[0].strip().lower()
        if given in _TAKEN_FOR_JSON and not path.startswith(_RAW):
            others = [(name, value) for name, value in scope["headers"] if name != b"content-type"]
            scope = {**scope, "headers": [*others, (b"content-type", b"application/json")]}
        if not prefix:
            await self._app(scope, receive, send)
            return

        async def with_prefix(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name in _ADDRESSES:
                    address = headers.get(name, "")
                    if address.startswith("/") and not address.startswith(f"{prefix}/"):
                        headers[name] = prefix + address
            await send(message)

        await self._app(scope, receive, with_prefix)


class Prefixed:
    """The application under a prefix (`http.mount_prefix`), and nothing beside it.

    Args:
        app: The application.
        prefix: A path such as `/agents`.
    """

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what is under the prefix."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["path"] == self._prefix or scope["path"].startswith(f"{self._prefix}/"):
            await self._app({**scope, "root_path": scope.get("root_path", "") + self._prefix}, receive, send)
        elif scope["type"] == "http":
            from everstep.server import failures

            await failures.answer(404, f"the server is under {self._prefix}")(scope, receive, send)
        else:
            await receive()
            await send({"type": "websocket.close", "code": 4404})
