"""Reading how long a service asks to wait."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.runtime.retry_after import CAP_MS, parse_retry_after, retry_after_ms

NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("value", "milliseconds"),
    [
        ("0", 0),
        ("7", 7_000),
        (" 7 ", 7_000),
        ("0.25", 250),
        ("0.0001", 1),
        ("86400", CAP_MS),
        ("999999999999", CAP_MS),
        ("1e300", CAP_MS),
        ("Fri, 15 Jan 2027 08:00:30 GMT", 30_000),
        ("Fri, 15 Jan 2027 08:00:30 -0000", 30_000),
        ("Fri, 15 Jan 2027 10:00:30 +0200", 30_000),
        ("Fri, 15 Jan 2027 07:59:00 GMT", 0),
        ("Fri, 15 Jan 2999 08:00:00 GMT", CAP_MS),
        ("-1", None),
        ("nan", None),
        ("inf", None),
        ("", None),
        ("soon", None),
        ("Fri, 99 Jan 2027 08:00:30 GMT", None),
        ("7 seconds", None),
        (None, None),
    ],
)
def test_retry_after(value: str | None, milliseconds: int | None) -> None:
    """Seconds and HTTP dates are understood, at most a day is believed, and garbage asks for nothing."""
    assert parse_retry_after(value, NOW_MS) == milliseconds


@given(st.text())
def test_no_text_breaks_the_reader(value: str) -> None:
    """Whatever a service sends, the answer is None or within bounds."""
    wait = parse_retry_after(value, NOW_MS)
    assert wait is None or 0 <= wait <= CAP_MS


@given(st.datetimes(min_value=datetime(1990, 1, 1), max_value=datetime(2100, 1, 1), timezones=st.just(UTC)))
def test_dates_count_from_the_given_time(moment: datetime) -> None:
    """A date means the time from now to then, and nothing if it has passed."""
    moment = moment.replace(microsecond=0)
    expected = min(max(int(moment.timestamp()) * 1000 - NOW_MS, 0), CAP_MS)
    assert parse_retry_after(format_datetime(moment, usegmt=True), NOW_MS) == expected


def _error(**attributes: Any) -> Exception:
    error = Exception("text with Retry-After: 99")
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


@pytest.mark.parametrize(
    ("error", "milliseconds"),
    [
        (_error(headers={"Retry-After": "7"}), 7_000),
        (_error(headers={"retry-after": b"7"}), 7_000),
        (_error(headers={"retry-after-ms": "70", "retry-after": "1"}), 70),
        (_error(headers={"retry-after-ms": "x", "retry-after": "1"}), 1_000),
        (_error(retry_after=2.5), 2_500),
        (_error(retry_after=-1), None),
        (_error(retry_after="7"), None),
        (_error(headers=None), None),
        (_error(), None),
    ],
)
def test_the_wait_is_found_where_clients_keep_it(error: Exception, milliseconds: int | None) -> None:
    """Headers in any capitals, the millisecond form, and a numeric attribute are read; text never is."""
    assert retry_after_ms(error, NOW_MS) == milliseconds
