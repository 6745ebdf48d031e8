"""Asking providers how the paid tasks they accepted are: by whichever process is there, until each has ended.

Each task has its own time (`Pace`), each provider its rate, which all processes of a record share, and each question a
lease, so that no task is asked for twice at once. What the answer means is `provider_tasks.reconcile`'s matter.

One thread with an event loop of its own, beside a worker or a server. Start it in as many processes as you like.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial

from sqlalchemy import Connection

from everstep.checkpoints import provider_polls, provider_tasks, rate_limits
from everstep.checkpoints.provider_tasks import ProviderTask
from everstep.checkpoints.store import Store
from everstep.errors import ProviderUnusable
from everstep.nodes.providers.registry import Providers
from everstep.observability import metric_names
from everstep.observability.measures import NOTHING, Measures
from everstep.runtime.identity import surely_dead, worker_id
from everstep.runtime.polling import Outcome, Pace, Poll

logger = logging.getLogger("everstep.providers")

AT_ONCE = 8
"""Questions on their way to one provider."""
LEASE_MS = 60_000
"""How long a task is this process': longer than a question takes."""
LOOK_EVERY_S = 60.0
"""When it looks though nobody told it to, should a wake-up have been lost."""
AGAIN_S = 1.0
GRACE_S = 2.0


class OfProvider:
    """The tasks of one provider. Everything of it runs on one event loop.

    Args:
        store: The record.
        providers: The providers that are configured.
        name: Which one.
        holder: Who asks, for the leases.
        randomness: For the jitter.
        measures: Where what came of polls is counted.
    """

    def __init__(
        self,
        store: Store,
        providers: Providers,
        name: str,
        *,
        holder: str,
        randomness: random.Random,
        measures: Measures = NOTHING,
    ) -> None:
        self._store = store
        self._providers = providers
        self._name = name
        self._holder = holder
        self._randomness = randomness
        self._measures = measures
        self._under_way: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._unusable = False
        self._next_at: int | None = None

    def wake(self) -> None:
        """Look again: something may be due."""
        self._wake.set()

    async def run(self, look_s: float) -> None:
        """Ask for what is due, until cancelled; what is under way then has two seconds."""
        began = False
        try:
            while True:
                self._wake.clear()
                try:
                    began = began or await self._take_over()
                    wait = await self.look(look_s)
                except Exception as error:  # the record may be out of reach; the tasks are in it
                    wait = self._failed(error)
                if wait > 0:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._wake.wait(), wait)
        finally:
            if self._under_way:
                await asyncio.wait(self._under_way, timeout=GRACE_S)
            for asking in self._under_way:
                asking.cancel()

    async def until_asked(self) -> int | None:
        """Ask for what is due now, as far as the rate allows, and wait for the answers.

        Returns:
            When there is something to do next, UTC milliseconds; None: no task waits.
        """
        while True:
            wait = await self.look(LOOK_EVERY_S)
            if self._under_way:
                await asyncio.wait(self._under_way)
            elif wait > 0:
                break
        return self._next_at

    async def look(self, look_s: float) -> float:
        """Begin to ask for what is due; for how many seconds there is nothing to do.

        Args:
            look_s: The most it gives.
        """
        free = AT_ONCE - len(self._under_way)
        if free <= 0:
            return look_s  # one that ends wakes it
        due = await self._store.aread(self._next_due)
        now = self._store.clock.now_ms()
        if due is not None and due <= now:
            poll = self._poll()
            taken, due = await self._store.awrite(partial(self._take, limit=free, now=now))
            for task in taken:
                asking = asyncio.create_task(self._ask(poll, task))
                self._under_way.add(asking)
                asking.add_done_callback(self._over)
        self._next_at = due
        left = look_s if due is None else (due - self._store.clock.now_ms()) / 1000
        return min(max(left, 0.0), look_s)

    async def _take_over(self) -> bool:
        """What a process that is surely dead was asking for is due now; it is noted once, at the begin."""
        holders = await self._store.aread(lambda connection: provider_polls.holders(connection, self._name))
        if dead := surely_dead(holders):
            free = partial(provider_polls.free, provider=self._name, holders=dead, now=self._store.clock.now_ms())
            await self._store.awrite(free)
        return True

    def _next_due(self, connection: Connection) -> int | None:
        return provider_tasks.next_poll(connection, providers=[self._name], now=self._store.clock.now_ms())

    def _take(self, connection: Connection, *, limit: int, now: int) -> tuple[list[ProviderTask], int]:
        """Take tasks that are due, as many as the rate grants; and when to look again, UTC milliseconds."""
        wanted = provider_polls.due(connection, self._name, now=now, limit=limit)
        if not wanted:  # another process took them a moment ago
            return [], now + 50
        granted, again_at = wanted, now
        entry = self._providers.entry(self._name)
        if entry.rate is not None:
            granted, free_at_us = rate_limits.take(
                connection, f"provider:{self._name}", per_second=entry.rate, burst=entry.burst, wanted=wanted,
                now_us=now * 1000,
            )  # fmt: skip
            again_at = now if granted == wanted else max(-(-free_at_us // 1000), now + 1)
        if not granted:
            return [], again_at
        taken = provider_tasks.take_due(
            connection, self._name, holder=self._holder, now=now, lease_ms=LEASE_MS, limit=granted
        )
        return taken, again_at

    async def _ask(self, poll: Poll, task: ProviderTask) -> None:
        try:
            outcome: Outcome = await poll.ask(task)
        except Exception as error:  # the record may be out of reach; the lease ends, and it is asked for again
            logger.warning("how task %s is could not be noted: %s", task.public_id, error)
            return
        if outcome != "late":
            self._measures.add(metric_names.PROVIDER_POLLS, 1, self._name, outcome)

    def _over(self, asking: asyncio.Task[None]) -> None:
        self._under_way.discard(asking)
        self._wake.set()

    def _poll(self) -> Poll:
        entry = self._providers.entry(self._name)
        pace = Pace(entry.poll_first_ms, entry.poll_most_ms)
        poll = Poll(self._store, self._providers.get(self._name), pace, self._holder, self._randomness)
        self._unusable = False
        return poll

    def _failed(self, error: Exception) -> float:
        """Tell why nothing could be asked; for how many seconds to wait."""
        if isinstance(error, ProviderUnusable):
            level, self._unusable = logging.DEBUG if self._unusable else logging.ERROR, True
            logger.log(level, "provider %s cannot be asked how its tasks are: %s", self._name, error)
            return LOOK_EVERY_S
        logger.warning("tasks of %s cannot be looked for, trying again: %s", self._name, error)
        return AGAIN_S


class Observation:
    """Asks for tasks of all configured providers until stopped.

    Args:
        store: The record.
        providers: The providers that are configured.
        randomness: For the jitter.
        name: Who asks, for the leases; a fresh id when omitted.
        measures: Where what came of polls is counted.
    """

    def __init__(
        self,
        store: Store,
        providers: Providers,
        *,
        randomness: random.Random | None = None,
        name: str | None = None,
        measures: Measures = NOTHING,
    ) -> None:
        self._store = store
        holder, chance = name or worker_id(), randomness or random.Random()
        self._each = [
            OfProvider(store, providers, one, holder=holder, randomness=chance, measures=measures)
            for one in providers.names
        ]
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._began = threading.Event()
        self._thread = threading.Thread(target=self._run, name="everstep-providers", daemon=True)

    def start(self) -> None:
        """Begin to ask, on a thread of its own; nothing where no provider is configured."""
        if self._each:
            self._thread.start()
            self._began.wait()

    def stop(self) -> None:
        """End; what is under way has two seconds."""
        if self._thread.ident is None:
            return
        self._call(self._cancel)
        self._thread.join(GRACE_S + 1)

    async def until_asked(self) -> int | None:
        """Ask for all that is due now, as far as the rates allow, here, and wait for the answers.

        Returns:
            When there is something to do next, UTC milliseconds; None: no task waits.
        """
        found = [at for at in [await each.until_asked() for each in self._each] if at is not None]
        return min(found, default=None)

    def _run(self) -> None:
        with suppress(asyncio.CancelledError):
            asyncio.run(self._observe())

    async def _observe(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._began.set()
        with ExitStack() as listening:
            poll_s = listening.enter_context(self._store.database.listen(self._woken, provider_tasks.TOPIC))
            look_s = LOOK_EVERY_S if poll_s >= 1.0 else 1.0  # where nobody can be woken
            await asyncio.gather(*(each.run(look_s) for each in self._each))

    def _woken(self) -> None:
        for each in self._each:
            self._call(each.wake)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _call(self, what: Callable[[], None]) -> None:
        if self._loop is not None and not self._loop.is_closed():
            with suppress(RuntimeError):  # it ended just now
                self._loop.call_soon_threadsafe(what)
