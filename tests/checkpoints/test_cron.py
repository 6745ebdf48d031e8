"""When cron expressions are due, above all where clocks change, and that it depends on nothing but the expression."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.checkpoints import cron as times
from everstep.errors import ScheduleInvalid

MINUTE_MS = 60_000
DAY_MS = 86_400_000
CHANGES = ["2026-03-08", "2026-03-29", "2026-04-05", "2026-09-06", "2026-10-04", "2026-10-25", "2026-11-01"]
ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/St_Johns",
    "America/Santiago",
    "Australia/Lord_Howe",
    "Asia/Kolkata",
    "Asia/Beirut",
]
CRONS = [
    "* * * * *",
    "*/15 * * * *",
    "0 * * * *",
    "30 2 * * *",
    "0,30 2 * * *",
    "15 1,2,3 * * *",
    "*/20 1-3 * * *",
    "0 */2 * * *",
    "0 0 * * SUN",
    "0 0 L * *",
]


def ms(text: str) -> int:
    """A moment, UTC milliseconds."""
    return int(datetime.fromisoformat(text).astimezone(UTC).timestamp() * 1000)


def told(cron: str, zone: str, after: str, count: int) -> list[str]:
    """The next slots as UTC times."""
    found = times.following(cron, zone, after=ms(after), count=count)
    return [f"{datetime.fromtimestamp(slot / 1000, UTC):%m-%d %H:%M}" for slot in found]


@pytest.mark.parametrize(
    ("cron", "after", "expected"),
    [
        # Berlin, 29 March: from 02:00 to 03:00 there is no hour
        ("30 2 * * *", "2026-03-28T12:00+01:00", ["03-29 01:00", "03-30 00:30"]),  # just behind it, at 03:00
        ("0,30 2 * * *", "2026-03-28T12:00+01:00", ["03-29 01:00", "03-30 00:00"]),  # both are that one moment
        ("0 3 * * *", "2026-03-28T12:00+01:00", ["03-29 01:00", "03-30 01:00"]),
        ("30 * * * *", "2026-03-29T01:00+01:00", ["03-29 00:30", "03-29 01:30"]),  # 01:30, then 03:30
        ("*/30 2 * * *", "2026-03-28T12:00+01:00", ["03-30 00:00", "03-30 00:30"]),  # it follows the time that passes
        # Berlin, 25 October: from 02:00 to 03:00 comes twice
        ("30 2 * * *", "2026-10-24T12:00+02:00", ["10-25 00:30", "10-26 01:30"]),  # in the first of the two
        ("30 2 * * *", "2026-10-25T02:15+01:00", ["10-26 01:30"]),  # looked at from within the second, too
        ("30 * * * *", "2026-10-25T02:00+02:00", ["10-25 00:30", "10-25 01:30"]),  # in both
        ("0 3 * * *", "2026-10-24T12:00+02:00", ["10-25 02:00", "10-26 02:00"]),
    ],
)
def test_where_clocks_change(cron: str, after: str, expected: list[str]) -> None:
    """A job of set hours runs once on each day; one with a star first follows the passing time."""
    assert told(cron, "Europe/Berlin", after, len(expected)) == expected


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    cron=st.sampled_from(CRONS),
    zone=st.sampled_from(ZONES),
    day=st.sampled_from(CHANGES),
    start=st.integers(-DAY_MS, DAY_MS),
    later=st.integers(0, DAY_MS),
    most=st.integers(1, 30),
)
def test_slots_are_the_same_from_wherever_one_looks(
    cron: str, zone: str, day: str, start: int, later: int, most: int
) -> None:
    """Two schedulers that begin to look at different moments see the same slots, forwards and backwards."""
    begin = ms(f"{day}T00:00+00:00") + start
    end = begin + 2 * DAY_MS
    seen = list(takewhile(lambda slot: slot <= end, times.slots(cron, zone, after=begin)))
    assert all(slot % MINUTE_MS == 0 for slot in seen)
    middle = begin + later
    from_middle = list(takewhile(lambda slot: slot <= end, times.slots(cron, zone, after=middle)))
    assert from_middle == [slot for slot in seen if slot > middle]
    assert times.last_slots(cron, zone, since=begin + 1, until=end, most=most) == seen[-most:]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(st.text("0123456789*/-,#LW¹ MONJA", max_size=6), min_size=1, max_size=6).map(" ".join))
def test_any_text_is_an_expression_or_refused(text: str) -> None:
    """What is no cron expression is refused by name, whatever it is."""
    try:
        times.check(text, "UTC")
    except ScheduleInvalid:
        return
    assert times.next_slot(text, "UTC", after=0) is not None


@pytest.mark.parametrize("cron", ["", "* * * *", "* * * * * *", "@daily", "61 * * * *", "0 0 31 2 *", "0 0 30 2 *"])
def test_what_is_no_expression_or_never_due_is_refused(cron: str) -> None:
    """Too few or too many fields, numbers out of range, a day that no year has."""
    with pytest.raises(ScheduleInvalid):
        times.check(cron, "UTC")


@pytest.mark.parametrize("zone", ["", "Berlin", "../etc/passwd", "/etc/passwd", "Europe", "Europe/Berlin\0"])
def test_what_is_no_time_zone_is_refused(zone: str) -> None:
    """A name that the time zone database does not have, or that leads out of it."""
    with pytest.raises(ScheduleInvalid, match="time zone"):
        times.check("* * * * *", zone)


def test_a_year_of_minutes_is_looked_at_from_its_end() -> None:
    """What was missed in a long time is not counted through: the last slots are found from behind."""
    until = ms("2027-06-01T00:00+00:00")
    found = times.last_slots("* * * * *", "UTC", since=until - 365 * DAY_MS, until=until, most=100)
    assert found == [until - MINUTE_MS * back for back in range(99, -1, -1)]
    yearly = times.last_slots("0 0 1 1 *", "UTC", since=until - 3650 * DAY_MS, until=until, most=1)
    assert yearly == [ms("2027-01-01T00:00+00:00")]


def test_jitter_is_the_same_for_everybody_and_within_its_bound() -> None:
    """It is drawn from schedule and slot: spread over the bound, and the same for each who asks."""
    drawn = [times.jitter_ms("id", slot * MINUTE_MS, 60) for slot in range(500)]
    assert drawn == [times.jitter_ms("id", slot * MINUTE_MS, 60) for slot in range(500)]
    assert all(0 <= one <= 60_000 for one in drawn)
    assert min(drawn) < 6_000 < 54_000 < max(drawn)
    assert times.jitter_ms("id", 0, 0) == 0
