"""The wait before the next attempt."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.runtime.backoff import delay_ms


class _NoJitter(random.Random):
    def randint(self, a: int, b: int) -> int:
        return a


class _FullJitter(random.Random):
    def randint(self, a: int, b: int) -> int:
        return b


@pytest.mark.parametrize(
    ("attempt", "least", "most"),
    [
        (0, 15_000, 18_750),  # 15 s, plus a quarter
        (1, 30_000, 37_500),
        (2, 60_000, 75_000),
        (7, 1_920_000, 2_400_000),
        (8, 3_600_000, 4_500_000),  # 3840 s, capped at an hour
        (10_000, 3_600_000, 4_500_000),
    ],
)
def test_the_wait_doubles_up_to_an_hour(attempt: int, least: int, most: int) -> None:
    """The wait is 15 s doubled with each failed attempt, at most an hour, plus at most a quarter."""
    assert delay_ms(attempt, None, _NoJitter()) == least
    assert delay_ms(attempt, None, _FullJitter()) == most


@given(st.integers(0, 20), st.none() | st.integers(0, 10**9), st.integers())
def test_a_service_never_waits_in_vain(attempt: int, retry_after_ms: int | None, seed: int) -> None:
    """Whatever a service asked for is waited, and the jitter comes on top of it."""
    wait = delay_ms(attempt, retry_after_ms, random.Random(seed))
    assert wait >= (retry_after_ms or 0)
    assert wait >= min(15_000 * 2**attempt, 3_600_000)


def test_jobs_that_failed_together_spread() -> None:
    """A hundred jobs told to come back in 7 s do not come back in one moment."""
    randomness = random.Random(1)
    waits = [delay_ms(0, 7_000, randomness) for _ in range(100)]
    assert min(waits) >= 15_000
    assert len(set(waits)) > 90


def test_the_same_randomness_gives_the_same_wait() -> None:
    """Chance is passed in, so that a test can repeat it."""
    assert delay_ms(3, None, random.Random(7)) == delay_ms(3, None, random.Random(7))


def test_a_negative_attempt_is_refused() -> None:
    """Counting starts at zero."""
    with pytest.raises(ValueError, match="counts from 0"):
        delay_ms(-1, None, random.Random(0))
