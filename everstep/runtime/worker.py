"""The worker loop: claim, run, settle; many jobs at once in one process.

Async nodes share the event loop, sync nodes run in threads, the heartbeat is a thread of its own. Waiting jobs hold no
worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import random
import signal
import threading
import time
from typing import Any

from sqlalchemy import Connection

from everstep import crash
from everstep.checkpoints import deaths, jobs
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.store import Store
from everstep.errors import EverstepError, StoreTooNew, StoreUnavailable
from everstep.graphs.loader import GraphCatalogue
from everstep.graphs.policies import Policies
from everstep.graphs.provider_faults import usable_providers
from everstep.nodes.providers.registry import Providers
from everstep.observability import tracing as tracing_module
from everstep.observability.measures import Measures
from everstep.observability.tracing import Tracing
from everstep.runtime import heap, langgraph_fixes, measuring
from everstep.runtime.beside import Beside
from everstep.runtime.claiming import SOON_S, Claiming
from everstep.runtime.failed_starts import FailedStarts
from everstep.runtime.heartbeat import Held
from everstep.runtime.identity import worker_id
from everstep.runtime.isolation import IsolatedRun
from everstep.runtime.leg import service_version
from everstep.runtime.leg_spans import DeadLegs
from everstep.runtime.node_threads import NodeThreads
from everstep.runtime.outage import RecordOutage
from everstep.runtime.probes import Probes
from everstep.runtime.run import Listener, Run, Surroundings, about
from everstep.runtime.unserved import Unserved

logger = logging.getLogger("everstep.worker")

NODE_THREADS = 8
UNTIL_IDLE_POLL_S = 0.2
"""How often a worker that ends when nothing is left looks whether that is so: nobody tells of a job's end."""


class Worker:
    """Runs jobs of a record.

    Attributes:
        id: Who it is in the record.
        lost_claims: How often a job was taken over from it; what it wrote afterwards changed nothing.

    Args:
        store: The record.
        graphs: The graphs it can run: a catalogue, or graphs by name. Jobs of other graphs are left for other workers.
        concurrency: Most jobs at once.
        lease: Seconds a claim lasts without a heartbeat.
        listener: Called with `claimed`, or the status a job was settled as, and the job.
        tracing: Where spans go; from the environment when omitted.
        randomness: Source of the backoffs' jitter.
        policies: What `everstep.toml` says; nothing is limited when omitted.
        isolate: Whether every job runs in a process of its own; False: none does. When omitted, those do that are
            suspected of having killed a worker. It takes a catalogue that was read from a file, because no other
            process has graphs given as objects; without one, and with False, a suspect runs in this process while
            nothing else does.
        measures: What it measures with; by OTLP, if the environment says so, when omitted. The worker closes it.
        providers: The providers of paid work; those of `policies` when omitted.

    Raises:
        ConfigInvalid: The description of a provider is not what it can be.
        ValueError: A number is out of range, or every job is to be isolated and the graphs come from no file.
    """

    def __init__(
        self,
        store: Store,
        graphs: GraphCatalogue | dict[str, Any],
        *,
        concurrency: int = 4,
        lease: float = jobs.DEFAULT_LEASE_MS / 1000,
        listener: Listener | None = None,
        tracing: Tracing | None = None,
        randomness: random.Random | None = None,
        policies: Policies | None = None,
        isolate: bool | None = None,
        measures: Measures | None = None,
        providers: Providers | None = None,
    ) -> None:
        if concurrency < 1 or lease <= 0:
            raise ValueError("concurrency must be at least 1, and the lease longer than 0 seconds")
        langgraph_fixes.apply()
        self.id = worker_id()
        self.lost_claims = 0
        self.node_threads: NodeThreads | None = None
        self._store = store
        self._graphs = graphs if isinstance(graphs, GraphCatalogue) else GraphCatalogue.from_graphs(graphs)
        self._unserved = Unserved(store, self._graphs)
        self._concurrency = concurrency
        self._lease_ms = int(lease * 1000)
        self._listener = listener
        self._tracing = tracing or tracing_module.from_environment(service_version=service_version())
        dead_legs = DeadLegs(self._tracing)
        randomness = randomness or random.Random()
        self._policies = policies or Policies()
        providers = providers or usable_providers(self._policies.providers, self._graphs)
        self._probes = Probes(store, self._policies, randomness)
        self._outage = RecordOutage()
        self._ends_with: EverstepError | None = None
        self._failed_starts = FailedStarts()
        in_file = self._graphs.configuration is not None
        if isolate and not in_file:
            raise ValueError("isolate needs graphs from a file: Worker(store, GraphCatalogue.from_config(PATH), …)")
        self._isolates_from = 0 if isolate else 1 if in_file and isolate is None else None
        self._alone_from = 1 if self._isolates_from is None else deaths.ALONE
        self._running: dict[int, Run | IsolatedRun] = {}
        self._following: dict[int, list[int]] = {}
        self._unheard: set[int] = set()
        self._measures = measuring.begin(store) if measures is None else measures
        self._legs = measuring.Legs(self._measures)
        self._claiming = Claiming(
            store,
            self.id,
            self._graphs.names,
            limits=self._policies.limits(),
            lease_ms=self._lease_ms,
            alone_from=self._alone_from,
            dead_legs=dead_legs,
        )
        self._around = Surroundings.of(
            self._policies,
            store=store,
            graphs=self._graphs,
            tracing=self._tracing,
            worker=self.id,
            randomness=randomness,
            tell=self._tell,
            outage=self._outage,
            providers=providers,
            measures=self._measures,
            claim_next=self._claim_next,
            start=self._start_next,
        )
        self._draining = self._ending = False
        self._own_loop = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._context = contextvars.copy_context()
        self._wake = asyncio.Event()
        self._look_at = 0.0

    @property
    def outage_backoff_s(self) -> float:
        """Seconds in which nothing is claimed after the record could not be written; 60 unless set otherwise."""
        return self._outage.backoff_s

    @outage_backoff_s.setter
    def outage_backoff_s(self, seconds: float) -> None:
        self._outage.backoff_s = seconds

    def run(self, *, until_idle: bool = False) -> None:
        """Run until drained; in the main thread SIGTERM and SIGINT drain, and a second one exits at once."""
        asyncio.run(self._run_with_signals(until_idle))

    async def run_async(self, *, until_idle: bool = False) -> None:
        """Claim and run jobs until drained. Sync nodes run on the loop's default executor; make it large enough.

        Args:
            until_idle: Return when no job is left that could run without a person.

        Raises:
            StoreTooNew: A newer Everstep migrated the record meanwhile; the jobs were given back.
            IsolationImpossible: No process for an isolated job could be started any more; neither was any job lost.
        """
        self._graphs.items_of(self._store, "default")  # what is configured and not possible is told before any job runs
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._wake = asyncio.Event()
        beside = Beside(
            self._around,
            self._policies,
            lease_ms=self._lease_ms,
            slots=self._concurrency,
            held=self._held,
            on_beat=self._on_beat,
            hear=self._hear,
        )
        try:
            beside.start()
            poll_s = min(beside.poll_s, UNTIL_IDLE_POLL_S) if until_idle else beside.poll_s
            while True:
                self._look_at = time.monotonic() + poll_s
                if self._unheard and not self._outage.wait_s:
                    await self._give_back()
                claimed = await self._claim(poll_s)
                for job in claimed:
                    self._start(job)
                if self._draining and not self._running:
                    if self._ends_with is not None:
                        raise self._ends_with
                    return
                if not self._draining:
                    await self._probes.ask()
                if not claimed and not self._draining:
                    await self._unserved.tell(at_once=until_idle and not self._running)
                if until_idle and not self._running and not claimed and await self._nothing_left():
                    return
                if not (self._held() or self._draining or self._outage.wait_s):
                    self._claiming.offer(self._concurrency)
                await self._pause(max(self._look_at - time.monotonic(), 0.001))
        finally:
            self._ending = True
            for running in list(self._running.values()):
                running.end()
            await asyncio.gather(*(running.wait() for running in self._running.values()), return_exceptions=True)
            self._unheard.update(self._running)  # ended before they began
            with contextlib.suppress(Exception):
                self._unheard.update(job.id for job in await self._claiming.heard())
            if self._unheard:
                await self._give_back()
            await self._probes.stop()
            await beside.stop()
            self._tracing.shutdown()

    def drain(self) -> None:
        """Claim nothing more; give every job back at its next step, with the attempt not counted. Thread-safe."""
        self._draining = True
        for running in list(self._running.values()):
            running.drain()
        self._wake_up()

    def _end_with(self, error: EverstepError) -> None:
        logger.error("%s; this worker gives its jobs back and ends", error)
        self._ends_with = error
        self.drain()

    def _hear(self) -> None:
        self._outage.look_again()
        if self._draining or not self._claiming.ring(self._wake_up):
            self._wake_up()

    def _wake_up(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake.set)

    async def _run_with_signals(self, until_idle: bool) -> None:
        loop = asyncio.get_running_loop()
        # A sync node that blocks takes a thread; asyncio's own few would let some jobs starve others.
        threads = max(32, self._concurrency * NODE_THREADS)
        self.node_threads = NodeThreads(threads)
        loop.set_default_executor(self.node_threads)
        self._own_loop = True
        heap.keep("start")
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._on_signal, number)
        await self.run_async(until_idle=until_idle)

    def _on_signal(self, number: int) -> None:
        if self._draining:
            os._exit(128 + number)  # as abrupt as SIGKILL, and as safe
        logger.info("draining: jobs are given back at their next step; a second signal exits at once")
        self.drain()

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), seconds)
        self._wake.clear()

    # ---- claiming

    async def _claim(self, poll_s: float) -> list[Job]:
        try:
            claimed = await self._claiming.heard()
            if claimed:
                self._look_at = time.monotonic() + min(SOON_S, poll_s)  # it may have been told of something else, too
            else:
                claimed = await self._look_and_claim(poll_s)
        except StoreUnavailable as error:
            self._outage.met("claims", error)
            return []
        except StoreTooNew as error:  # a newer Everstep migrated it meanwhile
            self._end_with(error)
            return []
        if claimed:
            crash.point("job.claimed")
        return claimed

    async def _look_and_claim(self, poll_s: float) -> list[Job]:
        free = self._concurrency - len(self._running)
        alone = any(deaths.degree(run.job) >= self._alone_from for run in self._running.values())
        if self._draining or alone or (free <= 0 and self._claiming.is_fresh):
            return []
        if wait := self._outage.wait_s:
            await self._pause(wait)
            return []
        claimed, soon_s = await self._claiming.take(self._held(), limit=free, ahead_s=poll_s)
        if soon_s is not None:
            self._look_at = time.monotonic() + soon_s
        self._outage.passed("claims")
        return claimed

    def _claim_next(self, connection: Connection, settled: Job) -> list[Job]:
        """On the writer's thread, in the transaction that settles a job: claim one for its place."""
        self._following.pop(settled.id, None)  # the transaction may be run again
        if self._draining or self._ending or self._outage.wait_s:
            return []
        following = self._claiming.claim_next(connection, self._held())
        self._following[settled.id] = [job.id for job in following]
        return following

    async def _give_back(self) -> None:
        """What was claimed for the place of a run whose settlement was not heard of: nobody here begins it."""
        unheard = set(self._unheard)
        try:
            await self._claiming.give_back(unheard)
        except StoreUnavailable as error:
            self._outage.met("claims", error)
            return
        except Exception:
            logger.exception("claims that never began could not be given back; their leases will expire")
        self._unheard -= unheard

    def _held(self) -> list[int]:
        """What runs here, and what was claimed for the place of a run and is not begun."""
        following = (job_id for each in list(self._following.values()) for job_id in each)
        return [*self._running, *self._unheard.copy(), *following]

    async def _nothing_left(self) -> bool:
        try:
            return await self._claiming.nothing_left()
        except StoreUnavailable as error:
            self._outage.met("claims", error)
            return False

    # ---- running

    def _start(self, job: Job) -> None:
        degree = deaths.degree(job)
        if self._isolates_from is not None and degree >= self._isolates_from:
            policies = self._policies.model_dump_json()
            run = IsolatedRun(self._around, job, lease_ms=self._lease_ms, policies=policies)
        else:
            run = Run(self._around, job, own_loop=self._own_loop)
        if degree and self._isolates_from != 0:
            of = "process" if job.worker_deaths else "worker"
            with about(job, worker=self.id):
                logger.warning("job %s may be what ended its last %s: it runs apart from others", job.public_id, of)
        if self._draining:  # it was claimed as the drain began
            run.drain()
        self._running[job.id] = run
        self._legs.began(job, running=len(self._running))
        run.start(self._over)
        self._tell("claimed", job)

    def _start_next(self, job: Job) -> None:
        """As `_start`, from within the run that ends: what is known of that one is not passed on."""
        if not self._ending:
            self._context.run(self._start, job)

    def _over(self, run: Run | IsolatedRun) -> None:
        if self._own_loop:
            heap.keep("first job")
        self.lost_claims += run.lost
        self._running.pop(run.job.id, None)
        self._unheard.update(job_id for job_id in self._following.pop(run.job.id, ()) if job_id not in self._running)
        self._legs.ended(run.job, run.settled, lost=run.lost, running=len(self._running))
        if isinstance(run, IsolatedRun) and (error := self._failed_starts.after(run.began, run.failed_start)):
            self._end_with(error)
        self._wake.set()

    def _on_beat(self, held: Held) -> None:
        """On the heartbeat's thread: stop runs whose claim is lost or whose cancellation was requested."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._apply_beat, held)

    def _apply_beat(self, held: Held) -> None:
        for job_id, running in list(self._running.items()):
            running.beat(*held.get(job_id, (None, False)))

    def _tell(self, event: str, job: Job) -> None:
        if self._listener is not None:
            self._listener(event, job)
