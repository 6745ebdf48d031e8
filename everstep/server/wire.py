"""What differs between the wire and what path functions see.

- A body is JSON whatever its content type says: LangGraph Studio sends `text/plain`, `curl -d` a form's. Those of
  triggers and webhooks stay as they are.
- A body that is too large is refused: before a byte of it is read if it says so, otherwise as soon as it is.
- An address in an answer leads back here, also where the application is mounted under a prefix.
"""

from __future__ import annotations

import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from everstep.server import failures

_ADDRESSES = ("location", "content-location")
_RAW = ("/everstep/triggers/", "/webhooks/")
TOO_LARGE = "the body is larger than the server reads"


class Wire:
    """Middleware: bodies as JSON, addresses with the prefix.

    Args:
        app: What is behind.
        most_body_bytes: The largest body that is read, bytes.
    """

    def __init__(self, app: ASGIApp, most_body_bytes: int) -> None:
        self._app = app
        self._most_body_bytes = most_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        prefix = scope.get("root_path", "")
        length = Headers(scope=scope).get("content-length", "0")
        if length.isdecimal() and (len(length) > 18 or int(length) > self._most_body_bytes):
            await failures.refusal(HTTPException(413, TOO_LARGE))(scope, receive, send)
            return
        if "\0" in scope["path"] or b"%00" in scope.get("query_string", b""):  # PostgreSQL can look for no such text
            refused = failures.answer(422, "the address holds a NUL character", code="request_invalid")
            await refused(scope, receive, send)
            return
        if not scope["path"].removeprefix(prefix).startswith(_RAW):
            others = [(name, value) for name, value in scope["headers"] if name != b"content-type"]
            scope = {**scope, "headers": [*others, (b"content-type", b"application/json")]}
        read = 0

        async def bounded() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._most_body_bytes:
                raise HTTPException(413, TOO_LARGE)
            return message

        async def with_prefix(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name in _ADDRESSES:
                    address = headers.get(name, "")
                    if address.startswith("/") and not address.startswith(f"{prefix}/"):
                        headers[name] = prefix + address
            await send(message)

        await self._app(scope, bounded, with_prefix if prefix else send)


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
            await failures.refusal(HTTPException(404, f"the server is under {self._prefix}"))(scope, receive, send)
        else:
            await receive()
            await send({"type": "websocket.close", "code": 4404})


class Shut:
    """Middleware: paths that `http.disable_…` takes away are not there.

    Args:
        app: What is behind.
        paths: Which ones, as a regular expression.
    """

    def __init__(self, app: ASGIApp, paths: re.Pattern[str]) -> None:
        self._app = app
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what is not shut."""
        if scope["type"] == "http" and self._paths.fullmatch(scope["path"].removeprefix(scope.get("root_path", ""))):
            await failures.refusal(HTTPException(404))(scope, receive, send)
            return
        await self._app(scope, receive, send)
