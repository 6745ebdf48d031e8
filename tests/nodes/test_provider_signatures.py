"""Whether a message of a provider is genuine and fresh."""

from __future__ import annotations

import base64
import hashlib
import hmac
from datetime import UTC, datetime
from typing import Any

import pytest
from standardwebhooks import Webhook

from everstep.errors import EventRefused, ProviderUnusable
from everstep.nodes.providers.signatures import HmacScheme, Scheme, StandardScheme, require

NOW = 1_800_000_000
SECRET = "whsec_" + base64.b64encode(b"a secret of twenty-four b").decode()
OTHER = "whsec_" + base64.b64encode(b"the one that came after it").decode()
BODY = '{"ü": 1}'.encode()
TIMED = HmacScheme("x-signature", "sha256=", "hex", "sha256", "x-timestamp", "{timestamp}.{body}", 300)


def standard(secret: str = SECRET, at: int = NOW, body: bytes = BODY) -> dict[str, str]:
    """Headers by Standard Webhooks."""
    signature = Webhook(secret).sign("msg_1", datetime.fromtimestamp(at, UTC), body.decode())
    return {"webhook-id": "msg_1", "webhook-timestamp": str(at), "webhook-signature": signature}


def timed(secret: str = SECRET, at: int = NOW) -> dict[str, str]:
    """Headers by an HMAC over time and body."""
    digest = hmac.new(secret.encode(), f"{at}.".encode() + BODY, hashlib.sha256).hexdigest()
    return {"x-signature": f"sha256={digest}", "x-timestamp": str(at)}


def check(scheme: Scheme, headers: dict[str, str], secrets: str = SECRET, body: bytes = BODY) -> None:
    """As the server checks it."""
    require("sim", scheme, "SECRET", headers, body, now_ms=NOW * 1000, environment={"SECRET": secrets})


@pytest.mark.parametrize(("scheme", "headers"), [(StandardScheme(), standard), (TIMED, timed)])
def test_a_genuine_message(scheme: Scheme, headers: Any) -> None:
    """Signed just now, a while ago, or by a clock that is ahead, with either secret while one replaces another."""
    for at in (NOW, NOW - 300, NOW + 300):
        check(scheme, headers(at=at))
    for secrets in (f"{SECRET}\n{OTHER}", f"{OTHER}\n{SECRET}", f"\n{SECRET}\n\n"):
        check(scheme, headers(), secrets)


@pytest.mark.parametrize(("scheme", "headers"), [(StandardScheme(), standard), (TIMED, timed)])
def test_a_message_that_is_not_genuine(scheme: Scheme, headers: Any) -> None:
    """Another secret, another body, too old, from the future, or with a part of its headers missing."""
    bad: list[tuple[dict[str, str], str, bytes, str]] = [
        (headers(OTHER), SECRET, BODY, "the signature is wrong"),
        (headers(), SECRET, BODY + b" ", "the signature is wrong"),
        (headers(at=NOW - 301), SECRET, BODY, "more than 300 s away"),
        (headers(at=NOW + 301), SECRET, BODY, "more than 300 s away"),
    ]
    bad += [({n: v for n, v in headers().items() if n != left}, SECRET, BODY, "missing") for left in headers()]
    late = next(name for name in headers() if "timestamp" in name)
    bad += [({**headers(), late: odd}, SECRET, BODY, "seconds since 1970") for odd in ("x", "1e9", "-1", "٣", "9" * 13)]
    bad += [({**headers(), late: str(NOW - 1)}, SECRET, BODY, "the signature is wrong")]
    for given, secrets, body, said in bad:
        with pytest.raises(EventRefused, match=said):
            check(scheme, given, secrets, body)


@pytest.mark.parametrize("algorithm", ["sha256", "sha512", "sha1"])
@pytest.mark.parametrize("encoding", ["hex", "base64"])
def test_schemes_of_an_hmac(algorithm: Any, encoding: Any) -> None:
    """Algorithm, encoding and prefix are as configured; hexadecimal digits may be large or small."""
    digest = hmac.new(SECRET.encode(), BODY, algorithm).digest()
    written = digest.hex() if encoding == "hex" else base64.b64encode(digest).decode()
    scheme = HmacScheme("x-sig", "v1=", encoding, algorithm)
    check(scheme, {"x-sig": f"v1={written}"})
    if encoding == "hex":
        check(scheme, {"x-sig": f"v1={written.upper()}"})
    for odd in (written, f"v2={written}", "v1=", "v1=ü", f"v1={written}0"):
        with pytest.raises(EventRefused):
            check(scheme, {"x-sig": odd})


@pytest.mark.parametrize("scheme", [StandardScheme(), TIMED])
def test_without_a_secret_nothing_is_genuine(scheme: Scheme) -> None:
    """A variable that is missing or empty is the operator's mistake, and refuses everything."""
    for environment in ({}, {"SECRET": ""}, {"SECRET": " \n "}):
        with pytest.raises(ProviderUnusable, match="SECRET is not set"):
            require("sim", scheme, "SECRET", {}, BODY, now_ms=NOW * 1000, environment=environment)


def test_a_secret_that_is_none_is_not_told() -> None:
    """Standard Webhooks wants base64; what is there instead is in no message."""
    for given in (standard(), {}):
        for secret in ("hunter2-is-no-base64", "not base64!!", "hunter2!", "hunter2!!x", "whsec_", "whsec_hunter2"):
            with pytest.raises(ProviderUnusable, match="not whsec_ and base64: SECRET") as caught:
                check(StandardScheme(), given, secret)
            assert "hunter2" not in str(caught.value)
