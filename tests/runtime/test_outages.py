"""Outages, through a real worker and a real HTTP service: jobs wait, spend nothing, and go on from their checkpoint."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from everstep.checkpoints import services
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock
from everstep.graphs.policies import Policies
from tests.runtime.service import Answer, serving
from tests.runtime.test_worker import InThread
from tests.support.jobs import Log, chain, result, work
from tests.support.waiting import until

HOUR_MS = 3_600_000


def asks(url: str) -> Any:
    """A node that asks the service."""

    def ask(_state: Log) -> Log:
        httpx.get(url).raise_for_status()
        return {"log": ["answered"]}

    return ask


@pytest.mark.both_databases
def test_twenty_agents_meet_one_429(store: Store, clock: ManualClock) -> None:
    """No attempt is spent, and the service is asked again by one of them, not by all that wait."""
    limited = Answer(429, {"Retry-After": "7"})
    with serving(*[limited] * 4, Answer()) as service:
        graph = chain(asks(service.url))
        for number in range(20):
            store.enqueue("graph", {"log": [number]})
        work(store, graph, lambda event, job: clock.advance(60_000), concurrency=4)
        assert service.requests == 24  # four were under way, then each got through at its first try
    assert {(job.status, job.attempts, job.failures) for job in store.jobs()} == {("done", 1, 0)}


def test_a_subscription_that_ended_loses_nothing(store: Store, clock: ManualClock) -> None:
    """The job waits at the step that met it, and goes on from there when a person says the plan is renewed."""
    steps: list[str] = []

    def first(_state: Log) -> Log:
        steps.append("first")
        return {"log": ["first"]}

    with serving(Answer(402), Answer()) as service:
        job, _ = store.enqueue("graph", {"log": []})
        with InThread(store, chain(first, asks(service.url))):
            until(lambda: store.job(job.public_id).status == "retry", "the wait")
            (out,) = store.services()
            assert (out.gate, out.symptom) == ("closed", "subscription_ended")
            assert (out.opens_at or 0) - clock.now_ms() >= 15 * 60_000
            event = store.read(lambda connection: services.events(connection, out.name, limit=1))[0]
            assert (event["public_id"], event["check_time"]) == (job.public_id, clock.now_ms())
            assert store.open_service(out.name) == 1
            clock.advance(1_000)
    assert result(store, job) == ["first", "answered"]
    assert steps == ["first"]
    assert store.services()[0].gate == "open"


def test_a_probe_opens_the_gate(store: Store, clock: ManualClock, tmp_path: Path) -> None:
    """The command is asked when the time has come; until it exits with 0 no job tries the service."""
    works = tmp_path / "works"
    asked = tmp_path / "asked"
    script = tmp_path / "probe.py"
    script.write_text(
        f"import pathlib, sys\npathlib.Path({str(asked)!r}).touch()\n"
        f"sys.exit(0 if pathlib.Path({str(works)!r}).exists() else 1)\n"
    )
    with serving(Answer(503), Answer()) as service:
        name = service.host
        policies = Policies.model_validate({"services": {name: {"probe": f"{sys.executable} {script}"}}})
        job, _ = store.enqueue("graph", {"log": []})
        with InThread(store, chain(asks(service.url)), policies=policies):
            until(lambda: store.job(job.public_id).status == "retry", "the wait")
            clock.advance(HOUR_MS)
            until(lambda: store.services()[0].outages == 2, "a probe that failed")
            assert asked.exists()
            assert service.requests == 1
            works.touch()
            clock.advance(HOUR_MS)
            until(lambda: store.services()[0].gate == "open", "the probe")
            clock.advance(1_000)
    assert result(store, job) == ["answered"]
    assert service.requests == 2


def test_the_first_step_of_a_trial_opens_the_gate(store: Store, clock: ManualClock) -> None:
    """The others do not wait for the end of the job that tried."""
    gates: list[str] = []

    def look(_state: Log) -> Log:
        until(lambda: store.services()[0].gate == "open", "the gate")
        gates.append(store.services()[0].gate)
        return {"log": ["looked"]}

    with serving(Answer(503), Answer()) as service:
        job, _ = store.enqueue("graph", {"log": []})
        work(store, chain(asks(service.url), look))
    assert result(store, job) == ["answered", "looked"]
    assert gates == ["open"]
