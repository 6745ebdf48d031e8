"""The rows that Everstep writes for an empty job, by hand: its tables, indexes and events, with no code around them.

It looks at nothing but the order: no gates, keys, leases, suspects or fences, and nobody is woken. So it is no queue to
use, but what any queue of these rows can do at most with one job a commit.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from uuid import uuid4

from everstep.checkpoints import sqlite

ENQUEUE = """
INSERT INTO agent_jobs (public_id, idempotency_key, payload_digest, payload_json, graph, thread_id, workflow_version,
    status, priority, max_attempts, next_run_at, due_rank, created_at, updated_at)
VALUES (:id, :key, :key, :payload, 'empty', :id, '1', 'pending', 5, 3, :now, :now, :now, :now)
"""
FIRST = """
SELECT id, payload_json FROM agent_jobs
WHERE status = 'pending' AND next_run_at + 0 <= ? ORDER BY due_rank, id LIMIT 1
"""
START = """
UPDATE agent_jobs SET status = 'running', attempts = 1, claim_no = 1, leased_by = ?, lease_until = ?, updated_at = ?
WHERE id = ?
"""
DONE = """
UPDATE agent_jobs SET status = 'done', leased_by = NULL, lease_until = NULL, result_json = 'null', updated_at = ?
WHERE id = ?
"""
EVENT = """
INSERT INTO job_events (job_id, from_status, to_status, claim_no, at, actor, reason) VALUES (?, ?, ?, ?, ?, ?, ?)
"""


class Queue:
    """See `bench.contenders.Queue`.

    Args:
        place: The folder.
    """

    def __init__(self, place: str) -> None:
        path = Path(place) / "everstep.db"
        sqlite.prepare(path)
        self._connection = sqlite.raw_connection(path)
        self._me = str(os.getpid())

    def create(self) -> None:
        """Opening it was enough."""

    def put(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            now = _now()
            self._connection.execute("BEGIN IMMEDIATE")
            row = {"id": str(uuid4()), "key": f"job {number}", "payload": str(number), "now": now}
            job = self._connection.execute(ENQUEUE, row).lastrowid
            self._connection.execute(EVENT, (job, None, "pending", 0, now, self._me, "enqueued"))
            self._connection.execute("COMMIT")

    def work(self, ran: Callable[[int], None]) -> None:
        held = self._next(None)
        while held is not None:
            ran(int(held[1]))
            held = self._next(held[0])

    def _next(self, done: int | None) -> tuple[int, str] | None:
        """Settle a job and claim the next."""
        now, run = _now(), self._connection.execute
        run("BEGIN IMMEDIATE")
        if done is not None:
            run(DONE, (now, done))
            run(EVENT, (done, "running", "done", 1, now, self._me, "finished"))
        found = run(FIRST, (now,)).fetchone()
        if found is not None:
            run(START, (self._me, now + 300_000, now, found[0]))
            run(EVENT, (found[0], "pending", "running", 1, now, self._me, "claimed"))
        run("COMMIT")
        return found

    def serve(self, ran: Callable[[int], None], ready: Callable[[], Any], stopped: threading.Event) -> None:
        raise NotImplementedError("it only works off what is there")

    def left(self) -> int:
        return int(self._connection.execute("SELECT count(*) FROM agent_jobs WHERE status != 'done'").fetchone()[0])

    def close(self) -> None:
        self._connection.close()


def _now() -> int:
    return time.time_ns() // 1_000_000
