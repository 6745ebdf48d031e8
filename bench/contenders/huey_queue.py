"""huey on SQLite. It waits with its own consumer; its throughput is that of dequeue and execute in a bare loop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from huey import SqliteHuey
from huey.consumer import Consumer


class Queue:
    """See `bench.contenders.Queue`. `fsync=True` is synchronous=FULL; WAL is its default."""

    def __init__(self, place: str) -> None:
        self._huey = SqliteHuey("bench", filename=str(Path(place) / "huey.db"), fsync=True, timeout=30)
        self._ran: Callable[[int], None] = lambda _number: None
        self._task = self._huey.task(name="empty")(lambda number: self._ran(number))

    def create(self) -> None:
        """Opening it was enough."""

    def put(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._task(number)

    def work(self, ran: Callable[[int], None]) -> None:
        self._ran = ran
        while (task := self._huey.dequeue()) is not None:
            self._huey.execute(task)

    def serve(self, ran: Callable[[int], None], ready: Callable[[], Any], stopped: threading.Event) -> None:
        self._ran = ran
        consumer = Consumer(self._huey, workers=1)
        consumer.start()
        ready()
        stopped.wait()
        consumer.stop()

    def left(self) -> int:
        return int(self._huey.pending_count())

    def close(self) -> None:
        self._huey.storage.close()
