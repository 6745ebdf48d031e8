"""Whether an event over HTTP is genuine and fresh: checked before anything of it is read as data."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from collections.abc import Mapping
from datetime import UTC, datetime

from everstep.errors import EventRefused, TriggerUnusable
from everstep.graphs.event_sections import GithubTrigger, Hmac, OverHttp, StandardWebhooks, Token

GITHUB_HEADER = "x-hub-signature-256"


def is_signed(trigger: OverHttp) -> bool:
    """Whether a trigger tells by itself who sent an event; otherwise it takes an API key."""
    return isinstance(trigger, GithubTrigger) or trigger.signature is not None


def verify(
    name: str,
    trigger: OverHttp,
    headers: Mapping[str, str],
    body: bytes,
    *,
    now_ms: int,
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Refuse an event that its trigger's secret did not sign, or not just now.

    Args:
        name: The trigger's name.
        trigger: The trigger.
        headers: The request's headers, their names in small letters.
        body: What was sent, byte by byte.
        now_ms: UTC milliseconds.
        environment: Where the secrets are.

    Raises:
        EventRefused: The signature is missing or wrong, or the event too old or from the future.
        TriggerUnusable: The secret is not in the environment.
    """
    if isinstance(trigger, GithubTrigger):
        secrets = _secrets(name, trigger.secret_env, environment)
        _require_hmac(secrets, headers.get(GITHUB_HEADER), body, "sha256=", "hex")
        return
    signature = trigger.signature
    if signature is None:
        return
    secrets = _secrets(name, signature.secret_env, environment)
    if isinstance(signature, Token):
        given = headers.get(signature.header, "")
        if not given.startswith(signature.prefix) or not _any_same(given.removeprefix(signature.prefix), secrets):
            raise _refused("the token is missing or wrong")
    elif isinstance(signature, StandardWebhooks):
        _verify_standard(name, signature, secrets, headers, body, now_ms)
    else:
        _verify_hmac(signature, secrets, headers, body, now_ms)


def _secrets(name: str, variable: str, environment: Mapping[str, str]) -> list[str]:
    secrets = [line for line in environment.get(variable, "").splitlines() if line.strip()]
    if not secrets:
        raise TriggerUnusable(
            f"the trigger {name} cannot tell whether events are genuine: {variable} is not set",
            next_step=f"set {variable} to its secret; or to several, each on a line, while one replaces another",
            trigger=name,
        )
    return secrets


def _verify_standard(
    name: str, scheme: StandardWebhooks, secrets: list[str], headers: Mapping[str, str], body: bytes, now_ms: int
) -> None:
    from standardwebhooks import Webhook

    message, timestamp = headers.get("webhook-id"), headers.get("webhook-timestamp")
    given = headers.get("webhook-signature", "").split()
    if not message or not timestamp or not given:
        raise _refused("webhook-id, webhook-timestamp or webhook-signature is missing")
    at = _fresh(timestamp, scheme.tolerance, now_ms)
    try:
        text = body.decode()
        each = [one for line in secrets for one in line.split()]
        expected = [Webhook(one).sign(message, datetime.fromtimestamp(at, UTC), text) for one in each]
    except UnicodeDecodeError:
        raise _refused("the body is not UTF-8") from None
    except (ValueError, RuntimeError):
        raise TriggerUnusable(
            f"the secret of the trigger {name} is not whsec_ and base64",
            next_step=f"set {scheme.secret_env} to the secret as its sender shows it",
            trigger=name,
        ) from None
    if not any(_any_same(one, expected) for one in given):
        raise _refused("the signature is wrong")


def _verify_hmac(scheme: Hmac, secrets: list[str], headers: Mapping[str, str], body: bytes, now_ms: int) -> None:
    timestamp = "" if scheme.timestamp_header is None else headers.get(scheme.timestamp_header, "")
    if scheme.timestamp_header is not None:
        _fresh(timestamp, scheme.tolerance, now_ms)
    before, _, after = scheme.signs.partition("{body}")
    signed = b"".join(
        (before.replace("{timestamp}", timestamp).encode(), body, after.replace("{timestamp}", timestamp).encode())
    )
    _require_hmac(secrets, headers.get(scheme.header), signed, scheme.prefix, scheme.encoding)


def _require_hmac(secrets: list[str], given: str | None, signed: bytes, prefix: str, encoding: str) -> None:
    if given is None or not given.startswith(prefix):
        raise _refused("the signature is missing")
    digests = [hmac.new(secret.encode(), signed, hashlib.sha256).digest() for secret in secrets]
    hexadecimal = encoding == "hex"
    expected = [digest.hex() if hexadecimal else base64.b64encode(digest).decode() for digest in digests]
    told = given.removeprefix(prefix)
    if not _any_same(told.lower() if hexadecimal else told, expected):
        raise _refused("the signature is wrong")


def _fresh(timestamp: str, tolerance: int, now_ms: int) -> int:
    """The time that an event was signed at, seconds since the Unix epoch."""
    if not timestamp.isascii() or not timestamp.isdigit() or len(timestamp) > 12:
        raise _refused("the timestamp is missing, or not in seconds since 1970")
    if abs(int(timestamp) - now_ms / 1000) > tolerance:
        raise _refused(f"the timestamp is more than {tolerance} s away")
    return int(timestamp)


def _any_same(given: str, expected: list[str]) -> bool:
    """Compared in the same time whatever they have in common."""
    same = [hmac.compare_digest(given.encode(), one.encode()) for one in expected]
    return any(same)


def _refused(why: str) -> EventRefused:
    return EventRefused(f"the event is not known to be genuine: {why}", next_step="check the sender's secret and clock")
