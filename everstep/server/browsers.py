"""What keeps web pages out: a browser calls any address for any page, also those of this machine.

- A page of a foreign origin is refused before anything is done. CORS alone would only keep it from reading the answer,
  since JSON is read whatever its content type, so that a plain form's request would start a job.
- Where nobody has to say who they are, the server answers to this machine's names only: a page could otherwise reach it
  by a name of its own that leads here (DNS rebinding), and then is no foreign page.
"""

from __future__ import annotations

from dataclasses import replace

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from everstep.graphs.http_configuration import Cors
from everstep.server import failures
from everstep.server.loopback import is_from_graph

EXPOSED = ("Content-Location", "Location", "X-Pagination-Next", "X-Pagination-Total", "Idempotency-Replayed")
"""Headers of answers that LangGraph's clients read."""
THIS_MACHINE = frozenset({"localhost", "127.0.0.1", "::1"})
_LOCAL_PAGES = r"https?://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]+)?"


def with_local_pages(cors: Cors) -> Cors:
    """The rules, and besides that pages which this machine serves may call: a chat page under development, say."""
    regex = cors.allow_origin_regex
    return replace(cors, allow_origin_regex=f"(?:{regex})|{_LOCAL_PAGES}" if regex else _LOCAL_PAGES)


class Browsers:
    """Middleware: refuses requests by foreign names and from foreign pages.

    Args:
        app: What is guarded.
        cors: Which pages may call.
        hosts: By which names, without ports, the server may be called; None: by any.
    """

    def __init__(self, app: ASGIApp, cors: Cors, hosts: frozenset[str] | None) -> None:
        self._app = app
        self._cors = cors
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        why = None if scope["type"] == "lifespan" or is_from_graph(scope) else self._refused(Headers(scope=scope))
        if why is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 4403})
        else:
            await failures.answer(403, why, code="not_permitted")(scope, receive, send)

    def _refused(self, headers: Headers) -> str | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if self._hosts is not None and _without_port(host) not in self._hosts:
            return "the server is not called by this name; on this machine it is localhost or 127.0.0.1"
        if origin is None or origin.partition("://")[2] == host or self._cors.allows(origin):
            return None
        return "pages of this origin may not call the server; allow one with: everstep up --cors ORIGIN"


def _without_port(host: str) -> str:
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
