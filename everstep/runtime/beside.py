"""What runs beside a worker's jobs: one list of parts that begin and end together, most with threads of their own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from contextlib import ExitStack
from typing import Protocol

from everstep.checkpoints.database import Database
from everstep.graphs.policies import Policies
from everstep.runtime.dead_letters import DeadLetters
from everstep.runtime.deliveries import Deliveries
from everstep.runtime.expiry import Expiry
from everstep.runtime.heartbeat import Heartbeat, Held
from everstep.runtime.measuring import Measuring
from everstep.runtime.observation import Observation
from everstep.runtime.run import Surroundings

logger = logging.getLogger("everstep.worker")


class Part(Protocol):
    """Something that runs beside the jobs."""

    def start(self) -> None:
        """Begin, on the worker's loop, without waiting for anything."""
        ...

    def stop(self) -> None:
        """End what `start` began, in a thread; within two seconds or so, whatever others do."""
        ...


class Hearing:
    """Hears that work may be ready.

    Attributes:
        poll_s: Seconds after which to look though nothing was heard; known once it began.
    """

    def __init__(self, database: Database, hear: Callable[[], None]) -> None:
        self.poll_s = 0.0
        self._database = database
        self._hear = hear
        self._entered = ExitStack()

    def start(self) -> None:
        """Begin to listen."""
        self.poll_s = self._entered.enter_context(self._database.listen(self._hear))

    def stop(self) -> None:
        """Hear nothing more."""
        self._entered.close()


class Beside:
    """The parts of one worker.

    Args:
        around: What its runs share.
        policies: What `everstep.toml` says.
        lease_ms: Length of a lease, milliseconds.
        slots: Most jobs at once.
        held: Row ids of the jobs that it runs; thread-safe.
        on_beat: Called after each heartbeat, on its thread.
        hear: Called when work may be ready, on any thread.

    Raises:
        ConfigInvalid: A secret of webhooks is set to what is none.
    """

    def __init__(
        self,
        around: Surroundings,
        policies: Policies,
        *,
        lease_ms: int,
        slots: int,
        held: Callable[[], Collection[int]],
        on_beat: Callable[[Held], None],
        hear: Callable[[], None],
    ) -> None:
        store, storage, chance, name = around.store, around.graphs.storage, around.randomness, around.worker
        self._hearing = Hearing(store.database, hear)
        self._parts: list[Part] = [
            Heartbeat(store, name, lease_ms, held, on_beat, around.outage),
            DeadLetters(store, policies.dead_letters.webhook, randomness=chance),
            Expiry(store, storage.sweep_minutes, storage.sweep_limit),
            Deliveries(store, policies.webhooks, randomness=chance, name=name),
            Observation(store, around.providers, randomness=chance, name=name, measures=around.measures),
            Measuring(around.measures, around.outage, slots=slots),
            *_exporters(around),
            self._hearing,
        ]
        self._begun: list[Part] = []

    @property
    def poll_s(self) -> float:
        """Seconds after which to look for work though nothing was heard."""
        return self._hearing.poll_s

    def start(self) -> None:
        """Begin all, in order; should one not be able to, `stop` ends those before it."""
        for part in self._parts:
            part.start()
            self._begun.append(part)

    async def stop(self) -> None:
        """End all that began, at once, so that a dead endpoint is waited for once."""
        begun, self._begun = self._begun, []
        ends = (asyncio.to_thread(part.stop) for part in begun)
        for part, error in zip(begun, await asyncio.gather(*ends, return_exceptions=True), strict=True):
            if error is not None:
                logger.error("%s did not end as it should", type(part).__name__, exc_info=error)


def _exporters(around: Surroundings) -> list[Part]:
    """What exports spans; none, with nothing loaded, where they go nowhere."""
    if not around.tracing.destinations:
        return []
    from everstep.runtime.span_exporter import SpanExporter

    return [SpanExporter(around.store, around.tracing, holder=around.worker, randomness=around.randomness)]
