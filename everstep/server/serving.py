"""Serving the application over HTTP, with the parts that run beside it, until a signal.

The first SIGTERM or SIGINT stops accepting, closes streams and stops the parts in good order; a second one ends the
process at once, which is as safe as pulling the plug.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Generator, Sequence

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp

from everstep.errors import AddressUnavailable
from everstep.server import loopback
from everstep.server.context import Served
from everstep.server.parts import Part
from everstep.server.wire import Prefixed

logger = logging.getLogger("everstep.server")

GRACE_S = 2
"""How long requests under way have once the server stops; streams and long waits are cut, and their clients return."""
BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Args:
        host: A name or an address of this machine.
        port: Which port; 0 takes a free one.

    Raises:
        AddressUnavailable: The port is taken, or the address is not this machine's.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
        family, kind, protocol, _, address = found[0]
        # asyncio switches Nagle's algorithm off only where the socket names its protocol, which `create_server` of
        # the socket module does not let it; with it each answer waits 40 ms for an acknowledgement.
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(BACKLOG)
        except BaseException:
            listening.close()
            raise
        return listening
    except (OSError, OverflowError) as error:
        taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        raise AddressUnavailable(
            f"the server cannot listen at {host}:{port}: {error}",
            next_step="another process listens there; give another --port, or 0 for a free one"
            if taken
            else "give an address of this machine, and a port that this user may listen at",
            host=host,
            port=port,
        ) from error


def is_loopback(listening: socket.socket) -> bool:
    """Whether this machine alone can reach it."""
    return ipaddress.ip_address(listening.getsockname()[0]).is_loopback


class Serving:
    """An application that is served, and the parts beside it.

    Args:
        app: The application; it is served under the prefix that its `langgraph.json` asks for.
        listening: Where it is served; closed at the end.
        parts: What runs beside it.
        grace_s: How long requests under way have at the end, seconds.
    """

    def __init__(
        self, app: FastAPI, listening: socket.socket, parts: Sequence[Part] = (), *, grace_s: int = GRACE_S
    ) -> None:
        self._app = app
        self._served: Served = app.state.served
        prefix = self._served.http.mount_prefix
        whole: ASGIApp = Prefixed(app, prefix) if prefix else app
        config = uvicorn.Config(
            whole,
            log_config=None,
            access_log=False,
            server_header=False,
            ws="none",
            timeout_graceful_shutdown=grace_s,
            backlog=BACKLOG,
        )
        self._server = _Server(config)
        self._listening = listening
        self._parts = parts
        self._ending = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, ready: Callable[[], None]) -> None:
        """Serve until a signal, or until `end` is called.

        Args:
            ready: Called when requests are answered and the parts have started.
        """
        asyncio.run(self._run(ready))

    def end(self) -> None:
        """Stop in good order; thread-safe."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._ending.set)

    async def _run(self, ready: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        loopback.serve_graphs(self._app, self._loop)
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._loop.add_signal_handler(number, self._on_signal, number)
        serving = asyncio.create_task(self._server.serve(sockets=[self._listening]))
        started: list[Part] = []
        try:
            while not self._server.started and not serving.done():
                await asyncio.sleep(0.01)
            if not serving.done():
                for part in self._parts:
                    started.append(part)
                    await asyncio.to_thread(part.start)
                ready()
                ending = asyncio.create_task(self._ending.wait())
                await asyncio.wait({serving, ending}, return_when=asyncio.FIRST_COMPLETED)
                ending.cancel()
        finally:
            self._served.stopping.set()
            logging.getLogger("uvicorn.error").addFilter(_is_no_cut)
            self._server.handle_exit(signal.SIGTERM, None)  # of sse-starlette, too: it ends its streams at that
            stops = [asyncio.to_thread(part.stop) for part in started]
            results = await asyncio.gather(serving, *stops, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def _on_signal(self, number: int) -> None:
        if self._ending.is_set():
            os._exit(128 + number)
        logger.info("stopping: jobs are given back at their next step; a second signal exits at once")
        self._ending.set()


def _is_no_cut(record: logging.LogRecord) -> bool:
    """Leaves out that streams were cut at the end, each with its stack trace: so it should be."""
    raised = record.exc_info[1] if record.exc_info else None
    return not isinstance(raised, asyncio.CancelledError) and not record.getMessage().startswith("Cancel ")


class _Server(uvicorn.Server):
    """Leaves signals to `Serving`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield
