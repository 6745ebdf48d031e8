"""litequeue. It sets synchronous=NORMAL; here FULL is set after it, as for all others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from litequeue import LiteQueue


class Queue:
    """See `bench.contenders.Queue`."""

    def __init__(self, place: str) -> None:
        self._queue = LiteQueue(str(Path(place) / "lite.db"))
        self._queue.conn.execute("PRAGMA synchronous=FULL")
        self._queue.conn.execute("PRAGMA busy_timeout=30000")

    def create(self) -> None:
        """Opening it was enough."""

    def put(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._queue.put(str(number))

    def work(self, ran: Callable[[int], None]) -> None:
        while (message := self._queue.pop()) is not None:
            ran(int(message.data))
            self._queue.done(message.message_id)

    def serve(self, ran: Callable[[int], None], ready: Callable[[], Any], stopped: threading.Event) -> None:
        raise NotImplementedError("it has no worker")

    def left(self) -> int:
        query = f"SELECT count(*) FROM {self._queue.table} WHERE status IN (0, 1)"
        return int(self._queue.conn.execute(query).fetchone()[0])

    def close(self) -> None:
        self._queue.conn.close()
