"""`StepWrite`: one write of a saver, as the record's writer carries it out: under the claim, and told of if it fails.

A hundred agents have a hundred of them under way at once. So each is one object, not functions with their variables:
what is alive is looked at again by every collection of garbage.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from sqlalchemy import Connection

from everstep.checkpoints.advances import Advance, Advances
from everstep.checkpoints.database import Database
from everstep.checkpoints.recorder import Place, Statement
from everstep.checkpoints.statements import execute

Unwritten = dict[Place, BaseException]
"""Why something that nobody waited for was not stored, by where; touched by the writer's thread alone."""


class StepWrite:
    """Statements of a saver, and what goes with them.

    Args:
        database: Tells what an error means.
        advances: How far the job is, under its claim; None for a saver without one.
        unwritten: What the saver could not write.
        statements: What is run.
        now: UTC milliseconds.
        progress: Columns of the job, as `Advance` has them.
        place: Where it writes to; None if that is no namespace of a thread.
        check: Run before the statements; raises if they must not be.
        is_step: Whether a checkpoint is stored by it.
        patient: Whether nobody waits for it, so that the next write of its place has to fail if it does.
    """

    __slots__ = (
        "_advances",
        "_check",
        "_database",
        "_failed",
        "_is_step",
        "_now",
        "_patient",
        "_place",
        "_statements",
        "_unwritten",
        "advance",
    )

    def __init__(
        self,
        database: Database,
        advances: Advances | None,
        unwritten: Unwritten,
        statements: list[Statement],
        *,
        now: int,
        progress: dict[str, Any] | None = None,
        place: Place | None = None,
        check: Callable[[Connection], None] | None = None,
        is_step: bool = False,
        patient: bool = False,
    ) -> None:
        self._database = database
        self._advances = advances
        self._unwritten = unwritten
        self._statements = statements
        self._now = now
        self.advance = Advance(progress, is_step)
        self._place = place
        self._check = check
        self._is_step = is_step
        self._patient = patient
        self._failed: BaseException | None = None

    def __call__(self, connection: Connection) -> None:
        """Carry it out in a transaction."""
        place, failed, self._failed = self._place, self._failed, None
        if place is not None and failed is not None and self._unwritten.get(place) is failed:
            del self._unwritten[place]  # the transaction is run again
        if place in self._unwritten:
            raise self._unwritten[place]
        try:
            self._write(connection)
        except BaseException as error:
            if self._patient and place is not None and not self._database.is_conflict(error):
                self._unwritten[place] = self._failed = error
            raise

    def _write(self, connection: Connection) -> None:
        if self._advances is not None:
            self._advances.note(connection, self.advance, now=self._now)
        if self._check is not None:
            self._check(connection)
        for sql, parameters in self._statements:
            execute(connection, sql, parameters)

    def told(self, future: Future[None]) -> None:
        """It is over."""
        error = None if future.cancelled() else future.exception()
        if self._place is None or error is None:
            return
        if self._patient:
            self._unwritten[self._place] = error
        elif self._is_step:
            self._unwritten.pop(self._place, None)  # the graph ends by it
