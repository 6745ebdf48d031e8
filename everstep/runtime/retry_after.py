"""How long a service asks to wait: the `Retry-After` header (RFC 9110, section 10.2.3) and its common relatives."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

CAP_MS = 24 * 60 * 60 * 1000
"""The longest wait that is believed: a day. A longer one is cut to it."""


def retry_after_ms(error: BaseException, now_ms: int) -> int | None:
    """Milliseconds that the service behind an exception asks to wait; None if it asks for nothing.

    Looks at the response's headers (`retry-after-ms`, `retry-after`) and at a number `retry_after` on the exception.

    Args:
        error: The exception.
        now_ms: The current time, for dates.
    """
    for holder in (getattr(error, "response", None), error):
        headers: Any = getattr(holder, "headers", None)
        if not hasattr(headers, "get"):
            continue
        milliseconds = _number(_header(headers, "retry-after-ms"))
        if milliseconds is not None:
            return _bounded(milliseconds)
        wait = parse_retry_after(_header(headers, "retry-after"), now_ms)
        if wait is not None:
            return wait
    seconds = getattr(error, "retry_after", None)
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


def _header(headers: Mapping[str, Any], name: str) -> str | None:
    value: Any = headers.get(name) or headers.get(name.title())
    return value.decode("latin-1") if isinstance(value, bytes) else str(value) if value is not None else None


def _number(value: str | None) -> float | None:
    try:
        number = float(value or "")
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _bounded(milliseconds: float) -> int | None:
    return min(math.ceil(milliseconds), CAP_MS) if milliseconds >= 0 else None
