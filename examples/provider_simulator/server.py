"""The simulated provider's HTTP server, on this machine only; see README.md for what it can be made to do."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, unquote, urlsplit

from examples.provider_simulator.book import Book, Task, as_plan, ended_messages
from examples.provider_simulator.messages import Scheme, Sender
from examples.provider_simulator.plans import Plan, PlanInvalid, read_plan
from examples.provider_simulator.views import view

KINDS = ("generations", "responses", "videos")
MOST_BYTES = 8 * 1024 * 1024


class Simulator:
    """A provider that can be made to fail; it serves from `start` to `stop`.

    Attributes:
        book: Its tasks and counts.
        url: Where it is.

    Args:
        port: The port; 0: any that is free.
        idempotent: Whether it honours `Idempotency-Key`.
        findable: Whether it can be asked for a generation by its reference.
        api_key: The key it wants; None: none.
        webhook: Where it sends messages.
        scheme: How it signs them.
        secret: The secret it signs them with.
        file: Where it keeps its tasks as well.
    """

    def __init__(
        self,
        port: int = 0,
        *,
        idempotent: bool = True,
        findable: bool = True,
        api_key: str | None = None,
        webhook: str | None = None,
        scheme: Scheme = "standard",
        secret: str = "",
        file: Path | None = None,
    ) -> None:
        self.book = Book(idempotent=idempotent, file=file)
        self.findable = findable
        self.api_key = api_key
        handler = cast("type[BaseHTTPRequestHandler]", type("Handler", (_Handler,), {"simulator": self}))
        self._server = ThreadingHTTPServer(("127.0.0.1", port), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.sender = Sender(self.book, webhook, scheme, secret, self.url)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def start(self) -> None:
        """Serve, and go on with what was under way when the file was last written."""
        for task in self.book.unfinished():
            self.begin(task, again=True)
        self._thread.start()

    def stop(self) -> None:
        """Serve no longer."""
        self.sender.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def begin(self, task: Task, *, again: bool = False) -> None:
        """What happens to a task by itself once it is made; or once more, in a provider that was restarted."""
        for message in task.plan.messages:
            if message.when == "accepted" and not again:
                self.sender.later(task, message)
        if not task.plan.polls and task.plan.end != "never":
            if task.plan.work:
                threading.Thread(target=self._end_later, args=(task,), daemon=True).start()
            else:
                self.end(task, task.plan.end)

    def end(self, task: Task, state: str) -> None:
        """End a task, and tell of it."""
        if self.book.end(task, state):
            self.tell(task)

    def tell(self, task: Task) -> None:
        """Send what is to be sent once a task has ended."""
        for message in ended_messages(task):
            self.sender.later(task, message)

    def _end_later(self, task: Task) -> None:
        if not self.sender.closing.wait(task.plan.work):
            self.end(task, task.plan.end)


@contextmanager
def simulating(**settings: Any) -> Generator[Simulator]:
    """A simulated provider that serves while entered; see `Simulator` for its settings."""
    simulator = Simulator(**settings)
    simulator.start()
    try:
        yield simulator
    finally:
        simulator.stop()


class _Handler(BaseHTTPRequestHandler):
    simulator: Simulator
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: who wants to know asks `/control/report`."""

    def do_GET(self) -> None:
        """Questions."""
        self._answered("GET")

    def do_POST(self) -> None:
        """Submissions, cancellations and control."""
        self._answered("POST")

    def _answered(self, method: str) -> None:
        parts = urlsplit(self.path)
        place = [unquote(part) for part in parts.path.split("/")[1:]]
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        try:
            body = self._body() if method == "POST" else {}
            if place[0] == "control":
                self._control(method, place[1:], body)
            elif place[0] == "files":
                self._file(place[1:])
            elif self.simulator.api_key not in (None, self.headers.get("authorization", "").removeprefix("Bearer ")):
                self._say(401, {"error": {"message": "no such key"}})
            elif place[0] == "v1" and len(place) > 1 and place[1] in KINDS:
                self._work(method, place[1], place[2:], query, body)
            else:
                self._say(404, {"error": {"message": "there is no such path"}})
        except PlanInvalid as error:
            self._say(422, {"error": {"message": f"simulate: {error}"}})
        except ValueError:
            self._say(400, {"error": {"message": "the body is no JSON object"}})

    def _work(self, method: str, kind: str, rest: list[str], query: dict[str, str], body: dict[str, Any]) -> None:
        book = self.simulator.book
        if method == "POST" and not rest:
            return self._submit(kind, body)
        if method == "GET" and not rest and kind == "generations":
            if not self.simulator.findable:
                return self._say(404, {"error": {"message": "generations cannot be listed"}})
            found = book.by_key(query.get("reference", ""))
            shown = [view(found, found.state, self.simulator.url)] if found else []
            return self._say(200, {"data": shown})
        task = book.tasks.get(rest[0]) if rest else None
        if task is None or task.kind != kind:
            return self._say(404, {"error": {"message": "there is no such task"}})
        if method == "GET" and len(rest) == 1:
            had_ended = task.has_ended
            state = book.poll(task)
            if task.has_ended and not had_ended:
                self.simulator.tell(task)
            return self._say(200, view(task, state, self.simulator.url))
        if method == "POST" and rest[1:] == ["cancel"] and kind != "videos":
            with book.lock:
                book.cancelled.append(task.key)
            if task.has_ended:
                return self._say(400, {"error": {"message": "it has ended"}})
            self.simulator.end(task, "cancelled")
            return self._say(200, view(task, task.state, self.simulator.url))
        self._say(405, {"error": {"message": "not so"}})

    def _submit(self, kind: str, body: dict[str, Any]) -> None:
        book = self.simulator.book
        plan_data = body.pop("simulate", None)
        metadata = cast("dict[str, Any]", body.get("metadata") or {})
        key = self.headers.get("idempotency-key") or body.get("reference") or metadata.get("everstep_key")
        key = str(key or hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16])
        with book.lock:
            book.received[key] += 1
        plan = book.plan_of(key)
        plan = plan if plan_data is None else as_plan(plan, plan_data)
        if plan.status is not None and not plan.status_made and book.strike(key, "status", plan.status_times):
            return self._fail(plan)
        if plan.drop == "before" and book.strike(key, "drop", plan.drop_times):
            return self._hang_up()
        task, made = book.submit(kind, key, body, plan)
        if made:
            for message in plan.messages:
                if message.when == "before_answer":
                    self.simulator.sender.now(task, message)
            self.simulator.begin(task)
        if plan.answer_after:
            time.sleep(plan.answer_after)
        if plan.drop == "after" and book.strike(key, "drop", plan.drop_times):
            return self._hang_up()
        if plan.status is not None and plan.status_made and book.strike(key, "status", plan.status_times):
            return self._fail(plan)
        self._say(201 if made else 200, view(task, "running" if made else task.state, self.simulator.url))

    def _control(self, method: str, place: list[str], body: dict[str, Any]) -> None:
        book = self.simulator.book
        if method == "GET" and place == ["report"]:
            self._say(200, book.report())
        elif method == "POST" and place == ["plan"]:
            plan = read_plan(body.get("plan", {}))
            with book.lock:
                if "key" in body:
                    book.plans[str(body["key"])] = plan
                else:
                    book.default = plan
            self._say(200, {})
        elif method == "POST" and place == ["finish"]:
            found = [task for task in list(book.tasks.values()) if body.get("key") in (None, task.key)]
            for task in found:
                self.simulator.end(task, str(body.get("state", "succeeded")))
            self._say(200, {"finished": len(found)})
        else:
            self._say(404, {"error": {"message": "control is: report, plan, finish"}})

    def _file(self, place: list[str]) -> None:
        for task in list(self.simulator.book.tasks.values()):
            if place == [f"{hashlib.sha256(task.key.encode()).hexdigest()[:16]}.bin"]:
                return self._send(200, task.content, "application/octet-stream")
        self._say(404, {"error": {"message": "there is no such file"}})

    def _body(self) -> dict[str, Any]:
        length = int(self.headers.get("content-length") or 0)
        if length > MOST_BYTES:
            raise ValueError("too large")
        found: Any = json.loads(self.rfile.read(length) or b"{}")
        if not isinstance(found, dict):
            raise ValueError("no object")
        return cast("dict[str, Any]", found)

    def _fail(self, plan: Plan) -> None:
        headers = {} if plan.retry_after is None else {"retry-after": plan.retry_after}
        self._say(plan.status or 500, {"error": {"code": "simulated", "message": "as it was told to"}}, headers)

    def _say(self, status: int, document: Any, headers: dict[str, str] | None = None) -> None:
        self._send(status, json.dumps(document).encode(), "application/json", headers)

    def _send(self, status: int, content: bytes, kind: str, headers: dict[str, str] | None = None) -> None:
        with suppress(OSError):  # who asked has gone
            self.send_response(status)
            for name, value in {"content-type": kind, "content-length": str(len(content)), **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

    def _hang_up(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
