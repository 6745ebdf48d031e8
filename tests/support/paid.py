"""Paid tasks as tests make them: credit, a task that its provider took, and a provider that does as it is told."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

from sqlalchemy import Connection

from everstep.checkpoints import ledger, provider_tasks
from everstep.checkpoints.provider_status import ProviderEvent, ProviderStatus
from everstep.checkpoints.provider_task import ProviderTask
from everstep.checkpoints.quote import Quote
from everstep.checkpoints.store import Store
from everstep.nodes.providers.interface import Provider, Submitted

PRICE = 250
GRANTED = 1_000_000
QUOTE = Quote(PRICE, "EUR", 2, "2027-01")
DONE = ProviderStatus("succeeded", result={"url": "https://example.org/a.mp4"})
FAILED = ProviderStatus("failed", error={"message": "too dark"})
PENDING = ProviderStatus("pending")


def grant(store: Store, owner: str = "ada", amount: int = GRANTED) -> None:
    """Give credit, once."""
    give = partial(ledger.grant, reason="test", key="test", actor="test", now=store.clock.now_ms())
    store.write(lambda connection: give(connection, owner, "EUR", amount)).result()


def task_of(
    store: Store,
    key: str = "film",
    *,
    to: str = "submitting",
    provider: str = "films",
    owner: str = "ada",
    job: str = "no-job",
    provider_id: str | None = None,
) -> ProviderTask:
    """A task with its charge, brought to a state on the way: `created`, `submitting`, `submission_unknown`, `pending`.

    Args:
        store: The record.
        key: The submission's key.
        to: The state.
        provider: The provider's name.
        owner: Whose it is; they are granted credit.
        job: Public id of its job.
        provider_id: The provider's id of one that is `pending`; `at-KEY` when omitted.
    """
    grant(store, owner)
    now = store.clock.now_ms()

    def make(connection: Connection) -> ProviderTask:
        task, made = provider_tasks.create(
            connection,
            owner=owner,
            submission_key=key,
            generation=1,
            job=job,
            provider=provider,
            request={"prompt": key},
            quote=QUOTE,
            now=now,
            actor="test",
        )
        assert made
        if to != "created":
            task = provider_tasks.submitting(connection, task, job=job, now=now)
        if to == "submission_unknown":
            task = provider_tasks.unknown(connection, task, now=now)
        if to == "pending":
            where = provider_id or f"at-{key}"
            task = provider_tasks.accepted(connection, task, where, now=now, next_poll_at=now)
        assert task.state == to
        return task

    return store.write(make).result()


def again(store: Store, task: ProviderTask) -> ProviderTask:
    """The task as it is now."""
    return store.read(lambda connection: provider_tasks.get(connection, task.id))


def entries(store: Store, task: ProviderTask) -> list[tuple[str, int]]:
    """What was charged for a task and given back, oldest first."""
    found = store.read(lambda connection: ledger.entries(connection, task=task.public_id))
    return [(entry.kind, entry.amount) for entry in found[::-1]]


class Scripted(Provider):
    """A provider of one's own that answers as it is told to.

    Attributes:
        says: By the provider's id of a task: what `query` answers in turn, the last for ever; an exception is raised.
        asked: How often each was asked for.
        cancelled: What was cancelled.
        hangs: Ids of tasks of which it never tells.
    """

    def __init__(self, name: str = "films") -> None:
        self.name = name
        self.says: dict[str, list[ProviderStatus | Exception]] = {}
        self.otherwise: ProviderStatus | Exception = PENDING
        self.asked: Counter[str] = Counter()
        self.cancelled: list[str] = []
        self.hangs: set[str] = set()
        self.at_once = self.most_at_once = 0

    async def submit(self, request: Mapping[str, Any], *, key: str) -> Submitted:
        """Take everything."""
        return Submitted(f"at-{request['prompt']}")

    async def query(self, provider_task_id: str) -> ProviderStatus:
        """As it is told."""
        self.asked[provider_task_id] += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(0)
            if provider_task_id in self.hangs:
                await asyncio.Event().wait()
        finally:
            self.at_once -= 1
        given = self.says.get(provider_task_id, [])
        answer = (given.pop(0) if len(given) > 1 else given[0]) if given else self.otherwise
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def cancel(self, provider_task_id: str) -> None:
        """End it."""
        self.cancelled.append(provider_task_id)
        self.says[provider_task_id] = [ProviderStatus("failed", error={"message": "cancelled"})]

    def parse_webhook(self, headers: Mapping[str, str], body: bytes) -> ProviderEvent:
        """`{"id": …, "task": …, "key": …, "state": …}`."""
        import json

        from everstep.errors import EventInvalid

        try:
            told = json.loads(body)
            status = ProviderStatus(
                told["state"],
                result=told.get("result"),
                error=told.get("error"),
                retry_after_ms=told.get("retry_after_ms"),
            )
            return ProviderEvent(str(told["id"]), status, told.get("task"), told.get("key"))
        except (ValueError, KeyError, TypeError) as error:
            raise EventInvalid("it is no event of mine") from error
