"""Everstep's bare queue: claims and transitions through the `Store`, with no worker, no graph and no checkpoint."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, func, select

from everstep.checkpoints import claims, jobs
from everstep.checkpoints.jobs import Job, Move
from everstep.checkpoints.schema import agent_jobs
from everstep.checkpoints.store import Store
from everstep.runtime.identity import worker_id

LEASE_MS = 300_000
STOP_S = 0.5
"""How soon one that waits sees that it should stop."""


def url_of(place: str) -> str:
    """The store URL of a place."""
    return place if place.startswith("postgresql://") else f"sqlite:///{Path(place) / 'everstep.db'}"


class Queue:
    """See `bench.contenders.Queue`.

    Args:
        place: Where the record is.
        fused: Whether what was done and what is claimed next are one commit, instead of two.
        batch: How many jobs a commit claims.
    """

    def __init__(self, place: str, *, fused: bool, batch: int = 1) -> None:
        self._store = Store.open(url_of(place))
        self._fused, self._batch = fused, batch
        self._me = worker_id()

    def create(self) -> None:
        """Opening it was enough."""

    def put(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._store.enqueue("empty", {"number": number})

    def work(self, ran: Callable[[int], None]) -> None:
        held = self._write([], True)
        while held:
            for job in held:
                ran(job.payload["number"])
            if self._fused:
                held = self._write(held, True)
            else:
                self._write(held, False)
                held = self._write([], True)

    def _write(self, done: list[Job], claim: bool) -> list[Job]:
        now = self._store.clock.now_ms()

        def operation(connection: Connection) -> list[Job]:
            moves = [Move(job, "done", "finished", {"result_json": "null"}) for job in done]
            jobs.transition_all(connection, moves, now=now, actor=self._me)
            if not claim:
                return []
            return claims.claim(connection, now=now, worker=self._me, lease_ms=LEASE_MS, limit=self._batch)

        return self._store.carry_out(operation)

    def serve(self, ran: Callable[[int], None], ready: Callable[[], Any], stopped: threading.Event) -> None:
        heard = threading.Event()
        with self._store.database.listen(heard.set) as poll_s:
            ready()
            while not stopped.is_set():
                heard.wait(min(poll_s, STOP_S))
                heard.clear()
                self.work(ran)

    def left(self) -> int:
        query = select(func.count()).where(agent_jobs.c.status != "done")
        return self._store.read(lambda connection: int(connection.execute(query).scalar_one()))

    def close(self) -> None:
        self._store.close()
