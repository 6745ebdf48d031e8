"""A client's stream while it is open: how far the client has read, and how fast it was told.

How far is noted in the record only for runs that wait for their clients (`Everstep-Slow-Client: pause`), whichever
process runs them. What a connection has taken counts as read: of that some hundred kilobytes may still be under way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from functools import partial
from types import TracebackType
from typing import Self
from uuid import uuid4

from everstep.checkpoints import stream_readers
from everstep.observability import metric_names
from everstep.server.context import Served

logger = logging.getLogger("everstep.server")

TELL_EVERY_S = 0.1


class Reading:
    """One client's, from its request to its end.

    Args:
        served: What is served.
        reader: The name under which it reads; a new one when omitted.
    """

    def __init__(self, served: Served, reader: str | None = None) -> None:
        self._served = served
        self._reader = reader or uuid4().hex
        self._known: set[str] = set()
        self._job_of: dict[str, int] = {}
        self._place = 0
        self._telling: asyncio.Task[None] | None = None
        self._clock = asyncio.get_running_loop().time
        self._opened_at, self._opened_ms = self._clock(), served.store.clock.now_ms()
        self._told_at: float | None = None

    async def __aenter__(self) -> Self:
        self._served.streams.opened()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._served.streams.closed()
        if self._telling is not None:
            self._telling.cancel()
            self._served.store.write(lambda connection: stream_readers.leave(connection, self._reader))

    async def attend(self, run_ids: Collection[str], place: int) -> None:
        """Let the runs that wait for their clients wait for this one.

        Args:
            run_ids: The runs whose events are about to be told.
            place: The last event that it has taken.
        """
        unknown = set(run_ids) - self._known
        if not unknown:
            return
        self._known |= unknown
        found = await self._served.store.aread(partial(stream_readers.waited_for, run_ids=unknown))
        if not found:
            return
        self._job_of |= found
        self._place = max(self._place, place)
        if self._telling is None:
            self._telling = asyncio.create_task(self._keep_telling())
        await self._tell()

    def took(self, place: int, at: int, size: int, *, over: str | None = None) -> None:
        """The client's connection has taken an event.

        Args:
            place: Its place in the event log.
            at: When it was written, UTC milliseconds.
            size: How many bytes it was told in; 0 if the client did not ask for it.
            over: The run that it ends.
        """
        self._place = place
        if over is not None:
            self._job_of.pop(over, None)
        if not size:
            return
        measure = self._served.streams.measure
        now, before = self._clock(), self._told_at
        self._told_at = now
        measure(metric_names.STREAM_SENT, size)
        if at >= self._opened_ms:  # an older one is told late because it was asked for late
            measure(metric_names.STREAM_LAG, max(self._served.store.clock.now_ms() - at, 0) / 1000)
        if before is None:
            measure(metric_names.STREAM_FIRST_EVENT, now - self._opened_at)
        else:
            measure(metric_names.STREAM_GAP, now - before)

    async def _keep_telling(self) -> None:
        told, told_at = self._place, self._clock()
        while True:
            await asyncio.sleep(TELL_EVERY_S)
            if self._place == told and self._clock() - told_at < stream_readers.LEASE_MS / 3000:
                continue
            told, told_at = self._place, self._clock()
            try:
                await self._tell()
            except Exception as error:  # its lease runs out, and nobody waits for it
                logger.warning("how far a client has read cannot be noted: %s", error)

    async def _tell(self) -> None:
        reader, seen, now = self._reader, self._place, self._served.store.clock.now_ms()
        for run_id, job_id in list(self._job_of.items()):
            of = partial(stream_readers.read_to, job_id=job_id, run_id=run_id, seen=seen, now=now)
            await self._served.store.awrite(partial(of, reader=reader))
