"""The attempt a node runs in: how `effect`, `review` and `verify` reach the record without knowing the worker.

The worker sets `current` around a run; LangGraph copies the context into its tasks and threads. Outside a job there is
no attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection

from everstep.checkpoints.jobs import LostClaim
from everstep.checkpoints.store import Store
from everstep.errors import EffectInterrupted
from everstep.nodes.providers.registry import Providers
from everstep.observability import metric_names
from everstep.observability.measures import NOTHING, Measures

R = TypeVar("R")


class Submit(Protocol):
    """Queues a write of a leg; see `SpanWriter.submit`."""

    def __call__(
        self,
        operation: Callable[[Connection], R],
        *,
        patient: bool = False,
        task_id: str | None = None,
        graph_ns: str | None = None,
    ) -> Future[R]: ...


@dataclass(frozen=True)
class Turn:
    """A call among equal ones of the same run of a node's body.

    Attributes:
        number: Which of them it is, from 0.
        overlaps: Whether the function of one before it was under way when it was asked for.
        beginning: Of those before it that were neither called nor over then: what tells whether they were called.
    """

    number: int = 0
    overlaps: bool = False
    beginning: tuple[Future[bool], ...] = ()


def _nothing() -> dict[str, Any]:
    return {}


def _pass(connection: Connection) -> None:
    del connection


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
        progress: Further columns of the job to keep current with each step (tokens, cost, time).
        stepped: Told of each checkpoint in the transaction that stores it.
        committed: Told of each checkpoint that is stored: its id and namespace.
        measures: What the process measures.
        graph: Name of the job's graph, for measures.
        fingerprint: The shape of the graph that runs.
        with_spans: Queues a write with the spans that have ended; None when none are recorded.
        providers: The providers of paid work that there are.
        blocked: Set once when the run must not go on (unknown effect, lost lease); every later write is refused with
        it.
        accepted: Keys of effects a person said need not be repeated by this run.
        consulted: Ids of the questions about approvals that this run looked up an answer to.
    """

    store: Store
    job_id: int
    public_id: str
    job_key: str
    claim_no: int
    surely_not_sent: Callable[[BaseException], bool]
    progress: Callable[[], dict[str, Any]] = _nothing
    stepped: Callable[[Connection], None] = _pass
    committed: Callable[[str, str], None] = _ignore
    measures: Measures = NOTHING
    graph: str = ""
    fingerprint: str | None = None
    with_spans: Submit | None = None
    providers: Providers = field(default_factory=Providers)
    blocked: BaseException | None = None
    accepted: set[str] = field(default_factory=set[str])
    consulted: set[str] = field(default_factory=set[str])
    _asked: dict[str, set[tuple[int, str]]] = field(default_factory=dict[str, set[tuple[int, str]]])
    _taken: dict[tuple[Any, ...], set[int]] = field(default_factory=dict[tuple[Any, ...], set[int]])
    _bodies: dict[int, Any] = field(default_factory=dict[int, Any])
    _runs: dict[tuple[Any, ...], tuple[str, ...]] = field(default_factory=dict[tuple[Any, ...], tuple[str, ...]])
    _in_flight: dict[str, Future[None]] = field(default_factory=dict[str, Future[None]])
    _places: dict[str, str] = field(default_factory=dict[str, str])
    _called: set[str] = field(default_factory=set[str])
    _beginning: dict[str, Future[bool]] = field(default_factory=dict[str, Future[bool]])
    _calls: set[asyncio.Task[Any]] = field(default_factory=set[asyncio.Task[Any]])
    _counted: dict[tuple[Any, ...], int] = field(default_factory=dict[tuple[Any, ...], int])
    _lock: Lock = field(default_factory=Lock)

    def write(
        self,
        operation: Callable[[Connection], R],
        *,
        patient: bool = False,
        task_id: str | None = None,
        graph_ns: str | None = None,
    ) -> Future[R]:
        """Queue a write of this attempt, and with it the spans that have ended; see `SpanWriter.submit`."""
        if self.with_spans is None:
            return self.store.write(operation, patient=patient)
        return self.with_spans(operation, patient=patient, task_id=task_id, graph_ns=graph_ns)

    def take(self, body: Any, call: tuple[str, ...], key_of: Callable[[int], str]) -> Turn:
        """Number a call among equal ones, from 0, within one run of a node's body.

        Args:
            body: An object that lives as long as that run; the same task run again, also in this attempt, has another.
            call: What makes calls equal.
            key_of: The effect's key by its number.

        Returns:
            Its number, and which equal calls before it are not over at this moment: they may end before anyone looks.
        """
        with self._lock:
            self._bodies[id(body)] = body  # kept, so that no other object can get its id
            taken = self._taken.setdefault((id(body), *call), set())
            number = next(number for number in range(len(taken) + 1) if number not in taken)
            taken.add(number)
            earlier = [key_of(other) for other in range(number)]
            beginning = [self._beginning[key] for key in earlier if key in self._beginning]
            self._beginning.setdefault(key_of(number), Future())
            return Turn(number, any(key in self._called for key in earlier), tuple(beginning))

    def nth(self, body: Any, call: tuple[str, ...]) -> int:
        """Which of the equal calls in one run of a node's body this is, from 0; see `take`."""
        with self._lock:
            self._bodies[id(body)] = body
            number = self._counted.get((id(body), *call), 0)
            self._counted[id(body), *call] = number + 1
            return number

    def ask(self, key: str, body: tuple[int, str]) -> None:
        """Note that a run of a node's body asks for an effect."""
        with self._lock:
            self._asked.setdefault(key, set()).add(body)

    def has_asked(self, key: str, body: tuple[int, str] | None = None) -> bool:
        """Whether an effect was asked for in this attempt: by that run of a body, or by any."""
        with self._lock:
            by = self._asked.get(key, set[tuple[int, str]]())
            return bool(by) if body is None else body in by

    def first_run(self, call: tuple[Any, ...], run: tuple[str, ...]) -> tuple[str, ...]:
        """In which run of the subgraphs around it an equal call was first made in this attempt."""
        with self._lock:
            return self._runs.setdefault(call, run)

    def give_back(self, body: Any, call: tuple[str, ...], number: int) -> None:
        """The call surely did not happen: the next equal one is the same call."""
        with self._lock:
            self._taken[(id(body), *call)].discard(number)

    def call(self, key: str) -> None:
        """The function of an effect is called now."""
        with self._lock:
            self._called.add(key)
        self.begun(key, called=True)

    def begun(self, key: str, *, called: bool = False) -> None:
        """The effect is called, or will not be."""
        with self._lock:
            begun = self._beginning.pop(key, None)
        if begun is not None:
            begun.set_result(called)

    def end_task(self, task_id: str) -> None:
        """A task's output is about to be stored.

        Raises:
            EffectInterrupted: An effect it called is still under way: its outcome cannot be part of that output.
        """
        with self._lock:
            open_ = any(place.endswith(f":{task_id}") for place in self._places.values())
        if open_:
            reason = EffectInterrupted(
                "a node ended while an effect it had called was under way",
                next_step="nothing: the next attempt finds out; let the node wait for its effects",
            )
            self.block(reason)
            raise reason

    def enter(self, key: str, place: str = "", *, inside: bool = False) -> Future[None] | None:
        """Begin the call of an effect; or, if one with this key is under way in this run, what resolves at its end.

        Args:
            key: The effect's key.
            place: The namespace of the task that calls it.
            inside: It is called by an effect under way, which goes on to its end though its caller gave it up.

        Raises:
            BaseException: The run must not go on: what `blocked` says.
        """
        with self._lock:
            if self.blocked is not None and not (inside and isinstance(self.blocked, EffectInterrupted)):
                raise self.blocked
            under_way = self._in_flight.get(key)
            if under_way is None:
                self._in_flight[key] = Future()
                self._places[key] = place
            return under_way

    def leave(self, key: str, *, after: Sequence[Future[Any]] = ()) -> None:
        """End what `enter` began, when the work in `after` is over."""
        if running := [work for work in after if not work.done()]:
            running[0].add_done_callback(lambda _: self.leave(key, after=running))
            return
        with self._lock:
            done = self._in_flight.pop(key)
            self._places.pop(key, None)
            self._called.discard(key)
        done.set_result(None)

    def in_flight(self) -> list[Future[None]]:
        """What resolves as the effects that are under way end; a run that failed beside them is not over before."""
        with self._lock:
            return [*self._in_flight.values()]

    def end(self, reason: BaseException) -> list[Future[None]]:
        """End the run: no effect begins after it. While some are under way, it is not over, and they are returned."""
        with self._lock:
            if not self._in_flight:
                self.blocked = self.blocked or reason
            return [*self._in_flight.values()]

    async def finish(self, call: Coroutine[Any, Any, R]) -> R:
        """Await the call of an effect; if its caller is cancelled, the call goes on to its end, and the run does not.

        Cancelling a coroutine does not stop what it started (a thread, a request on its way): only its end tells.
        """
        task = asyncio.create_task(call)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # nobody else asks
                self.block(
                    EffectInterrupted(
                        "an effect's caller was cancelled before its outcome was known",
                        next_step="nothing: the next attempt finds out",
                    )
                )
            raise

    async def quiet(self, seconds: float) -> None:
        """Wait for the effects under way; what is not over by then is cancelled where it can be."""
        if in_flight := self.in_flight():
            await asyncio.wait([asyncio.wrap_future(effect) for effect in in_flight], timeout=seconds)
        for call in list(self._calls):
            call.cancel()
        if self._calls:
            await asyncio.wait(list(self._calls), timeout=1)

    def block(self, reason: BaseException) -> None:
        """Refuse every later write of this attempt; the first reason stands."""
        with self._lock:
            self.blocked = self.blocked or reason

    def refused(self, reason: BaseException) -> None:
        """Count a write that was refused, if that is because the claim was lost."""
        if isinstance(reason, LostClaim):
            self.measures.add(metric_names.STALE_WRITES)


current: ContextVar[Attempt | None] = ContextVar("everstep_attempt", default=None)
_running: set[int] = set()


def current_job() -> str | None:
    """Id of the job that runs here, such as to enqueue a child of it; None outside of a job."""
    attempt = current.get()
    return None if attempt is None else attempt.public_id


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
