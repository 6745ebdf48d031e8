"""A webhook's receiver on this machine that answers as it is told to, and keeps what it was sent."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.serving import serving
from tests.support.waiting import PATIENCE

SILENCE = 0


@dataclass(frozen=True)
class Message:
    """What was sent."""

    headers: dict[str, str]
    body: bytes

    @property
    def value(self) -> Any:
        """The JSON in it."""
        return json.loads(self.body)


class Receiver:
    """Gives the statuses it was given, in turn, and 200 afterwards; `SILENCE` answers nothing until it ends.

    All answers carry the headers given.
    """

    def __init__(self, *statuses: int, headers: dict[str, str] | None = None) -> None:
        self.messages: list[Message] = []
        self.followed = 0
        self.asked = threading.Event()
        self._statuses = list(statuses)
        self._over = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                outer.messages.append(Message({name.lower(): value for name, value in self.headers.items()}, body))
                status = outer._statuses.pop(0) if outer._statuses else 200
                outer.asked.set()
                if status == SILENCE:
                    outer._over.wait(PATIENCE)
                    return
                self.send_response(status)
                self.send_header("location", f"{outer.url}/elsewhere")
                for name, value in (headers or {}).items():
                    self.send_header(name, value)
                self.send_header("content-length", "0")
                self.end_headers()

            def do_GET(self) -> None:
                outer.followed += 1
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook?token=in-the-address"

    @property
    def hook(self) -> str:
        """Its address without what looks like a credential."""
        return self.url.partition("?")[0]

    @property
    def jobs(self) -> list[str]:
        """The jobs it was told of, in order."""
        return [message.value["id"] for message in self.messages]

    @contextmanager
    def open(self) -> Generator[Receiver]:
        """Receive while entered."""
        with serving(self._server):
            try:
                yield self
            finally:
                self._over.set()
