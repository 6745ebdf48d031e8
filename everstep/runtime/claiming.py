"""How a worker comes to its jobs: it looks what is there, and claims; or claims with the end of another job.

A job that ends makes room for one more: the transaction that settles it claims the next, so a job costs one commit less
and its place is not empty for a moment. Only where nothing need be asked first: a look at the other workers and at the
record's version is fresh. A suspect that must run alone is never taken so, because something runs here.

An idle worker that is told of work claims at once, on the thread that hears of it, by a look that is as fresh.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from sqlalchemy import Connection, and_, exists, func, or_, select

from everstep.checkpoints import claims, deaths, jobs, migrate
from everstep.checkpoints.admission import Limits
from everstep.checkpoints.job_statements import LIVING
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.paid_view import SIGNAL
from everstep.checkpoints.schema import agent_jobs, provider_tasks, waits
from everstep.checkpoints.standstill import Standstill
from everstep.checkpoints.store import Store
from everstep.checkpoints.timers import next_moment
from everstep.runtime.identity import surely_dead, was_booted_since
from everstep.runtime.leg_spans import DeadLegs

FRESH_S = 1.0
"""How long a look holds for the claims that settlements make."""
SOON_S = 0.05
"""After this time a worker that claimed without a look has one."""
_NEVER_BEGAN = "its worker never began it"


@dataclass(frozen=True)
class Look:
    """What a look found.

    Attributes:
        ready: Whether a claim would find anything.
        moment: When something becomes ready by time alone, UTC milliseconds; None if nothing does for now.
    """

    ready: bool
    moment: int | None


class Claiming:
    """Claims for one worker.

    Args:
        store: The record.
        worker: The worker's id.
        graphs: The names of its graphs, as they are now.
        limits: How many jobs may run at once, over all workers.
        lease_ms: Length of a lease, milliseconds.
        alone_from: As for `claims.claim`.
        dead_legs: Told of legs whose process is gone.
    """

    def __init__(
        self,
        store: Store,
        worker: str,
        graphs: Callable[[], list[str]],
        *,
        limits: Limits,
        lease_ms: int,
        alone_from: int,
        dead_legs: DeadLegs,
    ) -> None:
        self._store = store
        self._worker = worker
        self._graphs = graphs
        self._limits = limits
        self._lease_ms = lease_ms
        self._alone_from = alone_from
        self._dead_legs = dead_legs
        self._standstill = Standstill()
        self._dead: list[str] = []
        self._looked_at = -FRESH_S
        self._offered = 0
        self._asked: Future[list[Job]] | None = None
        self._asking = threading.Lock()

    @property
    def is_fresh(self) -> bool:
        """Whether the last look is recent enough for settlements to claim by it."""
        return time.monotonic() - self._looked_at < FRESH_S

    async def look(self, running: Collection[int], *, ahead_s: float) -> Look:
        """Look who else holds jobs, and whether there is anything to do.

        Args:
            running: Row ids of the jobs that run here.
            ahead_s: How far to look ahead for what becomes ready by time, seconds.

        Raises:
            StoreTooNew: A newer Everstep migrated the record.
            StoreUnavailable: It cannot be read.
        """
        graphs, now = self._graphs(), self._store.clock.now_ms()

        def read(connection: Connection) -> tuple[list[str], bool, int | None]:
            migrate.check_version(migrate.version(connection), self._store.database.label)
            until = now + int(ahead_s * 1000)
            return (
                claims.other_holders(connection, worker=self._worker, graphs=graphs),
                claims.anything_ready(
                    connection, now=now, graphs=graphs, limits=self._limits, running=running, memory=self._standstill
                ),
                next_moment(connection, now=now, until=until, worker=self._worker, graphs=graphs),
            )

        others, ready, moment = await self._store.aread(read)
        self._dead = surely_dead(others)
        self._looked_at = time.monotonic()
        return Look(ready or bool(self._dead), moment)

    async def take(self, running: Collection[int], *, limit: int, ahead_s: float) -> tuple[list[Job], float | None]:
        """Claim up to `limit` jobs, if any is ready.

        Args:
            running: Row ids of the jobs that run here.
            limit: Most jobs to claim; with 0 it only looks.
            ahead_s: As for `look`.

        Returns:
            The jobs, and in how many seconds to look again, if that is known.
        """
        look = await self.look(running, ahead_s=ahead_s)
        soon_s = None if look.moment is None else (look.moment - self._store.clock.now_ms()) / 1000
        return await self.claim(running, limit=limit) if limit > 0 and look.ready else [], soon_s

    def offer(self, limit: int) -> None:
        """The worker is idle: until it asks `heard`, `ring` may claim so many jobs."""
        with self._asking:
            self._offered = limit

    def ring(self, told: Callable[[], None]) -> bool:
        """There is work for an idle worker: claim it, on whatever thread tells of it, with no look before.

        Args:
            told: Called when it is known what was claimed, on the writer's thread.

        Returns:
            Whether that is so; else the worker has to look.
        """
        with self._asking:
            limit, self._offered = self._offered, 0
            if not limit or not self.is_fresh:
                return False
            now = self._store.clock.now_ms()
            try:
                self._asked = self._store.write(lambda connection: self._claim(connection, (), now, limit))
            except RuntimeError:  # the record is closed
                return False
            self._asked.add_done_callback(lambda _: told())
            return True

    async def heard(self) -> list[Job]:
        """The worker is idle no more: what `ring` claimed for it.

        Raises:
            StoreUnavailable: The record cannot be written.
        """
        with self._asking:
            self._offered, asked = 0, self._asked
        if asked is None:
            return []
        try:
            claimed = await asyncio.shield(asyncio.wrap_future(asked))
        except Exception:
            self._asked = None
            raise
        self._asked = None  # not if this is cancelled: then whoever ends the worker asks again
        return claimed

    async def nothing_left(self) -> bool:
        """Whether no job is left that could run without a person, or a signal that somebody else emits.

        A job that sleeps, or waits for a paid task that a provider has, will run; one that waits for a user's signal
        may wait for days, also where a moment ends that, and one whose task another job is to submit, for that job.

        Raises:
            StoreUnavailable: The record cannot be read.
        """
        of_job = and_(waits.c.job_id == agent_jobs.c.id, waits.c.state == "open")
        its_task = provider_tasks.c.public_id == func.substr(waits.c.signal, len(SIGNAL) + 1)
        at_provider = exists().where(its_task, provider_tasks.c.state == "pending")
        ours = or_(waits.c.signal.is_(None), and_(waits.c.signal.startswith(SIGNAL, autoescape=True), at_provider))
        is_due = agent_jobs.c.next_run_at <= self._store.clock.now_ms()
        goes_on = or_(is_due, ~exists().where(of_job), exists().where(of_job, ours))
        could_run = and_(agent_jobs.c.graph.in_(self._graphs()), agent_jobs.c.status.in_(LIVING), goes_on)
        query = select(exists().where(could_run))
        return not await self._store.aread(lambda connection: connection.execute(query).scalar_one())

    async def claim(self, running: Collection[int], *, limit: int) -> list[Job]:
        """Claim up to `limit` jobs.

        Raises:
            StoreUnavailable: The record cannot be written.
        """
        now = self._store.clock.now_ms()
        return await self._store.awrite(lambda connection: self._claim(connection, running, now, limit))

    def claim_next(self, connection: Connection, running: Collection[int]) -> list[Job]:
        """In the transaction that settles a job of this worker: claim one for its place, by the last look.

        Args:
            connection: The write transaction.
            running: Row ids of the jobs that run here, the settled one among them.
        """
        if not self.is_fresh:
            return []
        return self._claim(connection, running, self._store.clock.now_ms(), 1)

    async def give_back(self, job_ids: Collection[int]) -> None:
        """What a settlement claimed and nobody here began waits again, with the attempt not counted.

        Args:
            job_ids: Row ids; one that this worker does not hold after all is left alone.

        Raises:
            StoreUnavailable: The record cannot be written.
        """
        now = self._store.clock.now_ms()

        def operation(connection: Connection) -> None:
            held = and_(agent_jobs.c.status == "running", agent_jobs.c.leased_by == self._worker)
            query = select(agent_jobs).where(agent_jobs.c.id.in_(list(job_ids)), held).order_by(agent_jobs.c.id)
            for row in connection.execute(query.with_for_update()).mappings().all():
                job = jobs.job_of(row)
                deaths.give_back(connection, job, now=now, due=now, actor=self._worker, reason=_NEVER_BEGAN)
                self._dead_legs.gave_back(connection, job, _NEVER_BEGAN, now=now)

        await self._store.awrite(operation)

    def _claim(self, connection: Connection, running: Collection[int], now: int, limit: int) -> list[Job]:
        dead = self._dead
        return claims.claim(
            connection,
            now=now,
            worker=self._worker,
            lease_ms=self._lease_ms,
            limit=limit,
            dead_workers=dead,
            graphs=self._graphs(),
            running=running,
            limits=self._limits,
            rebooted=[worker for worker in dead if was_booted_since(worker)],
            alone_from=self._alone_from,
            told=partial(self._dead_legs.died, now=now),
        )
