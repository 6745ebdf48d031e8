"""An agent that waits for its clients: between what a graph emits it stands still while one of them is far behind.

Only where a run asks for it (`Everstep-Slow-Client: pause`), only for clients that read at the time, and for a limited
time in all. What holds the job meanwhile is its heartbeat, which has a thread of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from concurrent.futures import Future
from functools import partial

from langgraph.runtime import RunControl

from everstep.checkpoints import stream_readers
from everstep.checkpoints.job import Job
from everstep.checkpoints.store import Store
from everstep.observability import metric_names
from everstep.observability.measures import Measures

logger = logging.getLogger("everstep.worker")

MOST_BEHIND = 1024 * 1024
"""How far a client may be behind without being waited for, characters of JSON."""
LOOK_EVERY_S = 0.1


class SlowClients:
    """Those of one leg.

    Args:
        store: The record.
        job: The job as claimed.
        run_id: The run that is under way.
        budget_s: For how many seconds in all the agent waits.
        control: Through which the worker asks the leg to stop; then nobody is waited for.
        measures: What the process measures.
    """

    def __init__(
        self, store: Store, job: Job, run_id: str, budget_s: float, control: RunControl, measures: Measures
    ) -> None:
        self._store = store
        self._job = job
        self._run_id = run_id
        self._left_s = budget_s
        self._control = control
        self._measures = measures
        self._behind: deque[tuple[Future[int], int]] = deque()
        self._size = 0

    def wrote(self, newest: Future[int], size: int) -> None:
        """More is written that clients have not read.

        Args:
            newest: The id of its last event, when it is committed.
            size: Its size, characters of JSON.
        """
        self._behind.append((newest, size))
        self._size += size

    async def wait(self) -> None:
        """Wait until no client is far behind, none reads any more, the time is up, or the leg is to stop."""
        if self._size <= MOST_BEHIND:
            return
        clock = asyncio.get_running_loop().time
        began: float | None = None
        while await self._is_behind() and self._left_s > 0 and not self._control.drain_requested:
            if began is None:
                began = clock()
                logger.info("job %s waits for a client that reads slowly", self._job.public_id)
            looked_at = clock()
            await asyncio.sleep(min(LOOK_EVERY_S, self._left_s))
            self._left_s -= clock() - looked_at
        if began is not None:
            self._measures.add(metric_names.SLOW_CLIENT_WAIT, clock() - began, self._job.graph)
            if self._left_s <= 0:
                logger.info("job %s waits for its clients no more: it has waited long enough", self._job.public_id)

    async def _is_behind(self) -> bool:
        now = self._store.clock.now_ms()
        seen = await self._store.aread(partial(stream_readers.slowest, run_id=self._run_id, now=now))
        while self._behind:
            newest, size = self._behind[0]
            if seen is not None and not (newest.done() and not newest.exception() and newest.result() <= seen):
                break
            self._behind.popleft()
            self._size -= size
        return self._size > MOST_BEHIND
