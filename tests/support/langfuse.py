"""A Langfuse on this machine, as far as Everstep asks one: projects, scores, keys that are right or wrong."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.serving import serving
from tests.support.waiting import PATIENCE

PUBLIC_KEY, SECRET_KEY = "pk-lf-right", "sk-lf-of-the-canary"
PROJECT = {
    "id": "project-7",
    "name": "agents",
    "organization": {"id": "organization-1", "name": "us"},
    "metadata": {},
    "retentionDays": None,
}


class Langfuse:
    """Answers `GET /api/public/projects` and `POST /api/public/scores` as version 4 does, and takes spans.

    Attributes:
        scores: What was posted, by id: a score of the same id and time replaces.
        asked: The requests: method and path.
        status: Answered instead of what was asked for, if set.
        page: Answered as HTML instead, if set.
        is_silent: Whether it answers nothing until it ends.
        refusal: Why it takes no score, if it does not.
        roots: Observations that are the roots of traces.
        generations: Observations that are model calls.
    """

    def __init__(self) -> None:
        self.scores: dict[tuple[str, str], dict[str, Any]] = {}
        self.asked: list[tuple[str, str]] = []
        self.status: int | None = None
        self.page: str | None = None
        self.is_silent = False
        self.refusal: str | None = None
        self.roots: list[dict[str, Any]] = []
        self.generations: list[dict[str, Any]] = []
        self._over = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @property
    def variables(self) -> dict[str, str]:
        """The environment of a process that sends there."""
        return {
            "LANGFUSE_PUBLIC_KEY": PUBLIC_KEY,
            "LANGFUSE_SECRET_KEY": SECRET_KEY,
            "LANGFUSE_HOST": self.url,
        }

    @contextmanager
    def open(self) -> Generator[Langfuse]:
        """Answer while entered."""
        with serving(self._server):
            try:
                yield self
            finally:
                self._over.set()

    def answer(self, method: str, path: str, authorization: str, body: bytes) -> tuple[int, Any]:
        """What it answers: a status and a JSON value."""
        right = base64.b64encode(f"{PUBLIC_KEY}:{SECRET_KEY}".encode()).decode()
        if self.status is not None:
            return self.status, {"message": "as the test wishes"}
        if authorization != f"Basic {right}":
            return 401, {"message": "Invalid credentials. Confirm that you've configured the correct host."}
        if (method, path) == ("GET", "/api/public/projects"):
            return 200, {"data": [PROJECT]}
        if (method, path) == ("POST", "/api/public/scores"):
            posted = json.loads(body)
            if self.refusal is not None:
                return 207, {"accepted": 0, "rejected": len(posted), "errors": [{"message": self.refusal}]}
            self.scores.update({(score["id"], score["timestamp"]): score for score in posted})
            return 202, {"message": "Accepted"}
        if method == "GET" and path.startswith("/api/public/v2/observations?"):
            return 200, {"data": self.generations if "type=GENERATION" in path else self.roots, "meta": {}}
        if (method, path) == ("POST", "/api/public/otel/v1/traces"):
            return 200, {}
        return 404, {"message": "no such route"}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer("GET")

            def do_POST(self) -> None:
                self._answer("POST")

            def _answer(self, method: str) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                outer.asked.append((method, self.path))
                if outer.is_silent:
                    outer._over.wait(PATIENCE)
                    return
                status, value = outer.answer(method, self.path, self.headers.get("authorization", ""), body)
                told = json.dumps(value).encode() if outer.page is None else outer.page.encode()
                self.send_response(status)
                self.send_header("content-type", "application/json" if outer.page is None else "text/html")
                self.send_header("content-length", str(len(told)))
                self.end_headers()
                self.wfile.write(told)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler
