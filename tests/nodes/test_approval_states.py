"""Whatever happens between question and call, one yes lets one call happen, and no call happens without one.

A job's node pays one amount after the other. Between its runs the amounts and the graph change, people answer well,
badly, late and through two doors, and runs end in the middle of a call; the truth about the world is kept beside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from langgraph.errors import GraphInterrupt
from sqlalchemy import update

from everstep import ApprovalRejected, EffectRejected, EffectUnknown, effect
from everstep.checkpoints import approvals, effects, reviews
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.reviews import Question, Review
from everstep.checkpoints.schema import agent_jobs
from everstep.errors import EffectNotRepeated, ReviewAnswered
from everstep.nodes.attempt import Attempt, running
from everstep.nodes.effect_life import effect_key
from everstep.runtime.classify import classify
from tests.support.machines import RecordMachine, machine_settings
from tests.support.record import begin_running

AMOUNTS = st.integers(1, 3)
ENDINGS = ("paid", "busy", "lost", "dropped", "killed before", "killed after")
NONSENSE = ("yes", None, {}, {"decisions": []}, {"type": "edit", "edited_action": {"name": "x", "args": {"amount": 1}}})


class Killed(BaseException):
    """The process is gone."""


class Approving(RecordMachine):
    """One job after the other, and what is true of the world."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs = 0
        self.approved: Counter[tuple[int, str, int]] = Counter()
        self.paid: Counter[tuple[int, str, int]] = Counter()
        self.unapproved: list[tuple[int, str, int]] = []
        self.world: list[tuple[str, int]] = []
        self.endings: list[str] = []
        self.answered: list[Review] = []

    @initialize(how=st.sampled_from(["blind", "probe", "idempotent"]))
    def begin(self, how: str) -> None:
        """The effect, and the first job."""
        self.how = how
        probe: Callable[[int], Any] | None = (lambda amount: self.found(amount)) if how == "probe" else None
        self.pay = effect("pay", approval=True, probe=probe, idempotent=how == "idempotent")(self.called)
        self.next_job()

    def next_job(self) -> None:
        """Another job, which wants the same."""
        self.jobs += 1
        self.store.enqueue("graph", {}, key=str(self.jobs), max_attempts=1000)
        self.job: Job = begin_running(self.store)
        self.accepted: set[str] = set()
        self.shape, self.done = "a", False

    # ---- the world

    def called(self, amount: int) -> int:
        """The function: nobody but a person lets it be called, with these arguments, and in this graph."""
        about, key = (self.jobs, self.shape, amount), effect_key()
        again = self.how == "idempotent" and any(paid == key for paid, _ in self.world)
        if self.approved[about] <= (0 if again else self.paid[about]):  # an effect's own error would not end the test
            self.unapproved.append(about)
        ending = self.endings.pop(0) if self.endings else "paid"
        if ending in ("paid", "lost", "killed after") and not again:
            self.paid[about] += 1
            self.world.append((key, amount))
        if ending == "busy":
            raise EffectRejected("busy")
        if ending.startswith("killed"):
            raise Killed
        if ending in ("lost", "dropped"):
            raise TimeoutError
        return amount

    def found(self, amount: int) -> int | None:
        """The probe."""
        return amount if self.unknown_happened() else None

    def unknown_happened(self) -> bool:
        """Whether the effect that nobody is sure of happened."""
        open_ = self.store.read(lambda connection: effects.unsettled(connection, self.job.id))
        return any(paid == one.key for one in open_ for paid, _ in self.world)

    # ---- the job

    @precondition(lambda self: not self.done)
    @rule(amounts=st.lists(AMOUNTS, min_size=1, max_size=2), endings=st.lists(st.sampled_from(ENDINGS), max_size=2))
    def run(self, amounts: list[int], endings: list[str]) -> None:
        """A run of the node's body, up to where it stops."""
        claim = self.job.claim_no + 1
        here = agent_jobs.c.id == self.job.id
        self.write(lambda connection: connection.execute(update(agent_jobs).where(here).values(claim_no=claim)))
        self.job = self.store.job(self.job.public_id)
        attempt = Attempt(
            store=self.store,
            job_id=self.job.id,
            public_id=self.job.public_id,
            job_key=self.job.idempotency_key,
            claim_no=claim,
            surely_not_sent=lambda error: classify(error).surely_not_sent,
            accepted=set(self.accepted),
            fingerprint=self.shape,
        )
        self.endings = list(endings)
        with running(attempt):
            try:
                for amount in amounts:
                    with suppress(ApprovalRejected):
                        self.pay(amount)
                self.done = True
            except GraphInterrupt as asked:
                (interrupt,) = asked.args[0]
                self.open(Question("interrupt", interrupt.id, interrupt.value))
            except EffectUnknown:
                for one in self.store.effects(self.job):
                    if one.state == "unknown":
                        self.write(
                            lambda c, one=one: reviews.open_for_effect(c, self.job, one, now=self.clock.now_ms())
                        )
            except EffectNotRepeated as error:
                self.accepted |= set(error.ids["effects"])
            except (EffectRejected, TimeoutError, Killed):
                pass

    @invariant()
    def nothing_was_called_without_a_yes(self) -> None:
        """Every call had one, for its arguments and this graph, that no other call had used."""
        assert self.unapproved == []

    @invariant()
    def the_record_agrees(self) -> None:
        """A yes is consumed exactly by what happened, reserved for what may have, and free after what did not."""
        if self.jobs == 0:
            return
        asked = [review.id for review in self.store.reviews(self.job)]
        uses = self.store.read(lambda connection: approvals.uses(connection, asked)).values()
        for one in self.store.effects(self.job):
            state = {"confirmed": {"consumed"}, "rejected": set[str]()}.get(one.state, {"reserved"})
            assert {use.state for use in uses if use.effect_key == one.key} == state

    @precondition(lambda self: self.done)
    @rule()
    def another_job(self) -> None:
        """Its amounts are the same; no yes to the one before counts for it."""
        self.next_job()

    @rule(shape=st.sampled_from("ab"))
    def change_graph(self, shape: str) -> None:
        """Someone changed the graph, and a person let the job go on with it."""
        self.shape = shape

    # ---- people

    @precondition(lambda self: bool(self.store.reviews()))
    @rule(data=st.data(), decision=st.sampled_from(["approve", "approve", "edit", "reject", "nonsense"]), to=AMOUNTS)
    def answer(self, data: Any, decision: str, to: int) -> None:
        """A person answers a question: about an effect with the truth, else with whatever comes to mind."""
        review = data.draw(st.sampled_from(self.store.reviews()))
        now = self.clock.now_ms()
        if review.kind == "effect":
            happened = any(paid == review.subject for paid, _ in self.world)
            self.store.answer(review.public_id, "approve" if happened else "reject")
        elif decision == "nonsense":
            value = data.draw(st.sampled_from(NONSENSE))
            self.write(lambda c: reviews.answer_for_client(c, review, value, by="client", now=now))
        else:
            given = {"value": {"amount": to}} if decision == "edit" else {}
            self.store.answer(review.public_id, decision, **given)
        if review.kind == "interrupt" and decision in ("approve", "edit"):
            asked = review.value["action_requests"][0]["args"]["amount"]
            shape, job = (
                review.value["approval"]["fingerprint"],
                int(self.store.job_by_row(review.job_id).idempotency_key),
            )
            self.approved[job, shape, to if decision == "edit" else asked] += 1
        self.answered.append(review)

    @precondition(lambda self: bool(self.answered))
    @rule(data=st.data(), decision=st.sampled_from(["approve", "reject"]))
    def answer_again(self, data: Any, decision: str) -> None:
        """Somebody else answers as well: the first answer stands."""
        review = data.draw(st.sampled_from(self.answered))
        with pytest.raises(ReviewAnswered):
            self.store.answer(review.public_id, decision)

    # ---- what follows

    def open(self, question: Question) -> None:
        """What the settlement of a leg does with a question."""
        now = self.clock.now_ms()
        self.write(lambda connection: reviews.open_all(connection, self.job, [question], now=now))

    def write(self, operation: Callable[[Any], Any]) -> Any:
        """Write to the record."""
        return self.store.write(operation).result()

    def teardown(self) -> None:
        """A job whose people say yes comes to its end."""
        try:
            for _ in range(30):
                if self.jobs == 0 or self.done:
                    break
                self.run([1, 2], [])
                for review in self.store.reviews():
                    if review.job_id == self.job.id:
                        happened = any(paid == review.subject for paid, _ in self.world)
                        self.store.answer(
                            review.public_id, "approve" if review.kind == "interrupt" or happened else "reject"
                        )
                        if review.kind == "interrupt":
                            asked = review.value["action_requests"][0]["args"]["amount"]
                            self.approved[self.jobs, review.value["approval"]["fingerprint"], asked] += 1
            else:
                raise AssertionError("the job did not come to its end")
            self.nothing_was_called_without_a_yes()
        finally:
            super().teardown()


class ApprovingOnPostgres(Approving):
    """The same on the other database."""

    database = "postgres"


TestApproving = Approving.TestCase
TestApproving.settings = machine_settings(40)
TestApprovingOnPostgres = ApprovingOnPostgres.TestCase
TestApprovingOnPostgres.settings = machine_settings(5)
