"""One question to a provider how a task of ours is, and what is noted of the answer.

A query that fails never fails the task: the failure is kept in the task's row, and it is asked again later. Nor does a
provider that says it has no such task: after `MISSING_AT` such answers that is evidence, and a person decides.
"""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass
from functools import partial
from typing import Literal

from sqlalchemy import Connection

from everstep import crash
from everstep.checkpoints import cancelled_tasks, provider_polls, provider_settlement, provider_tasks
from everstep.checkpoints.provider_status import ProviderStatus
from everstep.checkpoints.provider_task import ProviderTask
from everstep.checkpoints.store import Store
from everstep.credentials import without_secrets
from everstep.errors import CancelUnsupported, ProviderTaskMissing
from everstep.nodes.providers.interface import Provider
from everstep.runtime.retry_after import retry_after_ms

logger = logging.getLogger("everstep.providers")

Outcome = Literal["pending", "settled", "failed", "not_found", "late"]

FACTOR = 1.6
JITTER = 0.25
MOST_ASKED_MS = 86_400_000
"""How long a provider may want not to be asked: an odd header must not put a task out of sight for years."""
QUERY_S = 30.0
"""How long a provider has to answer; less than a lease."""
MISSING_AT = 5
"""How often in a row a query must fail, at last since the provider has no such task, until a person is told."""
MISSING = "the provider has no such task"
TOLD = "the provider has no such task; a person decides"
ANOTHER = "the provider answered with another task's id; look at where its description finds the id"


@dataclass(frozen=True)
class Pace:
    """How often a task is asked for.

    Attributes:
        first_ms: The wait after its acceptance, milliseconds.
        most_ms: The longest wait.
    """

    first_ms: int = 2_000
    most_ms: int = 300_000

    def delay_ms(self, polls: int, retry_after: int | None, randomness: random.Random) -> int:
        """Milliseconds until the next poll: `wait + jitter`.

        `wait = max(min(first * 1.6**polls, most), Retry-After)`, and the jitter is drawn evenly from nothing to a
        quarter of `wait`. The provider's Retry-After may be longer than our longest wait, up to `MOST_ASKED_MS`.

        Args:
            polls: How often it was asked for already.
            retry_after: What the provider asks for, milliseconds.
            randomness: Source of the jitter.
        """
        asked = min(retry_after or 0, MOST_ASKED_MS)
        wait = max(int(min(self.first_ms * FACTOR ** min(polls, 64), self.most_ms)), asked)
        return wait + randomness.randint(0, int(wait * JITTER))


@dataclass(frozen=True)
class Poll:
    """Asks for tasks of one provider.

    Attributes:
        store: The record.
        provider: Who is asked.
        pace: How often.
        holder: Whose leases the tasks are under.
        randomness: Source of the jitter.
    """

    store: Store
    provider: Provider
    pace: Pace
    holder: str
    randomness: random.Random

    async def ask(self, task: ProviderTask) -> Outcome:
        """Ask how a task is, and note it; the task was taken by this holder.

        Args:
            task: The task as it was taken.

        Returns:
            `late` if its lease was over before it was asked for, and nothing was done.

        Raises:
            StoreUnavailable: What was learned could not be noted; the lease ends, and it is asked for again.
        """
        left = ((task.lease_until or 0) - self.store.clock.now_ms()) / 1000
        if left <= 0 or task.provider_task_id is None:
            return "late"
        limit = min(QUERY_S, left)
        try:
            async with asyncio.timeout(limit):
                await self._cancelled(task, task.provider_task_id)
                status = await self.provider.query(task.provider_task_id)
        except ProviderTaskMissing:
            return await self._failed(task, MISSING, None)
        except Exception as error:
            timed_out = isinstance(error, TimeoutError) and not str(error)
            said = f"no answer in {limit:.0f} s" if timed_out else f"{type(error).__name__}: {error}"
            return await self._failed(task, said, retry_after_ms(error, self.store.clock.now_ms()))
        if status.provider_task_id not in (None, task.provider_task_id):  # what it says is not about this one
            return await self._failed(task, ANOTHER, status.retry_after_ms)
        crash.point("provider.polled", task.provider)
        return await self._answered(task, status)

    async def _cancelled(self, task: ProviderTask, provider_task_id: str) -> None:
        """Have the provider end a task whose job a person ended; the query after it tells what became of that."""
        if not await self.store.aread(lambda connection: cancelled_tasks.is_to_be_cancelled(connection, task)):
            return
        try:
            await self.provider.cancel(provider_task_id)
            supported = True
        except CancelUnsupported:
            supported = False
        except Exception as error:  # it is asked again before the next query
            logger.warning("task %s could not be cancelled at %s: %s", task.public_id, task.provider, error)
            return
        now = self.store.clock.now_ms()
        note = partial(cancelled_tasks.note_asked, task=task, supported=supported, now=now)
        await self.store.awrite(note)

    async def _answered(self, task: ProviderTask, status: ProviderStatus) -> Outcome:
        now = self.store.clock.now_ms()
        next_at = now + self.pace.delay_ms(task.polls, status.retry_after_ms, self.randomness)

        def note(connection: Connection) -> None:
            provider_tasks.reconcile(connection, task, status, source="poll", actor=self.holder, now=now)
            if not status.is_final:
                provider_tasks.polled(connection, task, holder=self.holder, now=now, next_poll_at=next_at)

        await self.store.awrite(note)
        return "settled" if status.is_final else "pending"

    async def _failed(self, task: ProviderTask, said: str, retry_after: int | None) -> Outcome:
        now, failures = self.store.clock.now_ms(), task.poll_failures + 1
        is_missing = said == MISSING
        delay = self.pace.delay_ms(task.polls, retry_after, self.randomness)
        if is_missing and failures >= MISSING_AT:
            said, delay = TOLD, max(delay, self.pace.most_ms)
        is_news = said == TOLD and task.poll_error != TOLD
        failure = without_secrets(said)[: provider_polls.ERROR_LENGTH]

        def note(connection: Connection) -> None:
            provider_tasks.polled(
                connection, task, holder=self.holder, now=now, next_poll_at=now + delay, failure=failure
            )
            if is_news:
                provider_settlement.keep(connection, task, "missing", {"failures": failures}, now=now)

        await self.store.awrite(note)
        if is_news:
            logger.error(
                "task %s: %s has no such task, %d times in a row; it is not failed and not refunded; next: everstep"
                " provider show %s",
                task.public_id, task.provider, failures, task.public_id,
            )  # fmt: skip
        else:
            logger.info("task %s cannot be asked for at %s: %s", task.public_id, task.provider, failure)
        return "not_found" if is_missing else "failed"
