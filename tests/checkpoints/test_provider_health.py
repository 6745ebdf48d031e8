"""What the record's health tells of paid tasks: what is unfinished, what nobody asks for, what no task answers to."""

from __future__ import annotations

from functools import partial

import pytest

from everstep.checkpoints import jobs, provider_events, provider_tasks
from everstep.checkpoints.health import examine
from everstep.checkpoints.metrics import exposition
from everstep.checkpoints.provider_health import NAMED, UNPOLLED_MS
from everstep.checkpoints.provider_status import ProviderEvent
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock
from tests.support import paid
from tests.support.paid import DONE, PENDING, task_of

pytestmark = pytest.mark.both_databases


def test_unfinished_tasks_are_told_by_provider_and_state(store: Store, clock: ManualClock) -> None:
    """Each state has its number and the oldest its age; those that nobody knows of are named; finished ones are not."""
    task_of(store, "first", to="created")
    clock.advance(5_000)
    unknown = task_of(store, "lost", to="submission_unknown")
    for number in range(3):
        task_of(store, str(number), to="pending")
    other = task_of(store, "elsewhere", to="pending", provider="sounds")
    done = partial(provider_tasks.reconcile, task=other, status=DONE, source="poll", actor="test", now=clock.now_ms())
    store.write(done).result()
    found = examine(store).providers
    assert found.tasks == {("films", "created"): 1, ("films", "submission_unknown"): 1, ("films", "pending"): 3}
    assert (found.oldest_ms, found.unknown, found.in_state("pending")) == (5_000, (unknown.public_id,), 3)
    text = exposition(examine(store))
    assert 'everstep_provider_tasks{provider="films",state="submission_unknown"} 1\n' in text
    assert "everstep_oldest_provider_task_seconds 5\n" in text


def test_what_nobody_asks_for_is_told(store: Store, clock: ManualClock) -> None:
    """A task that was due a quarter of an hour ago, and not one that is asked for or waits for its time."""
    tasks = [task_of(store, str(number), to="pending") for number in range(NAMED + 2)]
    clock.advance(UNPOLLED_MS - 1)
    assert examine(store).providers.unpolled == 0
    store.write(
        lambda c: provider_tasks.take_due(c, "films", holder="somebody", now=clock.now_ms(), lease_ms=60_000, limit=1)
    ).result()
    clock.advance(1)
    found = examine(store).providers
    assert (found.unpolled, len(found.unpolled_tasks)) == (len(tasks) - 1, NAMED)


def test_what_was_paid_and_never_submitted_is_told(store: Store) -> None:
    """Once the job that was to submit it has ended; what costs nothing, or is submitted, is not."""
    job = store.enqueue("graph", {}).job
    now = store.clock.now_ms()
    paid.give(store, 500)
    made = paid.create(store, job=job.public_id, submission_key="made")[0]
    paid.create(store, job=job.public_id, submission_key="free", quote=None)
    sent = paid.create(store, job=job.public_id, submission_key="sent")[0]
    store.write(lambda c: provider_tasks.submitting(c, sent, job=job.public_id, now=now)).result()
    assert examine(store).providers.abandoned == 0
    failed = {"now": now, "actor": "test", "reason": "x"}
    store.write(lambda c: jobs.fail(c, jobs.lock(c, job.id), **failed)).result()
    found = examine(store).providers
    assert (found.abandoned, found.abandoned_tasks) == (1, (made.public_id,))


def test_events_without_a_task_are_told(store: Store, clock: ManualClock) -> None:
    """Parked events are counted with the age of the oldest; one that found its task is not."""
    task_of(store, to="pending")
    for number, where in enumerate(("at-film", "nowhere", "nowhere else")):
        event = ProviderEvent(str(number), PENDING, where)
        take = partial(provider_events.take, provider="films", event=event, now=clock.now_ms())
        store.write(take).result()
        clock.advance(1_000)
    found = examine(store).providers
    assert (found.parked, found.oldest_parked_ms) == (2, 2_000)
