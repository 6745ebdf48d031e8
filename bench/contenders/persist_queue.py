"""persist-queue's SQLite queue with acknowledgements. It counts in memory, so one process works on it at a time."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from persistqueue import Empty, SQLiteAckQueue
from persistqueue.sqlackqueue import AckStatus


class Queue:
    """See `bench.contenders.Queue`. It sets WAL; synchronous is SQLite's default, FULL."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._queue = SQLiteAckQueue(place, multithreading=True)

    def create(self) -> None:
        """Opening it was enough."""

    def put(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._queue.put(number)

    def work(self, ran: Callable[[int], None]) -> None:
        while True:
            try:
                number = self._queue.get(block=False)
            except Empty:
                return
            ran(number)
            self._queue.ack(number)

    def serve(self, ran: Callable[[int], None], ready: Callable[[], Any], stopped: threading.Event) -> None:
        raise NotImplementedError("it has no worker")

    def left(self) -> int:
        with closing(sqlite3.connect(Path(self._place) / "data.db")) as connection:
            query = "SELECT count(*) FROM ack_queue_default WHERE status < ?"
            return int(connection.execute(query, (AckStatus.acked,)).fetchone()[0])

    def close(self) -> None:
        self._queue.close()
