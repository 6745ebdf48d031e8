"""The state machine of a job's life with waits besides: parked, woken by signals, moments and answers, never lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from everstep.checkpoints import waits
from everstep.checkpoints.job import PARKED
from everstep.checkpoints.jobs import LostClaim
from everstep.checkpoints.reviews import Question
from everstep.checkpoints.waits import Wait
from everstep.runtime.settle import Outcome
from tests.checkpoints.test_job_states import WORKERS, JobLife
from tests.support.machines import machine_settings

SIGNALS = ("paid", "shipped", "seen", "said")


@dataclass
class Waited:
    """A wait, as it must be."""

    signal: str | None
    until: int | None
    state: str = "open"


class ParkedLife(JobLife):
    """As a job's life, with a graph that waits."""

    def __init__(self) -> None:
        super().__init__()
        self.emitted: dict[str, int] = {}
        self.waits: dict[str, Waited] = {}

    @precondition(lambda self: any(self.believes.values()))
    @rule(
        data=st.data(),
        key=st.sampled_from("abcdef"),
        signal=st.sampled_from([None, *SIGNALS]),
        span=st.sampled_from([None, 0, 5_000, 3_600_000]),
        asks=st.booleans(),
        beside=st.booleans(),
    )
    def wait(
        self, data: st.DataObject, key: str, signal: str | None, span: int | None, asks: bool, beside: bool
    ) -> None:
        """A node waits; unless its wait is decided, the leg ends with it, perhaps asking a person besides."""
        self.idle.clear()
        worker = data.draw(st.sampled_from([w for w in WORKERS if self.believes[w]]))
        believed, now = self.believes[worker], self.clock.now_ms()
        assert believed is not None
        until = now + (0 if span is None and signal is None else span or 0)
        until_at = None if span is None and signal is not None else until

        def operation(connection: Any) -> Wait:
            how: dict[str, Any] = {"signal": signal, "until_at": until_at, "node": None, "now": now}
            return waits.begin(connection, job_id=believed.id, claim_no=believed.claim_no, key=key, **how)

        if not self.holds(worker):
            with pytest.raises(LostClaim):
                self.store.write(operation).result()
            self.believes[worker] = None
            return
        found = self.store.write(operation).result()
        mine = self.waits.setdefault(key, Waited(signal, until_at))
        if mine.state == "open":
            heard = mine.signal in self.emitted
            over = mine.until is not None and mine.until <= now
            mine.state = "met" if heard else "over" if over else "open"
        assert (found.signal, found.until_at, found.state) == (mine.signal, mine.until, mine.state)
        assert (found.value or {}).get("payload") == (self.emitted[str(mine.signal)] if mine.state == "met" else None)
        if mine.state == "open":
            if beside and mine.signal is not None:
                self.emit_beside(mine.signal)
            self._park(worker, key, mine, asks=asks)

    def emit_beside(self, name: str) -> None:
        """A signal comes after the node looked and before its job is parked."""
        if self.store.emit(name, 10)[1]:
            self.emitted[name] = 10
            for wait in self.waits.values():
                if wait.state == "open" and wait.signal == name:
                    wait.state = "met"

    def _park(self, worker: str, key: str, mine: Waited, *, asks: bool) -> None:
        model = self.model
        model.questions += asks
        questions = [Question("interrupt", f"id {model.questions}", "go on?")] if asks else []
        if not self.settled(worker, Outcome("parked", waits=(key,), questions=questions)):
            return
        if model.cancel_wished:
            self.cancelled()
            return
        model.status, model.attempts = "pending", max(model.attempts - 1, 0)
        model.due = PARKED if mine.until is None else mine.until
        if mine.state != "open":
            model.due = self.clock.now_ms()

    @precondition(lambda self: self.store.jobs())
    @rule(name=st.sampled_from(SIGNALS), payload=st.integers(1, 9))
    def emit(self, name: str, payload: int) -> None:
        """Somebody emits a signal; the first emission stands."""
        self.idle.clear()
        signal, emitted = self.store.emit(name, payload)
        assert emitted == (name not in self.emitted)
        assert signal.payload == self.emitted.setdefault(name, payload)
        woken = [wait for wait in self.waits.values() if emitted and wait.state == "open" and wait.signal == name]
        for wait in woken:
            wait.state = "met"
        if woken and self.model.status == "pending":
            self.model.due = min(self.model.due, self.clock.now_ms())

    @invariant()
    def waits_are_as_the_model(self) -> None:
        """What was decided stays, and whoever is parked for good has a wait that can still be met."""
        for job in self.store.jobs():
            assert {wait.key: wait.state for wait in self.store.waits(job)} == {
                key: wait.state for key, wait in self.waits.items()
            }
            if job.status == "pending":
                assert job.next_run_at == self.model.due
            if job.status == "pending" and job.next_run_at == PARKED:
                unheard = [wait for wait in self.waits.values() if wait.signal not in self.emitted]
                assert any(wait.state == "open" for wait in unheard), "nobody can ever move this job again"


class ParkedLifeOnPostgres(ParkedLife):
    """The same on the other database."""

    database = "postgres"


TestParkedLife = ParkedLife.TestCase
TestParkedLife.settings = machine_settings(25)
TestParkedLifeOnPostgres = ParkedLifeOnPostgres.TestCase
TestParkedLifeOnPostgres.settings = machine_settings(8)
