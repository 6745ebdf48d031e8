"""The spans of a leg and the record: what is known of a leg beforehand, what ends with it, and who closes a dead one's.

With tracing off nothing here reads or writes anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sqlalchemy import Connection, select

from everstep.checkpoints import spans
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.schema import job_events
from everstep.checkpoints.spans import SpanWriter
from everstep.checkpoints.store import Store
from everstep.observability.tracing import Ending, Leg, LegDescription, Tracing

MS = 1_000_000
"""Nanoseconds in a millisecond."""


def described(job: Job, worker: str, claimed_at: int) -> LegDescription:
    """A leg as its trace knows it.

    Args:
        job: The job under the leg's claim.
        worker: Who holds or held the claim.
        claimed_at: When it was made, UTC milliseconds.
    """
    return LegDescription(
        job_id=job.public_id,
        leg=job.claim_no,
        graph=job.graph,
        thread_id=job.thread_id,
        worker=worker,
        attempts=job.attempts,
        previous_leg=job.claim_no - 1 if job.claim_no > 1 else None,
        started_ns=claimed_at * MS,
    )


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
        where = f"after step {job.step}" + (f" in node {job.node}" if job.node else "")
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
        of_leg = (job_events.c.job_id == job.id, job_events.c.claim_no == job.claim_no)
        claim = select(job_events.c.at).where(*of_leg, job_events.c.to_status == "running").order_by(job_events.c.id)
        claimed_at = connection.execute(claim.limit(1)).scalar()
        about = described(job, job.leased_by or "", job.updated_at if claimed_at is None else claimed_at)
        last_ns = max(job.updated_at * MS, spans.last_start_ns(connection, job.id, job.claim_no))
        ending = Ending(outcome, last_ns, reason, is_failure=is_failure, goes_on=goes_on)
        names = [destination.name for destination in self._tracing.destinations]
        root = self._tracing.closed(about, ending)
        spans.write(connection, job.id, job.claim_no, root, destinations=names, now=now)
        self._tracing.news()
