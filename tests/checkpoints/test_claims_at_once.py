"""What a claim on PostgreSQL finds, if others change the jobs after it began to look and before it has them.

Its one statement stands still in between: where it looks for closed gates, a view waits for a lock that the test has.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

import psycopg
import pytest
from sqlalchemy import Connection

from everstep.checkpoints import jobs, starts
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.store import Store
from tests.support.postgres import fresh_postgres
from tests.support.waiting import PATIENCE, until

STANDS = """
    ALTER TABLE services RENAME TO services_rows;
    CREATE FUNCTION stand() RETURNS SETOF services_rows LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN; END $$;
    CREATE VIEW services AS SELECT * FROM services_rows UNION ALL SELECT * FROM stand();
"""
WAITS = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 1 AND NOT granted"


@pytest.fixture
def store() -> Iterator[Store]:
    """A record in PostgreSQL."""
    with fresh_postgres() as store:
        yield store


@contextmanager
def standing(store: Store) -> Generator[None]:
    """Who looks for closed gates stands until this is left."""
    with psycopg.connect(store.url, autocommit=True) as connection:
        connection.execute(STANDS)
        connection.execute("SELECT pg_advisory_lock(1)")
        yield


def stands(store: Store) -> bool:
    """Whether somebody stands."""
    with psycopg.connect(store.url, autocommit=True) as connection:
        return connection.execute(WAITS).fetchone() == (1,)


def start(store: Store) -> Callable[[Connection], list[Job] | None]:
    """A claim of one job by one statement."""
    now = store.clock.now_ms()
    return lambda connection: starts.start_first(
        connection, now=now, worker="a", lease_ms=60_000, limit=1, graphs=["graph"], running=()
    )


def claimed_and_given_back(store: Store, job: Job) -> None:
    """What another worker does that claims a job and ends before it began it."""

    def operation(connection: Connection, job: Job, to: str, **changes: int) -> Job:
        return jobs.transition(connection, job, to, now=store.clock.now_ms(), actor="b", reason="test", **changes)

    with Store.open(store.url) as other:
        held = other.write(lambda each: operation(each, job, "running", claim_no=1, attempts=1)).result(PATIENCE)
        other.write(lambda each: operation(each, held, "pending", attempts=0)).result(PATIENCE)


def test_a_job_that_was_claimed_and_given_back_meanwhile_is_claimed(store: Store) -> None:
    """A job that is ready again as the claim comes to it is started as it is then, and not left to the next look."""
    job = store.enqueue("graph", {}).job
    with standing(store):
        claiming = store.write(start(store))
        until(lambda: stands(store), "a claim that has begun to look")
        claimed_and_given_back(store, job)
    (claimed,) = claiming.result(PATIENCE) or list[Job]()
    assert (claimed.id, claimed.claim_no, claimed.attempts, claimed.leased_by) == (job.id, 2, 1, "a")
    assert store.job(job.public_id) == claimed
    assert [event["claim_no"] for event in store.events(claimed)] == [0, 1, 1, 2]


def test_a_job_that_another_claimed_meanwhile_makes_room_for_the_next(store: Store) -> None:
    """A job that is ready no more as the claim comes to it is passed over, and the one behind it is started."""
    first, second = (store.enqueue("graph", {"number": number}).job for number in range(2))

    def taken(connection: Connection) -> Job:
        now = store.clock.now_ms()
        return jobs.transition(connection, first, "running", now=now, actor="b", reason="test", claim_no=1)

    with standing(store):
        claiming = store.write(start(store))
        until(lambda: stands(store), "a claim that has begun to look")
        with Store.open(store.url) as other:
            other.write(taken).result(PATIENCE)
    assert [job.id for job in claiming.result(PATIENCE) or ()] == [second.id]
    assert store.job(first.public_id).claim_no == 1
