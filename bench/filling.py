"""Fills a record with many jobs and checkpoints at once, as months of work would leave it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, insert

from everstep.checkpoints import jobs
from everstep.checkpoints.schema import agent_jobs, job_events
from everstep.checkpoints.store import Store
from everstep.clock import uuid7

CHUNK = 5_000
CHECKPOINTS_EACH = 10
FAILED = 20
"""How many failed at least, where there is room."""


def fill(path: Path, count: int, *, ready: int, checkpoints: bool) -> None:
    """Add jobs with their events.

    Args:
        path: The record's file.
        count: How many jobs; all are done but the ready ones, and a few that failed.
        ready: How many of them are ready to be claimed.
        checkpoints: Whether each has ten checkpoints.
    """
    with Store.open(f"sqlite:///{path}") as store:
        now = store.clock.now_ms()
        for first in range(0, count, CHUNK):
            rows = [_row(number, count, ready, now) for number in range(first, min(count, first + CHUNK))]

            def operation(connection: Connection, rows: list[dict[str, Any]] = rows) -> None:
                connection.execute(insert(agent_jobs), rows)
                connection.execute(insert(job_events), [_event(row) for row in rows])

            store.write(operation).result()
        threads = [job.thread_id for job in store.jobs(limit=count)] if checkpoints else []
    if checkpoints:
        with closing(sqlite3.connect(path)) as connection:
            connection.executemany(
                "INSERT INTO checkpoints (thread_id, checkpoint_ns, checkpoint_id, type, checkpoint, metadata)"
                " VALUES (?, '', ?, 'msgpack', ?, ?)",
                _checkpoints(threads),
            )
            connection.commit()
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _row(number: int, count: int, ready: int, now: int) -> dict[str, Any]:
    failed = number < FAILED or number % 200 == 0
    status = "pending" if number >= count - ready else "failed" if failed else "done"
    public_id = uuid7(now - (count - number))
    at = now - (count - number) * 1000
    return {
        "id": number + 1,
        "public_id": public_id,
        "idempotency_key": f"filled {number}",
        "payload_digest": f"{number:064x}",
        "payload_json": f'{{"number": {number}}}',
        "owner": "default",
        "graph": "empty",
        "thread_id": public_id,
        "workflow_version": "1",
        "status": status,
        "priority": jobs.DEFAULT_PRIORITY,
        "max_attempts": jobs.DEFAULT_MAX_ATTEMPTS,
        "next_run_at": at,
        "due_rank": jobs.rank(jobs.DEFAULT_PRIORITY, at),
        "created_at": at,
        "updated_at": at,
    }


def _event(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "job_id": row["id"],
        "from_status": None,
        "to_status": "pending",
        "claim_no": 0,
        "at": row["created_at"],
        "actor": "default",
        "reason": "enqueued",
    }


def _checkpoints(threads: list[str]) -> Iterator[tuple[str, str, bytes, bytes]]:
    for thread in threads:
        for step in range(CHECKPOINTS_EACH):
            yield thread, f"{thread}-{step:04}", b"\x80" * 200, b'{"step": 1}'
