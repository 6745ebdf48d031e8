"""Following a thread: the events of all its runs, as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from functools import partial

from sqlalchemy import Connection

from everstep.checkpoints import conversations, events, runs
from everstep.checkpoints.events import Event
from everstep.errors import ThreadNotFound
from everstep.server.context import Served
from everstep.server.langgraph.following import HEARTBEAT_S
from everstep.server.reading import Reading
from everstep.server.watch import Watch

BETWEEN_LOOKS_S = 0.1
LOOK_FOR_THREAD = 15
"""After how many heartbeats it is looked at whether a thread is still there; one whose events go tells at once."""
HEARTBEAT = b": heartbeat\n\n"
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


async def pages(served: Served, watch: Watch, thread_id: str, after: int) -> AsyncGenerator[list[Event]]:
    """A thread's events behind one, a page at a time; an empty page when nothing came for a while.

    It ends when the thread is gone.

    Args:
        served: What is served.
        watch: Wakes it.
        thread_id: The thread.
        after: The event behind which it begins.
    """
    looks = 0
    async with watch.waiting(thread_id) as waiter, Reading(served) as reading:
        while True:
            waiter.look()
            found = await watch.reads.read(partial(events.of_thread, thread_id=thread_id, after=after))
            if found:
                await reading.attend({event.run_id for event in found}, after)
                after = found[-1].id
                yield found
                for event in found:
                    over = event.run_id if event.method == events.END else None
                    reading.took(event.id, event.at, len(event.data_json), over=over)
                if events.is_full(found):
                    continue
            elif not await served.store.aread(lambda c: _is_there(c, thread_id)):
                return
            while not await waiter.wait(HEARTBEAT_S):
                yield []
                if (looks := looks + 1) % LOOK_FOR_THREAD == 0:
                    break


async def begun_at(served: Served, thread_id: str, event_id: int) -> int:
    """Where to begin to read so that the run which an event is amid is read from its first event."""

    def look(connection: Connection) -> int:
        run_id = events.begun_before(connection, thread_id, event_id)
        first = None if run_id is None else events.first_of_run(connection, run_id)
        return max(min(event_id, first or event_id) - 1, 0)

    return await served.store.aread(look)


async def until(
    condition: Callable[[Connection], bool], thread_id: str, served: Served, watch: Watch, most_s: float
) -> bool:
    """Wait for what the record says of a thread; whether it came in so many seconds.

    Args:
        condition: What is waited for.
        thread_id: The thread.
        served: What is served.
        watch: Wakes it.
        most_s: Seconds.
    """
    clock = asyncio.get_running_loop().time
    end = clock() + most_s
    async with watch.waiting(thread_id) as waiter:
        while True:
            waiter.look()
            if await served.store.aread(condition):
                return True
            if (left := end - clock()) <= 0:
                return False
            await waiter.wait(min(left, BETWEEN_LOOKS_S))


def is_under_way(connection: Connection, thread_id: str) -> bool:
    """Whether a run of the thread is not over."""
    return bool(runs.going(connection, thread_id=thread_id))


def _is_there(connection: Connection, thread_id: str) -> bool:
    try:
        conversations.find(connection, thread_id)
    except ThreadNotFound:
        return False
    return True
