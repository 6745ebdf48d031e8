"""Who reads a run's events just now, and how far: what an agent that waits for its clients goes by.

Only clients of runs that wait (`slow_client`) have rows, and only as long as they read: a row is a lease, so that a
client whose server was killed holds up nothing for long.
"""

from __future__ import annotations

import json
from collections.abc import Collection

from sqlalchemy import Connection, delete, func, select, update

from everstep.checkpoints.database import insert_or_ignore
from everstep.checkpoints.schema import agent_jobs, runs
from everstep.checkpoints.schema import stream_readers as table

LEASE_MS = 10_000
"""How long a reader counts that is heard of no more."""


def read_to(connection: Connection, reader: str, *, job_id: int, run_id: str, seen: int, now: int) -> None:
    """Note how far a reader has read, and that it goes on reading.

    Args:
        connection: The write transaction.
        reader: Which one; an id of its own.
        job_id: Row id of the run's job.
        run_id: The run.
        seen: Id of the last event it has taken.
        now: UTC milliseconds.
    """
    place = {"seen": seen, "expires_at": now + LEASE_MS}
    known = update(table).where(table.c.run_id == run_id, table.c.reader == reader).values(**place)
    if connection.execute(known).rowcount == 0:
        insert_or_ignore(connection, table, {"job_id": job_id, "run_id": run_id, "reader": reader, **place})


def waited_for(connection: Connection, run_ids: Collection[str]) -> dict[str, int]:
    """Of some runs those that wait for their clients: the row id of each one's job."""
    of = runs.join(agent_jobs, agent_jobs.c.id == runs.c.job_id)
    query = select(runs.c.run_id, runs.c.job_id, agent_jobs.c.run_json).select_from(of)
    rows = connection.execute(query.where(runs.c.run_id.in_(list(run_ids))))
    return {row.run_id: row.job_id for row in rows if "slow_client" in json.loads(row.run_json or "{}")}


def leave(connection: Connection, reader: str) -> None:
    """A reader reads no more."""
    connection.execute(delete(table).where(table.c.reader == reader))


def slowest(connection: Connection, run_id: str, *, now: int) -> int | None:
    """The last event that every reader of a run has taken; None if nobody reads."""
    reading = (table.c.run_id == run_id, table.c.expires_at > now)
    return connection.execute(select(func.min(table.c.seen)).where(*reading)).scalar_one()


def forget(connection: Connection, *, now: int) -> int:
    """Delete those that are heard of no more; how many."""
    return connection.execute(delete(table).where(table.c.expires_at <= now)).rowcount
