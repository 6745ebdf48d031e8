"""What the simulated provider sends to its customer's webhook: signed, late, twice, out of order, or badly."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
import urllib.error
import urllib.request
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from examples.provider_simulator.book import Book, Task
from examples.provider_simulator.plans import Message
from examples.provider_simulator.views import view

Scheme = Literal["standard", "hmac"]
TRIES, PAUSE_S = 6, 0.5


@dataclass
class Sender:
    """Sends messages.

    Attributes:
        book: Where what was sent is noted.
        url: The customer's webhook; None: nothing is sent.
        scheme: How messages are signed: Standard Webhooks, or an HMAC over time and body in `x-signature`.
        secret: The secret; `whsec_` and base64 for Standard Webhooks.
        base_url: The provider's own address, which results name.
    """

    book: Book
    url: str | None = None
    scheme: Scheme = "standard"
    secret: str = ""
    base_url: str = ""
    closing: threading.Event = field(default_factory=threading.Event)

    def later(self, task: Task, message: Message, delay: float = 0.0) -> None:
        """Send a message in so many seconds, on a thread of its own, and again until it is taken."""
        if self.url is not None:
            waiting = threading.Thread(target=self._send_later, args=(task, message, delay), daemon=True)
            waiting.start()

    def now(self, task: Task, message: Message) -> None:
        """Send a message and wait for the answer."""
        if self.url is None:
            return
        event_id = f"evt_{uuid.uuid4().hex[:20]}"
        body = json.dumps(self._event(task, message, event_id)).encode()
        for _ in range(message.times):
            self._until_taken(event_id, body, message)

    def _send_later(self, task: Task, message: Message, delay: float) -> None:
        if not self.closing.wait(delay + message.delay):
            self.now(task, message)

    def _until_taken(self, event_id: str, body: bytes, message: Message) -> None:
        for attempt in range(1, TRIES + 1):
            status = self._post(event_id, body, message)
            with self.book.lock:
                self.book.messages.append({"id": event_id, "status": status, "attempt": attempt})
            if (status is not None and 200 <= status < 300) or message.signature != "good" or message.age:
                return
            if self.closing.wait(PAUSE_S * attempt):
                return

    def _event(self, task: Task, message: Message, event_id: str) -> dict[str, Any]:
        state = message.state or task.state
        if task.kind == "generations":
            return {"id": event_id, "type": "generation.updated", "data": view(task, state, self.base_url)}
        word = {"succeeded": "completed", "running": "in_progress"}.get(state, state)
        kind = f"{task.kind.removesuffix('s')}.{word}"
        return {
            "id": event_id,
            "object": "event",
            "type": kind,
            "created_at": int(time.time()),
            "data": {"id": task.id},
        }

    def _post(self, event_id: str, body: bytes, message: Message) -> int | None:
        headers = {"content-type": "application/json", **self._signed(event_id, body, message)}
        request = urllib.request.Request(self.url or "", body, headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return None

    def _signed(self, event_id: str, body: bytes, message: Message) -> dict[str, str]:
        at = int(time.time()) - message.age
        if self.scheme == "standard":
            from standardwebhooks import Webhook

            signature = Webhook(self.secret).sign(event_id, datetime.fromtimestamp(at, UTC), body.decode())
            wrong = "v1," + base64.b64encode(bytes(32)).decode()
            names = ("webhook-id", "webhook-timestamp", "webhook-signature")
        else:
            signed = f"{at}.".encode() + body
            signature = "sha256=" + hmac.new(self.secret.encode(), signed, hashlib.sha256).hexdigest()
            wrong = "sha256=" + "0" * 64
            names = ("x-event-id", "x-timestamp", "x-signature")
        headers = {names[0]: event_id, names[1]: str(at)}
        if message.signature != "missing":
            headers[names[2]] = signature if message.signature == "good" else wrong
        return headers
