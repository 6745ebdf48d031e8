"""The spans of a leg and the record: what is known of a leg beforehand, what ends with it, and who closes a dead one's.

With tracing off nothing here reads or writes anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from sqlalchemy import Connection, Row, select

from everstep.checkpoints import spans
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.schema import agent_jobs, job_events, reviews
from everstep.checkpoints.spans import SpanWriter
from everstep.checkpoints.store import Store
from everstep.observability.leg import AnsweredReview
from everstep.observability.tracing import Ending, Leg, LegDescription, Tracing

MS = 1_000_000
"""Nanoseconds in a millisecond."""
WAITING = ("pending", "retry")
EVENTS = 50


def described(job: Job, worker: str) -> LegDescription:
    """A leg as its trace knows it, without a look at the record.

    Args:
        job: The job under the leg's claim.
        worker: Who holds or held the claim.
    """
    return LegDescription(
        job_id=job.public_id,
        leg=job.claim_no,
        graph=job.graph,
        thread_id=job.thread_id,
        worker=worker,
        attempts=job.attempts,
        previous_leg=job.claim_no - 1 if job.claim_no > 1 else None,
        started_ns=job.updated_at * MS,
    )


def looked_up(connection: Connection, job: Job, worker: str) -> LegDescription:
    """As `described`, with what the record tells besides: when it was claimed, what the job had waited for, who asked.

    Args:
        connection: A snapshot, or the transaction that closes the leg.
        job: The job under the leg's claim.
        worker: Who holds or held the claim.
    """
    about = described(job, worker)
    events = select(job_events).where(job_events.c.job_id == job.id, job_events.c.claim_no <= job.claim_no)
    # The claim, and what lies between it and the leg before: a few rows, unless somebody retries by hand for sport.
    newest = connection.execute(events.order_by(job_events.c.id.desc()).limit(EVENTS)).all()
    claim = next((at for at, row in enumerate(newest) if _is_claim(row, job.claim_no)), None)
    if claim is None:
        return about
    claimed_at = newest[claim].at
    waiting = list(takewhile(lambda row: row.to_status in WAITING, newest[claim + 1 :]))
    about = replace(about, started_ns=claimed_at * MS, answered=_answered(connection, job, newest[claim + 1 :]))
    if waiting:
        first = waiting[-1]
        reason = "queue" if first.to_status == "pending" else "service" if " waits for " in first.reason else "backoff"
        about = replace(about, wait_ms=max(claimed_at - first.at, 0), wait_reason=reason)
    return about if job.parent_id is None else _with_parent(connection, about, job, job.parent_id)


def _is_claim(row: Row[Any], claim_no: int) -> bool:
    return row.to_status == "running" and row.claim_no == claim_no


def _answered(connection: Connection, job: Job, before: Sequence[Row[Any]]) -> tuple[AnsweredReview, ...]:
    """The questions that were answered between the leg before this one and this."""
    since = next((row.at for row in before if row.to_status == "running"), None)
    if since is None or not any(row.to_status == "review" for row in before):
        return ()
    query = select(reviews).where(reviews.c.job_id == job.id, reviews.c.status == "answered")
    rows = connection.execute(query.where(reviews.c.answered_at >= since).order_by(reviews.c.id))
    return tuple(
        AnsweredReview(row.public_id, row.kind, row.decision, row.created_at * MS, row.answered_at * MS) for row in rows
    )


def _with_parent(connection: Connection, about: LegDescription, job: Job, parent_id: int) -> LegDescription:
    """The job that enqueued it, and in which leg: the one that had been claimed last."""
    parent = connection.execute(select(agent_jobs.c.public_id).where(agent_jobs.c.id == parent_id)).scalar()
    claim = select(job_events.c.claim_no).where(job_events.c.job_id == parent_id, job_events.c.to_status == "running")
    claim = claim.where(job_events.c.at <= job.created_at).order_by(job_events.c.id.desc()).limit(1)
    return replace(about, parent_job_id=parent, parent_leg=connection.execute(claim).scalar())


def clock_of(store: Store) -> Callable[[], int]:
    """A clock for one leg, in nanoseconds: the record's when it starts, then steady, whatever happens to that one."""
    began, then = time.monotonic_ns(), store.clock.now_ms() * MS
    return lambda: then + time.monotonic_ns() - began


def writer_of(store: Store, tracing: Tracing, span: Leg, job: Job) -> SpanWriter | None:
    """What takes the leg's spans into the record; None if they do not go there."""
    if (buffer := span.buffer) is None:
        return None
    names = [destination.name for destination in tracing.destinations]
    writer = SpanWriter(store, buffer, job.id, job.claim_no, destinations=names, written=tracing.news)
    buffer.when_much(writer.write_alone)
    return writer


class DeadLegs:
    """Closes the traces of legs whose process is gone, in the transaction that judges them.

    Args:
        tracing: What makes spans.
    """

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    def died(self, connection: Connection, job: Job, how: str, goes_on: bool, *, now: int) -> None:
        """The leg's process is gone.

        Args:
            connection: The write transaction.
            job: The job under the leg's claim, as it was then.
            how: In words: `lease expired`, `its process was killed by SIGKILL`.
            goes_on: Whether the job goes on without a person.
            now: UTC milliseconds.
        """
        where = f"after step {job.step}" + (f" (next: {job.node})" if job.node else "")
        reason = f"{how} {where}, worker {job.leased_by}"
        self._close(connection, job, "died", reason, now, is_failure=True, goes_on=goes_on)

    def gave_back(self, connection: Connection, job: Job, reason: str, *, now: int) -> None:
        """The leg never began."""
        self._close(connection, job, "released", reason, now, is_failure=False, goes_on=True)

    def _close(
        self, connection: Connection, job: Job, outcome: str, reason: str, now: int, *, is_failure: bool, goes_on: bool
    ) -> None:
        if not self._tracing.is_recorded():
            return
        about = looked_up(connection, job, job.leased_by or "")
        last_ns = max(job.updated_at * MS, spans.last_start_ns(connection, job.id, job.claim_no))
        apart = reason.startswith("its process ")  # as `isolation` says it
        ending = Ending(outcome, last_ns, reason, is_failure=is_failure, goes_on=goes_on, apart=apart)
        names = [destination.name for destination in self._tracing.destinations]
        lost = spans.missing(connection, job.id, job.claim_no, about.root_span_id)
        ended = self._tracing.closed(about, ending, lost)
        spans.write(connection, job.id, job.claim_no, ended, destinations=names, now=now)
        self._tracing.news()
