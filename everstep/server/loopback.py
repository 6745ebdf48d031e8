"""A graph that calls its own server: `get_client()` of LangGraph's SDK, without an address.

Its requests go to the application in this process, not over a socket, and for the owner of the job that runs the graph:
nothing that comes over a socket can say so of itself. A graph in a process of its own (`--isolate`) has no application
beside it and needs the address.
"""

from __future__ import annotations

from typing import Any

from langgraph_sdk.client import configure_loopback_transports
from starlette.types import ASGIApp, Receive, Scope, Send

_MARK = "everstep.from_graph"


class Loopback:
    """The application as graphs see it.

    Args:
        app: The application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a graph's request on."""
        await self._app({**scope, "root_path": "", _MARK: True}, receive, send)


def is_from_graph(scope: Scope) -> bool:
    """Whether a graph of this process asks."""
    return bool(scope.get(_MARK))


def serve_graphs(app: ASGIApp) -> None:
    """From now on clients without an address lead to this application, whether they were made before or come later."""
    from langgraph_sdk._async import client

    loopback = Loopback(app)
    configure_loopback_transports(loopback)
    client._registered_transports = _Configured(loopback)  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]


class _Configured(list[Any]):
    """Takes the transports that the SDK makes for clients without an address, and gives each its application.

    `configure_loopback_transports` does so for those that are there; a node that makes its client when it runs would
    have none.
    """

    def __init__(self, app: ASGIApp) -> None:
        super().__init__()
        self._app = app

    def append(self, transport: Any) -> None:
        transport.app = self._app  # and is not kept: a client that is made at each run would stay for ever
