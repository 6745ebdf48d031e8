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
    _taken: dict[tuple[Any, ...], set[int]] = field(default_factory=dict[tuple[Any, ...], set[int]])
    _bodies: dict[int, Any] = field(default_factory=dict[int, Any])
    _runs: dict[tuple[Any, ...], tuple[str, ...]] = field(default_factory=dict[tuple[Any, ...], tuple[str, ...]])
    _in_flight: dict[str, Future[None]] = field(default_factory=dict[str, Future[None]])
    _lock: Lock = field(default_factory=Lock)

    def take(self, body: Any, call: tuple[str, ...]) -> int:
        """Number a call among equal ones, from 0, within one run of a node's body.

        Args:
            body: An object that lives as long as that run; the same task run again, also in this attempt, has another.
            call: What makes calls equal.
        """
        with self._lock:
            self._bodies[id(body)] = body  # kept, so that no other object can get its id
            taken = self._taken.setdefault((id(body), *call), set())
            number = next(number for number in range(len(taken) + 1) if number not in taken)
            taken.add(number)
            return number

    def first_run(self, call: tuple[Any, ...], run: tuple[str, ...]) -> tuple[str, ...]:
        """In which run of the subgraphs around it an equal call was first made in this attempt."""
        with self._lock:
            return self._runs.setdefault(call, run)

    def give_back(self, body: Any, call: tuple[str, ...], number: int) -> None:
        """The call surely did not happen: the next equal one is the same call."""
        with self._lock:
            self._taken[(id(body), *call)].discard(number)

    def enter(self, key: str) -> Future[None] | None:
        """Begin the call of an effect; or, if one with this key is under way in this run, what resolves at its end."""
        with self._lock:
            under_way = self._in_flight.get(key)
            if under_way is None:
                self._in_flight[key] = Future()
            return under_way

    def leave(self, key: str) -> None:
        """End what `enter` began."""
        with self._lock:
            done = self._in_flight.pop(key)
        done.set_result(None)

    def in_flight(self) -> list[Future[None]]:
        """What resolves as the effects that are under way end; a run that failed beside them is not over before."""
        with self._lock:
            return [*self._in_flight.values()]

    def block(self, reason: BaseException) -> None:
        """Refuse every later write of this attempt; the first reason stands."""
        with self._lock:
            self.blocked = self.blocked or reason


current: ContextVar[Attempt | None] = ContextVar("everstep_attempt", default=None)
_running: set[int] = set()


@contextmanager
def running(attempt: Attempt) -> Generator[None]:
    """Make it the attempt of this context, and of those copied from it, until it is over."""
    token = current.set(attempt)
    _running.add(id(attempt))
    try:
        yield
    finally:
        _running.discard(id(attempt))
        current.reset(token)


def any_running() -> bool:
    """Whether this process runs any job now, in whatever context."""
    return bool(_running)
