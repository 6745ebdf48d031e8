"""Rates that all processes share: so many of something a second, with bursts.

The generic cell rate algorithm (GCRA, ITU-T I.371) in integer microseconds: a rate is one row with the moment at which
its bucket would be full again. An idle bucket holds its burst and never more; asking in vain costs nothing, so no
fraction is lost; a clock that steps back is no time at all.
"""

from __future__ import annotations

import math
from fractions import Fraction

from sqlalchemy import Connection, select, update

from everstep.checkpoints.database import insert_or_ignore
from everstep.checkpoints.schema import rate_limits as table

SECOND_US = 1_000_000


def take(
    connection: Connection, name: str, *, per_second: Fraction | float, burst: int, wanted: int, now_us: int
) -> tuple[int, int]:
    """Take as many of what is wanted as the rate allows now.

    Args:
        connection: The write transaction.
        name: Names the rate, for all processes.
        per_second: How many a second, above zero. The interval between two is rounded up to a whole microsecond.
        burst: How many at once after a pause, 1 at least.
        wanted: How many are wanted.
        now_us: UTC microseconds.

    Returns:
        How many are granted, and when the next one is free, UTC microseconds (not before now).
    """
    interval = math.ceil(SECOND_US / Fraction(per_second))
    insert_or_ignore(connection, table, {"name": name, "free_at_us": now_us})
    query = select(table.c.free_at_us).where(table.c.name == name).with_for_update()
    before: int = connection.execute(query).scalar_one()
    full = min(max(before, now_us), now_us + burst * interval)
    granted = max(min(wanted, (now_us + burst * interval - full) // interval), 0)
    full += granted * interval
    if granted or full < before:
        connection.execute(update(table).where(table.c.name == name).values(free_at_us=full))
    return granted, max(now_us, full - (burst - 1) * interval)
