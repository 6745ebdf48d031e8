"""Time and chance, injected: integer UTC milliseconds, UUIDv7 ids, and their RFC 3339 form.

Everything stored is integer milliseconds since the Unix epoch (UTC). Nothing in Everstep asks the operating system for
the time except `SystemClock`.
"""

from __future__ import annotations

import os
import random
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Where the current time comes from."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch, UTC."""
        ...


class SystemClock:
    """The clock of this machine."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class ManualClock:
    """A clock that only moves when told to; for tests.

    Args:
        now_ms: The time it starts at, in milliseconds since the Unix epoch.
    """

    def __init__(self, now_ms: int = 1_800_000_000_000) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def advance(self, milliseconds: int) -> None:
        """Move the clock; a negative number steps it back."""
        self._now_ms += milliseconds


def uuid7(now_ms: int, randomness: random.Random | None = None) -> str:
    """A UUIDv7 (RFC 9562, section 5.7) as a lower-case string: sortable by time, unique by 74 random bits.

    Args:
        now_ms: Milliseconds since the Unix epoch.
        randomness: Source of the random bits; the operating system's when omitted.
    """
    bits = int.from_bytes(os.urandom(10)) if randomness is None else randomness.getrandbits(80)
    random_a, random_b = (bits >> 62) & 0xFFF, bits & ((1 << 62) - 1)
    digits = f"{(now_ms & ((1 << 48) - 1)) << 80 | 0x7 << 76 | random_a << 64 | 0b10 << 62 | random_b:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def rfc3339(milliseconds: int | None) -> str | None:
    """RFC 3339 in UTC with `Z` and milliseconds; None stays None."""
    if milliseconds is None:
        return None
    moment = datetime.fromtimestamp(milliseconds // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{milliseconds % 1000:03d}Z"
