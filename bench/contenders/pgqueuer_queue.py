"""pgqueuer on asyncpg, the driver it recommends, with its default of ten jobs a batch."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any

import asyncpg
from pgqueuer import AsyncpgDriver, PgQueuer, Queries
from pgqueuer.models import Job
from pgqueuer.types import QueueExecutionMode


class Queue:
    """See `bench.contenders.Queue`."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._loop = asyncio.new_event_loop()
        self._connection: asyncpg.Connection | None = None
        logging.getLogger("pgqueuer").setLevel(logging.ERROR)

    def _open(self) -> AsyncpgDriver:
        if self._connection is None:
            self._connection = self._loop.run_until_complete(asyncpg.connect(self._place))
        return AsyncpgDriver(self._connection)

    def create(self) -> None:
        self._loop.run_until_complete(Queries(self._open()).install())

    def put(self, numbers: Iterable[int]) -> None:
        queries = Queries(self._open())

        async def enqueue() -> None:
            for number in numbers:
                await queries.enqueue("empty", str(number).encode())

        self._loop.run_until_complete(enqueue())

    def work(self, ran: Callable[[int], None]) -> None:
        self._loop.run_until_complete(self._queuer(ran).run(mode=QueueExecutionMode.drain))

    def _queuer(self, ran: Callable[[int], None]) -> PgQueuer:
        queuer = PgQueuer(self._open())

        @queuer.entrypoint("empty")
        async def empty(job: Job) -> None:
            ran(int(job.payload or b"0"))

        return queuer

    def serve(self, ran: Callable[[int], None], ready: Callable[[], Any], stopped: threading.Event) -> None:
        queuer = self._queuer(ran)

        async def main() -> None:
            worker = asyncio.create_task(queuer.run())
            await asyncio.to_thread(ready)
            await asyncio.to_thread(stopped.wait)
            worker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await worker

        self._loop.run_until_complete(main())

    def left(self) -> int:
        async def count() -> int:
            connection = await asyncpg.connect(self._place)
            found = await connection.fetchval("SELECT count(*) FROM pgqueuer")
            await connection.close()
            return int(found)

        return self._loop.run_until_complete(count())

    def close(self) -> None:
        if self._connection is not None and not self._connection.is_closed():
            self._loop.run_until_complete(self._connection.close())
