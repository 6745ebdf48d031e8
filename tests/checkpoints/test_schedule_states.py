"""A state machine over schedules: two schedulers, restarts, clocks that jump, people who pause, runs that end.

Whatever the order: a slot has at most one job, and with `all` each slot of the time that was lived through has one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from sqlalchemy import select

from everstep.checkpoints import cron, schedules, slots
from everstep.checkpoints.schedule import Definition, Missed, Overlap
from everstep.checkpoints.schema import schedule_slots
from everstep.checkpoints.slots import UNFINISHED
from everstep.checkpoints.store import Store
from everstep.graphs.policies import Policies
from everstep.runtime.classify import classify
from everstep.runtime.schedules import Scheduler
from everstep.runtime.settle import Outcome
from tests.support.machines import RecordMachine, machine_settings
from tests.support.record import claim, settled

MINUTE_MS = 60_000
CRON = "*/10 * * * *"


class Schedules(RecordMachine):
    """A schedule of each kind lives through a day of which the clocks are not sure."""

    def __init__(self) -> None:
        super().__init__()
        self.other = self.opened.enter_context(Store.open(self.store.url, clock=self.clock))
        self.schedulers = [self.scheduler(0), self.scheduler(1)]
        self.began = self.latest = self.looked_at = self.clock.now_ms()
        self.paused = False

    def scheduler(self, number: int) -> Scheduler:
        """One that just started."""
        return Scheduler((self.store, self.other)[number], Policies(), actor=f"scheduler {number}")

    @initialize(overlap=st.sampled_from(["skip", "queue", "resume"]), missed=st.sampled_from(["skip", "latest", "all"]))
    def make(self, overlap: Overlap, missed: Missed) -> None:
        """There is a schedule."""
        self.definition = Definition("graph", CRON, overlap, missed=missed)
        make = partial(schedules.create, definition=self.definition, now=self.clock.now_ms(), origin="command")
        self.schedule = self.store.write(partial(make, name="nightly")).result()

    # ---- rules

    @rule(number=st.integers(0, 1))
    def look(self, number: int) -> None:
        """A scheduler looks."""
        self.schedulers[number].look()
        self.looked_at = self.clock.now_ms()

    @rule(number=st.integers(0, 1))
    def restart(self, number: int) -> None:
        """A scheduler ends, and another takes its place."""
        self.schedulers[number] = self.scheduler(number)

    @rule(minutes=st.sampled_from([1, 3, 10, 10, 10, 25, 180]), more=st.sampled_from([0, 1, 59_999]))
    def wait(self, minutes: int, more: int) -> None:
        """Time passes, or the clock is put forward; not so far that slots are given up."""
        if self.clock.now_ms() - self.looked_at > 12 * 60 * MINUTE_MS:
            self.look(0)
        self.clock.advance(minutes * MINUTE_MS + more)
        self.latest = max(self.latest, self.clock.now_ms())

    @rule(minutes=st.sampled_from([1, 10, 45]))
    def set_back(self, minutes: int) -> None:
        """The clock is set back."""
        self.clock.advance(-minutes * MINUTE_MS)

    @rule(on=st.booleans())
    def switch(self, on: bool) -> None:
        """A person pauses it, or lets it go on."""
        self.paused = self.paused or not on
        now = self.clock.now_ms()
        self.store.write(lambda c: schedules.switch(c, schedules.locked(c, "nightly"), on=on, now=now)).result()

    @rule()
    def fire_by_hand(self) -> None:
        """A person runs it."""
        fire = partial(slots.fire_now, now=self.clock.now_ms(), actor="person", policy_of=Policies().of_graph)
        self.store.write(lambda c: fire(c, schedules.locked(c, "nightly"))).result()

    @precondition(lambda self: any(job.status == "pending" for job in self.store.jobs()))
    @rule(done=st.booleans())
    def work(self, done: bool) -> None:
        """A run ends, well or not."""
        for job in claim(self.store):
            error = ValueError("no")
            outcome = Outcome("done") if done else Outcome("error", error=error, verdict=classify(error))
            settled(self.store, job, outcome)

    # ---- what holds

    @invariant()
    def a_slot_has_one_job_at_most(self) -> None:
        """No job belongs to two slots that began it, and no slot is there twice."""
        rows = self.rows()
        assert max(Counter(row.slot_at for row in rows).values(), default=1) == 1
        fired = [row.job_id for row in rows if row.outcome == "fired"]
        assert None not in fired
        assert len(set(fired)) == len(fired) == len(self.store.jobs())

    @invariant()
    def runs_do_not_overlap(self) -> None:
        """But where they are queued."""
        if self.definition.overlap != "queue":
            assert len([job for job in self.store.jobs() if job.status in UNFINISHED]) <= 1

    @precondition(lambda self: self.definition.missed == "all" and not self.paused)
    @rule(first=st.integers(0, 1))
    def with_all_each_slot_is_handled(self, first: int) -> None:
        """Once both schedulers have looked, every slot of the past has its row; and where runs are queued, its job."""
        self.look(first)
        self.look(1 - first)
        rows = [row for row in self.rows() if row.slot_at % MINUTE_MS == 0]
        expected = set(cron.last_slots(CRON, "UTC", since=self.began + 1, until=self.clock.now_ms(), most=10_000))
        assert {row.slot_at for row in rows} >= expected
        assert max((row.slot_at for row in rows), default=0) <= self.latest
        if self.definition.overlap == "queue":
            assert {row.slot_at for row in rows if row.outcome == "fired"} >= expected

    def rows(self) -> Sequence[Any]:
        """The slots that were handled."""
        return self.store.read(lambda connection: connection.execute(select(schedule_slots)).all())


class SchedulesOnPostgres(Schedules):
    """The same on the other database."""

    database = "postgres"


TestSchedules = Schedules.TestCase
TestSchedules.settings = machine_settings(25)
TestSchedulesOnPostgres = SchedulesOnPostgres.TestCase
TestSchedulesOnPostgres.settings = machine_settings(5)
