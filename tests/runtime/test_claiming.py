"""How a worker comes to its jobs: a look, and claims that go with the settlement of another job."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sqlalchemy import Connection, update

from everstep.checkpoints.admission import Limits
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.policy import JobPolicy
from everstep.checkpoints.schema import agent_jobs
from everstep.checkpoints.store import Store
from everstep.observability.tracing import from_environment
from everstep.runtime import claiming, identity
from everstep.runtime.claiming import Claiming
from everstep.runtime.classify import Verdict
from everstep.runtime.leg_spans import DeadLegs
from everstep.runtime.settle import Outcome
from tests.support.record import claim, settled
from tests.support.record import fresh as fresh_record
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.both_databases
ME = "me"
SHIPPED_S = claiming.FRESH_S


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look holds, however slow the machine is."""
    monkeypatch.setattr(claiming, "FRESH_S", 3600.0)


def unlooked(store: Store, **limits: Any) -> Claiming:
    """What claims for a worker, and never looked."""
    tracing = from_environment(service_version="0")
    return Claiming(
        store,
        ME,
        lambda: ["graph"],
        limits=Limits(**limits),
        lease_ms=60_000,
        alone_from=2,
        dead_legs=DeadLegs(tracing),
    )


def claiming_of(store: Store, **limits: Any) -> Claiming:
    """What claims for a worker, and looked just now."""
    mine = unlooked(store, **limits)
    asyncio.run(mine.look([], ahead_s=1.0))
    return mine


def next_of(store: Store, mine: Claiming, running: list[Job]) -> list[str]:
    """The ids of what is claimed with a settlement while this runs."""
    held = [job.id for job in running]
    return [job.public_id for job in store.write(lambda connection: mine.claim_next(connection, held)).result()]


def suspect(store: Store, job: Job, degree: int = 1) -> None:
    """Workers died with this job and others."""

    def write(connection: Connection) -> None:
        connection.execute(update(agent_jobs).where(agent_jobs.c.id == job.id).values(suspect=degree))

    store.write(write).result()


def test_one_job_is_claimed_for_the_place_of_the_settled_one(store: Store) -> None:
    """The next in the queue, under a claim of its own; not what runs here already."""
    first, second, third = (store.enqueue("graph", {"n": number}).job for number in range(3))
    mine = claiming_of(store)
    (running,) = claim(store, ME)
    assert running.id == first.id
    assert next_of(store, mine, [running]) == [second.public_id]
    assert store.job(second.public_id).leased_by == ME
    assert store.job(third.public_id).status == "pending"


def test_without_a_fresh_look_nothing_is_claimed_with_a_settlement(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody may have died meanwhile, or the record been migrated: the worker looks first."""
    store.enqueue("graph", {})
    mine = claiming_of(store)
    monkeypatch.setattr(claiming, "FRESH_S", 0.0)
    assert next_of(store, mine, []) == []


def test_a_suspect_that_must_run_alone_is_left_to_the_worker_itself(store: Store) -> None:
    """It may not start beside what runs here; and nothing overtakes it."""
    runs, one, _ = (store.enqueue("graph", {"n": number}).job for number in range(3))
    (running,) = claim(store, ME)
    assert running.id == runs.id
    suspect(store, one, 2)
    mine = claiming_of(store)
    assert next_of(store, mine, [running]) == []
    assert next_of(store, mine, []) == [one.public_id]  # nothing else runs


def held_by_a_dead_worker(store: Store, **more: Any) -> Job:
    """A job whose worker's process is gone, and whose lease has not run out."""
    job = store.enqueue("graph", {}, **more).job
    host, machine, boot, *_ = identity.worker_id().rsplit(":", 5)
    claim(store, f"{host}:{machine}:{boot}:999999999:1:0000", lease_ms=3_600_000)
    return job


def test_what_a_dead_worker_held_is_taken_over_though_no_place_is_ever_free(store: Store) -> None:
    """Its lease need not run out; it is a suspect then, and runs in a process of its own."""
    job = held_by_a_dead_worker(store)
    running = store.enqueue("graph", {"n": 1}, priority=0).job
    mine = claiming_of(store)
    assert next_of(store, mine, [running]) == [job.public_id]
    judged = store.job(job.public_id)
    assert (judged.status, judged.leased_by, judged.worker_deaths) == ("running", ME, 1)


def test_a_settlement_takes_over_past_a_closed_gate(store: Store) -> None:
    """The dead worker's job held a claim already, whoever takes it over: it does not wait for its service."""
    policy = JobPolicy(services=("api.example.com",))
    job = held_by_a_dead_worker(store, policy=policy)
    other = store.enqueue("graph", {"n": 1}, policy=policy).job
    out = Verdict("retry", None, True, "it said so", "rule", "rate_limited", "api.example.com")
    settled(store, *claim(store, "other"), Outcome("error", error=RuntimeError("out"), verdict=out))
    assert store.job(other.public_id).status == "retry"
    mine = claiming_of(store)
    assert next_of(store, mine, [other]) == [job.public_id]


def test_limits_hold_for_what_a_settlement_claims(store: Store) -> None:
    """The settled job holds no place any more; those that run do."""
    for number in range(3):
        store.enqueue("graph", {"n": number})
    mine = claiming_of(store, graphs={"graph": 2})
    one, two = claim(store, ME, limit=2)
    assert next_of(store, mine, [one, two]) == []
    settled(store, one, Outcome("done"))
    assert len(next_of(store, mine, [one, two])) == 1


def test_an_idle_worker_that_is_told_of_work_claims_without_a_look(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for each time it is idle, on the thread that tells; one that is busy, or looked long ago, has to look."""
    mine = claiming_of(store)
    told: list[str] = []
    first, second = (store.enqueue("graph", {"n": number}).job.public_id for number in range(2))

    def ring() -> bool:
        return mine.ring(lambda: told.append(threading.current_thread().name))

    def heard() -> list[str]:
        return [job.public_id for job in asyncio.run(mine.heard())]

    assert not ring(), "it never said that it is idle"
    mine.offer(1)
    assert (ring(), ring()) == (True, False)
    assert heard() == [first]
    assert told == ["everstep-writer"]
    assert (ring(), heard()) == (False, [])
    mine.offer(1)
    assert heard() == []
    assert not ring(), "it is busy again"
    mine.offer(1)
    monkeypatch.setattr(claiming, "FRESH_S", 0.0)
    assert (ring(), heard()) == (False, [])
    assert store.job(second).status == "pending"


class Monotonic(NamedTuple):
    """Stands for `time` where claims are made."""

    seconds: list[float]

    def monotonic(self) -> float:
        return self.seconds[-1]


def test_a_look_holds_for_less_than_a_second(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """So long, and no longer, what an idle worker is told of and what a settlement claims need no look of their own."""
    clock = Monotonic([0.0])  # as on a machine that was booted just now
    monkeypatch.setattr(claiming, "FRESH_S", SHIPPED_S)
    monkeypatch.setattr(claiming, "time", clock)
    for number in range(2):
        store.enqueue("graph", {"n": number})
    mine = unlooked(store)

    def claims() -> tuple[bool, int]:
        mine.offer(1)
        asked = mine.ring(lambda: None)
        return asked, len(asyncio.run(mine.heard())) + len(next_of(store, mine, []))

    assert claims() == (False, 0), "it never looked"
    asyncio.run(mine.look([], ahead_s=1.0))
    clock.seconds.append(1.0)
    assert claims() == (False, 0)
    clock.seconds.append(0.99)
    assert claims() == (True, 2)


def test_a_record_that_is_closed_is_left_to_the_worker(tmp_path: Path) -> None:
    """Whoever is told of work at the end of everything claims nothing, and raises nothing."""
    with fresh_record(tmp_path) as store:
        mine = claiming_of(store)
    mine.offer(1)
    assert not mine.ring(lambda: None)


def test_what_was_claimed_as_a_worker_was_told_is_known_until_it_hears_of_it(store: Store) -> None:
    """A worker that is cancelled while it hears what was claimed for it hears so when it gives that back."""
    mine = claiming_of(store)
    job = store.enqueue("graph", {"n": 0}).job
    mine.offer(1)
    committed = threading.Event()
    assert mine.ring(committed.set)
    assert committed.wait(PATIENCE)

    async def cancelled() -> None:
        hearing = asyncio.create_task(mine.heard())
        asyncio.get_running_loop().call_soon(hearing.cancel)
        with pytest.raises(asyncio.CancelledError):
            await hearing

    asyncio.run(cancelled())
    assert [each.id for each in asyncio.run(mine.heard())] == [job.id]
    assert asyncio.run(mine.heard()) == []


def test_nothing_is_left_when_only_a_person_could_go_on(store: Store) -> None:
    """What waits, runs or is in backoff is left; what is over, or of graphs it has not, is not."""
    mine = claiming_of(store)
    store.enqueue("other", {"n": 1})
    assert asyncio.run(mine.nothing_left())
    store.enqueue("graph", {"n": 1})
    assert not asyncio.run(mine.nothing_left())
    (job,) = claim(store, graphs=["graph"])
    assert not asyncio.run(mine.nothing_left())
    settled(store, job, Outcome("done"))
    assert asyncio.run(mine.nothing_left())
