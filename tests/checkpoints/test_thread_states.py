"""A state machine over one thread: clients post, answer, steer and cancel; workers claim, pause, fail, finish, die.

Whatever happens, one job runs at a time, in the order they came; no accepted run is forgotten; a run ends once, and
neither it nor its thread is ahead of the job.
"""

from __future__ import annotations

import json
import random
from functools import partial
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from sqlalchemy import Connection, select

from everstep.checkpoints import claims, conversations, effects, events, runs
from everstep.checkpoints.jobs import Job, LostClaim
from everstep.checkpoints.reviews import Question
from everstep.checkpoints.runs import Run, RunRequest
from everstep.checkpoints.schema import agent_jobs, threads
from everstep.checkpoints.schema import runs as run_rows
from everstep.checkpoints.turns import GOING, NOT_YET
from everstep.errors import EverstepError, JobStateConflict, ReviewAnswered, ThreadBusy
from everstep.runtime.classify import Verdict
from everstep.runtime.settle import Outcome, settle
from tests.support.machines import RecordMachine, machine_settings

LEASE = 10_000
THREAD = "019ad000-0000-7000-8000-000000000001"
STRATEGIES = ["enqueue", "enqueue", "reject", "interrupt", "rollback"]


class ThreadLife(RecordMachine):
    """Runs come to one thread."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[Job] = []
        self.asked = 0
        self.over: dict[str, tuple[str, int | None]] = {}

    def teardown(self) -> None:
        try:
            self.every_run_ends()
        finally:
            self.opened.close()

    # ---- rules

    @initialize()
    def make_thread(self) -> None:
        """The thread is there."""
        self.write(lambda c: conversations.ensure(c, THREAD, owner="default", now=self.now()))

    @rule(strategy=st.sampled_from(STRATEGIES), delay=st.sampled_from([0, 0, 5]))
    def post(self, strategy: Any, delay: float) -> None:
        """An input is admitted, or refused without a trace."""
        before = self.rows()
        try:
            run = self.create(RunRequest("graph", "A", input={"n": 1}, strategy=strategy, delay_s=delay))
        except ThreadBusy:
            assert strategy == "reject" or self.unsettled(), "refused for no reason"
            assert self.rows() == before
            return
        assert run.status == "pending"
        assert self.thread()["status"] == "busy"

    @rule(scalar=st.booleans())
    def answer(self, scalar: bool) -> None:
        """An answer goes to the question that waits, once; without one it is refused without a trace."""
        paused = self.paused()
        waits = paused is not None and not self.going()
        before = self.rows()
        ids = [review.subject for review in self.reviews(paused) if review.kind == "interrupt"] if paused else []
        resume: Any = "yes" if scalar or not ids else dict.fromkeys(ids, "yes")
        try:
            run = self.create(RunRequest("graph", "A", command={"resume": resume}))
        except EverstepError:
            assert not waits or len(self.reviews(paused)) != 1 or self.reviews(paused)[0].kind != "interrupt"
            assert self.rows() == before
            return
        assert waits
        assert paused is not None
        assert (run.job_id, self.job(paused.id).status) == (paused.id, "pending"), "the same job goes on"

    @rule()
    def steer(self) -> None:
        """A command without an answer lets the paused job go on, or begins a job."""
        paused, going = self.paused(), self.going()
        try:
            run = self.create(RunRequest("graph", "A", command={"goto": "b"}))
        except ThreadBusy:
            assert self.unsettled()
            return
        if paused is not None and not going:
            assert run.job_id == paused.id

    @rule(rollback=st.booleans(), data=st.data())
    def cancel(self, rollback: bool, data: st.DataObject) -> None:
        """A run is cancelled: at once if nothing runs it."""
        found = self.runs()
        if not found:
            return
        run = data.draw(st.sampled_from(found))
        was_running = any(job.id == run.job_id and job.status == "running" for job in self.going())
        after = self.write(lambda c: runs.cancel(c, run, now=self.now(), actor="http", rollback=rollback))
        if run.ended_at is None and not was_running:
            assert after.ended_at is not None
        if run.ended_at is not None:
            assert after.status == run.status

    @rule()
    def claim(self) -> None:
        """A worker takes the one whose turn it is, and no other."""
        due = [job for job in self.going() if job.status != "running" and job.next_run_at <= self.now()]
        claimed = self.write(
            partial(claims.claim, now=self.now(), worker="w", lease_ms=LEASE, limit=5, graphs=["graph"])
        )
        self.held += claimed
        assert len(claimed) <= 1
        if due and not any(job.status == "running" for job in self.going() if job.id not in {c.id for c in claimed}):
            assert [job.id for job in claimed] == [due[0].id]

    @precondition(lambda self: self.held)
    @rule(
        kind=st.sampled_from(["done", "done", "interrupt", "interrupt", "retry", "error", "effect", "released"]),
        effect=st.booleans(),
    )
    def settle_leg(self, kind: str, effect: bool) -> None:
        """A leg ends; a lost one changes nothing."""
        job = self.held.pop(0)
        before = self.rows()
        try:
            self.settle_as(job, kind)
        except LostClaim:
            assert self.rows() == before

    @precondition(lambda self: self.held)
    @rule()
    def worker_dies(self) -> None:
        """Its lease runs out."""
        self.held.clear()
        self.clock.advance(LEASE + 1)

    @rule(ms=st.sampled_from([1, 1_000, 6_000, 600_000]))
    def time_passes(self, ms: int) -> None:
        """Backoffs and delays end, leases run out."""
        self.clock.advance(ms)
        self.held = [job for job in self.held if self.job(job.id).lease_until or self.now() < 0]

    @rule(data=st.data(), decision=st.sampled_from(["approve", "reject"]))
    def a_person_answers(self, data: st.DataObject, decision: str) -> None:
        """A question is answered beside the clients; its job goes on, or ends."""
        paused = self.paused()
        asked = self.reviews(paused) if paused else []
        if not asked:
            return
        review = data.draw(st.sampled_from(asked))
        try:
            self.store.answer(review.public_id, decision, by="ann")
        except (ReviewAnswered, JobStateConflict):
            raise AssertionError("an open question takes an answer") from None

    @rule(data=st.data())
    def a_person_retries(self, data: st.DataObject) -> None:
        """A failed job goes on only if its thread has not gone on without it."""
        failed = self.store.jobs(status="failed")
        if not failed:
            return
        job = data.draw(st.sampled_from(failed))
        others = [each for each in self.store.jobs() if each.id != job.id]
        may = all(each.id < job.id and each.status in ("done", "failed") for each in others)
        try:
            self.store.redrive(job.public_id)
        except JobStateConflict:
            assert not may
        else:
            assert may

    # ---- what holds

    @invariant()
    def one_runs(self) -> None:
        """Of a thread's jobs one runs at most, and it is the oldest that is under way."""
        going = self.going()
        assert sum(job.status == "running" for job in going) <= 1
        assert [job.next_run_at >= NOT_YET for job in going] == [False, *[True] * (len(going) - 1)][: len(going)] or (
            self.paused() is not None and all(job.next_run_at >= NOT_YET for job in going)
        ), "the turn is lost, or given twice"
        if self.paused() is not None and going and not self.unsettled():
            raise AssertionError("who waits is not let through though only a person's answer is waited for")

    @invariant()
    def runs_tell_of_jobs(self) -> None:
        """A run is over exactly if its job stopped; one that is over stays as it is; each ended with one event."""
        by_id = {job.id: job for job in self.store.jobs()}
        last: dict[int, Run] = {}
        for run in self.runs():
            last.setdefault(run.job_id, run)
            if run.run_id in self.over:
                assert (run.status, run.ended_at) == self.over[run.run_id]
            if run.ended_at is not None:
                self.over[run.run_id] = (run.status, run.ended_at)
        for job_id, run in last.items():
            status = by_id[job_id].status
            assert (run.ended_at is None) == (status in GOING), (run.status, status)
            if run.ended_at is None:
                assert run.status == ("running" if status == "running" else "pending")
        told = self.store.read(lambda c: events.of_thread(c, THREAD, limit=100_000))
        ends = [event.run_id for event in told if event.method == events.END]
        assert sorted(ends) == sorted(self.over)
        assert [event.id for event in told] == sorted(event.id for event in told)

    @invariant()
    def thread_tells_of_runs(self) -> None:
        """The thread is busy exactly while something is under way, and interrupted only while a person is asked."""
        thread, going = self.thread(), self.going()
        if thread is None or not self.runs():
            return
        stuck = self.paused() is not None and all(job.next_run_at >= NOT_YET for job in going)
        if going and not stuck:
            assert thread["status"] == "busy"
        elif thread["status"] == "interrupted":
            assert self.paused() is not None
            assert json.loads(thread["interrupts_json"]) != {} or self.reviews(self.paused())
        else:
            assert thread["status"] in ("idle", "error")

    # ---- how

    def now(self) -> int:
        return self.clock.now_ms()

    def write(self, operation: Any) -> Any:
        return self.store.write(operation).result()

    def create(self, request: RunRequest) -> Run:
        return self.write(
            lambda c: runs.create(c, request, thread_id=THREAD, owner="default", now=self.now(), actor="http")
        )

    def settle_as(self, job: Job, kind: str) -> None:
        self.asked += 1
        question = Question("interrupt", f"{self.asked:032x}", {"ask": self.asked})
        error = ValueError("no")
        outcomes = {
            "done": Outcome("done", values={"n": 1}, told={"values_json": "{}", "state_json": "{}"}),
            "interrupt": Outcome("review", questions=[question], told={"interrupts_json": '{"task": []}'}),
            "retry": Outcome("error", error=error, verdict=Verdict("retry", None, False, "temporary", "test")),
            "error": Outcome("error", error=error, verdict=Verdict("review", None, False, "unknown", "test")),
            "effect": Outcome("effect", effect_key=f"key {self.asked}"),
            "released": Outcome("released"),
        }

        def operation(connection: Connection) -> Job:
            claims.fence(connection, job.id, job.claim_no)
            if kind == "effect":
                claims.advance(connection, job.id, job.claim_no, now=self.now())
                self.begin_effect(connection, job)
            return settle(connection, job, outcomes[kind], now=self.now(), actor="w", randomness=random.Random(1))

        self.write(operation)

    def begin_effect(self, connection: Connection, job: Job) -> None:
        effects.begin(
            connection,
            key=f"key {self.asked}",
            job_id=job.id,
            claim_no=job.claim_no,
            name="mail",
            arguments_digest="d",
            arguments_json="{}",
            now=self.now(),
        )

    def thread(self) -> Any:
        row = select(threads).where(threads.c.thread_id == THREAD)
        return self.store.read(lambda c: c.execute(row).mappings().first())

    def runs(self) -> list[Run]:
        return self.store.read(lambda c: runs.of_thread(c, THREAD, limit=10_000))

    def job(self, job_id: int) -> Job:
        return self.store.job_by_row(job_id)

    def going(self) -> list[Job]:
        return sorted((job for job in self.store.jobs() if job.status in GOING), key=lambda job: job.id)

    def paused(self) -> Job | None:
        found = self.store.jobs(status="review")
        assert len(found) <= 1
        return found[0] if found else None

    def reviews(self, job: Job | None) -> list[Any]:
        return [] if job is None else [review for review in self.store.reviews(job) if review.status == "open"]

    def unsettled(self) -> bool:
        paused = self.paused()
        return paused is not None and bool(self.store.read(lambda c: effects.unsettled(c, paused.id)))

    def rows(self) -> Any:
        def look(connection: Connection) -> Any:
            return [connection.execute(select(table)).all() for table in (agent_jobs, run_rows, threads)]

        return self.store.read(look)

    def every_run_ends(self) -> None:
        """From wherever it is: with workers that work and a person who answers, each run comes to its end."""
        for _ in range(200):
            self.clock.advance(700_000)
            self.held = self.write(
                partial(claims.claim, now=self.now(), worker="z", lease_ms=LEASE, limit=5, graphs=["graph"])
            )
            for job in self.held:
                self.settle_as(job, "done")
            self.held = []
            paused = self.paused()
            if paused is not None:
                self.store.answer(self.reviews(paused)[0].public_id, "approve", by="ann")
            if not self.going() and self.paused() is None:
                break
        assert self.going() == []
        assert all(run.ended_at is not None for run in self.runs())
        self.one_runs()
        self.runs_tell_of_jobs()


class OnPostgres(ThreadLife):
    """The same on PostgreSQL."""

    database = "postgres"


TestThreadLife = ThreadLife.TestCase
TestThreadLife.settings = machine_settings(60, 30)
TestOnPostgres = OnPostgres.TestCase
TestOnPostgres.settings = machine_settings(12, 25)
