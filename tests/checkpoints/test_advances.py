"""Writes of a leg that share a transaction: one change of the job's row says how far it is, and each is fenced."""

from __future__ import annotations

from concurrent.futures import Future, wait
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from sqlalchemy import Connection

from everstep.checkpoints import claims, jobs
from everstep.checkpoints.jobs import Job, LostClaim
from everstep.checkpoints.saver import StepSaver
from everstep.checkpoints.store import Store
from everstep.nodes.attempt import Attempt
from tests.support.record import claim
from tests.support.waiting import PATIENCE, Halt

pytestmark = pytest.mark.both_databases
WHY = {"actor": "a", "reason": "given back"}


class Leg:
    """A job under a claim, and what stores its writes, of which several can be made to share a transaction."""

    def __init__(self, store: Store) -> None:
        store.enqueue("graph", {})
        (self.job,) = claim(store, "a", lease_ms=60_000)
        self.store = store
        self.looks = 0
        self.tokens = 0
        attempt = Attempt(store, self.job.id, self.job.public_id, self.job.idempotency_key, 1, lambda _error: False)
        attempt.stepped = self._look
        attempt.progress = lambda: {"input_tokens": self.tokens}
        self.attempt = attempt
        self.saver = StepSaver(store, attempt)
        self.config: Any = {"configurable": {"thread_id": self.job.thread_id, "checkpoint_ns": ""}}

    def _look(self, _connection: Connection) -> None:
        self.looks += 1

    def halted(self) -> Halt:
        """The writer stands until it is let go on: what is written meanwhile is its next transaction."""
        halt = Halt()
        self.store.write(lambda _connection: halt.stand())
        halt.wait_until_reached()
        return halt

    def put(self, step: int) -> Future[None]:
        """A checkpoint on its way."""
        metadata: Any = {"source": "loop", "step": step, "parents": {}}
        return self.saver._put(self.config, empty_checkpoint(), metadata, {})[2]  # pyright: ignore[reportPrivateUsage]

    def put_writes(self, task: str) -> None:
        """What a task wrote, on its way."""
        configurable = {**self.config["configurable"], "checkpoint_id": empty_checkpoint()["id"]}
        self.saver.put_writes({"configurable": configurable}, [("log", [task])], task)

    def stored(self) -> Job:
        """The job as the record has it."""
        return self.store.job(self.job.public_id)

    def checkpoints(self) -> int:
        """How many are stored."""
        return len([*self.saver.list(self.config)])


@pytest.fixture
def leg(store: Store) -> Leg:
    """A job that runs."""
    return Leg(store)


def test_writes_in_one_transaction_change_the_job_once(leg: Leg, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the step of the last, the use at that moment, and a count of all; its budget is looked up once."""
    changes: list[dict[str, Any]] = []
    advance = claims.advance
    monkeypatch.setattr(claims, "advance", lambda *given, **how: (changes.append(how), advance(*given, **how)))
    halt = leg.halted()
    first = leg.put(0)
    leg.put_writes("task")
    second, leg.tokens = leg.put(3), 7
    commits = leg.store.commits
    halt.release()
    wait([first, second], PATIENCE)
    assert leg.store.commits == commits + 2, "that of who stood, and one"
    assert len(changes) == 1
    assert leg.looks == 1
    assert (leg.stored().progress, leg.stored().step, leg.stored().input_tokens) == (3, 3, 7)
    assert leg.checkpoints() == 2


def test_a_claim_lost_between_two_writes_of_a_transaction_fences_the_second(leg: Leg) -> None:
    """The first is stored; of the second nothing is, though the job was found to be claimed before the first."""
    now = leg.store.clock.now_ms()
    halt = leg.halted()
    first = leg.put(0)
    between = leg.store.write(
        lambda connection: jobs.transition(connection, jobs.get(connection, leg.job.id), "pending", now=now, **WHY)
    )
    second = leg.put(1)
    halt.release()
    wait([first, between], PATIENCE)
    with pytest.raises(LostClaim):
        second.result(PATIENCE)
    assert isinstance(leg.attempt.blocked, LostClaim)
    assert (leg.stored().status, leg.stored().progress, leg.stored().step) == ("pending", 1, 0)
    assert leg.checkpoints() == 1


def test_a_write_that_fails_beside_others_leaves_their_count_right(leg: Leg) -> None:
    """The transaction is run again with each for itself: what was noted with the first holds no longer."""

    def fail(_connection: Connection) -> None:
        raise ValueError("no")

    halt = leg.halted()
    first, failed, second = leg.put(0), leg.store.write(fail), leg.put(1)
    halt.release()
    wait([first, second], PATIENCE)
    with pytest.raises(ValueError, match="no"):
        failed.result(PATIENCE)
    assert (leg.stored().progress, leg.stored().step, leg.checkpoints()) == (2, 1, 2)


def test_another_jobs_change_between_two_writes_does_not_disturb_them(leg: Leg) -> None:
    """They hold their claim still: the count is that of all, and the step that of the last."""
    other = leg.store.enqueue("graph", {"other": True}).job
    halt = leg.halted()
    first = leg.put(0)
    leg.store.write(lambda c: claims.claim(c, now=leg.store.clock.now_ms(), worker="b", lease_ms=1000, limit=1))
    second = leg.put(1)
    halt.release()
    wait([first, second], PATIENCE)
    assert leg.store.job(other.public_id).status == "running"
    assert (leg.stored().progress, leg.stored().step, leg.checkpoints()) == (2, 1, 2)
