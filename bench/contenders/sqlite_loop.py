"""A queue as one would write it by hand on the standard library's sqlite3: keys, claims, leases, nothing else."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

TABLE = """
CREATE TABLE IF NOT EXISTS jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE, payload TEXT NOT NULL,
    status TEXT NOT NULL DEFAULT 'pending', leased_by TEXT, lease_until INTEGER
);
CREATE INDEX IF NOT EXISTS ready ON jobs (id) WHERE status = 'pending';
"""
CLAIM = """
UPDATE jobs SET status = 'running', leased_by = ?, lease_until = ?
WHERE id IN (SELECT id FROM jobs WHERE status = 'pending' ORDER BY id LIMIT ?) RETURNING id, payload
"""
LOOK_S = 0.005


class Queue:
    """See `bench.contenders.Queue`.

    Args:
        place: The folder.
        batch: How many jobs are claimed, and how many are done, in one commit.
    """

    def __init__(self, place: str, *, batch: int) -> None:
        self._batch = batch
        self._connection = sqlite3.connect(
            Path(place) / "loop.db", timeout=30, isolation_level=None, check_same_thread=False
        )
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=FULL")

    def create(self) -> None:
        self._connection.executescript(TABLE)

    def put(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._connection.execute("INSERT INTO jobs (key, payload) VALUES (?, ?)", (f"job {number}", str(number)))

    def work(self, ran: Callable[[int], None]) -> None:
        while claimed := self._claim():
            self._run(claimed, ran)

    def serve(self, ran: Callable[[int], None], ready: Callable[[], Any], stopped: threading.Event) -> None:
        ready()
        while not stopped.is_set():
            pending = self._connection.execute("SELECT 1 FROM jobs WHERE status = 'pending' LIMIT 1").fetchone()
            if pending:
                self._run(self._claim(), ran)
            else:
                time.sleep(LOOK_S)

    def _claim(self) -> list[tuple[int, str]]:
        self._connection.execute("BEGIN IMMEDIATE")
        lease = int(time.time() * 1000) + 300_000
        claimed = self._connection.execute(CLAIM, (str(os.getpid()), lease, self._batch)).fetchall()
        self._connection.execute("COMMIT")
        return claimed

    def _run(self, claimed: list[tuple[int, str]], ran: Callable[[int], None]) -> None:
        for _, payload in claimed:
            ran(int(payload))
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany("UPDATE jobs SET status = 'done' WHERE id = ?", [(row[0],) for row in claimed])
        self._connection.execute("COMMIT")

    def left(self) -> int:
        return int(self._connection.execute("SELECT count(*) FROM jobs WHERE status != 'done'").fetchone()[0])

    def close(self) -> None:
        self._connection.close()
