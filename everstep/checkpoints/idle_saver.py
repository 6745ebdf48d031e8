"""A saver that writes to a thread only while no run of it is in flight: for changes from outside."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from sqlalchemy import Connection

from everstep.checkpoints import conversations
from everstep.checkpoints.recorder import Place, Statement
from everstep.checkpoints.saver import StepSaver


class IdleSaver(StepSaver):
    """As `StepSaver`; each write looks, in its own transaction, that no run of its thread is in flight.

    Its writes raise `ThreadBusy` otherwise, or `ThreadNotFound` if it was deleted, and write nothing.
    """

    def _submit(
        self,
        statements: list[Statement],
        progress: dict[str, Any] | None,
        *,
        place: Place | None = None,
        check: Callable[[Connection], None] | None = None,
        **how: Any,
    ) -> Future[None]:
        def both(connection: Connection) -> None:
            if place is not None:
                conversations.require_idle(connection, place[0])
                conversations.find(connection, place[0])
            if check is not None:
                check(connection)

        return super()._submit(statements, progress, place=place, check=both, **how)
