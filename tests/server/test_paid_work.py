"""Paid work from its submission to its end: a real server and worker, a simulated provider over sockets, kills."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from multiprocessing.connection import Connection as Pipe
from typing import Any, cast

import httpx
import pytest

from everstep import crash
from everstep.checkpoints import provider_events, provider_tasks
from everstep.checkpoints.provider_task import ProviderTask
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock
from everstep.graphs.event_sections import Hmac, StandardWebhooks
from everstep.graphs.loader import GraphCatalogue
from everstep.nodes.provider import observe_task, submit_task
from everstep.runtime.observation import LEASE_MS, Observation
from examples.provider_simulator.server import Simulator, simulating
from tests.support.events import HOOK_SECRET, by_standard_webhooks
from tests.support.jobs import Log, chain
from tests.support.live import live
from tests.support.paid import PRICE, QUOTE, entries, grant
from tests.support.record import CONTEXT
from tests.support.simulated import simulated
from tests.support.waiting import PATIENCE, until

STANDARD = StandardWebhooks(kind="standard-webhooks", secret_env="SIM_SECRET")
HMAC = Hmac(
    kind="hmac-sha256",
    secret_env="SIM_SECRET",
    header="x-signature",
    prefix="sha256=",
    timestamp_header="x-timestamp",
    signs="{timestamp}.{body}",
)
NEVER = {"poll_first": 86_400.0, "poll_most": 86_400.0}
"""Asked so seldom that what ends a task is a webhook."""


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIM_SECRET", HOOK_SECRET)


def making(plan: dict[str, Any]) -> Any:
    """A graph that submits a film for money, waits for it, and keeps what was seen."""

    async def submit(_state: Log) -> Log:
        return {"log": [await submit_task("sim", {"prompt": "film", "simulate": plan}, key="film", quote=QUOTE)]}

    async def watch(state: Log) -> Log:
        return {"log": [await observe_task((state.get("log") or [])[0])]}

    return chain(submit, watch)


@contextmanager
def served(
    store: Store, simulator: Simulator, plan: dict[str, Any], webhook: Any = STANDARD, **settings: Any
) -> Generator[str]:
    """A server with a worker beside it, told of by the simulator; gives the job's id."""
    providers = simulated(simulator.url, webhook=webhook, **settings)
    grant(store)
    with live(store, GraphCatalogue.from_graphs({"graph": making(plan)}), providers=providers) as url:
        simulator.sender.url, simulator.sender.secret = f"{url}/webhooks/sim", HOOK_SECRET
        simulator.sender.scheme = "standard" if webhook is STANDARD else "hmac"
        yield store.enqueue("graph", {"log": []}, owner="ada").job.public_id


def task(store: Store) -> ProviderTask | None:
    """The one task of a record, if there is one."""
    found = store.read(provider_tasks.listed)
    return found[0] if found else None


def ends(store: Store, job: str) -> dict[str, Any]:
    """What the job saw of the task, once it is done."""
    until(lambda: store.job(job).status == "done", "the job's end")
    return json.loads(store.job(job).result_json or "")["log"][-1]


@pytest.mark.both_databases
def test_a_poll_ends_a_jobs_wait(shared: Store) -> None:
    """The job is parked, holds no worker and spends no attempt, and goes on with what a poll found; charged once."""
    with simulating() as simulator, served(shared, simulator, {"polls": 2}, poll_most=0.1) as job:
        seen = ends(shared, job)
        report = simulator.book.report()
    assert (seen["state"], seen["result"] is None) == ("succeeded", False)
    settled = task(shared)
    assert settled is not None
    assert (settled.settled_by, settled.state, settled.polls) == ("poll", "succeeded", 3)
    assert (list(report["submissions"].values()), report["polls"]) == ([1], 3)
    assert entries(shared, settled) == [("charge", -PRICE)]
    assert shared.job(job).attempts == 1


BEFORE_ANSWER = {"end": "never", "messages": [{"when": "before_answer", "state": "succeeded"}]}
TWICE = {"work": 0.2, "messages": [{"times": 3}]}
OUT_OF_ORDER = {"work": 0.1, "messages": [{}, {"delay": 0.2, "state": "running"}, {"delay": 0.2, "state": "failed"}]}
BAD_FIRST = {
    "work": 0.1,
    "messages": [
        {"state": "failed", "signature": "wrong"},
        {"state": "failed", "signature": "missing"},
        {"state": "failed", "age": 7 * 86_400},
        {"delay": 0.5},
    ],
}
FAILS = {"work": 0.1, "end": "failed", "messages": [{"times": 2}]}


@pytest.mark.both_databases
@pytest.mark.parametrize(
    ("plan", "webhook", "state", "refused"),
    [
        (BEFORE_ANSWER, STANDARD, "succeeded", 0),
        (BEFORE_ANSWER, HMAC, "succeeded", 0),
        (TWICE, STANDARD, "succeeded", 0),
        (OUT_OF_ORDER, HMAC, "succeeded", 0),
        (BAD_FIRST, STANDARD, "succeeded", 3),
        (FAILS, STANDARD, "failed", 0),
    ],
    ids=["before-answer", "before-answer-hmac", "twice", "out-of-order", "bad-first", "fails"],
)
def test_a_webhook_ends_a_jobs_wait(
    shared: Store, plan: dict[str, Any], webhook: Any, state: str, refused: int
) -> None:
    """However its messages come, one submission is one charge, its end what was told first, a failure refunded once."""
    with simulating() as simulator, served(shared, simulator, plan, webhook, **NEVER) as job:
        seen = ends(shared, job)
        number = sum(message.get("times", 1) for message in plan["messages"])
        until(lambda: len(simulator.book.messages) >= number, "all messages")
        answers = [message["status"] for message in simulator.book.messages]
    assert seen["state"] == state
    assert sorted(answers) == [200] * (number - refused) + [401] * refused
    settled = task(shared)
    assert settled is not None
    assert (settled.state, settled.settled_by, settled.polls) == (state, "webhook", 0)
    assert list(simulator.book.made.values()) == [1]
    refund = [("refund", PRICE)] if state == "failed" else []
    assert entries(shared, settled) == [("charge", -PRICE), *refund]


@pytest.mark.both_databases
def test_a_provider_that_contradicts_itself(shared: Store) -> None:
    """A poll and messages that say the opposite, all at once, make one end; what says otherwise is evidence."""
    plan = {"polls": 1, "contradict": True, "messages": [{"state": "failed"}, {"state": "succeeded"}]}
    with simulating() as simulator, served(shared, simulator, plan, poll_most=0.1) as job:
        seen = ends(shared, job)
        until(lambda: len(simulator.book.messages) >= 2, "both messages")
    settled = task(shared)
    assert settled is not None
    assert seen["state"] == settled.state
    refund = [("refund", PRICE)] if settled.state == "failed" else []
    assert entries(shared, settled) == [("charge", -PRICE), *refund]
    assert {one["kind"] for one in shared.evidence(shared.job(job))} == {"provider"}


# ---- kills


def _poll(url: str, simulator: str, crash_at: str | None) -> None:
    crash.arm(crash_at)
    with Store.open(url) as store:
        asyncio.run(Observation(store, simulated(simulator)).until_asked())


def submitted(store: Store, simulator: Simulator, plan: dict[str, Any]) -> ProviderTask:
    """A task that the provider took, by hand, due now."""
    answer = httpx.post(f"{simulator.url}/v1/generations", json={"prompt": "film", "simulate": plan, "reference": "k"})
    grant(store)
    now = store.clock.now_ms()

    def make(connection: Any) -> ProviderTask:
        made, _ = provider_tasks.create(
            connection,
            owner="ada",
            submission_key="film",
            generation=1,
            job="none",
            provider="sim",
            request={},
            quote=QUOTE,
            now=now,
            actor="test",
        )
        made = provider_tasks.submitting(connection, made, job="none", now=now)
        return provider_tasks.accepted(connection, made, answer.json()["id"], now=now, next_poll_at=now)

    return store.write(make).result()


@pytest.mark.both_databases
def test_a_kill_between_the_providers_answer_and_the_commit(shared: Store) -> None:
    """What a killed poller had heard is heard again by another, when the lease is over: one end and one refund."""
    with simulating() as simulator:
        made = submitted(shared, simulator, {"end": "failed"})
        process = CONTEXT.Process(target=_poll, args=(shared.url, simulator.url, "provider.polled"))
        process.start()
        process.join(PATIENCE)
        assert process.exitcode == -signal.SIGKILL
        assert simulator.book.polls == 1
        held = task(shared)
        assert held is not None
        assert (held.state, held.polls, entries(shared, held)) == ("pending", 1, [("charge", -PRICE)])
        assert asyncio.run(Observation(shared, simulated(simulator.url)).until_asked()) is not None
        assert simulator.book.polls == 1, "its lease still holds"
        with Store.open(shared.url, clock=ManualClock(int(time.time() * 1000) + LEASE_MS + 1000)) as later:
            asyncio.run(Observation(later, simulated(simulator.url)).until_asked())
    settled = task(shared)
    assert settled is not None
    assert (settled.state, settled.settled_by) == ("failed", "poll")
    assert entries(shared, made) == [("charge", -PRICE), ("refund", PRICE)]


def _serve(url: str, simulator: str, crash_at: str | None, ready: Pipe) -> None:
    os.environ["SIM_SECRET"] = HOOK_SECRET
    crash.arm(crash_at)
    catalogue = GraphCatalogue.from_graphs({"graph": making({})})
    providers = simulated(simulator, webhook=STANDARD)
    with Store.open(url) as store, live(store, catalogue, work=False, providers=providers) as address:
        ready.send(address)
        ready.recv()


@contextmanager
def server(store: Store, simulator: Simulator, crash_at: str | None) -> Generator[Callable[[bytes], httpx.Response]]:
    """A server process; gives what sends it a signed event."""
    ours, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=_serve, args=(store.url, simulator.url, crash_at, theirs))
    process.start()
    try:
        assert ours.poll(PATIENCE)
        address = cast("str", ours.recv())

        def send(body: bytes) -> httpx.Response:
            headers = by_standard_webhooks(body, at_ms=int(time.time() * 1000))
            return httpx.post(f"{address}/webhooks/sim", content=body, headers=headers, timeout=PATIENCE)

        yield send
        if crash_at is not None:
            process.join(PATIENCE)
            assert process.exitcode == -signal.SIGKILL
    finally:
        process.kill()
        process.join(PATIENCE)


@pytest.mark.both_databases
def test_a_kill_before_an_event_is_stored(shared: Store) -> None:
    """A server killed with a genuine event in its hands has answered nothing, and stored nothing.

    The provider sends it again, to a server that lives: it is applied once.
    """
    with simulating() as simulator:
        made = submitted(shared, simulator, {"end": "never"})
        view = {"id": made.provider_task_id, "status": "failed", "error": {"message": "no"}, "reference": "k"}
        body = json.dumps({"id": "evt_1", "type": "generation.updated", "data": view}).encode()
        with server(shared, simulator, "provider.told") as send, pytest.raises(httpx.TransportError):
            send(body)
        assert shared.read(provider_events.listed) == []
        assert entries(shared, made) == [("charge", -PRICE)]
        with server(shared, simulator, None) as send:
            first, second = send(body), send(body)
    assert (first.json()["duplicate"], second.json()["duplicate"]) == (False, True)
    assert entries(shared, made) == [("charge", -PRICE), ("refund", PRICE)]
