"""What the record knows as metrics: as text for a person or a file, and as samples for a page that is asked often.

It is read from the record, where every process sees the same numbers, and holds for the moment of the look. Labels have
few values: of services and destinations the first hundred are told apart.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final

from everstep.checkpoints.health import Health, examine
from everstep.checkpoints.provider_health import ProviderHealth
from everstep.observability import metric_names as names
from everstep.observability.attributes import bounded
from everstep.observability.label_cap import LENGTH, OTHER, VALUES
from everstep.observability.measures import Sample
from everstep.observability.metric_names import Metric

if TYPE_CHECKING:
    from everstep.checkpoints.store import Store

_logger = logging.getLogger("everstep.metrics")

FRESH_S: Final = 10.0
"""How long one look at the record answers everybody who asks."""
PATIENCE_S: Final = 5.0
"""How long a page waits for the record; Prometheus gives up after ten seconds."""
SHORTLY_S: Final = 0.05
"""How long those who come later wait."""
STALE_S: Final = 30.0
"""How much older than fresh a look may be that is shown while the next one takes long."""
REST: Final = 20
"""A look that takes long is good for so many times as long: a busy record is not looked at all the time."""


def samples(health: Health) -> Iterator[Sample]:
    """The metrics of a record."""
    yield from _labelled(names.JOBS, health.jobs)
    yield Sample(names.DUE_JOBS, health.due)
    yield Sample(names.HELD_JOBS, health.held)
    yield Sample(names.OLDEST_DUE, _seconds(health.oldest_due_ms))
    yield Sample(names.BUSY_WORKERS, health.busy_workers)
    yield Sample(names.EXPIRED_LEASES, health.expired_leases)
    yield Sample(names.STUCK_JOBS, health.stuck)
    yield from _labelled(names.EFFECTS, health.effects)
    yield Sample(names.UNKNOWN_EFFECTS, health.unknown_effects)
    yield Sample(names.OPEN_REVIEWS, health.open_reviews)
    yield Sample(names.OLDEST_REVIEW, _seconds(health.oldest_review_ms))
    yield Sample(names.ATTEMPTS_LAST_HOUR, health.attempts_last_hour)
    yield Sample(names.RETRIES_LAST_HOUR, health.retries_last_hour)
    yield Sample(names.REVIEWS_LAST_HOUR, health.reviews_last_hour)
    yield Sample(names.DONE_LAST_HOUR, health.done_last_hour)
    yield Sample(names.DEAD_LETTERS_LAST_HOUR, health.dead_letters_last_hour)
    yield Sample(names.LEASE_EXPIRIES_LAST_HOUR, health.lease_expiries_last_hour)
    yield from _labelled(names.SERVICES, health.services)
    yield from _capped(names.SERVICE_OUTAGE, {name: _seconds(out) for name, out in health.outages_ms.items()}, max)
    told = health.deliveries
    yield from _capped(names.SPANS_WAITING, {name: one.waiting for name, one in told.items()}, sum)
    yield from _capped(names.SPANS_DELIVERED, {name: one.delivered for name, one in told.items()}, sum)
    yield from _capped(names.SPANS_DROPPED, {name: one.dropped for name, one in told.items()}, sum)
    yield from _capped(names.SPANS_FAILING, {name: _seconds(one.failing_ms) for name, one in told.items()}, max)
    yield Sample(names.OVERDUE_SCHEDULES, len(health.overdue))
    yield from _labelled(names.WEBHOOKS, health.webhooks)
    yield from (Sample(names.TRIGGER_EVENTS, number, labels) for labels, number in health.trigger_events.items())
    for source, waits in health.trigger_waits_ms.items():
        yield Sample(names.TRIGGER_START_MEAN, _seconds(sum(waits) // len(waits)), (source,))
    for source, waits in health.trigger_waits_ms.items():
        yield Sample(names.TRIGGER_START_LONGEST, _seconds(max(waits)), (source,))
    yield from _tasks(health.providers)
    yield Sample(names.RECORD_SIZE, health.size)
    if health.log_size is not None:
        yield Sample(names.WAL_SIZE, health.log_size)


def _tasks(health: ProviderHealth) -> Iterator[Sample]:
    yield from (Sample(names.PROVIDER_TASKS, number, labels) for labels, number in sorted(health.tasks.items()))
    yield Sample(names.OLDEST_PROVIDER_TASK, _seconds(health.oldest_ms))
    yield Sample(names.UNPOLLED_PROVIDER_TASKS, health.unpolled)
    yield Sample(names.PARKED_PROVIDER_EVENTS, health.parked)
    yield Sample(names.OLDEST_PARKED_EVENT, _seconds(health.oldest_parked_ms))


def exposition(health: Health) -> str:
    """The metrics in the text format of Prometheus (0.0.4), each with its help and type."""
    lines: list[str] = []
    described: Metric | None = None
    for sample in samples(health):
        metric = sample.metric
        if metric is not described:
            described = metric
            lines += [f"# HELP {metric.prometheus} {metric.help}", f"# TYPE {metric.prometheus} {metric.kind}"]
        pairs = zip(metric.prometheus_labels, sample.labels, strict=True)
        labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs)
        lines.append(f"{metric.prometheus}{f'{{{labels}}}' if labels else ''} {_number(sample.value)}")
    return "\n".join(lines) + "\n"


class RecordSamples:
    """Reads the metrics of a record for whoever asks; one look serves all who ask within ten seconds.

    The look has a thread of its own, and who asks waits for it for five seconds: a record that is away makes
    `everstep_record_up` 0 and nothing else. One that is only slow is shown as it was half a minute ago.

    Args:
        store: The record; it is only read.
        fresh_s: Seconds for which a look is good.
        patience_s: Seconds to wait for one.
        stale_s: Seconds more for which the one before is shown while the next takes long.
    """

    def __init__(
        self, store: Store, *, fresh_s: float = FRESH_S, patience_s: float = PATIENCE_S, stale_s: float = STALE_S
    ) -> None:
        self._store = store
        self._fresh_s = fresh_s
        self._patience_s = patience_s
        self._stale_s = stale_s
        self._before: list[Sample] = []
        self._good_until = 0.0
        self._lock = threading.Lock()
        self._look: Future[list[Sample]] | None = None
        self._began = 0.0

    def __call__(self) -> list[Sample]:
        """The metrics, and whether the record could be read for them."""
        with self._lock:
            look, now = self._look, time.monotonic()
            if look is None or (look.done() and now >= self._good_until):
                look, self._began = Future[list[Sample]](), now
                self._look = look
                threading.Thread(target=self._fill, args=(look,), name="everstep-metrics", daemon=True).start()
            patience = self._began + self._patience_s - now  # of all who ask for this look together
        try:
            return look.result(max(patience, SHORTLY_S))
        except TimeoutError:
            shown = self._before and time.monotonic() < self._good_until + self._stale_s
            return self._before if shown else [Sample(names.RECORD_UP, 0)]

    def _fill(self, look: Future[list[Sample]]) -> None:
        began, rest = time.monotonic(), 0
        try:
            found = [*samples(examine(self._store)), Sample(names.RECORD_UP, 1)]
            rest = REST
        except Exception as error:
            _logger.debug("the record cannot be read for metrics: %s", error)
            found = [Sample(names.RECORD_UP, 0)]
        took = time.monotonic() - began
        found.append(Sample(names.RECORD_LOOK, took))
        with self._lock:
            self._before = found
            self._good_until = began + took + (max(self._fresh_s, took * rest) if self._fresh_s else 0)
        look.set_result(found)


def _labelled(metric: Metric, values: Mapping[str, int]) -> Iterator[Sample]:
    return (Sample(metric, number, (value,)) for value, number in values.items())


def _capped(
    metric: Metric, values: Mapping[str, float], together: Callable[[Iterable[float]], float]
) -> Iterator[Sample]:
    named: dict[str, list[float]] = {}
    for value, number in values.items():
        value = bounded(value, LENGTH)
        named.setdefault(value if value in named or len(named) < VALUES else OTHER, []).append(number)
    return (Sample(metric, together(numbers), (value,)) for value, numbers in named.items())


def _seconds(milliseconds: int | None) -> float:
    return (milliseconds or 0) / 1000


def _number(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
