"""Sending one JSON message to a webhook, signed after the Standard Webhooks scheme; what came of it, in few words.

Scheme: https://www.standardwebhooks.com (headers `webhook-id`, `webhook-timestamp`, `webhook-signature`; the signature
is `v1,` and the base64 of HMAC-SHA256 over `id.timestamp.body`). The secret is in the environment alone.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from everstep.errors import ConfigInvalid
from everstep.runtime.addresses import AddressRefused, Guard, session
from everstep.runtime.retry_after import parse_retry_after

SECRET_VARIABLE = "EVERSTEP_WEBHOOK_SECRET"
SHORTEST_SECRET = 24
TIMEOUT_S = 10.0


class NotDelivered(Exception):
    """The message was not taken, or nobody can say whether it was.

    Attributes:
        reachable: Whether the receiver answered; then the next message may fare better.
        retry_after_ms: How long it asks to wait, milliseconds.
        final: Whether no other try may do: nothing may be sent there, or it is gone (410).
    """

    def __init__(self, reason: str, *, reachable: bool, retry_after_ms: int | None = None, final: bool = False) -> None:
        super().__init__(reason)
        self.reachable = reachable
        self.retry_after_ms = retry_after_ms
        self.final = final


def secrets_of(environment: Mapping[str, str] = os.environ, variable: str = SECRET_VARIABLE) -> tuple[bytes, ...]:
    """The keys to sign with, from a variable; several, with spaces between, while one replaces another.

    Args:
        environment: The environment.
        variable: The variable's name.

    Raises:
        ConfigInvalid: One is not what Standard Webhooks asks for: `whsec_` and the base64 of at least 24 bytes.
    """
    return tuple(_key(one, variable) for one in environment.get(variable, "").split())


def _key(secret: str, variable: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) < SHORTEST_SECRET:
        raise ConfigInvalid(
            f"{variable} is not whsec_ and the base64 of at least {SHORTEST_SECRET} bytes",
            next_step="make one: python3 -c \"import base64, os; print('whsec_' + base64.b64encode(os.urandom(32))"
            '.decode())"',
        )
    return key


def signature(key: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    """The signature of a message.

    Args:
        key: The secret's bytes.
        message_id: The message's id.
        timestamp: When it is sent, seconds since the Unix epoch.
        body: What is sent.
    """
    from standardwebhooks import Webhook as Signer

    return Signer(key).sign(message_id, datetime.fromtimestamp(timestamp, UTC), body.decode())


@dataclass(frozen=True)
class Webhook:
    """A receiver of messages.

    Attributes:
        url: Where to; it may hold credentials, so it is shown nowhere.
        secrets: Keys to sign with.
        guard: Which addresses may be sent to; None: any, through the environment's proxy, if it has one.
    """

    url: str
    secrets: tuple[bytes, ...] = ()
    guard: Guard | None = None

    def __repr__(self) -> str:
        return f"Webhook({self.name!r})"

    @property
    def name(self) -> str:
        """Scheme, host and port: what may be shown."""
        parts = urlsplit(self.url)
        host = parts.hostname or ""
        shown = f"[{host}]" if ":" in host else host
        return f"{parts.scheme}://{shown}" + (f":{parts.port}" if parts.port else "")

    def send(self, message_id: str, message: Mapping[str, Any], *, now_ms: int, timeout: float = TIMEOUT_S) -> None:
        """Send a message; it is delivered when the answer is 2xx. Redirects are not followed.

        Args:
            message_id: The same whenever it is sent again, so that the receiver can tell.
            message: JSON data.
            now_ms: UTC milliseconds.
            timeout: Seconds to wait for a connection, and for each part of an answer; with a guard, for all of it.

        Raises:
            NotDelivered: It was not taken, or nobody can say.
        """
        import requests  # a worker without a webhook, or without dead letters, need not load it

        body, timestamp = json.dumps(message, ensure_ascii=True).encode(), now_ms // 1000
        headers = {
            "content-type": "application/json",
            "user-agent": "everstep",
            "webhook-id": message_id,
            "webhook-timestamp": str(timestamp),
        }
        if self.secrets:
            headers["webhook-signature"] = " ".join(signature(key, message_id, timestamp, body) for key in self.secrets)
        guarded = session(self.guard, timeout) if self.guard is not None else nullcontext(requests)
        try:
            with (
                guarded as client,
                client.post(
                    self.url, data=body, headers=headers, timeout=timeout, allow_redirects=False, stream=True
                ) as answer,
            ):  # what else it says is not read: it may never end
                status, wait = answer.status_code, answer.headers.get("retry-after")
        except AddressRefused:
            raise NotDelivered("nothing may be sent to this address", reachable=False, final=True) from None
        except (requests.RequestException, OSError, ValueError) as error:
            # Its text would show the address.
            raise NotDelivered(f"{type(error).__name__}", reachable=False) from None
        if not 200 <= status < 300:
            raise NotDelivered(
                f"HTTP {status}",
                reachable=status < 500 and status != 429,
                retry_after_ms=parse_retry_after(wait, now_ms),
                final=status == 410,
            )
