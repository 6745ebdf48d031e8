"""When a schedule is due: cron expressions in a time zone, as UTC slots. Debian's cron, by `cronsim`.

Five fields. Where clocks change, a job of set hours (`30 2 * * *`) runs once: just behind an hour that is left out, and
in the first of two equal hours. One whose minute or hour begins with `*` follows the time that passes: none in the hour
that is left out, twice in the hour that comes twice.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from everstep.errors import ScheduleInvalid

_FIRST_WINDOW_MS = 3_600_000
SOME_DAY = 1_767_225_600_000
"""2026-01-01, from where an expression is tried."""
FIELDS = "minute hour day-of-month month day-of-week"


def check(cron: str, timezone: str) -> None:
    """Refuse what is no cron expression, no time zone, or never due.

    Raises:
        ScheduleInvalid: It says what is wrong.
    """
    if len(cron.split()) != 5:
        raise ScheduleInvalid(f"the cron expression {cron!r} has not five fields", next_step=f"write: {FIELDS}")
    zone(timezone)
    try:
        due = next_slot(cron, timezone, after=SOME_DAY)
    except CronSimError as error:
        raise ScheduleInvalid(
            f"the cron expression {cron!r} cannot be read: {error}", next_step=f"the fields are: {FIELDS}"
        ) from error
    if due is None:
        raise ScheduleInvalid(f"the cron expression {cron!r} is never due", next_step="give a day that there is")


@lru_cache(maxsize=256)
def zone(name: str) -> ZoneInfo:
    """The time zone of a name of the IANA database.

    Raises:
        ScheduleInvalid: This machine knows none of this name.
    """
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, LookupError) as error:  # no key, a path, a folder of the database
        raise ScheduleInvalid(
            f"there is no time zone {name!r}", next_step="give a name such as UTC or Europe/Berlin"
        ) from error


def slots(cron: str, timezone: str, *, after: int) -> Iterator[int]:
    """The slots after a moment, UTC milliseconds, each later than the one before.

    They are the same from wherever one starts to look: what a slot is depends on no process and no restart.

    Args:
        cron: The expression.
        timezone: Where its hours are.
        after: UTC milliseconds; a slot at this very moment is not among them.
    """
    start = datetime.fromtimestamp(after // 1000, UTC).astimezone(zone(timezone))
    last = after
    for found in CronSim(cron, start):
        slot = int(found.timestamp()) * 1000
        if slot > last:  # hours that are left out give the same moment again, those that come twice an earlier one
            last = slot
            yield slot


def next_slot(cron: str, timezone: str, *, after: int) -> int | None:
    """The first slot after a moment; None if there is none in fifty years."""
    return next(slots(cron, timezone, after=after), None)


def last_slots(cron: str, timezone: str, *, since: int, until: int, most: int) -> list[int]:
    """The last slots from `since` to `until`, both included, at most so many.

    However long that is: it is looked at backwards, in windows that grow until they hold enough.
    """
    length, found = _FIRST_WINDOW_MS, deque[int](maxlen=most)
    while True:
        begin = max(since - 1, until - length)
        found = deque[int](maxlen=most)
        for slot in slots(cron, timezone, after=begin):
            if slot > until:
                break
            found.append(slot)
        if len(found) == most or begin < since:
            return list(found)
        length *= 2


def following(cron: str, timezone: str, *, after: int, count: int) -> list[int]:
    """The next slots after a moment."""
    return list(islice(slots(cron, timezone, after=after), count))


def local(slot: int, timezone: str) -> str:
    """A slot as the clocks of its time zone show it, with their offset."""
    return datetime.fromtimestamp(slot // 1000, UTC).astimezone(zone(timezone)).isoformat(" ", "minutes")


def jitter_ms(schedule: str, slot: int, seconds: int) -> int:
    """How long after its slot a run begins: up to so many seconds, the same for everybody who asks.

    Args:
        schedule: The schedule's id.
        slot: UTC milliseconds.
        seconds: The most, seconds.
    """
    drawn = hashlib.sha256(f"{schedule} {slot}".encode()).digest()[:8]
    return int.from_bytes(drawn) % (seconds * 1000 + 1)
