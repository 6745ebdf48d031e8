"""Gates of services: which jobs wait, who tries, and when all go on."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from everstep.checkpoints import claims, services
from everstep.checkpoints.admission import Limits
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.policy import JobPolicy
from everstep.checkpoints.reviews import Question
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock
from everstep.errors import ServiceNotFound
from everstep.runtime.classify import Verdict
from everstep.runtime.settle import Outcome, settle

pytestmark = pytest.mark.both_databases
LEASE = 60_000
HOST = "api.example.com"
MINUTE = 60_000


def add(store: Store, number: int, *, needs: tuple[str, ...] = (HOST,), priority: int = 5, **more: Any) -> Job:
    """A job that needs services."""
    return store.enqueue("graph", {"n": number}, priority=priority, policy=JobPolicy(services=needs, **more)).job


def take(store: Store, limit: int = 100, worker: str = "w", limits: Limits | None = None) -> list[Job]:
    """What a worker gets now."""
    now = store.clock.now_ms()
    claim: Callable[[Any], list[Job]] = lambda connection: claims.claim(  # noqa: E731
        connection, now=now, worker=worker, lease_ms=LEASE, limit=limit, limits=limits
    )
    ready = store.read(lambda connection: claims.anything_ready(connection, now=now, graphs=None, limits=limits))
    claimed = store.write(claim).result()
    assert bool(claimed) == ready
    return claimed


def end(store: Store, job: Job, outcome: Outcome, **more: Any) -> Job:
    """The leg came to this."""
    now = store.clock.now_ms()
    return store.write(
        lambda connection: settle(connection, job, outcome, now=now, actor="w", randomness=random.Random(0), **more)
    ).result()


def out(retry_after_ms: int | None = None, symptom: Any = "rate_limited", service: str | None = HOST) -> Outcome:
    """The service is out."""
    verdict = Verdict("retry", retry_after_ms, True, "it said so", "rule", symptom, service)
    return Outcome("error", error=RuntimeError("out"), verdict=verdict)


def gate(store: Store, name: str = HOST) -> services.Service:
    """The service as it is."""
    return store.read(lambda connection: services.find(connection, name))


def test_a_storm_is_one_outage_and_spends_nothing(store: Store, clock: ManualClock) -> None:
    """A hundred jobs meet a 429 with Retry-After 7: no attempt, no failure is counted, and one job tries it later."""
    for number in range(100):
        add(store, number)
    started = clock.now_ms()
    for job in take(store):
        end(store, job, out(7_000))
    assert {(job.status, job.attempts, job.failures) for job in store.jobs()} == {("retry", 0, 0)}
    service = gate(store)
    assert (service.gate, service.outages) == ("closed", 1)
    assert (service.opens_at or 0) >= started + 7_000
    assert len(store.read(lambda connection: services.events(connection, HOST, limit=1000))) == 100
    clock.advance(6_999)
    assert take(store) == []
    clock.advance((service.opens_at or 0) - clock.now_ms())
    (trial,) = take(store)
    assert take(store) == []
    end(store, trial, Outcome("done", values={}))
    assert gate(store).gate == "open"
    due = sorted(job.next_run_at - clock.now_ms() for job in store.jobs(status="retry"))
    assert len(due) == 99
    assert due[0] >= 0
    assert due[-1] < 30_000
    assert len(set(due)) > 50
    clock.advance(30_000)
    assert len(take(store)) == 99


def test_a_trial_that_meets_it_again_waits_longer(store: Store, clock: ManualClock) -> None:
    """15 s, 30 s, 60 s, …, and what concerns the account begins at 15 minutes."""
    add(store, 1)
    waits = []
    for _ in range(3):
        (job,) = take(store)
        end(store, job, out())
        waits.append((gate(store).opens_at or 0) - clock.now_ms())
        clock.advance(waits[-1])
    assert [15_000 * 2**tries <= wait <= 18_750 * 2**tries for tries, wait in enumerate(waits)] == [True] * 3
    assert gate(store).outages == 3
    (job,) = take(store)
    end(store, job, Outcome("done", values={}))
    add(store, 2)
    (job,) = take(store)
    end(store, job, out(symptom="usage_limit"))
    assert (gate(store).opens_at or 0) - clock.now_ms() >= 15 * MINUTE


def test_a_new_job_waits_for_what_it_needs_and_others_flow(store: Store, clock: ManualClock) -> None:
    """While a gate is closed, jobs that need the service are not begun; jobs that do not, are."""
    first = add(store, 1)
    (job,) = take(store)
    end(store, job, out())
    add(store, 2)
    other = add(store, 3, needs=("another.example.com",))
    assert [job.id for job in take(store)] == [other.id]
    clock.advance(20_000)
    assert [job.id for job in take(store)] == [first.id]  # who met it tries it, not who never did
    assert take(store) == []


def test_a_trial_whose_worker_died_does_not_hold_the_gate(store: Store, clock: ManualClock) -> None:
    """The job is taken over, tries it again, and its success opens the gate."""
    add(store, 1), add(store, 2)
    for job in take(store):
        end(store, job, out())
    clock.advance(20_000)
    (trial,) = take(store, worker="dies")
    clock.advance(LEASE)
    again, *others = take(store, worker="lives")
    assert (again.id, again.claim_no, others) == (trial.id, trial.claim_no + 1, [])
    end(store, again, Outcome("done", values={}))
    assert gate(store).gate == "open"


def test_a_trial_that_is_given_back_lets_another_try(store: Store, clock: ManualClock) -> None:
    """A draining worker's trial says nothing of the service."""
    add(store, 1)
    (job,) = take(store)
    end(store, job, out())
    clock.advance(20_000)
    (trial,) = take(store)
    end(store, trial, Outcome("released"))
    assert gate(store).gate == "closed"
    assert len(take(store)) == 1


def test_a_job_that_comes_further_opens_the_gate(store: Store, clock: ManualClock) -> None:
    """Its first step proves that the service works; the others need not wait for the end of a long job."""
    add(store, 1), add(store, 2)
    for job in take(store):
        end(store, job, out())
    clock.advance(20_000)
    (trial,) = take(store)
    now = clock.now_ms()
    store.write(lambda connection: services.passed(connection, trial, now=now)).result()
    assert gate(store).gate == "open"
    clock.advance(1_000)
    assert len(take(store)) == 1


def test_a_late_report_of_an_older_run_does_not_disturb_the_trial(store: Store, clock: ManualClock) -> None:
    """Its wait is not longer than what the trial finds out."""
    add(store, 1), add(store, 2)
    early, late = take(store)
    end(store, early, out())
    clock.advance(20_000)
    (trial,) = take(store)
    end(store, late, out(3_600_000))
    assert gate(store).is_tried_by(trial)
    assert gate(store).outages == 1
    end(store, trial, Outcome("done", values={}))
    clock.advance(1_000)
    assert len(take(store)) == 1


def test_a_person_opens_a_gate(store: Store, clock: ManualClock) -> None:
    """`open` lets the jobs go on from where they are; an unknown name is refused and the known ones are told."""
    add(store, 1)
    (job,) = take(store)
    end(store, job, out(symptom="subscription_ended"), tiers={HOST: "team"})
    assert (
        store.read(lambda connection: services.events(connection, HOST, limit=1))[0]["account_tier_expected"] == "team"
    )
    assert store.open_service(HOST.upper()) == 1
    clock.advance(1_000)
    assert len(take(store)) == 1
    with pytest.raises(ServiceNotFound, match=HOST):
        store.open_service("nobody")


def test_a_probed_service_is_not_tried_by_jobs(store: Store, clock: ManualClock) -> None:
    """Its probe opens the gate; two workers ask it once."""
    add(store, 1)
    (job,) = take(store)
    end(store, job, out())
    clock.advance(20_000)
    assert take(store, limits=Limits(probed=frozenset({HOST}))) == []
    service, now = gate(store), clock.now_ms()
    asks = [
        store.write(
            lambda connection: services.postpone(connection, service, now=now, until=now + MINUTE, failed=False)
        ).result()
        for _ in range(2)
    ]
    assert asks == [True, False]


@pytest.mark.parametrize("kind", ["graph", "key", "service"])
def test_a_limit_holds_over_all_workers(store: Store, clock: ManualClock, kind: str) -> None:
    """At most so many run at once; an expired lease, or a worker proven dead, holds no place."""
    for number in range(5):
        add(store, number, concurrency_key="tenant" if kind == "key" else None)
    limits = {
        "graph": Limits(graphs={"graph": 2}),
        "key": Limits(per_key=2),
        "service": Limits(services={HOST: 2}),
    }[kind]
    assert [len(take(store, worker=worker, limits=limits)) for worker in ("a", "b")] == [2, 0]
    clock.advance(LEASE)
    again = take(store, worker="c", limits=limits)
    assert len(again) == 2
    end(store, again[0], Outcome("done", values={}))
    assert len(take(store, worker="d", limits=limits)) == 1


@pytest.mark.parametrize("kind", ["graph", "key", "service"])
def test_a_late_heartbeat_takes_its_place_of_a_full_limit_back(store: Store, clock: ManualClock, kind: str) -> None:
    """A lease that ran out held no place, so another job has it: both go on, and nothing starts until both ended."""
    key = "tenant" if kind == "key" else None
    add(store, 1, concurrency_key=key, priority=0)
    limits = {
        "graph": Limits(graphs={"graph": 1}),
        "key": Limits(per_key=1),
        "service": Limits(services={HOST: 1}),
    }[kind]
    (slow,) = take(store, worker="slow", limits=limits)
    clock.advance(LEASE)
    add(store, 2, concurrency_key=key, priority=10)
    (other,) = take(store, 1, worker="other", limits=limits)
    assert other.id != slow.id
    now = clock.now_ms()
    beat: dict[str, Any] = {"now": now, "worker": "slow", "lease_ms": LEASE, "running": [slow.id]}
    held = store.write(lambda connection: claims.heartbeat(connection, **beat)).result()
    assert held == {slow.id: (slow.claim_no, False)}
    add(store, 3, concurrency_key=key, priority=10)
    assert take(store, worker="third", limits=limits) == []
    end(store, other, Outcome("done", values={}))
    assert take(store, worker="third", limits=limits) == []
    end(store, slow, Outcome("done", values={}))
    assert len(take(store, worker="third", limits=limits)) == 1


def test_a_limit_of_one_graph_lets_others_flow(store: Store, clock: ManualClock) -> None:
    """Urgent jobs of a full graph do not hold up the rest."""
    for number in range(3):
        add(store, number, priority=10)
    store.enqueue("other", {}, priority=0)
    assert [job.graph for job in take(store, limits=Limits(graphs={"graph": 1}))] == ["graph", "other"]


def test_a_waiting_job_rises_a_level_every_ten_minutes(store: Store, clock: ManualClock) -> None:
    """A job of priority 0 goes before a job of priority 10 that became due 100 minutes after it, and not before."""
    patient = store.enqueue("graph", {"who": "patient"}, priority=0).job
    clock.advance(100 * MINUTE - 1)
    urgent = store.enqueue("graph", {"who": "urgent"}, priority=10).job
    clock.advance(2)
    late = store.enqueue("graph", {"who": "late"}, priority=10).job
    assert [take(store, 1)[0].id for _ in range(3)] == [urgent.id, patient.id, late.id]


def test_an_outage_without_a_name_is_a_failure_of_the_job(store: Store) -> None:
    """Nobody could tell which jobs must wait for it: the ordinary backoff and its count decide."""
    add(store, 1)
    (job,) = take(store)
    after = end(store, job, out(service=None))
    assert (after.status, after.failures) == ("retry", 1)


def test_a_job_that_takes_a_place_of_a_key_is_counted_though_nothing_waits(store: Store, clock: ManualClock) -> None:
    """A take-over of one key's job beside a running one of the same key would be one too many."""
    add(store, 1, concurrency_key="tenant", priority=0)
    (lost,) = take(store, worker="gone")
    clock.advance(LEASE)
    urgent = add(store, 2, concurrency_key="tenant", priority=10)
    assert [job.id for job in take(store, 1, worker="a")] == [urgent.id]
    assert take(store, worker="b") == []
    end(store, store.job_by_row(urgent.id), Outcome("done", values={}))
    assert [job.id for job in take(store, worker="b")] == [lost.id]


def test_a_key_named_as_a_graph_is_no_graph(store: Store) -> None:
    """Places of graphs and of keys are counted apart."""
    add(store, 1)
    add(store, 2, concurrency_key="graph")
    assert len(take(store, limits=Limits(graphs={"graph": 2}))) == 2


def test_one_job_that_always_meets_it_does_not_hold_the_gate_for_all(store: Store, clock: ManualClock) -> None:
    """It may be its own request that is refused: after three tries others try as well, and open the gate."""
    poison = add(store, 1)
    (job,) = take(store)
    end(store, job, out())
    other = add(store, 2)
    tried: list[int] = []
    while not tried or tried[-1] == poison.id:
        assert len(tried) < 10
        clock.advance((gate(store).opens_at or 0) - clock.now_ms())
        (trial,) = take(store, 1)
        tried.append(trial.id)
        end(store, trial, out() if trial.id == poison.id else Outcome("done", values={}))
    assert tried[-1] == other.id
    assert gate(store).gate == "open"


def test_a_job_that_cannot_try_does_not_keep_others_from_it(store: Store, clock: ManualClock) -> None:
    """Who met the outage waits for something else for a day: one that never met it tries."""
    add(store, 1)
    (job,) = take(store)
    end(store, job, out())
    clock.advance(20_000)
    (trial,) = take(store)
    later = Verdict("retry", 24 * 3_600_000, True, "later", "rule")
    end(store, trial, Outcome("error", error=RuntimeError("later"), verdict=later))
    other = add(store, 2)
    clock.advance(services.AGAIN_MS)
    assert [one.id for one in take(store)] == [other.id]


def test_a_leg_that_came_nowhere_proves_nothing(store: Store, clock: ManualClock) -> None:
    """A trial that ended before its first step, for a changed graph say, leaves the gate closed; another tries."""
    add(store, 1), add(store, 2)
    for job in take(store):
        end(store, job, out(symptom="payment_failed"))
    clock.advance(3_600_000)
    (trial,) = take(store)
    end(store, trial, Outcome("review", questions=[Question("fingerprint", "x", {"question": "Go on?"})]))
    assert gate(store).gate == "closed"
    assert gate(store).symptom == "payment_failed"
    assert take(store) == []
    clock.advance(services.AGAIN_MS)
    assert len(take(store)) == 1


def test_an_open_gate_shortens_no_other_wait(store: Store, clock: ManualClock) -> None:
    """A job in a backoff of its own keeps it, though it needs the service."""
    add(store, 1), add(store, 2)
    one, two = take(store)
    later = Verdict("retry", 3_600_000, True, "later", "rule")
    waits = end(store, one, Outcome("error", error=RuntimeError("later"), verdict=later))
    end(store, two, out())
    assert store.open_service(HOST) == 1
    assert store.job_by_row(one.id).next_run_at == waits.next_run_at
