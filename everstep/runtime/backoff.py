"""How long a job waits before its next attempt."""

from __future__ import annotations

import random

BASE_MS = 15_000
CAP_MS = 60 * 60 * 1000
JITTER = 0.25
ACCOUNT = ("usage_limit", "payment_failed", "subscription_ended")
ACCOUNT_MS = 15 * 60 * 1000


def delay_ms(attempt: int, retry_after_ms: int | None, randomness: random.Random) -> int:
    """Milliseconds to wait after a transient failure.

    `wait + jitter`, where `wait = max(min(15 s * 2**attempt, 1 h), Retry-After)` and `jitter` is drawn evenly from
    nothing to a quarter of `wait`. So 15 s, 30 s, 60 s, … each plus up to 25 %; never less than the service asked for;
    and jobs that failed together do not come back together. The cap of an hour holds for our own doubling, not for what
    a service asks.

    Args:
        attempt: How many attempts failed before this one: 0 after the first failure.
        retry_after_ms: What the service asked for (`Retry-After`), in milliseconds; None when it asked for nothing.
        randomness: Source of the jitter.

    Raises:
        ValueError: `attempt` is negative.
    """
    least, most = bounds_ms(attempt, retry_after_ms)
    return least + randomness.randint(0, most - least)


def outage_delay_ms(symptom: str, tries: int, retry_after_ms: int | None, randomness: random.Random) -> int:
    """Milliseconds until a service that is out is tried again.

    As `delay_ms`; but what concerns the account (a usage limit, a payment, a subscription) does not mend by itself in
    seconds, so there the first wait is 15 minutes.

    Args:
        symptom: What is wrong with the service.
        tries: How many tries in a row met the outage before.
        retry_after_ms: What the service asked for, in milliseconds; None when it asked for nothing.
        randomness: Source of the jitter.
    """
    if symptom in ACCOUNT:
        retry_after_ms = max(retry_after_ms or 0, min(ACCOUNT_MS << min(tries, 32), CAP_MS))
    return delay_ms(tries, retry_after_ms, randomness)


def bounds_ms(attempt: int, retry_after_ms: int | None) -> tuple[int, int]:
    """The least and the most that `delay_ms` can give, in milliseconds.

    Args:
        attempt: How many attempts failed before this one.
        retry_after_ms: What the service asked for, in milliseconds; None when it asked for nothing.

    Raises:
        ValueError: `attempt` is negative.
    """
    if attempt < 0:
        raise ValueError(f"attempt counts from 0, not {attempt}")
    wait = max(min(BASE_MS << min(attempt, 32), CAP_MS), retry_after_ms or 0)
    return wait, wait + int(wait * JITTER)
