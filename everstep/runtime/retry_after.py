"""How long a service asks to wait: the `Retry-After` header (RFC 9110, section 10.2.3) and its common relatives."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, cast

from everstep.runtime.attributes import read
from everstep.runtime.rules.codes import details_of

CAP_MS = 24 * 60 * 60 * 1000
"""The longest wait that is believed: a day. A longer one is cut to it."""

IN_MILLISECONDS = ("retry-after-ms", "x-ms-retry-after-ms", "x-amz-retry-after")
"""Headers of OpenAI and Anthropic, Azure, and Amazon; they are more precise than `retry-after` and go before it."""

_NUMBER = re.compile(r"\+?[0-9]+(\.[0-9]*)?(e[0-9]{1,3})?", re.IGNORECASE)
_RETRY_INFO = "type.googleapis.com/google.rpc.RetryInfo"


def retry_after_ms(error: BaseException, now_ms: int) -> int | None:
    """Milliseconds that the service behind an exception asks to wait; None if it asks for nothing.

    Looks at the response's headers where httpx, requests, aiohttp, botocore and the SDKs built on them keep them, at
    Google's `RetryInfo` and at a number `retry_after` on the exception.

    Args:
        error: The exception.
        now_ms: The current time, for dates.
    """
    for headers in _headers(error):
        for name in IN_MILLISECONDS:
            milliseconds = _number(_header(headers, name))
            if milliseconds is not None:
                return _bounded(milliseconds)
        wait = parse_retry_after(_header(headers, "retry-after"), now_ms)
        if wait is not None:
            return wait
    for detail in details_of(error):
        seconds = _retry_info(detail)
        if seconds is not None:
            return _bounded(seconds * 1000)
    seconds = read(error, "retry_after")
    return parse_retry_after(str(seconds), now_ms) if isinstance(seconds, int | float) else None


def parse_retry_after(value: str | None, now_ms: int) -> int | None:
    """The value of a `Retry-After` header in milliseconds.

    Args:
        value: Seconds, also with a fraction, or an HTTP date.
        now_ms: The current time.

    Returns:
        At least 0 (a date that has passed) and at most `CAP_MS`; None for a negative number and for what is neither.
    """
    if value is None:
        return None
    seconds = _number(value)
    if seconds is not None:
        return _bounded(seconds * 1000)
    try:
        moment = parsedate_to_datetime(value.strip())
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return _bounded(max(moment.timestamp() * 1000 - now_ms, 0))
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def _headers(error: BaseException) -> Iterator[Mapping[str, Any]]:
    response = read(error, "response")
    for holder in (response, error):
        headers: Any = read(holder, "headers")
        if callable(read(headers, "get")):
            yield headers
    if isinstance(response, Mapping):
        metadata: Any = cast(Mapping[str, Any], response).get("ResponseMetadata")
        headers = cast(Mapping[str, Any], metadata).get("HTTPHeaders") if isinstance(metadata, Mapping) else None
        if isinstance(headers, Mapping):
            yield cast(Mapping[str, Any], headers)


def _header(headers: Mapping[str, Any], name: str) -> str | None:
    value: Any = headers.get(name) or headers.get(name.title())
    return value.decode("latin-1") if isinstance(value, bytes) else str(value) if value is not None else None


def _retry_info(detail: Any) -> float | None:
    """Seconds of a `RetryInfo`: `{"@type": …, "retryDelay": "3.5s"}` in JSON, a `Duration` in protobuf."""
    if isinstance(detail, Mapping):
        described = cast(Mapping[str, Any], detail)
        delay: Any = described.get("retryDelay")
        if described.get("@type") != _RETRY_INFO or not isinstance(delay, str) or not delay.endswith("s"):
            return None
        return _number(delay[:-1])
    delay = read(detail, "retry_delay")
    seconds, nanoseconds = read(delay, "seconds"), read(delay, "nanos")
    if isinstance(seconds, int) and isinstance(nanoseconds, int) and seconds + nanoseconds / 1e9 >= 0:
        return seconds + nanoseconds / 1e9
    return None


def _number(value: str | None) -> float | None:
    """A number that is not negative, as a header may hold it; one too long to read is as large as a number can be."""
    text = (value or "").strip()
    if not _NUMBER.fullmatch(text):
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else float(CAP_MS)


def _bounded(milliseconds: float) -> int | None:
    return min(math.ceil(milliseconds), CAP_MS) if milliseconds >= 0 else None
