"""The attempt a node runs in: how `effect`, `review` and `verify` reach the record without knowing the worker.

The worker sets `current` around a run; LangGraph copies the context into its tasks and threads. Outside a job there is
no attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from everstep.checkpoints.store import Store


def _nothing() -> dict[str, Any]:
    return {}


def _ignore(checkpoint_id: str, checkpoint_ns: str) -> None:
    del checkpoint_id, checkpoint_ns


@dataclass
class Attempt:
    """One claim of one job by one worker; the fence its writes go through.

    Attributes:
        store: The record.
        job_id: Row id of the job.
        public_id: The job's id as users see it (UUIDv7).
        job_key: The job's idempotency key.
        claim_no: The fence: a write with another claim number changes nothing.
        surely_not_sent: Tells of an exception whether the outside world surely did not act.
        progress: Further columns of the job to keep current with each step (tokens).
        committed: Told of each checkpoint that is stored: its id and namespace.
        blocked: Set once when the run must not go on (unknown effect, lost lease); every later write is refused with
        it.
    """

    store: Store
    job_id: int
    public_id: str
    job_key: str
    claim_no: int
    surely_not_sent: Callable[[BaseException], bool]
    progress: Callable[[], dict[str, Any]] = _nothing
    committed: Callable[[str, str], None] = _ignore
    blocked: BaseException | None = None
    _occurrences: dict[tuple[str, ...], int] = field(default_factory=dict[tuple[str, ...], int])
    _in_flight: set[Future[None]] = field(default_factory=set[Future[None]])
    _lock: Lock = field(default_factory=Lock)

    def occurrence(self, *scope: str) -> int:
        """How often this was asked before with the same scope, from 0."""
        with self._lock:
            number = self._occurrences.get(scope, 0)
            self._occurrences[scope] = number + 1
            return number

    @contextmanager
    def acting(self) -> Generator[None]:
        """Tell that a thread is in an effect; a run that failed beside it is not over before it is."""
        done: Future[None] = Future()
        with self._lock:
            self._in_flight.add(done)
        try:
            yield
        finally:
            with self._lock:
                self._in_flight.discard(done)
            done.set_result(None)

    def in_flight(self) -> list[Future[None]]:
        """One future for each thread that is in an effect now; it resolves when the effect is settled."""
        with self._lock:
            return [*self._in_flight]

    def block(self, reason: BaseException) -> None:
        """Refuse every later write of this attempt; the first reason stands."""
        with self._lock:
            self.blocked = self.blocked or reason


current: ContextVar[Attempt | None] = ContextVar("everstep_attempt", default=None)
