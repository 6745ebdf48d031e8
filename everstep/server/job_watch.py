"""Waking whoever waits for jobs to change: one look at the record serves all who wait in this process.

A job's end wakes at once where that costs the job nothing (a record in SQLite); otherwise, and for changes that end
nothing, the record is looked at a few times a second, by one query for all jobs that anybody waits for.
"""

from __future__ import annotations

from everstep.checkpoints import job_log
from everstep.checkpoints.database import PAUSES
from everstep.checkpoints.store import Store
from everstep.server.waiters import Waiters

LOOK_EVERY_S = 0.25
BETWEEN_LOOKS_S = 0.005
"""Ends of jobs that come so close to each other are seen together."""


class JobWatch(Waiters[int]):
    """Wakes those who wait for jobs, by their row ids, whenever one changed its status.

    Args:
        store: The record.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store, PAUSES, "jobs", BETWEEN_LOOKS_S)

    async def _look(self, poll_s: float) -> float:
        asked = list(self._waiting)
        found = await self._store.aread(lambda connection: job_log.newest(connection, asked))
        for job_id in asked:
            self._saw(job_id, found.get(job_id, -1))  # deleted: who waits will see
        return LOOK_EVERY_S
