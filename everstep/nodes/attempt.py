"""The attempt a node runs in: how `effect`, `review` and `verify` reach the record without knowing the worker.

The worker sets `current` around a run; LangGraph copies the context into its tasks and threads. Outside a job there is no attempt.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from everstep.checkpoints.store import Store


@dataclass
class Attempt:
    """One claim of one job by one worker.

    Attributes:
        store: The record.
        job_id: Row id of the job.
        public_id: The job's id as users see it (UUIDv7).
        claim_no: The fence: a write with another claim number changes nothing.
        leg: Which attempt this is, from 1; one leg is one trace.
        surely_not_sent: Tells of an exception whether the outside world surely did not act.
        blocked: Set once when the run must not go on (unknown effect, lost lease); every later write is refused with it.
    """

    store: Store
    job_id: int
    public_id: str
    claim_no: int
    leg: int
    surely_not_sent: Callable[[BaseException], bool]
    blocked: BaseException | None = None
    _occurrences: dict[tuple[str, ...], int] = field(default_factory=dict[tuple[str, ...], int])
    _lock: Lock = field(default_factory=Lock)

    def occurrence(self, *scope: str) -> int:
        """How often this was asked before with the same scope, from 0."""
        with self._lock:
            number = self._occurrences.get(scope, 0)
            self._occurrences[scope] = number + 1
            return number

    def block(self, reason: BaseException) -> None:
        """Refuse every later write of this attempt; the first reason stands."""
        with self._lock:
            self.blocked = self.blocked or reason


current: ContextVar[Attempt | None] = ContextVar("everstep_attempt", default=None)
