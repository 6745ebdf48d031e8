"""A leg that tries a service which was out: its first step proves that it works again."""

from __future__ import annotations

from sqlalchemy import Connection

from everstep.checkpoints import services
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.store import Store


class Trial:
    """For one leg.

    Args:
        store: The record.
        job: The job as claimed.
    """

    def __init__(self, store: Store, job: Job) -> None:
        self._store = store
        self._job = job
        self._looked = False
        self._left = 0

    def look(self, connection: Connection) -> None:
        """Before the leg, or in the transaction of its first checkpoint: whether it tries one. It is asked once."""
        if self._looked:
            return
        self._looked = True
        if services.tried_by(connection, self._job):
            self._left = 1 if self._job.input_applied else 2  # the input's own checkpoint proves nothing

    def stepped(self) -> None:
        """A checkpoint of the graph itself is stored."""
        if self._left:
            self._left -= 1
            if not self._left:
                now = self._store.clock.now_ms()
                self._store.write(lambda connection: services.passed(connection, self._job, now=now))
