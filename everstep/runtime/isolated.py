"""The process of one job: `python -m everstep.runtime.isolated ORDERS REPORTS`, started by a worker, never by hand.

It takes the claim over from its worker, keeps the lease by its own heartbeat, runs the leg and settles it. It ends with
its worker: when the pipe of orders ends, it exits at once, which is as safe as pulling the plug.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import random
import selectors
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from types import FrameType
from typing import TYPE_CHECKING

from everstep.runtime.errand import Lines, Order, Voice, Word

if TYPE_CHECKING:
    from everstep.checkpoints.jobs import Job
    from everstep.observability.metric_names import Metric
    from everstep.runtime.heartbeat import Held
    from everstep.runtime.node_threads import NodeThreads
    from everstep.runtime.run import Surroundings

ALIVE_EVERY_S = 1.0
WORKER_GONE = 75
NODE_THREADS = 32
_PR_SET_PDEATHSIG = 1


class _Orders:
    """The worker's pipe: the order, then perhaps a drain, then its end."""

    def __init__(self, descriptor: int, voice: Voice) -> None:
        self._descriptor = descriptor
        self._voice = voice
        self._lines = Lines()
        self._drain: Callable[[], None] | None = None
        self._drained = threading.Event()

    def first(self) -> Order:
        """The order."""
        while True:
            for message in self._lines.take(self._read()):
                return Order(**message)

    def listen(self) -> None:
        """On a thread of its own: pass a drain on, show that this process lives, and end it with its worker."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._descriptor, selectors.EVENT_READ)
            while True:
                if not selector.select(ALIVE_EVERY_S):
                    with suppress(OSError):
                        self._voice.send(Word("alive"))
                elif self._lines.take(self._read()):
                    self.drain()

    def on_drain(self, drain: Callable[[], None]) -> None:
        """What to do at a drain; done now if it came already."""
        self._drain = drain
        if self._drained.is_set():
            drain()

    def drain(self) -> None:
        """The job is to be given back at its next step."""
        self._drained.set()
        if self._drain is not None:
            self._drain()

    def on_signal(self, _number: int, _frame: FrameType | None) -> None:
        """A signal that was sent to this process as well as to its worker."""
        self.drain()

    def _read(self) -> bytes:
        if chunk := os.read(self._descriptor, 65536):
            return chunk
        os._exit(WORKER_GONE)


def main() -> None:
    """Run the job that is ordered."""
    orders, reports = int(sys.argv[1]), int(sys.argv[2])
    for descriptor in (orders, reports):
        os.set_inheritable(descriptor, False)  # or what a node starts would keep them open
    with suppress(Exception):  # stderr may be closed
        faulthandler.enable(all_threads=False)  # a fault in native code is told with the places in Python
    voice = Voice(reports)
    pipe = _Orders(orders, voice)
    order = pipe.first()
    sys.path[:] = order.path
    for number in (signal.SIGTERM, signal.SIGINT):  # sent to all processes of a service, say
        signal.signal(number, pipe.on_signal)
    _end_with(order.worker_pid)
    threading.Thread(target=pipe.listen, name="everstep-orders", daemon=True).start()
    threads = _work(order, pipe, voice)
    if threads.busy:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(0)  # Python would wait for a node that was cancelled, and goes on in its thread


def _end_with(worker_pid: int) -> None:
    """Let the kernel end this process with its worker, where it can."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != worker_pid:
        os._exit(WORKER_GONE)


def _work(order: Order, pipe: _Orders, voice: Voice) -> NodeThreads:
    import asyncio

    from everstep.checkpoints import claims, jobs
    from everstep.checkpoints.jobs import LostClaim
    from everstep.checkpoints.store import Store
    from everstep.graphs.loader import GraphCatalogue
    from everstep.graphs.policies import Policies
    from everstep.graphs.provider_sections import providers_of
    from everstep.observability import logs, tracing
    from everstep.observability.exception_chain import heading, links, raised_at
    from everstep.observability.measures import NOTHING, Measures
    from everstep.runtime import langgraph_fixes
    from everstep.runtime.identity import part_of
    from everstep.runtime.leg import service_version
    from everstep.runtime.node_threads import NodeThreads
    from everstep.runtime.outage import RecordOutage
    from everstep.runtime.run import Surroundings

    langgraph_fixes.apply()
    policies = Policies.model_validate_json(order.policies)
    logs.configure(default_level="info")
    catalogue = GraphCatalogue.from_config(order.config)
    catalogue.prepare()
    logs.configure(fields=policies.logs.fields, default_level="info")
    logs.own_process()
    me = part_of(order.worker)
    threads = NodeThreads(NODE_THREADS)
    traces = tracing.from_environment(service_version=service_version())

    def tell(_status: str, settled: Job) -> None:
        voice.send(Word("settled", asdict(settled)))

    class _Mentioned(Measures):
        """Tells the worker, which has the page and the exporter; a process that is killed loses nothing it has told."""

        is_on = True

        def add(self, metric: Metric, value: float = 1.0, *labels: str) -> None:
            with suppress(OSError):
                voice.mention(Word("measured", [metric.name, value, *labels]))

    try:
        with Store.open(order.store, create=False) as store:
            now = store.clock.now_ms()
            try:
                store.write(
                    lambda connection: claims.hand_over(
                        connection,
                        order.job_id,
                        order.claim_no,
                        holder=order.worker,
                        to=me,
                        now=now,
                        lease_ms=order.lease_ms,
                    )
                ).result()
            except LostClaim as lost:
                voice.send(Word("lost", str(lost)))
                return threads
            job = store.read(lambda connection: jobs.get(connection, order.job_id))
            voice.send(Word("began"))
            around = Surroundings.of(
                policies,
                store=store,
                graphs=catalogue,
                tracing=traces,
                worker=me,
                randomness=random.Random(),
                tell=tell,
                outage=RecordOutage(),
                providers=providers_of(policies.providers, catalogue.folder),
                measures=_Mentioned() if order.measured else NOTHING,
            )
            try:
                asyncio.run(_run(around, job, order.lease_ms, pipe, voice, threads))
            except (SystemExit, KeyboardInterrupt) as left:
                chain = [link.as_dict() for link in links(left)]
                place = raised_at({"chain": chain})
                with suppress(OSError):
                    voice.send(Word("raised", heading(chain[0]) + (f" ({place})" if place else "")))
                raise
    finally:
        traces.shutdown()
    return threads


async def _run(
    around: Surroundings, job: Job, lease_ms: int, pipe: _Orders, voice: Voice, threads: NodeThreads
) -> None:
    """Run the leg and say what came of it; the settled job itself was told when it was settled."""
    import asyncio

    from everstep.errors import StoreUnavailable
    from everstep.runtime.heartbeat import Heartbeat
    from everstep.runtime.run import Run

    loop = asyncio.get_running_loop()
    loop.set_default_executor(threads)
    run = Run(around, job, own_loop=True)
    warned = threading.Event()

    def on_beat(held: Held) -> None:
        claim_no, cancel_requested = held.get(job.id, (None, False))
        if cancel_requested and not warned.is_set():
            warned.set()
            voice.send(Word("cancelling"))
        with suppress(RuntimeError):  # the loop is closed: the run is over
            loop.call_soon_threadsafe(run.beat, claim_no, cancel_requested)

    def drain() -> None:
        run.drain()
        with suppress(OSError):
            voice.send(Word("draining"))

    def on_drain() -> None:
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(drain)

    heartbeat = Heartbeat(around.store, around.worker, lease_ms, lambda: [job.id], on_beat, around.outage)
    heartbeat.start()
    try:
        run.start(lambda _run: None)
        pipe.on_drain(on_drain)
        await run.wait()
    finally:
        await asyncio.to_thread(heartbeat.stop)
    if run.lost:
        voice.send(Word("lost"))
    elif run.settled is None:
        unavailable = isinstance(run.error, StoreUnavailable)
        voice.send(Word("unsettled", {"error": f"{type(run.error).__name__}: {run.error}", "unavailable": unavailable}))


if __name__ == "__main__":
    main()
