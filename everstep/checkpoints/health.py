"""How the record is: what waits and for how long, what nobody works on, what grows. One look, for people and monitors.

`everstep doctor` makes advice of it, `everstep metrics` numbers. It stays quick on a big record: it counts by indexes,
and of the events it reads the last hour's alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Connection, and_, case, func, or_, select, true

from everstep.checkpoints import deliveries as outbox
from everstep.checkpoints import provider_health, schedules, trigger_events
from everstep.checkpoints.admission import Admission, Limits
from everstep.checkpoints.job_statements import UNFINISHED, WAITING
from everstep.checkpoints.provider_health import ProviderHealth
from everstep.checkpoints.schema import (
    EFFECT_STATES,
    GATES,
    STATUSES,
    agent_jobs,
    effects,
    job_events,
    reviews,
    services,
    span_destinations,
    span_outbox,
)

if TYPE_CHECKING:
    from everstep.checkpoints.store import Store

HOUR_MS = 3_600_000
STUCK_MS = HOUR_MS
OVERDUE_MS = 60_000
STUCK_LEASES = 10
NAMED = 5
"""How many jobs of a kind are named."""

_VANISHED = ("worker processes died", "its worker ", "its process ")
"""How the reasons begin for which `claims` and `deaths` take a job from a worker that is gone, and do not start it."""


@dataclass(frozen=True)
class Delivery:
    """How spans reach one destination.

    Attributes:
        waiting: Spans that wait for it.
        delivered: Spans it has taken.
        dropped: Spans that were given up.
        failing_ms: How long it has refused every span; 0 if it does not.
    """

    waiting: int = 0
    delivered: int = 0
    dropped: int = 0
    failing_ms: int = 0


@dataclass(frozen=True)
class Health:
    """The record at one moment. Times are milliseconds, sizes bytes.

    Attributes:
        at: When, UTC milliseconds.
        jobs: Jobs by state, all six.
        due: Jobs that could start now by their time (pending, or in retry with the backoff over).
        oldest_due_ms: How long the one that waits longest has been due; None if none is.
        oldest_due_job: Its id.
        held: Those of the due jobs that may not start: they need a service that is out, or a place that others hold.
        oldest_free_ms: How long the one that waits longest of the others has been due; None if there is none.
        oldest_free_job: Its id.
        busy_workers: Workers that hold a living lease; an idle worker leaves no trace in the record.
        expired_leases: Running jobs whose lease has run out: their worker is gone, and none took them over yet.
        expired_jobs: Ids of the first few.
        stuck: Running jobs with a living lease that stored nothing (no checkpoint, no finished task, no effect) for an
            hour, and for ten times their lease if that is longer.
        stuck_jobs: Ids of the first few.
        unknown_effects: Effects of unfinished jobs of which nobody knows whether they happened.
        open_reviews: Questions that wait for a person.
        oldest_review_ms: Age of the oldest of them; None if there is none.
        retries_last_hour: Failures after which a job waits and tries again.
        lease_expiries_last_hour: Jobs taken over, or given up, because their worker vanished.
        services: Services by the state of their gate.
        size: What the record takes.
        log_size: What SQLite's write-ahead log takes of it; None where the database keeps its own.
        effects: Effects of unfinished jobs by state, all four.
        attempts_last_hour: Jobs started, or taken over.
        reviews_last_hour: Jobs that stopped for a person.
        done_last_hour: Jobs that were done.
        dead_letters_last_hour: Jobs that failed for good.
        outages_ms: For each service that is known, the oldest first: how long it has been out; 0 if it is not.
        deliveries: For each destination of spans, how they reach it.
        overdue: Schedules that should have begun a minute ago or earlier: nobody handles schedules.
        overdue_ms: For how long the first of them.
        webhooks: Messages to webhooks that wait (`pending`) or were given up (`dead`).
        trigger_events: By source and state: events that came in the last hour.
        trigger_waits_ms: By source: how long each of them waited for the start of its job.
        providers: Paid provider tasks.
    """

    at: int
    jobs: dict[str, int]
    due: int
    oldest_due_ms: int | None
    oldest_due_job: str | None
    busy_workers: int
    expired_leases: int
    expired_jobs: tuple[str, ...]
    stuck: int
    stuck_jobs: tuple[str, ...]
    unknown_effects: int
    open_reviews: int
    oldest_review_ms: int | None
    retries_last_hour: int
    lease_expiries_last_hour: int
    services: dict[str, int]
    size: int
    log_size: int | None
    effects: dict[str, int] = field(default_factory=dict[str, int])
    attempts_last_hour: int = 0
    reviews_last_hour: int = 0
    done_last_hour: int = 0
    dead_letters_last_hour: int = 0
    outages_ms: dict[str, int] = field(default_factory=dict[str, int])
    deliveries: dict[str, Delivery] = field(default_factory=dict[str, Delivery])
    held: int = 0
    oldest_free_ms: int | None = None
    oldest_free_job: str | None = None
    overdue: tuple[str, ...] = ()
    overdue_ms: int | None = None
    webhooks: dict[str, int] = field(default_factory=dict[str, int])
    trigger_events: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    trigger_waits_ms: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    providers: ProviderHealth = field(default_factory=ProviderHealth)


def examine(store: Store, limits: Limits | None = None) -> Health:
    """How the record is now.

    Args:
        store: The record; it is only read.
        limits: How many jobs may run at once, as far as the caller knows.

    Raises:
        StoreUnavailable: It cannot be read.
    """
    now, log_size = store.clock.now_ms(), store.database.log_size()
    limits = limits or Limits()
    return store.read(lambda connection: _snapshot(connection, now, limits, store.database.size(connection), log_size))


def _snapshot(connection: Connection, now: int, limits: Limits, size: int, log_size: int | None) -> Health:
    job = agent_jobs.c
    due = and_(job.status.in_(WAITING), job.next_run_at <= now)
    number = _count(connection, agent_jobs, due)
    may_start = Admission.read(connection, limits, now=now, lock=False).clause()
    oldest, free = _oldest_due(connection, now, true()), _oldest_due(connection, now, may_start)
    running = job.status == "running"
    expired = and_(running, job.lease_until <= now)
    # A lease is renewed at least each second, so what is left of it tells how long it is.
    silent = and_(job.updated_at <= now - STUCK_MS, job.updated_at <= now - STUCK_LEASES * (job.lease_until - now))
    stuck = and_(running, job.lease_until > now, silent)
    workers = select(func.count(job.leased_by.distinct())).where(running, job.lease_until > now)
    unfinished = select(job.id).where(job.status.in_(UNFINISHED), job.claim_no > 0)
    asked = select(func.count(), func.min(reviews.c.created_at)).where(reviews.c.status == "open")
    (open_reviews, first_asked) = connection.execute(asked).one()
    of_unfinished = effects.c.job_id.in_(unfinished)
    by_state = dict.fromkeys(EFFECT_STATES, 0) | _by(connection, effects.c.state, of_unfinished)
    events, vanished = _last_hour(connection, now)
    overdue = schedules.overdue(connection, before=now - OVERDUE_MS)
    return Health(
        at=now,
        jobs=dict.fromkeys(STATUSES, 0) | _by(connection, job.status),
        due=number,
        oldest_due_ms=None if oldest is None else now - oldest.next_run_at,
        oldest_due_job=None if oldest is None else oldest.public_id,
        busy_workers=connection.execute(workers).scalar_one(),
        expired_leases=_count(connection, agent_jobs, expired),
        expired_jobs=_ids(connection, expired),
        stuck=_count(connection, agent_jobs, stuck),
        stuck_jobs=_ids(connection, stuck),
        unknown_effects=by_state["unknown"],
        open_reviews=open_reviews,
        oldest_review_ms=None if first_asked is None else max(now - first_asked, 0),
        retries_last_hour=events["retry"],
        lease_expiries_last_hour=vanished,
        services=dict.fromkeys(GATES, 0) | _by(connection, services.c.gate),
        size=size,
        log_size=log_size,
        effects=by_state,
        attempts_last_hour=events["running"],
        reviews_last_hour=events["review"],
        done_last_hour=events["done"],
        dead_letters_last_hour=events["failed"],
        outages_ms=_outages(connection, now),
        deliveries=_deliveries(connection, now),
        held=number - _count(connection, agent_jobs, and_(due, may_start)),
        oldest_free_ms=None if free is None else now - free.next_run_at,
        oldest_free_job=None if free is None else free.public_id,
        overdue=tuple(schedule.label for schedule in overdue),
        overdue_ms=now - (overdue[0].next_fire_at or now) if overdue else None,
        webhooks=outbox.count(connection),
        trigger_events=trigger_events.recent(connection, since=now - HOUR_MS),
        trigger_waits_ms=trigger_events.waits(connection, since=now - HOUR_MS),
        providers=provider_health.look(connection, now),
    )


def _oldest_due(connection: Connection, now: int, condition: ColumnElement[bool]) -> Any:
    due = select(agent_jobs.c.public_id, agent_jobs.c.next_run_at).where(agent_jobs.c.next_run_at <= now, condition)
    first = due.order_by(agent_jobs.c.next_run_at).limit(1)
    found = [connection.execute(first.where(agent_jobs.c.status == status)).first() for status in WAITING]
    return min((row for row in found if row is not None), key=lambda row: row.next_run_at, default=None)


def _by(
    connection: Connection, column: ColumnElement[str], condition: ColumnElement[bool] | None = None
) -> dict[str, int]:
    counts = select(column, func.count()).group_by(column)
    counts = counts if condition is None else counts.where(condition)
    return {str(row[0]): int(row[1]) for row in connection.execute(counts)}


def _count(connection: Connection, table: Any, condition: ColumnElement[bool]) -> int:
    return int(connection.execute(select(func.count()).select_from(table).where(condition)).scalar_one())


def _ids(connection: Connection, condition: ColumnElement[bool]) -> tuple[str, ...]:
    found: Sequence[str] = (
        connection.execute(select(agent_jobs.c.public_id).where(condition).order_by(agent_jobs.c.id).limit(NAMED))
        .scalars()
        .all()
    )
    return tuple(found)


def _last_hour(connection: Connection, now: int) -> tuple[dict[str, int], int]:
    """How many jobs came to each state in the last hour, and how many left `running` since their worker vanished."""
    event = job_events.c
    taken_over = or_(event.to_status == "running", *(event.reason.startswith(words) for words in _VANISHED))
    recent = and_(event.id >= first_event_since(connection, now - HOUR_MS), event.at > now - HOUR_MS)
    vanished = and_(event.from_status == "running", taken_over)
    # Sums in one pass: grouping would sort a busy hour's events.
    sums = [func.sum(case((found, 1), else_=0)) for found in (*(event.to_status == to for to in STATUSES), vanished)]
    *counts, gone = (int(found or 0) for found in connection.execute(select(*sums).where(recent)).one())
    return dict(zip(STATUSES, counts, strict=True)), gone


def _outages(connection: Connection, now: int) -> dict[str, int]:
    known = select(services.c.name, services.c.gate, services.c.closed_at).order_by(services.c.id)
    return {
        row.name: max(now - row.closed_at, 0) if row.gate == "closed" and row.closed_at is not None else 0
        for row in connection.execute(known)
    }


def _deliveries(connection: Connection, now: int) -> dict[str, Delivery]:
    waiting = _by(connection, span_outbox.c.destination)
    found = {
        row.name: Delivery(
            waiting.pop(row.name, 0),
            row.delivered,
            row.dropped,
            0 if row.failing_since is None else max(now - row.failing_since, 0),
        )
        for row in connection.execute(select(span_destinations).order_by(span_destinations.c.id))
    }
    return found | {name: Delivery(count) for name, count in waiting.items()}


def first_event_since(connection: Connection, at: int) -> int:
    """Row id from which on the events are at least so new, found by halving: they are written in the order of time.

    After a clock that was set back it may lie an event too early or too late by what the clock was wrong.

    Args:
        connection: A snapshot.
        at: UTC milliseconds.

    Returns:
        The id; the next one to come if there is no such event.
    """
    low, high = connection.execute(select(func.min(job_events.c.id), func.max(job_events.c.id))).one()
    if low is None:
        return 0
    high += 1
    while low < high:
        middle = (low + high) // 2  # ids may have gaps, so the event at or after it is looked at
        event = select(job_events.c.id, job_events.c.at).where(job_events.c.id >= middle).order_by(job_events.c.id)
        found = connection.execute(event.limit(1)).first()
        if found is None or found.at >= at:
            high = middle
        else:
            low = found.id + 1
    return low
