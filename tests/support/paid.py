"""Paid tasks as tests make them: credit, the moves of whoever submits and asks, and a provider that does as told."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from everstep.checkpoints import ledger, provider_events, provider_tasks, signals
from everstep.checkpoints.ledger import Entry
from everstep.checkpoints.provider_events import Taken
from everstep.checkpoints.provider_status import ProviderEvent, ProviderStatus
from everstep.checkpoints.provider_task import ProviderTask
from everstep.checkpoints.provider_tasks import Reconciled
from everstep.checkpoints.quote import Quote
from everstep.checkpoints.signals import Signal
from everstep.checkpoints.store import Store
from everstep.errors import EventInvalid
from everstep.nodes.providers.interface import Provider, Submitted

OWNER, CURRENCY, PROVIDER = "ada", "EUR", "films"
PRICE = 250
GRANTED = 1_000_000
REQUEST: Any = {"prompt": "a cat"}
DONE = ProviderStatus("succeeded", result={"url": "https://example.com/cat"})
FAILED = ProviderStatus("failed", error={"code": "no_cat"})
PENDING = ProviderStatus("pending")


def price(amount: int) -> Quote:
    """A price."""
    return Quote(amount, CURRENCY, 2, "2027-01")


QUOTE = price(PRICE)


def give(store: Store, amount: int, key: str = "start", owner: str = OWNER) -> tuple[Entry, bool]:
    """Grant credit."""
    now = store.clock.now_ms()
    return store.write(
        lambda c: ledger.grant(c, owner, CURRENCY, amount, reason="a gift", key=key, actor="test", now=now)
    ).result()


def grant(store: Store, owner: str = OWNER, amount: int = GRANTED) -> None:
    """Give plenty of credit, once."""
    give(store, amount, "plenty", owner)


def create(store: Store, amount: int = 200, **different: Any) -> tuple[ProviderTask, bool]:
    """Make a task, or find it."""
    asked: dict[str, Any] = {"owner": OWNER, "submission_key": "cat", "generation": 1, "job": "job"}
    asked |= {"provider": PROVIDER, "request": REQUEST, "quote": price(amount), "now": store.clock.now_ms()}
    asked |= {"actor": "test", **different}
    return store.write(lambda c: provider_tasks.create(c, **asked)).result()


def submitted(store: Store, provider_task_id: str | None = "film-1", **different: Any) -> ProviderTask:
    """A task that its job submits; accepted under this id, if one is given."""
    task, _ = create(store, **different)
    now = store.clock.now_ms()
    task = store.write(lambda c: provider_tasks.submitting(c, task, job=task.job, now=now)).result()
    return task if provider_task_id is None else accept(store, task, provider_task_id)


def accept(store: Store, task: ProviderTask, provider_task_id: str = "film-1", *, after_ms: int = 2000) -> ProviderTask:
    """The provider has it, and is asked after so many ms."""
    now = store.clock.now_ms()
    return store.write(
        lambda c: provider_tasks.accepted(c, task, provider_task_id, now=now, next_poll_at=now + after_ms)
    ).result()


def move(store: Store, task: ProviderTask, how: str, **more: Any) -> ProviderTask:
    """One of the moves of whoever submits."""
    now = store.clock.now_ms()
    return store.write(lambda c: getattr(provider_tasks, how)(c, task, now=now, **more)).result()


def tell(store: Store, task: ProviderTask, status: ProviderStatus, source: str = "poll") -> Reconciled:
    """Reconcile."""
    now = store.clock.now_ms()
    return store.write(
        lambda c: provider_tasks.reconcile(c, task, status, source=source, actor="test", now=now)
    ).result()


def send(store: Store, status: ProviderStatus, event_id: str = "event-1", **about: Any) -> Taken:
    """An event of the provider's comes."""
    now = store.clock.now_ms()
    event = ProviderEvent(event_id, status, **about)
    return store.write(lambda c: provider_events.take(c, PROVIDER, event, now=now)).result()


def again(store: Store, task: ProviderTask) -> ProviderTask:
    """The task as it is now."""
    return store.read(lambda c: provider_tasks.get(c, task.id))


def task_of(
    store: Store,
    key: str = "film",
    *,
    to: str = "submitting",
    provider: str = PROVIDER,
    owner: str = OWNER,
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
    about: Any = {"owner": owner, "job": job, "provider": provider, "request": {"prompt": key}, "quote": QUOTE}
    task, made = create(store, submission_key=key, **about)
    assert made
    if to != "created":
        task = move(store, task, "submitting", job=job)
    if to == "submission_unknown":
        task = move(store, task, "unknown")
    if to == "pending":
        task = accept(store, task, provider_id or f"at-{key}", after_ms=0)
    assert task.state == to
    return task


def balance(store: Store, owner: str = OWNER) -> int:
    """What the owner has."""
    return store.read(lambda c: ledger.balance(c, owner, CURRENCY))


def entries(store: Store, task: ProviderTask) -> list[tuple[str, int]]:
    """What was charged for a task and given back, oldest first."""
    found = store.read(lambda connection: ledger.entries(connection, task=task.public_id))
    return [(entry.kind, entry.amount) for entry in found[::-1]]


def told(store: Store, task: ProviderTask) -> Signal | None:
    """The signal of its end."""
    return store.read(lambda c: signals.find(c, task.owner, task.signal))


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
