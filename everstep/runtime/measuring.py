"""Which metrics a process hands out: what it was told to serve, and what the environment says."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from everstep.observability import metric_exports, metric_names
from everstep.observability.measures import NOTHING, Collected, Measures, Sink
from everstep.runtime.leg import service_version
from everstep.runtime.outage import RecordOutage

if TYPE_CHECKING:
    from everstep.checkpoints.store import Store

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

    record = RecordSamples(store)
    sinks: list[Sink] = []
    if serve is not None:
        from everstep.observability.prometheus import PrometheusPage

        page = PrometheusPage(record, measures=measures)
        logger.info("metrics: %s", page.serve(*serve))
        sinks.append(page)
    if otlp:
        try:
            from everstep.observability.otlp_metrics import OtlpMetrics

            sinks.append(OtlpMetrics(record, service_version(), measures=measures))
        except Exception as error:
            logger.warning(
                "Metrics are not sent by OTLP: %s: %s. Next: check the OTEL_* variables.", type(error).__name__, error
            )
    return Collected(sinks) if sinks else NOTHING


async def watch(measures: Measures, outage: RecordOutage) -> None:
    """Measure, until cancelled, how late this event loop wakes what is due, and whether the record takes writes.

    Args:
        measures: Where observations go.
        outage: Knows of the writes.
    """
    clock = asyncio.get_running_loop().time
    while True:
        due = clock() + LOOP_EVERY_S
        await asyncio.sleep(LOOP_EVERY_S)
        measures.add(metric_names.LOOP_LAG, max(clock() - due, 0.0))
        measures.add(metric_names.RECORD_UNWRITABLE, float(outage.is_on))
