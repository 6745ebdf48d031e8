"""`wait_for` and `sleep_until`: nodes that wait for a signal or a moment without holding a worker.

The job is parked: `pending`, without a lease, until the signal is emitted or the moment comes, in hours or in months,
over restarts and on any machine. The node's body then runs again from its beginning, as after `interrupt()`, and the
wait returns; so effects before it belong into `effect`, and what it returned once it returns in every replay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from langgraph.errors import GraphInterrupt
from langgraph.types import Interrupt
from sqlalchemy import Connection

from everstep.checkpoints import signals, waits
from everstep.checkpoints.jobs import loose_digest
from everstep.checkpoints.waits import Wait
from everstep.errors import WaitInvalid
from everstep.nodes import arguments
from everstep.nodes.attempt import Attempt, current

_FIRST = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Arrived:
    """A signal that came.

    Attributes:
        name: Its name.
        payload: What it carries; JSON data.
        emitted_at: When it was emitted, UTC.
        emitted_by: By whom: `cli`, a client's owner, ….
    """

    name: str
    payload: Any
    emitted_at: datetime
    emitted_by: str


def wait_for(name: str, *, until: datetime | timedelta | None = None) -> Arrived | None:
    """Wait for a signal; in a sync node. In an async one: `await await_for(…)`.

    It does not matter whether the signal is emitted before the node waits or after. The first emission of a name wins.

    Args:
        name: The signal's name, such as `payment-received:order-17`: `everstep emit` with it wakes this job.
        until: When to stop waiting: a moment with its time zone, or a span from the first time this is asked; without
            one, only the signal ends it.

    Returns:
        The signal; None if the moment came first.

    Raises:
        WaitInvalid: Called outside a job, on the event loop, or with a moment that is none.
        SignalInvalid: The name cannot be one.
    """
    return _arrived(park_until(signals.require_name(name), until=until))


async def await_for(name: str, *, until: datetime | timedelta | None = None) -> Arrived | None:
    """As `wait_for`, in an async node."""
    return _arrived(await apark_until(signals.require_name(name), until=until))


def sleep_until(moment: datetime | timedelta) -> None:
    """Wait until a moment, with its time zone, or for a span from the first time this is asked; in a sync node.

    Raises:
        WaitInvalid: Called outside a job, on the event loop, or with a moment that is none.
    """
    park_until(None, until=moment)


async def asleep_until(moment: datetime | timedelta) -> None:
    """As `sleep_until`, in an async node."""
    await apark_until(None, until=moment)


def park_until(signal: str | None, *, until: datetime | timedelta | None, key: str | None = None) -> Wait:
    """The wait, once it is decided; until then the node stops here and its job is parked.

    Args:
        signal: What to wait for; None: for the moment alone.
        until: When to stop waiting.
        key: What makes it the same wait in a replay; None: where in the graph it is made, and how often.

    Raises:
        WaitInvalid: As of `wait_for`.
        GraphInterrupt: Not decided yet; let it pass.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        attempt = _attempt(signal, until)
        return _decided(attempt.write(_begin(attempt, signal, until, key)).result())
    raise WaitInvalid(
        "a node waits by a sync function on the event loop, which it would block",
        next_step="in an async node: await await_for(…), or await asleep_until(…)",
    )


async def apark_until(signal: str | None, *, until: datetime | timedelta | None, key: str | None = None) -> Wait:
    """As `park_until`, in an async node."""
    attempt = _attempt(signal, until)
    return _decided(await asyncio.wrap_future(attempt.write(_begin(attempt, signal, until, key))))


def _attempt(signal: str | None, until: Any) -> Attempt:
    attempt = current.get()
    if signal is None and until is None:
        raise WaitInvalid(
            "a node sleeps until no moment",
            next_step="give a datetime with its time zone, or a timedelta: timedelta(seconds=5)",
        )
    if attempt is None:
        raise WaitInvalid(
            "only a job can wait: this graph runs by itself",
            next_step="run it as a job: everstep submit GRAPH …, and everstep worker",
        )
    if attempt.blocked is not None:
        raise attempt.blocked
    return attempt


def _begin(
    attempt: Attempt, signal: str | None, until: datetime | timedelta | None, key: str | None
) -> Callable[[Connection], Wait]:
    now = attempt.store.clock.now_ms()
    until_at = _milliseconds(until, now)
    at = arguments.position()
    if not at.stable:
        raise WaitInvalid(
            "a node waits in a graph with a checkpointer of its own, where a replay cannot find it again",
            next_step="compile that subgraph without a checkpointer",
        )
    if key is None:
        number = attempt.nth(at.body, (at.node_attempt, at.place, signal or ""))
        key = loose_digest([at.place, signal, number])
    node = at.place.rpartition("|")[2].partition(":")[0] or None

    def begin(connection: Connection) -> Wait:
        return waits.begin(
            connection,
            job_id=attempt.job_id,
            claim_no=attempt.claim_no,
            key=key,
            signal=signal,
            until_at=until_at,
            node=node,
            now=now,
        )

    return begin


def _milliseconds(until: Any, now: int) -> int | None:
    if until is None:
        return None
    if not isinstance(until, timedelta | datetime):
        raise WaitInvalid(
            f"a node waits until {until!r}, which is no moment and no span",
            next_step="give a datetime with its time zone, or a timedelta: timedelta(seconds=5)",
        )
    if isinstance(until, timedelta):
        moment = now + until // timedelta(milliseconds=1)
    elif until.tzinfo is None:
        raise WaitInvalid(
            f"the moment {until.isoformat()} has no time zone",
            next_step="give it one: datetime(…, tzinfo=UTC), or datetime.now(UTC) + timedelta(…)",
        )
    else:
        moment = (until - _FIRST) // timedelta(milliseconds=1)
    if moment >= waits.PARKED:
        raise WaitInvalid("the moment lies beyond the year 9999", next_step="wait for a nearer one, or for a signal")
    return moment


def _decided(wait: Wait) -> Wait:
    if wait.state == "open":
        value = {"waits": wait.told(), "signal": wait.signal, "until": wait.view()["until"]}
        raise GraphInterrupt((Interrupt(value=value, id=wait.interrupt_id),))
    return wait


def _arrived(wait: Wait) -> Arrived | None:
    if wait.state != "met":
        return None
    told = wait.value
    return Arrived(told["name"], told["payload"], datetime.fromisoformat(told["emitted_at"]), told["emitted_by"])
