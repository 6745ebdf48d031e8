"""Waking whoever waits for something to happen on a thread, in this process or another.

One look at the record serves all who wait in this process: which threads have events that are newer than those of the
last look. It is made when a commit that wrote events is heard of, and now and then though nothing was heard. Nobody
else looks: a stream on which nothing happens costs no read.
"""

from __future__ import annotations

import time
from contextlib import AbstractAsyncContextManager
from functools import partial

from everstep.checkpoints import events
from everstep.checkpoints.database import EVENTS
from everstep.checkpoints.store import Store
from everstep.server.shared_reads import SharedReads
from everstep.server.waiters import Waiter as Waiter
from everstep.server.waiters import Waiters

LONGEST_S = 2.0
"""After which time each thread that anybody waits for is looked at, whatever was heard."""
BETWEEN_LOOKS_S = 0.02
"""Looks that follow each other are so far apart: tokens come by the batch anyway."""
_END = f"{events.SEPARATOR}{events.END}"
"""Behind a thread's id: what it is waited for is a run's end alone."""


class Watch(Waiters[str]):
    """Wakes those who wait for a thread, whenever events of it were written or deleted.

    Args:
        store: The record.

    Attributes:
        reads: What those who are woken read by.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store, EVENTS, "events", BETWEEN_LOOKS_S)
        self.reads = SharedReads(store)
        self._after = 0
        self._all_at = 0.0

    def waiting_for_end(self, thread_id: str) -> AbstractAsyncContextManager[Waiter]:
        """As `waiting`, but what its runs tell before their ends wakes nobody."""
        return self.waiting(thread_id + _END)

    def _begin(self) -> None:
        self._all_at = 0.0

    async def _look(self, poll_s: float) -> float:
        if time.monotonic() >= self._all_at:
            await self._look_at_all()
            self._all_at = time.monotonic() + LONGEST_S
        else:
            await self._look_at_new()
        return min(poll_s, max(self._all_at - time.monotonic(), BETWEEN_LOOKS_S))

    async def _look_at_new(self) -> None:
        """At the threads with events that were written since the last look."""
        found, ends = await self._store.aread(partial(events.written_since, after=self._after))
        for thread_id, newest in found.items():
            self._after = max(self._after, newest)
            self._saw(thread_id, newest)
        for thread_id, newest in ends.items():
            self._saw(thread_id + _END, newest)

    async def _look_at_all(self) -> None:
        """At every thread that anybody waits for: the other look may miss an event, and tells of no deletion."""
        asked = list({key.removesuffix(_END) for key in self._waiting})
        after, found = await self._store.aread(partial(events.newest_of, thread_ids=asked))
        self._after = max(self._after, after)
        for thread_id in asked:
            for key in (thread_id, thread_id + _END):
                self._saw(key, found.get(thread_id, 0))
