"""A state machine over a few keys: whatever is enqueued, finished, retried, pruned and expired in whatever order.

Against a model of a few lines: a key answers for its job as long as it is known, no longer and no shorter; what is
deleted is deleted whole; what is left is untouched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from sqlalchemy import select

from everstep.checkpoints import jobs, retention
from everstep.checkpoints.retention import DAY_MS, Rules
from everstep.checkpoints.schema import job_events, tombstones
from everstep.errors import JobPruned, JobStateConflict, KeyConflict
from tests.support.machines import RecordMachine, machine_settings

KEYS = ("a", "b", "c")
DAYS = (0.0, 1.0, 3.0)


@dataclass
class Known:
    """What a key stands for."""

    payload: int
    job: str
    status: str
    ended_at: int = 0
    expires_at: int | None = None
    """When the key is free again, if the job was deleted."""


class Keys(RecordMachine):
    """A few keys, a person, a worker made by hand, retention and the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[str, Known] = {}

    def stone(self, key: str) -> Known | None:
        """What a deleted job's key stands for, while it is known."""
        known = self.known.get(key)
        return known if known and known.expires_at is not None and known.expires_at > self.clock.now_ms() else None

    def there(self) -> dict[str, Known]:
        """The jobs that are in the record, by key."""
        return {key: known for key, known in self.known.items() if known.expires_at is None}

    @rule(key=st.sampled_from(KEYS), payload=st.integers(1, 2))
    def enqueue(self, key: str, payload: int) -> None:
        """Somebody submits."""
        known, stone = self.there().get(key), self.stone(key)
        same = (known or stone) is None or (known or stone).payload == payload  # type: ignore[union-attr]
        if not same:
            with pytest.raises(KeyConflict):
                self.store.enqueue("graph", {"n": payload}, key=key)
        elif stone is not None:
            with pytest.raises(JobPruned) as pruned:
                self.store.enqueue("graph", {"n": payload}, key=key)
            assert (pruned.value.ids["job"], pruned.value.ids["status"]) == (stone.job, stone.status)
        else:
            job, created = self.store.enqueue("graph", {"n": payload}, key=key)
            assert created == (known is None)
            if known is None:
                self.known[key] = Known(payload, job.public_id, "pending")
            else:
                assert job.public_id == known.job

    @rule(key=st.sampled_from(KEYS), to=st.sampled_from(["done", "failed", "review"]))
    def move(self, key: str, to: str) -> None:
        """A job comes to an end, or to a person."""
        known, now = self.there().get(key), self.clock.now_ms()
        if known is None or known.status != "pending":
            return

        def operation(connection: Any) -> None:
            job = jobs.lock(connection, jobs.find(connection, known.job).id)
            job = jobs.transition(connection, job, "running", now=now, actor="w", reason="", claim_no=job.claim_no + 1)
            jobs.transition(connection, job, to, now=now, actor="w", reason="", error_json='{"code": "x"}')

        self.store.write(operation).result()
        known.status, known.ended_at = to, now

    @rule(key=st.sampled_from(KEYS))
    def redrive(self, key: str) -> None:
        """Somebody retries a job."""
        known = self.there().get(key)
        if known is None:
            return
        if known.status == "failed":
            self.store.redrive(known.job, only_failed=True)
            known.status = "pending"
        else:
            with pytest.raises(JobStateConflict):
                self.store.redrive(known.job, only_failed=True)

    @rule(done=st.sampled_from(DAYS), failed=st.sampled_from(DAYS), keys=st.sampled_from(DAYS), dry_run=st.booleans())
    def prune(self, done: float, failed: float, keys: float, dry_run: bool) -> None:
        """Retention runs."""
        now = self.clock.now_ms()
        gone = [
            known
            for known in self.there().values()
            if known.status in ("done", "failed")
            and known.ended_at <= now - (done if known.status == "done" else failed) * DAY_MS
        ]
        pruned = self.store.prune(Rules(done_days=done, failed_days=failed, key_days=keys), dry_run=dry_run)
        assert sum(pruned.jobs.values()) == len(gone)
        if not dry_run:
            for known in gone:
                known.expires_at = now + int(keys * DAY_MS)
            assert self.tombstones() == {key for key in self.known if self.stone(key)}

    @rule(key=st.sampled_from(KEYS))
    def purge(self, key: str) -> None:
        """Somebody deletes a job by hand."""
        known, now = self.there().get(key), self.clock.now_ms()
        if known is None:
            return
        row = self.store.job(known.job).id
        gone = retention.remove_all(self.store, [row], Rules(key_days=1), now=now, ended_before={"failed": now})
        assert len(gone) == (known.status == "failed")
        if gone:
            known.expires_at = now + DAY_MS

    @rule(days=st.sampled_from([0.5, 1, 2]))
    def time_passes(self, days: float) -> None:
        """The clock moves."""
        self.clock.advance(int(days * DAY_MS))

    def tombstones(self) -> set[str]:
        """The keys of which there are tombstones."""
        return set(self.store.read(lambda c: list(c.execute(select(tombstones.c.idempotency_key)).scalars())))

    @invariant()
    def the_record_is_as_the_model(self) -> None:
        """The jobs are those of the model, every event is one of theirs, and no key has both a job and a tombstone."""
        found = {job.idempotency_key: (job.public_id, job.status) for job in self.store.jobs()}
        assert found == {key: (known.job, known.status) for key, known in self.there().items()}
        owners = self.store.read(lambda c: set(c.execute(select(job_events.c.job_id)).scalars()))
        assert owners == {job.id for job in self.store.jobs()}
        assert {key for key in self.known if self.stone(key)} <= self.tombstones()
        assert not set(found) & self.tombstones()


class KeysOnPostgres(Keys):
    """The same on the other database."""

    database = "postgres"


TestKeys = Keys.TestCase
TestKeys.settings = machine_settings(20, steps=30)
TestKeysOnPostgres = KeysOnPostgres.TestCase
TestKeysOnPostgres.settings = machine_settings(6, steps=30)
