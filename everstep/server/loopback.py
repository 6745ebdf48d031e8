"""A graph that calls its own server: `get_client()` of LangGraph's SDK, without an address.

Its requests go to the application in this process, not over a socket, and for the owner of the job that runs the graph:
nothing that comes over a socket can say so of itself. They are answered on the server's event loop, as all are; the
graph's own is another one. A graph in a process of its own (`--isolate`) has no application beside it and needs the
address.
"""

from __future__ import annotations

import asyncio
from typing import Any

from langgraph_sdk.client import configure_loopback_transports
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from everstep.nodes import attempt

_MARK = "everstep.from_graph"


class Loopback:
    """The application as graphs see it.

    Args:
        app: The application.
        loop: The event loop it answers on; None: that of whoever asks.
    """

    def __init__(self, app: ASGIApp, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._app = app
        self._loop = loop

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a graph's request on."""
        running = attempt.current.get()
        scope = {**scope, "root_path": "", _MARK: running.job_id if running else None}
        asking = asyncio.get_running_loop()
        if self._loop is None or self._loop is asking:
            await self._app(scope, receive, send)
            return

        async def receive_there() -> Message:
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_awaited(receive), asking))

        async def send_there(message: Message) -> None:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_sent(send, message), asking))

        answering = asyncio.run_coroutine_threadsafe(_answered(self._app, scope, receive_there, send_there), self._loop)
        await asyncio.wrap_future(answering)


async def _answered(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    await app(scope, receive, send)


async def _awaited(receive: Receive) -> Message:
    return await receive()


async def _sent(send: Send, message: Message) -> None:
    await send(message)


def is_from_graph(scope: Scope) -> bool:
    """Whether a graph of this process asks."""
    return _MARK in scope


def job_of(scope: Scope) -> int | None:
    """Row id of the job whose graph asks; None: it asks outside of a job."""
    return scope.get(_MARK)


def serve_graphs(app: ASGIApp, loop: asyncio.AbstractEventLoop | None = None) -> None:
    """From now on clients without an address lead to this application, whether they were made before or come later.

    Args:
        app: The application.
        loop: The event loop it answers on; None: that of whoever asks.
    """
    from langgraph_sdk._async import client

    own = Loopback(app, loop)
    configure_loopback_transports(own)
    client._registered_transports = _Configured(own)  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]


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
