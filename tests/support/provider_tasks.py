"""Paid tasks made by hand: an owner with credit, a price, and the moves of whoever submits and asks."""

from __future__ import annotations

from typing import Any

from everstep.checkpoints import ledger, provider_events, provider_tasks, signals
from everstep.checkpoints.ledger import Entry
from everstep.checkpoints.provider_events import Taken
from everstep.checkpoints.provider_status import ProviderEvent, ProviderStatus
from everstep.checkpoints.provider_tasks import ProviderTask, Reconciled
from everstep.checkpoints.quote import Quote
from everstep.checkpoints.signals import Signal
from everstep.checkpoints.store import Store

OWNER, CURRENCY, PROVIDER = "ann", "EUR", "films"
REQUEST: Any = {"prompt": "a cat"}
DONE = ProviderStatus("succeeded", result={"url": "https://example.com/cat"})
FAILED = ProviderStatus("failed", error={"code": "no_cat"})
PENDING = ProviderStatus("pending")


def price(amount: int) -> Quote:
    """A price."""
    return Quote(amount, CURRENCY, 2, "2027-01")


def give(store: Store, amount: int, key: str = "start", owner: str = OWNER) -> tuple[Entry, bool]:
    """Grant credit."""
    now = store.clock.now_ms()
    return store.write(
        lambda c: ledger.grant(c, owner, CURRENCY, amount, reason="a gift", key=key, actor="test", now=now)
    ).result()


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


def accept(store: Store, task: ProviderTask, provider_task_id: str = "film-1") -> ProviderTask:
    """The provider has it."""
    now = store.clock.now_ms()
    return store.write(
        lambda c: provider_tasks.accepted(c, task, provider_task_id, now=now, next_poll_at=now + 2000)
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


def balance(store: Store, owner: str = OWNER) -> int:
    """What the owner has."""
    return store.read(lambda c: ledger.balance(c, owner, CURRENCY))


def amounts(store: Store, task: ProviderTask) -> list[tuple[str, int]]:
    """A task's entries, oldest first."""
    found = store.read(lambda c: ledger.entries(c, task=task.public_id))
    return [(entry.kind, entry.amount) for entry in reversed(found)]


def told(store: Store, task: ProviderTask) -> Signal | None:
    """The signal of its end."""
    return store.read(lambda c: signals.find(c, task.owner, task.signal))
