"""A state machine over a queue: several jobs, two workers with a record of their own each, limits, outages, a person.

`test_job_states` knows one job to the last column; this one knows what must hold between jobs.
"""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from everstep.checkpoints import claims, services
from everstep.checkpoints.admission import Limits
from everstep.checkpoints.jobs import Job, LostClaim
from everstep.checkpoints.policy import JobPolicy
from everstep.checkpoints.standstill import Standstill
from everstep.checkpoints.store import Store
from everstep.runtime.classify import Verdict
from everstep.runtime.settle import Outcome, settle
from tests.support.machines import RecordMachine, machine_settings

LEASE = 10_000
HOST = "api.example.com"
LIMITS = Limits(graphs={"narrow": 1}, services={HOST: 2}, per_key=1)
WORKERS = ("a", "b")
ENDED = ("done", "failed")

kinds = st.tuples(
    st.sampled_from(["wide", "wide", "narrow"]),
    st.sampled_from([True, True, False]),
    st.sampled_from([None, None, "key"]),
    st.sampled_from([0, 5, 10]),
)


class QueueLife(RecordMachine):
    """Jobs come, run side by side, meet an outage, and end."""

    def __init__(self) -> None:
        super().__init__()
        self.stores = {name: self.opened.enter_context(self._another()) for name in WORKERS}
        self.held: dict[str, list[Job]] = {name: [] for name in WORKERS}
        self.late: set[tuple[int, int]] = set()
        self.memories = {name: Standstill() for name in WORKERS}
        self.enqueued = 0
        self.ended: dict[int, str] = {}
        self.claims: dict[int, int] = {}

    def _another(self) -> Store:
        return Store.open(self.store.url, clock=self.clock)

    def teardown(self) -> None:
        self.every_job_ends()
        self.opened.close()

    # ---- rules

    @initialize(first=st.lists(kinds, min_size=4, max_size=7))
    def enqueue_some(self, first: list[Any]) -> None:
        """There is work."""
        for kind in first:
            self.enqueue(kind)

    @precondition(lambda self: self.enqueued < 9)
    @rule(kind=kinds)
    def enqueue(self, kind: Any) -> None:
        """A job is accepted."""
        graph, needs, key, priority = kind
        policy = JobPolicy(services=(HOST,) if needs else (), concurrency_key=key)
        self.store.enqueue(graph, {"n": self.enqueued}, priority=priority, max_attempts=1000, policy=policy)
        self.enqueued += 1

    @rule(worker=st.sampled_from(WORKERS), limit=st.integers(1, 5))
    def claim(self, worker: str, limit: int) -> None:
        """A worker takes what it may: it holds its places, and no closed gate is walked through."""
        before = {job.id: job for job in self.store.jobs()}
        gate, living = self.gate(), self.living()
        claimed = self.take(worker, limit)
        fresh = [job for job in claimed if before[job.id].status != "running"]
        for job in claimed:
            assert job.id not in living, "two hold it"
            assert job.claim_no == before[job.id].claim_no + 1
        if gate is not None and gate.gate == "closed":
            through = [job for job in fresh if self.needs(job)]
            assert len(through) <= 1, "more than one tries the service"
            if through:
                assert (gate.opens_at or 0) <= self.clock.now_ms(), "it was tried too early"
                assert gate.trial_job_id not in living, "another tries it"

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data(), kind=st.sampled_from(["done", "retry", "out", "out", "out", "released", "review"]))
    def settle(self, data: st.DataObject, kind: str) -> None:
        """A worker settles what it believes to hold; if it holds it no more, nothing changes."""
        worker, job = data.draw(st.sampled_from([(name, job) for name in WORKERS for job in self.held[name]]))
        self.held[worker].remove(job)
        before = self.store.job_by_row(job.id)
        if not self.settle_as(worker, job, kind):
            assert self.store.job_by_row(job.id) == before
            return
        after = self.store.job_by_row(job.id)
        self.claim(worker, 5)  # a worker with a free place looks at once
        if kind == "out":
            gate = self.gate()
            assert gate is not None
            assert gate.gate == "closed"
            assert (after.status, after.failures, after.attempts) == ("retry", before.failures, before.attempts - 1)
        elif kind == "done":
            assert after.status == "done"

    @precondition(lambda self: (gate := self.gate()) is not None and gate.gate == "closed")
    @rule()
    def a_person_opens_the_gate(self) -> None:
        """Whoever waits goes on."""
        self.store.open_service(HOST)

    @rule(data=st.data(), what=st.sampled_from(["cancel", "redrive"]))
    def a_person_acts(self, data: st.DataObject, what: str) -> None:
        """Jobs that have not begun are cancelled, failed ones are retried."""
        able = {"cancel": ("pending",), "redrive": ("failed", "retry")}[what]
        jobs = [job for job in self.store.jobs() if job.status in able]
        if jobs:
            job = data.draw(st.sampled_from(jobs))
            (self.store.cancel if what == "cancel" else self.store.redrive)(job.public_id)
            if what == "redrive":
                self.ended.pop(job.id, None)

    @rule(worker=st.sampled_from(WORKERS))
    def beat(self, worker: str) -> None:
        """A worker's heartbeat keeps what it holds, and brings nothing back that another has."""
        now, running = self.clock.now_ms(), [job.id for job in self.held[worker]]
        living = self.living()
        held = self.stores[worker].write(
            lambda connection: claims.heartbeat(connection, now=now, worker=worker, lease_ms=LEASE, running=running)
        )
        for job_id, (claim_no, _) in held.result().items():
            assert self.store.job_by_row(job_id).claim_no == claim_no
            if job_id not in living:  # it had no place meanwhile, and another may have that now
                self.late.add((job_id, claim_no))

    @rule(jump=st.sampled_from([1, LEASE // 2, LEASE, 20_000, 3_600_000, -5_000]))
    def time_passes(self, jump: int) -> None:
        """The clock moves, mostly forward."""
        self.clock.advance(jump)

    # ---- what must hold after every step

    @invariant()
    def limits_hold(self) -> None:
        """Of what runs under a living lease, and always did, there is never more than allowed."""
        living = [job for job in self.living().values() if (job.id, job.claim_no) not in self.late]
        assert sum(job.graph == "narrow" for job in living) <= 1
        assert sum(job.concurrency_key == "key" for job in living) <= 1
        assert sum(self.needs(job) for job in living) <= 2

    @invariant()
    def a_look_that_remembers_misses_nothing(self) -> None:
        """It finds that something may start whenever one that looks at everything does."""
        for worker, memory in self.memories.items():
            running = [job.id for job in self.held[worker]]
            look = partial(claims.anything_ready, now=self.clock.now_ms(), graphs=None, limits=LIMITS, running=running)
            assert self.store.read(partial(look, memory=memory)) == self.store.read(look)

    @invariant()
    def no_job_is_lost_or_ends_twice(self) -> None:
        """Every accepted job is there; what was done stays done; claims only grow."""
        jobs = self.store.jobs()
        assert len(jobs) == self.enqueued
        for job in jobs:
            assert job.claim_no >= self.claims.get(job.id, 0)
            self.claims[job.id] = job.claim_no
            assert self.ended.get(job.id, job.status) == job.status
            if job.status in ENDED:
                self.ended[job.id] = job.status
            assert (job.lease_until is not None) == (job.status == "running")
            ends = Counter(event["to"] for event in self.store.events(job))
            assert ends["done"] <= 1

    def every_job_ends(self) -> None:
        """Whatever happened, what a person does not hold up can be brought to its end."""
        for _ in range(40):
            if {job.status for job in self.store.jobs()} <= set(ENDED):
                return
            self.clock.advance(3_600_000)
            for review in self.store.reviews():
                self.store.answer(review.public_id, "approve")
            for worker in WORKERS:
                for job in self.take(worker, 3):
                    self.settle_as(worker, job, "done")
        raise AssertionError([(job.graph, job.status, job.error_json) for job in self.store.jobs()])

    # ---- what the rules share

    def take(self, worker: str, limit: int) -> list[Job]:
        """What a worker gets now."""
        now = self.clock.now_ms()
        claimed = (
            self.stores[worker]
            .write(
                lambda connection: claims.claim(
                    connection, now=now, worker=worker, lease_ms=LEASE, limit=limit, limits=LIMITS
                )
            )
            .result()
        )
        self.held[worker] += claimed
        return claimed

    def settle_as(self, worker: str, job: Job, kind: str) -> bool:
        """Settle as a worker would; returns whether it was allowed, which must be what the record says."""
        error = RuntimeError(kind)
        outcomes = {
            "done": Outcome("done", values={}),
            "released": Outcome("released"),
            "retry": Outcome("error", error=error, verdict=Verdict("retry", None, True, "later", "rule")),
            "review": Outcome("error", error=error, verdict=Verdict("review", None, True, "look", "rule")),
            "out": Outcome(
                "error", error=error, verdict=Verdict("retry", 7_000, True, "out", "rule", "rate_limited", HOST)
            ),
        }
        now, current = self.clock.now_ms(), self.store.job_by_row(job.id)
        write = self.stores[worker].write(
            lambda connection: settle(
                connection, job, outcomes[kind], now=now, actor=worker, randomness=random.Random(0)
            )
        )
        if (current.status, current.claim_no) != ("running", job.claim_no):
            with pytest.raises(LostClaim):
                write.result()
            return False
        write.result()
        return True

    def living(self) -> dict[int, Job]:
        """What runs under a living lease."""
        now = self.clock.now_ms()
        return {job.id: job for job in self.store.jobs(status="running") if (job.lease_until or 0) > now}

    def gate(self) -> services.Service | None:
        """The service as it is, once a job has named it."""
        return next(iter(self.store.services()), None)

    def needs(self, job: Job) -> bool:
        """Whether the job needs the service."""
        return job.public_id in self.store.read(lambda connection: services.waiting(connection, HOST))


class QueueLifeOnPostgres(QueueLife):
    """The same on the other database."""

    database = "postgres"


TestQueueLife = QueueLife.TestCase
TestQueueLife.settings = machine_settings(12)
TestQueueLifeOnPostgres = QueueLifeOnPostgres.TestCase
TestQueueLifeOnPostgres.settings = machine_settings(5)
