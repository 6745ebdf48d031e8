"""A way to a PostgreSQL server that can be cut as a network is: nothing arrives any more, and nobody is told."""

from __future__ import annotations

import socket
import threading
from typing import Any

from psycopg import conninfo

from tests.support.waiting import PATIENCE


class BlackHole:
    """Forwards connections of this machine to the server; while it is closed it keeps what both sides send.

    Args:
        url: URL of a database of the server.
        application: By which name the server knows who comes this way.
    """

    def __init__(self, url: str, application: str) -> None:
        self._given: dict[str, Any] = conninfo.conninfo_to_dict(url)
        self._open = threading.Event()
        self._open.set()
        self._kept: set[int] = set()
        self._sockets: list[socket.socket] = []
        self._door = socket.create_server(("127.0.0.1", 0))
        port = self._door.getsockname()[1]
        password = f":{self._given['password']}" if self._given.get("password") else ""
        place = f"{self._given['user']}{password}@127.0.0.1:{port}/{self._given['dbname']}"
        self.url = f"postgresql://{place}?sslmode=disable&application_name={application}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> BlackHole:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.set()
        self._door.close()
        for end in self._sockets:
            end.close()

    @property
    def late(self) -> int:
        """On how many connections something waits to reach the server."""
        return len(self._kept)

    def close(self) -> None:
        """Let nothing through any more, in either direction; no connection ends."""
        self._open.clear()

    def open(self) -> None:
        """Let everything through, and what was kept first."""
        self._open.set()

    def _server(self) -> socket.socket:
        host, port = str(self._given.get("host", "")), int(self._given.get("port") or 5432)
        if not host.startswith("/"):
            return socket.create_connection((host, port))
        end = socket.socket(socket.AF_UNIX)
        end.connect(f"{host}/.s.PGSQL.{port}")
        return end

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._door.accept()
            except OSError:
                return
            server = self._server()
            self._sockets += [client, server]
            threading.Thread(target=self._pump, args=(client, server, True), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, False), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, to_server: bool) -> None:
        try:
            while data := source.recv(65536):
                if not self._open.is_set():
                    if to_server:
                        self._kept.add(source.fileno())
                    assert self._open.wait(2 * PATIENCE)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # one side went away
