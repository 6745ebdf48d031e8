"""One claimed job as a process runs it: its leg, what the heartbeat and the worker tell it, and its settlement.

The worker makes one for each job it runs itself; the process of an isolated job makes one, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from langgraph.runtime import RunControl
from sqlalchemy import Connection

from everstep import crash
from everstep.checkpoints import claims
from everstep.checkpoints.jobs import Job, LostClaim
from everstep.checkpoints.store import Store
from everstep.errors import StoreUnavailable
from everstep.graphs.loader import GraphCatalogue
from everstep.graphs.policies import Policies
from everstep.nodes.providers.registry import Providers
from everstep.observability import metric_names
from everstep.observability.cost import Price
from everstep.observability.log_context import about_leg
from everstep.observability.measures import NOTHING, Measures
from everstep.observability.tracing import Tracing
from everstep.runtime.leg import Leg
from everstep.runtime.outage import RecordOutage
from everstep.runtime.settle import Outcome, settle

logger = logging.getLogger("everstep.worker")

SETTLE_RETRY_S = 5.0
DRAINING = "worker is draining"

Listener = Callable[[str, Job], None]


def _none(_connection: Connection, _settled: Job) -> list[Job]:
    return []


def _leave(_job: Job) -> None:
    """Nothing is claimed, so nothing is started."""


@dataclass(frozen=True)
class Surroundings:
    """What all runs of one process share.

    Attributes:
        store: The record.
        graphs: Where graphs come from.
        tracing: Where spans go.
        worker: Who holds the claims.
        randomness: For the jitter of a backoff.
        tiers: The plan each service's account should be on.
        tell: Called with the status a job was settled as, and the job.
        prices: US dollars for a million tokens, by model name.
        outage: Told when the record cannot be written.
        measures: What the process measures.
        claim_next: Claims a job for the place of one that is settled, in the same transaction; on the writer's thread.
        start: Starts what it claimed.
        providers: The providers of paid work that there are.
    """

    store: Store
    graphs: GraphCatalogue
    tracing: Tracing
    worker: str
    randomness: random.Random
    tiers: Mapping[str, str]
    tell: Listener
    prices: Mapping[str, Price] = field(default_factory=dict[str, Price])
    outage: RecordOutage = field(default_factory=RecordOutage)
    measures: Measures = NOTHING
    claim_next: Callable[[Connection, Job], list[Job]] = _none
    start: Callable[[Job], None] = _leave
    providers: Providers = field(default_factory=Providers)

    @classmethod
    def of(
        cls,
        policies: Policies,
        *,
        store: Store,
        graphs: GraphCatalogue,
        tracing: Tracing,
        worker: str,
        randomness: random.Random,
        tell: Listener,
        outage: RecordOutage,
        providers: Providers,
        measures: Measures = NOTHING,
        claim_next: Callable[[Connection, Job], list[Job]] = _none,
        start: Callable[[Job], None] = _leave,
    ) -> Surroundings:
        """With what `everstep.toml` says, for a worker and for the process of one job alike."""
        return cls(
            store,
            graphs,
            tracing,
            worker,
            randomness,
            policies.tiers(),
            tell,
            policies.prices,
            outage,
            measures,
            claim_next,
            start,
            providers,
        )


def about(job: Job, **known: object) -> AbstractContextManager[None]:
    """Let what is logged here say that it is about this claim of a job; see `about_leg`."""
    return about_leg(job.public_id, job.claim_no, graph=job.graph, attempt=job.attempts, **known)


class Run:
    """One claimed job under way on the event loop.

    Attributes:
        job: The job as claimed.
        lost: Whether its claim was lost; what it wrote afterwards changed nothing.
        settled: The job as it was settled, once it was.
        error: Why it could not be settled, if so.

    Args:
        around: What it shares with others.
        job: The job as claimed.
        own_loop: Whether the loop runs nothing but jobs, so that its end is the worker's end.
    """

    def __init__(self, around: Surroundings, job: Job, *, own_loop: bool) -> None:
        self.job = job
        self.lost = False
        self.settled: Job | None = None
        self.error: Exception | None = None
        self._around = around
        self._own_loop = own_loop
        self._control = RunControl()
        self._leg = Leg(
            around.store,
            around.graphs,
            around.tracing,
            job,
            worker=around.worker,
            control=self._control,
            prices=around.prices,
            measures=around.measures,
            providers=around.providers,
        )
        self._cancel_requested = False
        self._settling = False
        self._draining = False
        self._cut_short = False
        self._check: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, over: Callable[[Run], None]) -> None:
        """Begin, on the running loop; `over` is called when nothing of it is left there."""

        async def run() -> None:
            try:
                with about(self.job, worker=self._around.worker):
                    await self._run()
            finally:
                over(self)

        self._task = asyncio.create_task(run(), name=f"job {self.job.public_id}")

    async def wait(self) -> None:
        """Until it is over; raises nothing but the caller's own cancellation."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def drain(self) -> None:
        """Give the job back at its next step."""
        self._draining = True
        self._control.request_drain(DRAINING)

    def end(self) -> None:
        """The worker is being stopped: end now."""
        if self._task is not None:
            self._task.cancel()

    def beat(self, claim_no: int | None, cancel_requested: bool) -> None:
        """Stop if the claim is lost or the job's cancellation was requested.

        Args:
            claim_no: The claim that the last heartbeat extended; None if it found none.
            cancel_requested: Whether somebody asked to cancel the job.
        """
        if self._settling or self.lost or self._task is None:
            return
        if claim_no == self.job.claim_no:
            self._leg.spending.beat()
            if cancel_requested:  # at every beat: a node may have swallowed the first
                self._cancel_requested = True
                self._leg.stop()
                self._task.cancel()
        else:
            # Not held at that beat: lost, or claimed after it. The record tells which.
            self._check = asyncio.get_running_loop().create_task(self._stop_if_lost(self._task))

    async def _stop_if_lost(self, task: asyncio.Task[None]) -> None:
        job = self.job
        try:
            await self._around.store.aread(
                lambda connection: claims.fence(connection, job.id, job.claim_no, writing=False)
            )
        except LostClaim as lost:
            self._leg.lost(lost)
            if not self._settling:
                self.lost = True
                task.cancel()

    async def _run(self) -> None:
        job = self.job
        try:
            async with self._settlement():
                await self._leg.run()
        except LostClaim as lost:
            self.lost = True
            self._leg.lost(lost)
            logger.warning("job %s was taken over; this run's late writes change nothing (%s)", job.public_id, lost)
        except Exception as error:
            self.error = error
            logger.exception("job %s: the leg could not be settled; its lease will expire", job.public_id)
        finally:
            self._leg.abandon()

    @contextlib.asynccontextmanager
    async def _settlement(self) -> AsyncGenerator[None]:
        """Settle the job by what the leg came to, however it ended."""
        job, leg = self.job, self._leg
        try:
            yield
        except asyncio.CancelledError:
            if self.lost:
                raise LostClaim(f"job {job.public_id}: claim {job.claim_no} is no longer its claim") from None
            if self._cancel_requested:
                self._settling = True
                await leg.quiet()
                leg.cancelled()
            elif self._own_loop or not await self._released():  # what a node did tears it down
                raise
        self._settling = True
        crash.point("job.before_settle")
        settled, following = await self._settle(leg.outcome())
        self.settled = settled
        crash.point("job.settled")
        if following:
            crash.point("job.claimed")
        try:
            leg.close()
            self._around.tell(settled.status, settled)
        finally:
            if not self._cut_short:
                for following_job in following:
                    self._around.start(following_job)

    async def _released(self) -> bool:
        await self._leg.quiet()
        return self._leg.release()

    async def _settle(self, outcome: Outcome) -> tuple[Job, list[Job]]:
        """Write what the leg came to; while the record cannot be written, try again: the lease guards the job.

        Returns:
            The job as it is settled, and what was claimed for its place in the same transaction.
        """
        around = self._around
        claim_failed = False

        def operation(connection: Connection) -> tuple[Job, list[Job]]:
            nonlocal claim_failed
            self._leg.spending.note(connection)
            settled = settle(
                connection,
                self.job,
                outcome,
                now=around.store.clock.now_ms(),
                actor=around.worker,
                randomness=around.randomness,
                tiers=around.tiers,
            )
            self._leg.end_spans(connection, settled)
            if claim_failed:
                return settled, []
            claim_failed = True  # unless it passes; then this is run again without it
            following = around.claim_next(connection, settled)
            claim_failed = False
            return settled, following

        settlement = f"the settlement of {self.job.public_id}"
        try:
            while True:
                failed_before = claim_failed
                try:
                    return await self._heard(around.store.write(operation))
                except StoreUnavailable as error:
                    if self._draining or self._cut_short:
                        raise
                    around.outage.met(settlement, error)
                    await asyncio.sleep(SETTLE_RETRY_S)
                except Exception as error:
                    if claim_failed and not failed_before:
                        logger.warning("no job could be claimed for the place of %s: %r", self.job.public_id, error)
                    elif isinstance(error, LostClaim):
                        around.measures.add(metric_names.STALE_WRITES)
                        raise
                    else:
                        raise
        finally:
            around.outage.passed(settlement)

    async def _heard(self, write: Future[tuple[Job, list[Job]]]) -> tuple[Job, list[Job]]:
        """What a settlement came to. It is waited for also when this run is ended, because it may be committed."""
        written = asyncio.wrap_future(write)
        while not written.done():
            try:
                await asyncio.wait([written])
            except asyncio.CancelledError:
                self._cut_short = True
        return written.result()
