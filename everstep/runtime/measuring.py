"""Which metrics a process hands out: what it was told to serve, and what the environment says."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from everstep.observability import metric_exports, metric_names
from everstep.observability.measures import NOTHING, Measures
from everstep.runtime.leg import service_version
from everstep.runtime.outage import RecordOutage

if TYPE_CHECKING:
    from everstep.checkpoints.job import Job
    from everstep.checkpoints.store import Store
    from everstep.observability.tally import Way

logger = logging.getLogger("everstep.metrics")

LOOP_EVERY_S: Final = 1.0

Address = tuple[str, int]


def begin(store: Store, *, serve: Address | None = None, measures: bool = True) -> Measures:
    """Begin to hand out metrics, if anybody wants them. Close what it returns before the store.

    Args:
        store: The record, which is read when somebody asks.
        serve: Where to serve a page for Prometheus: host and port.
        measures: Whether this process measures, as a worker does; otherwise it only tells of the record.

    Returns:
        What to measure with; it does nothing when nobody wants any.

    Raises:
        MetricsAddressUnavailable: The page cannot be served there.
    """
    otlp = metric_exports.is_configured()
    if serve is None and not otlp:
        return NOTHING
    from everstep.checkpoints.metrics import RecordSamples
    from everstep.observability.tally import Tally

    record, tally = RecordSamples(store), Tally()
    told = tally if measures else None
    found: list[Way] = []
    if serve is not None:
        from everstep.observability.prometheus import PrometheusPage

        page = PrometheusPage(record, told)
        logger.info("metrics: %s", page.serve(*serve))
        found.append(page)
    if otlp:
        try:
            from everstep.observability.otlp_metrics import OtlpMetrics

            found.append(OtlpMetrics(record, service_version(), told))
        except Exception as error:
            logger.warning(
                "Metrics are not sent by OTLP: %s: %s. Next: check the OTEL_* variables.", type(error).__name__, error
            )
    for way in found:
        tally.leaves_by(way)
    return tally if found else NOTHING


class Legs:
    """Measures how long legs take, and how many run.

    Args:
        measures: Where observations go.
    """

    def __init__(self, measures: Measures) -> None:
        self._measures = measures
        self._began: dict[int, float] = {}

    def began(self, job: Job, *, running: int) -> None:
        """A leg begins; so many run now."""
        if self._measures.is_on:
            self._began[job.id] = time.monotonic()
            self._measures.add(metric_names.RUNNING_JOBS, running)

    def ended(self, job: Job, settled: Job | None, *, lost: bool, running: int) -> None:
        """It is over; so many run now.

        Args:
            job: The job as it was claimed.
            settled: As it was settled; None if it was not.
            lost: Whether its claim was lost.
            running: How many run now.
        """
        if not self._measures.is_on:
            return
        outcome = "lost" if lost else "unsettled" if settled is None else settled.status
        if settled is not None and outcome == "pending":
            outcome = "parked" if settled.next_run_at > settled.updated_at else "released"
        took = time.monotonic() - self._began.pop(job.id)
        self._measures.add(metric_names.LEG_DURATION, took, job.graph, outcome)
        self._measures.add(metric_names.RUNNING_JOBS, running)


class Measuring:
    """What a worker tells of itself: its places, how late its loop is, whether the record takes writes.

    Args:
        measures: Where observations go; closed at the end.
        outage: Knows of the writes.
        slots: Most jobs at once.
    """

    def __init__(self, measures: Measures, outage: RecordOutage, *, slots: int) -> None:
        self._measures = measures
        self._outage = outage
        self._slots = slots
        self._end: Callable[[], None] | None = None

    def start(self) -> None:
        """Begin, on the running loop."""
        self._measures.add(metric_names.SLOTS, self._slots)
        if self._measures.is_on:
            loop = asyncio.get_running_loop()
            task = loop.create_task(self._watch(loop))

            def end() -> None:
                loop.call_soon_threadsafe(task.cancel)

            self._end = end

    def stop(self) -> None:
        """Hand out what is left, and stop."""
        if self._end is not None:
            self._end()
        self._measures.close()

    async def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            due = loop.time() + LOOP_EVERY_S
            await asyncio.sleep(LOOP_EVERY_S)
            self._measures.add(metric_names.LOOP_LAG, max(loop.time() - due, 0.0))
            self._measures.add(metric_names.RECORD_UNWRITABLE, float(self._outage.is_on))
