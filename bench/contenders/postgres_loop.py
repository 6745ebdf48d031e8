"""A queue as one would write it by hand on PostgreSQL: keys, SKIP LOCKED, leases, LISTEN/NOTIFY, nothing else."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

import psycopg

TABLE = """
CREATE TABLE jobs (
    id bigserial PRIMARY KEY, key text NOT NULL UNIQUE, payload text NOT NULL,
    status text NOT NULL DEFAULT 'pending', leased_by text, lease_until timestamptz
);
CREATE INDEX ready ON jobs (id) WHERE status = 'pending';
"""
CLAIM = """
UPDATE jobs SET status = 'running', leased_by = %s, lease_until = now() + interval '5 minutes'
WHERE id IN (SELECT id FROM jobs WHERE status = 'pending' ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED)
RETURNING id, payload
"""


class Queue:
    """See `bench.contenders.Queue`.

    Args:
        place: The URL.
        batch: How many jobs are claimed, and how many are done, in one commit.
    """

    def __init__(self, place: str, *, batch: int) -> None:
        self._place, self._batch = place, batch
        self._connection = psycopg.connect(place, autocommit=True, prepare_threshold=0)
        self._connection.execute("SET synchronous_commit = on")

    def create(self) -> None:
        self._connection.execute(TABLE, prepare=False)

    def put(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            with self._connection.transaction():
                self._connection.execute(
                    "INSERT INTO jobs (key, payload) VALUES (%s, %s)", (f"job {number}", str(number))
                )
                self._connection.execute("SELECT pg_notify('jobs', '')")

    def work(self, ran: Callable[[int], None]) -> None:
        while claimed := self._claim():
            self._run(claimed, ran)

    def serve(self, ran: Callable[[int], None], ready: Callable[[], Any], stopped: threading.Event) -> None:
        with psycopg.connect(self._place, autocommit=True) as listening:
            listening.execute("LISTEN jobs")
            ready()
            while not stopped.is_set():
                while claimed := self._claim():
                    self._run(claimed, ran)
                for _ in listening.notifies(timeout=0.5, stop_after=1):
                    pass

    def _claim(self) -> list[tuple[Any, ...]]:
        return self._connection.execute(CLAIM, (str(os.getpid()), self._batch)).fetchall()

    def _run(self, claimed: list[tuple[Any, ...]], ran: Callable[[int], None]) -> None:
        for _, payload in claimed:
            ran(int(payload))
        ids = [row[0] for row in claimed]
        self._connection.execute("UPDATE jobs SET status = 'done' WHERE id = ANY(%s)", (ids,))

    def left(self) -> int:
        found = self._connection.execute("SELECT count(*) FROM jobs WHERE status <> 'done'").fetchone()
        return int(found[0]) if found else 0

    def close(self) -> None:
        self._connection.close()
