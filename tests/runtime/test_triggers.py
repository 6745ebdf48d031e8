"""Events of triggers: stored once, handled once, whoever dies between; failed ones, replays, what is kept of them."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Coroutine
from functools import partial
from typing import Any, TypeVar

import pytest

from everstep import crash
from everstep.checkpoints import trigger_events
from everstep.checkpoints.store import Store
from everstep.checkpoints.trigger_events import Event
from everstep.clock import ManualClock
from everstep.errors import EventNotFound
from everstep.graphs.policies import Policies
from everstep.runtime.triggers import incoming, registry
from everstep.runtime.triggers.incoming import Incoming
from everstep.runtime.triggers.registry import Triggers
from tests.support.events import policies
from tests.support.jobs import chain, work
from tests.support.record import CONTEXT, in_processes
from tests.support.waiting import PATIENCE

T = TypeVar("T")
SECRET = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789"

ORDERS = policies(
    orders={
        "source": "http",
        "event_id": "/body/id",
        "filter": [{"path": "/body/kind", "equals": "paid"}],
        "input": {"log": [{"path": "/body/order"}]},
        "priority": 7,
        "owner": "ada",
    }
)


def order(key: str = "1", **more: Any) -> Incoming:
    """An event of the trigger `orders`."""
    body = json.dumps({"id": key, "kind": "paid", "order": 17, **more}).encode()
    return incoming.read(ORDERS.triggers["orders"], {"content-type": "application/json"}, body)  # type: ignore[arg-type]


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """What it gives."""
    return asyncio.run(coroutine)


async def taken(triggers: Triggers, event: Incoming, name: str = "orders") -> Event:
    """The event, stored and handled."""
    stored, _ = await triggers.receive(name, event)
    return await triggers.handle(stored)


def take(store: Store, event: Incoming, given: Policies = ORDERS) -> Event:
    """As `taken`, here."""
    return run(taken(Triggers(store, given), event))


def events(store: Store) -> list[Event]:
    """Every event, oldest first."""
    return store.read(trigger_events.every)[::-1]


# ---- one event, one job


@pytest.mark.both_databases
def test_an_event_starts_a_job(store: Store) -> None:
    """The job has the mapped input, a key of the trigger's, its owner and priority, and tells which event it is of."""
    event = take(store, order())
    (job,) = store.jobs()
    assert (event.state, event.job, event.handled_at) == ("started", job.public_id, store.clock.now_ms())
    assert (job.payload, job.owner, job.priority) == ({"log": [17]}, "ada", 7)
    assert job.idempotency_key == "trigger:orders:1"
    (evidence,) = store.evidence(job)
    assert evidence["kind"] == "trigger"
    assert evidence["detail"] | {"handled_at": None} == {
        "trigger": "orders",
        "source": "http",
        "id": event.public_id,
        "key": "1",
        "occurred_at": None,
        "received_at": "2027-01-15T08:00:00.000Z",
        "handled_at": None,
    }


@pytest.mark.both_databases
def test_an_event_that_comes_twice_is_one(store: Store) -> None:
    """The same key is the same event and job, also with another body, and whatever was stored first stays."""
    first, again = take(store, order()), take(store, order(order=18))
    assert (first.public_id, first.job) == (again.public_id, again.job)
    assert [job.payload for job in store.jobs()] == [{"log": [17]}]
    assert take(store, order("2")).job != first.job


@pytest.mark.both_databases
def test_what_is_not_wanted_starts_nothing(store: Store) -> None:
    """An event that the filter does not want is stored, and makes no job."""
    event = take(store, order(kind="refunded"))
    assert (event.state, event.job, store.jobs()) == ("filtered", None, [])
    mended = Triggers(store, policies(orders={"source": "http"}))
    assert run(mended.handle(event)).state == "filtered", "what was handled is handled anew by a replay alone"
    assert store.jobs() == []


@pytest.mark.both_databases
def test_what_cannot_become_an_input_fails_and_is_handled_again(store: Store, caplog: Any) -> None:
    """A mapping that finds nothing leaves the event failed, with the place; mended, a replay makes the job."""
    without = order()
    without = Incoming(without.key, without.headers, {"id": "1", "kind": "paid"})
    event = take(store, without)
    assert (event.state, store.jobs()) == ("failed", [])
    error = json.loads(event.error_json or "")
    assert (error["code"], error["path"]) == ("event_invalid", "/body/order")
    assert event.public_id in caplog.text
    assert take(store, without).state == "failed", "it was not handled anew by itself"
    mended = policies(orders={"source": "http", "input": {"log": [{"path": "/body/order", "default": 0}]}})
    replayed = run(Triggers(store, mended).replay(event))
    assert (replayed.state, replayed.error_json) == ("started", None)
    assert [job.payload for job in store.jobs()] == [{"log": [0]}]


def test_an_event_that_another_process_started_does_not_fail(store: Store) -> None:
    """One process cannot make a job of an event and another has: it stays started, with its job."""
    stored, _ = run(Triggers(store, ORDERS).receive("orders", order()))
    started = run(Triggers(store, ORDERS).handle(stored))
    error = {"code": "event_invalid", "message": "an older everstep.toml"}
    fail = partial(registry._fail, event=stored, error=error, now=1)  # pyright: ignore[reportPrivateUsage]
    assert store.write(fail).result() == started


@pytest.mark.both_databases
def test_two_events_of_one_key_are_one_job_or_a_conflict(store: Store) -> None:
    """Events whose job has the same key and input are one job; with another input the second fails, and leaves none."""
    keyed = policies(
        orders={"source": "http", "key": "/body/order", "input": {"log": [{"path": "/body/note", "default": ""}]}}
    )
    first, second = take(store, order("1"), keyed), take(store, order("2"), keyed)
    assert first.job == second.job
    third = take(store, order("3", note="x"), keyed)
    assert third.state == "failed"
    assert json.loads(third.error_json or "")["code"] == "key_conflict"
    assert len(store.jobs()) == 1


@pytest.mark.both_databases
def test_a_replay_makes_no_second_job_unless_asked(store: Store) -> None:
    """Without `again` the job that is there is what comes of it; with it there is another, and another."""
    event = take(store, order())
    triggers = Triggers(store, ORDERS)
    assert run(triggers.replay(event)).job == event.job
    others = {run(triggers.replay(event, again=True)).job for _ in range(2)}
    assert len(others | {event.job}) == len(store.jobs()) == 3


def test_a_job_that_was_pruned_is_not_made_again(store: Store, clock: ManualClock) -> None:
    """An event that comes once more after its job was deleted starts nothing anew: its key is known."""
    take(store, order())
    work(store, chain(lambda _s: {"log": [1]}))
    clock.advance(31 * 86_400_000)
    store.prune()
    assert events(store) == []
    event = take(store, order())
    assert (event.state, store.jobs()) == ("failed", [])
    assert json.loads(event.error_json or "")["code"] == "job_pruned"


def test_a_webhook_of_the_trigger_is_the_jobs(store: Store) -> None:
    """What a trigger says of its webhook holds for each job."""
    given = policies(orders={"source": "http", "webhook": "https://example.org/done"})
    take(store, Incoming("1", {}, {"log": []}), given)
    assert [job.webhook for job in store.jobs()] == ["https://example.org/done"]


@pytest.mark.both_databases
def test_credentials_are_not_stored(store: Store) -> None:
    """What looks like a credential, by name or form, is in no row of the event or its job."""
    given = policies(orders={"source": "http", "input": {"log": [{"path": "/body"}, {"path": "/headers/x-extra"}]}})
    section: Any = given.triggers["orders"]
    body = {"id": "1", "api_key": "hunter2", "note": f"use {SECRET}", "deep": [{"password": ["hunter2"]}]}
    headers = {
        "authorization": "Bearer hunter2",
        "cookie": "session=hunter2",
        "x-api-key": "hunter2",
        "x-signature": "hunter2",
        "x-extra": f"token={SECRET}",
        "content-type": "application/json",
    }
    event = take(store, incoming.read(section, headers, json.dumps(body).encode()), given)
    assert event.state == "started"
    assert json.loads(event.headers_json) == {"content-type": "application/json", "x-extra": "token=***"}
    for table in ("trigger_events", "agent_jobs", "evidence"):
        text = repr(store.read(lambda c, table=table: c.exec_driver_sql(f"SELECT * FROM {table}").all()))
        assert "hunter2" not in text
        assert SECRET not in text


@pytest.mark.both_databases
def test_odd_text_is_kept(store: Store) -> None:
    """Zero bytes, halves of characters and long keys in an event are stored, on either database."""
    odd = Incoming(incoming.shortened("\x00\ud800" * 300), {"x": "\x00"}, {"log": ["\x00", "é"]})
    given = policies(orders={"source": "http"})
    event = take(store, odd, given)
    assert event.state == "started"
    assert events(store)[0].document()["body"] == {"log": ["\x00", "é"]}
    half = take(store, Incoming("2", {}, {"log": ["\ud800"]}), given)
    assert (half.state, json.loads(half.error_json or "")["code"]) == ("failed", "payload_invalid")


# ---- processes that die, and several at once


def _take(url: str, key: str, crash_at: str | None = None) -> None:
    crash.arm(crash_at)
    with Store.open(url) as store:
        take(store, order(key))


def _handle_waiting(url: str) -> None:
    with Store.open(url) as store:
        run(Triggers(store, ORDERS).handle_waiting())


@pytest.mark.both_databases
@pytest.mark.parametrize(("point", "state"), [("trigger.stored", "stored"), ("trigger.handled", "started")])
def test_a_kill_between_stored_and_handled(shared: Store, point: str, state: str) -> None:
    """What a killed process stored is handled by the next, and becomes one job; sent again, it is still that one."""
    process = CONTEXT.Process(target=_take, args=(shared.url, "1", point))
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == -signal.SIGKILL
    assert [event.state for event in events(shared)] == [state]
    assert len(shared.jobs()) == (state == "started")
    triggers = Triggers(shared, ORDERS)
    assert run(triggers.handle_waiting()) == (state == "stored")
    assert [event.state for event in events(shared)] == ["started"]
    assert take(shared, order()).job == shared.jobs()[0].public_id
    assert len(shared.jobs()) == 1


@pytest.mark.both_databases
def test_many_processes_make_one_job_of_an_event(shared: Store) -> None:
    """The same event taken by several processes at once, and leftovers handled by all of them, are one job each."""
    in_processes(_take, [(shared.url, "same")] * 3)
    assert len(shared.jobs()) == 1
    for number in range(8):
        run(Triggers(shared, ORDERS).receive("orders", order(str(number))))
    in_processes(_handle_waiting, [(shared.url,)] * 3)
    assert len(shared.jobs()) == 9
    assert {event.state for event in events(shared)} == {"started"}


@pytest.mark.both_databases
def test_only_own_triggers_are_handled(store: Store) -> None:
    """What another configuration's trigger left stored is left to it."""
    run(Triggers(store, ORDERS).receive("orders", order()))
    assert run(Triggers(store, policies(others={"source": "http"})).handle_waiting()) == 0
    assert [event.state for event in events(store)] == ["stored"]


# ---- what is told of it


@pytest.mark.both_databases
def test_how_long_it_took_is_known(store: Store, clock: ManualClock) -> None:
    """From the event to the first start of its job, for the job and by source; a later start changes nothing."""
    take(store, order())
    (job,) = store.jobs()
    assert store.read(lambda c: trigger_events.start_of(c, job.id))["event_to_start_ms"] is None  # type: ignore[index]
    clock.advance(1500)
    work(store, chain(lambda _s: {"log": [1]}))
    told = store.read(lambda c: trigger_events.start_of(c, job.id))
    assert told is not None
    assert (told["trigger"], told["event_to_start_ms"]) == ("orders", 1500)
    since = clock.now_ms() - 3_600_000
    assert store.read(lambda c: trigger_events.waits(c, since=since)) == {"http": [1500]}
    assert store.read(lambda c: trigger_events.recent(c, since=since)) == {("http", "started"): 1}
    clock.advance(3_600_000)
    assert store.read(lambda c: trigger_events.waits(c, since=clock.now_ms() - 3_600_000)) == {}
    plain, _ = store.enqueue("graph", {"log": ["plain"]})
    assert store.read(lambda c: trigger_events.start_of(c, plain.id)) is None


def test_events_are_found_by_the_beginning_of_their_id(store: Store) -> None:
    """An id, or its first characters; one that is not there is told so."""
    event = take(store, order())
    assert store.read(lambda c: trigger_events.find(c, event.public_id[:12])) == event
    with pytest.raises(EventNotFound):
        store.read(lambda c: trigger_events.find(c, "ffffffff"))
