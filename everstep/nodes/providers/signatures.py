"""Whether a message over HTTP is genuine and fresh: checked before anything of it is read as data.

Two schemes: Standard Webhooks (standardwebhooks.com), and an HMAC in a header as configuration describes it. Several
secrets are tried, while one replaces another; comparisons take the same time whatever they have in common.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from everstep.errors import EventRefused, ProviderUnusable

ALGORITHMS = {"sha256": hashlib.sha256, "sha512": hashlib.sha512, "sha1": hashlib.sha1}
Algorithm = Literal["sha256", "sha512", "sha1"]


class SecretMalformed(ValueError):
    """A secret is not what its scheme asks for."""


@dataclass(frozen=True)
class StandardScheme:
    """Standard Webhooks; `tolerance` is how old, or how far ahead, a message may be, seconds."""

    tolerance: int = 300


@dataclass(frozen=True)
class HmacScheme:
    """An HMAC in a header.

    Attributes:
        header: The header's name, in small letters.
        prefix: What stands before the signature there.
        encoding: How it is written.
        algorithm: Of the HMAC.
        timestamp_header: The header that tells when it was signed, seconds since the Unix epoch.
        signs: What is signed, with `{body}` and, if there is such a header, `{timestamp}`.
        tolerance: How old, or how far ahead, a message may be, seconds.
    """

    header: str
    prefix: str = ""
    encoding: Literal["hex", "base64"] = "hex"
    algorithm: Algorithm = "sha256"
    timestamp_header: str | None = None
    signs: str = "{body}"
    tolerance: int = 300


Scheme = StandardScheme | HmacScheme


def secrets_in(variable: str, environment: Mapping[str, str] = os.environ) -> list[str]:
    """The secrets a variable holds, each on a line; none if it is not set."""
    return [line for line in environment.get(variable, "").splitlines() if line.strip()]


def verify(scheme: Scheme, headers: Mapping[str, str], body: bytes, *, secrets: Sequence[str], now_ms: int) -> None:
    """Refuse a message that no secret signed, or not just now.

    Args:
        scheme: How it is signed.
        headers: The request's headers, their names in small letters.
        body: What was sent, byte by byte.
        secrets: The secrets of which one signed it; none: nothing is genuine.
        now_ms: UTC milliseconds.

    Raises:
        EventRefused: The signature is missing or wrong, or the message too old or from the future.
        SecretMalformed: A secret is not what Standard Webhooks asks for.
    """
    if isinstance(scheme, StandardScheme):
        _verify_standard(scheme, headers, body, secrets, now_ms)
    else:
        _verify_hmac(scheme, headers, body, secrets, now_ms)


def require(
    provider: str,
    scheme: Scheme,
    variable: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    now_ms: int,
    environment: Mapping[str, str] = os.environ,
) -> None:
    """As `verify`, with the secrets of a provider from the environment.

    Raises:
        EventRefused: See `verify`.
        ProviderUnusable: The secret is not in the environment, or malformed.
    """
    secrets = secrets_in(variable, environment)
    if not secrets:
        raise ProviderUnusable(
            f"whether messages of the provider {provider} are genuine cannot be told: {variable} is not set",
            next_step=f"set {variable} to its secret; or to several, each on a line, while one replaces another",
            provider=provider,
        )
    try:
        verify(scheme, headers, body, secrets=secrets, now_ms=now_ms)
    except SecretMalformed:
        raise ProviderUnusable(
            f"the webhook secret of the provider {provider} is not whsec_ and base64: {variable}",
            next_step=f"set {variable} to the secret as the provider shows it",
            provider=provider,
        ) from None


def any_same(given: str, expected: Sequence[str]) -> bool:
    """Whether a text is one of several, compared in the same time whatever they have in common."""
    same = [hmac.compare_digest(given.encode(), one.encode()) for one in expected]
    return any(same)


def refused(why: str) -> EventRefused:
    """The error of a message that is not known to be genuine."""
    return EventRefused(f"the event is not known to be genuine: {why}", next_step="check the sender's secret and clock")


def is_malformed(scheme: Scheme, secrets: Sequence[str]) -> bool:
    """Whether a secret is not what its scheme asks for."""
    try:
        _ = [_standard(one) for line in secrets for one in line.split()] if isinstance(scheme, StandardScheme) else []
    except SecretMalformed:
        return True
    return False


def _standard(secret: str) -> str:
    """A secret of Standard Webhooks, as it is; the library skips what is no base64, and signs with what is left."""
    try:
        decoded = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except ValueError:
        decoded = b""
    if not decoded:
        raise SecretMalformed("a secret is not whsec_ and base64")
    return secret


def _verify_standard(
    scheme: StandardScheme, headers: Mapping[str, str], body: bytes, secrets: Sequence[str], now_ms: int
) -> None:
    from standardwebhooks import Webhook

    each = [_standard(one) for line in secrets for one in line.split()]  # first: it is our fault, whatever was sent
    message, timestamp = headers.get("webhook-id"), headers.get("webhook-timestamp")
    given = headers.get("webhook-signature", "").split()
    if not message or not timestamp or not given:
        raise refused("webhook-id, webhook-timestamp or webhook-signature is missing")
    at = _fresh(timestamp, scheme.tolerance, now_ms)
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise refused("the body is not UTF-8") from None
    expected = [Webhook(one).sign(message, datetime.fromtimestamp(at, UTC), text) for one in each]
    if not any(any_same(one, expected) for one in given):
        raise refused("the signature is wrong")


def _verify_hmac(
    scheme: HmacScheme, headers: Mapping[str, str], body: bytes, secrets: Sequence[str], now_ms: int
) -> None:
    timestamp = "" if scheme.timestamp_header is None else headers.get(scheme.timestamp_header, "")
    if scheme.timestamp_header is not None:
        _fresh(timestamp, scheme.tolerance, now_ms)
    given = headers.get(scheme.header)
    if given is None or not given.startswith(scheme.prefix):
        raise refused("the signature is missing")
    before, _, after = scheme.signs.partition("{body}")
    signed = b"".join(
        (before.replace("{timestamp}", timestamp).encode(), body, after.replace("{timestamp}", timestamp).encode())
    )
    digests = [hmac.new(secret.encode(), signed, ALGORITHMS[scheme.algorithm]).digest() for secret in secrets]
    hexadecimal = scheme.encoding == "hex"
    expected = [digest.hex() if hexadecimal else base64.b64encode(digest).decode() for digest in digests]
    told = given.removeprefix(scheme.prefix)
    if not any_same(told.lower() if hexadecimal else told, expected):
        raise refused("the signature is wrong")


def _fresh(timestamp: str, tolerance: int, now_ms: int) -> int:
    """The time that a message was signed at, seconds since the Unix epoch."""
    if not timestamp.isascii() or not timestamp.isdigit() or len(timestamp) > 12:
        raise refused("the timestamp is missing, or not in seconds since 1970")
    if abs(int(timestamp) - now_ms / 1000) > tolerance:
        raise refused(f"the timestamp is more than {tolerance} s away")
    return int(timestamp)
