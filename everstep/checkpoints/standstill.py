"""What a worker remembers while all that is ready is held: by a closed gate, or by a limit whose places are taken.

To look through what is held takes the longer, the more it is. So a look that found nothing among it is remembered, and
as long as the same gates and limits hold, the next ones look only at what may have changed: the jobs to which something
happened since, and those whose time has come.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, and_, func, select

from everstep.checkpoints.schema import agent_jobs, job_events
from everstep.checkpoints.statements import Statement

LATE_EVENTS = 256
"""On PostgreSQL an event may be committed after later ones: so many are looked at again."""
AFRESH_MS = 60_000
"""After this time everything is looked at once more, whatever was remembered."""


_NEWEST = Statement(select(func.max(job_events.c.id)))


@dataclass(frozen=True)
class _Seen:
    held_by: Hashable
    event: int
    now: int
    afresh_at: int


class Standstill:
    """The memory of one worker; for one look at a time."""

    def __init__(self) -> None:
        self._seen: _Seen | None = None

    def changed(self, held_by: Hashable, *, now: int) -> list[ColumnElement[bool]] | None:
        """Which waiting jobs a look must take into account.

        Args:
            held_by: What holds jobs now; None if that alone does not tell which.
            now: UTC milliseconds.

        Returns:
            Conditions, each of which an index finds; None: all of them.
        """
        seen = self._seen
        if seen is None or held_by is None or seen.held_by != held_by or not seen.now <= now < seen.afresh_at:
            return None
        since = select(job_events.c.job_id).where(job_events.c.id > seen.event)
        came_due = and_(agent_jobs.c.next_run_at > seen.now, agent_jobs.c.next_run_at <= now)
        return [came_due, agent_jobs.c.id.in_(since)]

    def remember(self, held_by: Hashable, *, event: int, now: int, in_all: bool) -> None:
        """The look found nothing.

        Args:
            held_by: As above.
            event: The newest event, as `newest_event` tells it.
            now: As above.
            in_all: Whether it looked at all of them.
        """
        afresh_at = now + AFRESH_MS if in_all or self._seen is None else self._seen.afresh_at
        self._seen = None if held_by is None else _Seen(held_by, event, now, afresh_at)

    def forget(self) -> None:
        """The look found something."""
        self._seen = None


def newest_event(connection: Connection) -> int:
    """Up to which event nothing that this snapshot shows can have been missed."""
    newest = _NEWEST.run(connection).fetchone()[0] or 0
    return newest - LATE_EVENTS if connection.dialect.name == "postgresql" else newest
