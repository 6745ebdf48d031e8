"""What providers send on their own: each event once, told to its task whenever that becomes known."""

from __future__ import annotations

from typing import Any

import pytest

from everstep.checkpoints import provider_events, provider_tasks
from everstep.checkpoints.provider_status import ProviderEvent, ProviderStatus
from everstep.checkpoints.retention import DAY_MS, Rules
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock
from everstep.errors import ProviderEventNotFound
from tests.support.paid import (
    DONE,
    FAILED,
    PENDING,
    PROVIDER,
    accept,
    again,
    balance,
    create,
    entries,
    give,
    send,
    submitted,
    tell,
    told,
)

pytestmark = pytest.mark.both_databases


def stored(store: Store, **wanted: Any) -> list[provider_events.StoredEvent]:
    """The events that are kept."""
    return store.read(lambda c: provider_events.listed(c, **wanted))


def replay(store: Store, event: provider_events.StoredEvent) -> provider_events.Taken:
    """Tell its task once more."""
    now = store.clock.now_ms()
    return store.write(lambda c: provider_events.replay(c, event, actor="ann", now=now)).result()


def test_an_event_settles_its_task(store: Store) -> None:
    """In the transaction that keeps the event."""
    give(store, 500)
    task = submitted(store)
    taken = send(store, FAILED, provider_task_id="film-1")
    assert (taken.state, taken.duplicate, taken.changed) == ("applied", False, True)
    assert taken.task is not None
    assert taken.task == again(store, task)
    assert (taken.task.state, taken.task.settled_by) == ("failed", "webhook")
    assert balance(store) == 500
    assert stored(store, task=task.public_id) == [taken.event]
    assert taken.event.handled_at == store.clock.now_ms()


def test_an_event_is_taken_once(store: Store) -> None:
    """By its provider's id of it, whatever else it says the second time; another provider's is another event."""
    give(store, 500)
    task = submitted(store)
    send(store, PENDING, provider_task_id="film-1")
    second = send(store, FAILED, provider_task_id="film-1")
    assert (second.duplicate, second.changed, second.state) == (True, False, "applied")
    assert second.task == again(store, task)
    assert again(store, task).state == "pending"
    other = ProviderEvent("event-1", DONE, "film-1")
    taken = store.write(lambda c: provider_events.take(c, "another", other, now=1)).result()
    assert (taken.duplicate, taken.state) == (False, "parked")


@pytest.mark.parametrize("about", [{"provider_task_id": "film-1"}, {"by key": True}])
def test_an_event_before_the_submit_is_answered_is_told_when_the_id_is_known(
    store: Store, about: dict[str, Any]
) -> None:
    """It is parked, or, where it tells our key, applied at once."""
    give(store, 500)
    task = submitted(store, None)
    by_key = "by key" in about
    taken = send(store, DONE, **({"provider_key": task.provider_key} if by_key else about))
    assert taken.state == ("applied" if by_key else "parked")
    task = accept(store, task)
    assert (task.state, task.settled_by, task.next_poll_at) == ("succeeded", "webhook", None)
    assert told(store, task) is not None
    (event,) = stored(store)
    assert (event.state, event.task) == ("applied", task.public_id)


def test_what_one_event_teaches_frees_what_others_said(store: Store) -> None:
    """One that tells our key and the provider's id makes those known that told the id alone."""
    give(store, 500)
    task = submitted(store, None)
    assert send(store, DONE, "event-1", provider_task_id="film-1").state == "parked"
    taken = send(store, PENDING, "event-2", provider_task_id="film-1", provider_key=task.provider_key)
    assert taken.task is not None
    assert (taken.state, taken.task.state) == ("applied", "succeeded")
    assert {event.state for event in stored(store)} == {"applied"}


def test_what_a_poll_teaches_frees_what_events_said(store: Store) -> None:
    """A probe by our key finds the provider's id: what was parked for that is applied."""
    give(store, 500)
    task = submitted(store, None)
    send(store, FAILED, provider_task_id="film-1")
    answer = tell(store, task, ProviderStatus("pending", provider_task_id="film-1"), "probe")
    assert answer.task.state == "failed"
    assert entries(store, task) == [("charge", -200), ("refund", 200)]


def test_of_what_was_parked_the_first_end_wins(store: Store) -> None:
    """In the order in which it came."""
    give(store, 500)
    job = store.enqueue("graph", {"n": 1}).job
    task = submitted(store, None, job=job.public_id)
    for number, status in enumerate([PENDING, FAILED, DONE, PENDING]):
        send(store, status, f"event-{number}", provider_task_id="film-1")
    task = accept(store, task)
    assert task.state == "failed"
    assert [event.state for event in reversed(stored(store))] == ["applied", "applied", "ignored", "ignored"]
    assert [one["detail"]["what"] for one in store.evidence(job)] == ["contradiction"]


def test_an_event_of_an_unknown_task_is_parked(store: Store) -> None:
    """It changes nothing, and is there when somebody looks."""
    taken = send(store, DONE, provider_task_id="film-9", provider_key="everstep-x", occurred_at=5)
    assert (taken.state, taken.task, taken.event.handled_at) == ("parked", None, None)
    assert taken.event.status == DONE
    assert stored(store, state="parked") == [taken.event]
    assert replay(store, taken.event).state == "parked"


def test_nothing_is_believed_of_a_task_that_was_not_submitted(store: Store) -> None:
    """Without the provider's id it is parked, until the submission is answered or its answer is lost."""
    give(store, 500)
    task, _ = create(store)
    assert send(store, DONE, provider_key=task.provider_key).state == "parked"
    assert again(store, task).state == "created"
    now = store.clock.now_ms()
    task = store.write(lambda c: provider_tasks.submitting(c, task, job="job", now=now)).result()
    assert task.state == "submitting"
    task = store.write(lambda c: provider_tasks.unknown(c, task, now=now)).result()
    assert task.state == "succeeded"


def test_an_event_of_a_finished_task_is_ignored(store: Store) -> None:
    """Late, out of order, or contradicting: only the last is evidence."""
    give(store, 500)
    job = store.enqueue("graph", {"n": 1}).job
    ended = tell(store, submitted(store, job=job.public_id), DONE).task
    for number, status in enumerate([PENDING, DONE, FAILED]):
        taken = send(store, status, f"event-{number}", provider_task_id="film-1")
        assert (taken.state, taken.changed) == ("ignored", False)
    assert again(store, ended) == ended
    assert len(store.evidence(job)) == 1


def test_an_event_of_a_second_submission_is_ignored(store: Store) -> None:
    """It tells our key and another id of the provider's: evidence of a double submission, and no end of this one."""
    give(store, 500)
    job = store.enqueue("graph", {"n": 1}).job
    task = submitted(store, job=job.public_id)
    taken = send(store, FAILED, provider_task_id="film-2", provider_key=task.provider_key)
    assert (taken.state, taken.task) == ("ignored", task)
    assert [one["detail"]["what"] for one in store.evidence(job)] == ["second_id"]


def test_a_replay_of_what_was_told_before_is_nothing(store: Store) -> None:
    """Neither row nor money changes."""
    give(store, 500)
    submitted(store)
    taken = send(store, FAILED, provider_task_id="film-1")
    repeated = replay(store, taken.event)
    assert (repeated.changed, repeated.task) == (False, taken.task)
    assert balance(store) == 500


def test_events_are_found_and_listed(store: Store) -> None:
    """By id, state, provider and page, without the provider's ids in what is shown."""
    events = [send(store, DONE, f"event-{number}", provider_task_id="film-1").event for number in range(3)]
    assert store.read(lambda c: provider_events.find(c, events[0].public_id)) == events[0]
    assert stored(store, provider=PROVIDER, limit=1) == events[2:]
    assert stored(store, before=events[1].id) == events[:1]
    assert store.read(provider_events.counts) == {(PROVIDER, "parked"): 3}
    assert "film-1" not in str(events[0].view())
    with pytest.raises(ProviderEventNotFound):
        store.read(lambda c: provider_events.find(c, "ffff"))


def test_events_of_ended_tasks_are_pruned_and_parked_ones_stay_longer(store: Store, clock: ManualClock) -> None:
    """Never those of a task that is under way; one that comes again after the deletion finds its task ended."""
    give(store, 900)
    ended, going = submitted(store), submitted(store, "film-2", submission_key="dog")
    send(store, DONE, "the end", provider_task_id="film-1")
    send(store, PENDING, "on the way", provider_task_id="film-2")
    send(store, DONE, "of nobody", provider_task_id="film-9")

    def left() -> set[str]:
        store.prune(Rules(failed_days=1, key_days=10))
        return {event.event_id for event in stored(store)}

    assert left() == {"the end", "on the way", "of nobody"}
    clock.advance(2 * DAY_MS)
    assert left() == {"on the way", "of nobody"}
    before = balance(store)
    taken = send(store, FAILED, "the end", provider_task_id="film-1")
    assert (taken.state, again(store, ended).state, balance(store)) == ("ignored", "succeeded", before)
    clock.advance(9 * DAY_MS)
    assert left() == {"on the way"}
    tell(store, going, DONE)
    assert left() == set()
