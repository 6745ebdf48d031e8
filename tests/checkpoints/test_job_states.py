"""A state machine over one job with two workers, against a small model: the invariants hold after every step."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from everstep.checkpoints import budgets, claims, effects
from everstep.checkpoints.effects import Effect
from everstep.checkpoints.jobs import ALLOWED, Job, LostClaim
from everstep.checkpoints.reviews import Question, Review
from everstep.errors import JobStateConflict, ReviewAnswered, ReviewAnswerInvalid
from everstep.runtime.classify import Verdict
from everstep.runtime.settle import Outcome, settle
from tests.support.machines import RecordMachine, machine_settings
from tests.support.record import claim

LEASE = 10_000
MAX_ATTEMPTS = 3
WORKERS = ("a", "b")
TERMINAL = ("done", "failed")
DECIDING = ("error", "budget")
"""Kinds of reviews that decide whether the job goes on at all."""


@dataclass
class Model:
    """What must be true of the job, kept beside the record and far simpler than it."""

    status: str = "pending"
    holder: str | None = None
    claim_no: int = 0
    attempts: int = 0
    failures: int = 0
    deaths: int = 0
    moved: bool = True
    lease_until: int = 0
    due: int = 0
    cancel_wished: bool = False
    in_flight: set[str] = field(default_factory=set[str])
    confirmed: set[str] = field(default_factory=set[str])
    questions: int = 0

    def fail(self) -> None:
        """A start ended without a result: one more in a row, or the first after progress."""
        self.failures, self.deaths = (1, 0) if self.moved else (self.failures + 1, self.deaths)
        self.moved = False

    def die(self) -> None:
        """The worker of a start vanished: one death more in a row, or the first after progress; no failure."""
        self.failures, self.deaths = (0, 1) if self.moved else (self.failures, self.deaths + 1)
        self.moved = False


class JobLife(RecordMachine):
    """Every way a job can be moved, by two workers that may be asleep, a person and the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model(due=self.clock.now_ms())
        self.believes: dict[str, Job | None] = dict.fromkeys(WORKERS)
        self.running_effects: dict[str, Effect] = {}
        self.calls = 0
        self.confirmed_results: dict[str, str | None] = {}
        self.idle: set[str] = set()  # tried in vain since the job last moved, so that the machine does not idle

    # ---- helpers

    @property
    def job(self) -> Job:
        (job,) = self.store.jobs()
        return job

    def holds(self, worker: str) -> bool:
        """Whether the model says that the worker's claim is the job's."""
        believed = self.believes[worker]
        model = self.model
        return believed is not None and model.status == "running" and believed.claim_no == model.claim_no

    def settled(self, worker: str, outcome: Outcome) -> bool:
        """Settle as a worker would; returns whether it was allowed, which must be what the model says."""
        believed = self.believes[worker]
        assert believed is not None
        now = self.clock.now_ms()

        def operation(connection: Any) -> Job:
            return settle(connection, believed, outcome, now=now, actor=worker, randomness=random.Random(0))

        self.believes[worker] = None
        if not self.holds_claim(believed):
            with pytest.raises(LostClaim):
                self.store.write(operation).result()
            return False
        self.store.write(operation).result()
        self.model.holder = None
        if outcome.kind != "released" or self.model.cancel_wished:
            self.model.deaths = 0
        return True

    def holds_claim(self, believed: Job) -> bool:
        """Whether a claim is the job's."""
        return self.model.status == "running" and believed.claim_no == self.model.claim_no

    def cancelled(self) -> None:
        """What the model says of a job that is now cancelled."""
        if self.model.in_flight:
            self.model.status, self.model.cancel_wished = "review", True
        else:
            self.model.status = "failed"

    # ---- a job's life

    @initialize()
    def enqueue(self) -> None:
        """The job is accepted."""
        assert self.store.enqueue("graph", {}, max_attempts=MAX_ATTEMPTS).created
        self.try_to_claim("a")

    @precondition(lambda self: "refused" not in self.idle)
    @rule()
    def what_is_refused(self) -> None:
        """Enqueuing the job again, cancelling it after its end, redriving it without need: nothing happens."""
        self.idle.add("refused")
        before = self.job
        assert not self.store.enqueue("graph", {}, max_attempts=MAX_ATTEMPTS).created
        if self.model.status in TERMINAL:
            with pytest.raises(JobStateConflict):
                self.store.cancel(before.public_id)
        if self.model.status not in ("failed", "retry"):
            with pytest.raises(JobStateConflict):
                self.store.redrive(before.public_id)
        assert self.job == before

    @precondition(lambda self: self.model.status in ("pending", "retry", "running") and "claim" not in self.idle)
    @rule(worker=st.sampled_from(WORKERS))
    def try_to_claim(self, worker: str) -> None:
        """A worker looks for work."""
        self.idle.add("claim")
        model, now = self.model, self.clock.now_ms()
        got = claim(self.store, worker, lease_ms=LEASE)
        due = model.status in ("pending", "retry") and model.due <= now
        expired = model.status == "running" and model.lease_until <= now
        if expired and model.cancel_wished:
            assert got == []
            self.cancelled()
            model.deaths = 0
            return
        if expired and model.holder != worker:  # one that finds its own claim never heard that it was made
            model.die()
        if expired and model.deaths >= MAX_ATTEMPTS:
            assert got == []
            model.status = "review" if model.in_flight else "failed"
        elif due or expired:
            (self.believes[worker],) = got
            model.status, model.holder = "running", worker
            model.claim_no += 1
            model.attempts += 1
            model.lease_until = now + LEASE
        else:
            assert got == []

    @precondition(lambda self: any(self.believes.values()) and "beat" not in self.idle)
    @rule(worker=st.sampled_from(WORKERS))
    def beat(self, worker: str) -> None:
        """A worker's heartbeat."""
        self.idle.add("beat")
        believed, now = self.believes[worker], self.clock.now_ms()
        held = self.store.write(
            lambda c: claims.heartbeat(
                c, now=now, worker=worker, lease_ms=LEASE, running=[believed.id] if believed else []
            )
        ).result()
        if believed is not None and self.model.status == "running" and self.model.holder == worker:
            assert held == {believed.id: (self.model.claim_no, self.model.cancel_wished)}
            self.model.lease_until = now + LEASE
        else:
            assert held == {}

    @precondition(lambda self: any(self.believes.values()))
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        """A worker that believes it holds the job stores a step."""
        self.idle.clear()
        worker = data.draw(st.sampled_from([w for w in WORKERS if self.believes[w]]))
        believed = self.believes[worker]
        assert believed is not None

        def operation(connection: Any) -> None:
            claims.advance(connection, believed.id, believed.claim_no, now=self.clock.now_ms(), step=self.calls)

        if self.holds(worker):
            self.store.write(operation).result()
            self.model.moved = True
        else:
            with pytest.raises(LostClaim):
                self.store.write(operation).result()
            self.believes[worker] = None

    @precondition(lambda self: any(self.believes.values()))
    @rule(data=st.data(), key=st.sampled_from(["push", "mail"]), then=st.sampled_from(["confirm", "reject", ""]))
    def act(self, data: st.DataObject, key: str, then: str) -> None:
        """A worker acts: it writes its intent, calls, and mostly comes back at once."""
        self.idle.clear()
        worker = data.draw(st.sampled_from([w for w in WORKERS if self.believes[w]]))
        believed = self.believes[worker]
        assert believed is not None
        now = self.clock.now_ms()

        def operation(connection: Any) -> tuple[Effect, bool]:
            claims.advance(connection, believed.id, believed.claim_no, now=now, progressed=False)
            return effects.begin(
                connection,
                job_id=believed.id,
                claim_no=believed.claim_no,
                key=key,
                name=key,
                arguments_digest="",
                arguments_json="{}",
                now=now,
            )

        if not self.holds(worker):
            with pytest.raises(LostClaim):
                self.store.write(operation).result()
            self.believes[worker] = None
            return
        effect, call_now = self.store.write(operation).result()
        assert call_now == (key not in self.model.in_flight and key not in self.model.confirmed)
        if call_now:
            self.calls += 1
            self.running_effects[f"{key} {worker}"] = effect
            self.model.in_flight.add(key)
            if then:
                self._come_back(f"{key} {worker}", then)
        elif key in self.model.confirmed:
            assert effect.value() == self.confirmed_results[key]

    @precondition(lambda self: self.running_effects)
    @rule(data=st.data(), happened=st.sampled_from(["confirm", "reject"]))
    def come_back_late(self, data: st.DataObject, happened: str) -> None:
        """The call comes back, perhaps long after its worker lost the job."""
        self.idle.clear()
        self._come_back(data.draw(st.sampled_from(sorted(self.running_effects))), happened)

    def _come_back(self, name: str, happened: str) -> None:
        effect = self.running_effects.pop(name)
        now, result = self.clock.now_ms(), f"result {self.calls}"

        def operation(connection: Any) -> Effect:
            if happened == "reject":
                return effects.reject(
                    connection, effect, claim_no=effect.claim_no, settled_by="call", error=None, now=now
                )
            encoded = effects.encode_result(result)
            return effects.confirm(
                connection, effect, claim_no=effect.claim_no, result=encoded, settled_by="call", now=now
            )

        current = next(found for found in self.store.effects(self.job) if found.key == effect.key)
        good = (
            self.model.status == "running"
            and effect.claim_no == self.model.claim_no
            and (current.state, current.calls) == ("intended", effect.calls)
        )
        if not good:
            with pytest.raises(LostClaim):
                self.store.write(operation).result()
            return
        self.store.write(operation).result()
        self.model.in_flight.discard(effect.key)
        if happened == "confirm":
            self.model.confirmed.add(effect.key)
            self.model.moved = True
            self.confirmed_results[effect.key] = result

    @precondition(lambda self: any(self.believes.values()))
    @rule(data=st.data(), kind=st.sampled_from(["done", "retry", "review", "failed", "released"]))
    def end_leg(self, data: st.DataObject, kind: str) -> None:
        """A leg comes to an end."""
        self.idle.clear()
        worker = data.draw(st.sampled_from([w for w in WORKERS if self.believes[w]]))
        model = self.model
        if kind == "done":
            outcome = Outcome("done", values={"n": 1})
        elif kind == "released":
            outcome = Outcome("released")
        else:
            verdict: Any = {"retry": "retry", "review": "review", "failed": "failed"}[kind]
            outcome = Outcome("error", error=ValueError("x"), verdict=Verdict(verdict, None, False, "why", "rule"))
        if not self.settled(worker, outcome):
            return
        if kind == "done" and not model.in_flight:
            model.status = "done"
        elif model.cancel_wished:
            self.cancelled()
        elif kind == "done":
            model.status = "review"
        elif kind == "released":
            model.status, model.due, model.attempts = "pending", self.clock.now_ms(), max(model.attempts - 1, 0)
        else:
            model.fail()
            model.deaths = 0
            again = kind == "retry" and model.failures < MAX_ATTEMPTS
            model.status = "retry" if again else "review" if kind == "review" or model.in_flight else "failed"
            if again:
                model.due = self.job.next_run_at
                assert model.due >= self.clock.now_ms() + 15_000

    @precondition(lambda self: any(self.believes.values()))
    @rule(data=st.data())
    def ask(self, data: st.DataObject) -> None:
        """The graph asks a person."""
        self.idle.clear()
        worker = data.draw(st.sampled_from([w for w in WORKERS if self.believes[w]]))
        self.model.questions += 1
        question = Question("interrupt", f"id {self.model.questions}", "go on?")
        if not self.settled(worker, Outcome("review", questions=[question])):
            return
        if self.model.cancel_wished:
            self.cancelled()
        else:
            self.model.status = "review"

    @precondition(lambda self: any(self.believes.values()))
    @rule(data=st.data())
    def use_up_the_budget(self, data: st.DataObject) -> None:
        """The job used its one token, and stops."""
        self.idle.clear()
        worker = data.draw(st.sampled_from([w for w in WORKERS if self.believes[w]]))
        believed = self.believes[worker]
        assert believed is not None
        self.store.set_budget(believed.public_id, {"tokens": 1})
        used = self.store.write(lambda c: budgets.note(c, believed.id, believed.claim_no, input_tokens=1)).result()
        assert used == self.holds(worker)
        value = {"question": "?", "code": "budget_exceeded", "job": believed.public_id, "limit": "tokens"}
        question = budgets.question(value, believed.claim_no)
        if not self.settled(worker, Outcome("review", questions=[question])):
            return
        if self.model.cancel_wished:
            self.cancelled()
        else:
            self.model.status = "review"

    @precondition(lambda self: self.store.reviews())
    @rule(data=st.data(), decision=st.sampled_from(["approve", "reject"]))
    def answer(self, data: st.DataObject, decision: str) -> None:
        """A person answers an open question; a second answer is refused and shows the first."""
        self.idle.clear()
        review: Review = data.draw(st.sampled_from(self.store.reviews()))
        model, was = self.model, self.model.status
        doubted = any(other.kind in DECIDING and other.id != review.id for other in self.store.reviews())
        value = {"tokens": 2} if (review.kind, decision) == ("budget", "approve") else None
        if value is not None:
            before = self.job
            with pytest.raises(ReviewAnswerInvalid):
                self.store.answer(review.public_id, decision)
            assert self.job == before
        self.store.answer(review.public_id, decision, value=value)
        if review.kind == "effect":
            model.in_flight.discard(review.subject)
            if decision == "approve":
                model.confirmed.add(review.subject)
                self.confirmed_results[review.subject] = None
        if was == "review":
            if model.cancel_wished:
                if not model.in_flight:
                    model.status = "failed"
            elif decision == "reject" and review.kind in DECIDING:
                self.cancelled()
            elif not doubted:  # whether to go on at all is no longer asked
                model.status, model.due, model.failures, model.deaths = "pending", self.clock.now_ms(), 0, 0
                model.attempts -= review.kind != "error"
        elif was == "pending":
            model.due = min(model.due, self.clock.now_ms())
        with pytest.raises(ReviewAnswered):
            self.store.answer(review.public_id, "approve")

    @precondition(lambda self: self.model.status not in TERMINAL)
    @rule(sure=st.integers(0, 2))
    def cancel(self, sure: int) -> None:
        """A person cancels; not every time one thinks of it, or little else would be seen."""
        self.idle.clear()
        if sure > 0:
            return
        self.store.cancel(self.job.public_id)
        if self.model.status == "running":
            self.model.cancel_wished = True
        else:
            self.cancelled()

    @precondition(lambda self: self.model.status in ("failed", "retry"))
    @rule(worker=st.sampled_from(WORKERS))
    def redrive(self, worker: str) -> None:
        """A person retries the job, and a worker finds it."""
        model = self.model
        self.store.redrive(self.job.public_id)
        model.failures, model.deaths, model.cancel_wished = 0, 0, False
        model.status, model.due = "pending", self.clock.now_ms()
        self.try_to_claim(worker)

    @rule(jump=st.sampled_from([1, LEASE // 2, LEASE, 20_000, 3_600_000, -5_000]))
    def time_passes(self, jump: int) -> None:
        """The clock moves, mostly forward."""
        self.idle -= {"claim", "beat"}
        self.clock.advance(jump)

    # ---- what must hold after every step

    @invariant()
    def the_invariants_hold(self) -> None:
        """What architecture.md promises of a job, whatever happened to it."""
        rows = self.store.jobs()
        if not rows:
            return
        job = rows[0]
        ledger, questions = self.store.effects(job), self.store.reviews()
        self._is_as_the_model(job)
        self._walked_through_allowed_transitions(job)
        for effect in ledger:
            assert (effect.state == "confirmed") == (effect.key in self.model.confirmed)
            if effect.state == "confirmed":
                assert effect.value() == self.confirmed_results[effect.key]
        if job.status == "done":
            assert {effect.state for effect in ledger} <= {"confirmed", "rejected"}
            assert job.result_digest is not None
        if job.status == "failed":
            assert json.loads(job.error_json or "")["code"]
        if job.status in TERMINAL:
            assert questions == []
        if job.status == "review":
            assert questions, "nobody can ever move this job again"

    def _is_as_the_model(self, job: Job) -> None:
        model = self.model
        assert (job.status, job.attempts, job.claim_no) == (model.status, model.attempts, model.claim_no)
        assert (job.failures, job.worker_deaths) == (model.failures, model.deaths)
        assert job.leased_by == (model.holder if model.status == "running" else None)
        assert (job.lease_until is not None) == (model.status == "running")

    def _walked_through_allowed_transitions(self, job: Job) -> None:
        at: str | None = None
        for event in self.store.events(job):
            assert event["from"] == at
            assert at is None or event["to"] in ALLOWED[at]
            at = event["to"]
        assert at == job.status


class JobLifeOnPostgres(JobLife):
    """The same on the other database."""

    database = "postgres"


TestJobLife = JobLife.TestCase
TestJobLife.settings = machine_settings(30)
TestJobLifeOnPostgres = JobLifeOnPostgres.TestCase
TestJobLifeOnPostgres.settings = machine_settings(15)
