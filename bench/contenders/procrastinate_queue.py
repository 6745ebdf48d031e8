"""procrastinate: an async task, four at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any

import procrastinate
import psycopg

CONCURRENCY = 4


class Queue:
    """See `bench.contenders.Queue`."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._sync: procrastinate.App | None = None
        logging.getLogger("procrastinate").setLevel(logging.ERROR)

    def create(self) -> None:
        app, _ = self._app(procrastinate.SyncPsycopgConnector(conninfo=self._place), lambda _number: None)
        with app.open():
            app.schema_manager.apply_schema()

    def _app(self, connector: Any, ran: Callable[[int], None]) -> tuple[procrastinate.App, Any]:
        app = procrastinate.App(connector=connector)

        @app.task(name="empty")
        async def empty(number: int) -> None:
            ran(number)

        return app, empty

    def put(self, numbers: Iterable[int]) -> None:
        if self._sync is None:
            connector = procrastinate.SyncPsycopgConnector(conninfo=self._place)
            self._sync, self._task = self._app(connector, lambda _number: None)
            self._sync.open()
        for number in numbers:
            self._task.defer(number=number)

    def work(self, ran: Callable[[int], None]) -> None:
        asyncio.run(self._work(ran, wait=False))

    async def _work(self, ran: Callable[[int], None], *, wait: bool) -> None:
        app, _ = self._app(procrastinate.PsycopgConnector(conninfo=self._place), ran)
        async with app.open_async():
            await app.run_worker_async(wait=wait, concurrency=CONCURRENCY, install_signal_handlers=False)

    def serve(self, ran: Callable[[int], None], ready: Callable[[], Any], stopped: threading.Event) -> None:
        async def main() -> None:
            worker = asyncio.create_task(self._work(ran, wait=True))
            await asyncio.to_thread(ready)
            await asyncio.to_thread(stopped.wait)
            worker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await worker

        asyncio.run(main())

    def left(self) -> int:
        with psycopg.connect(self._place) as connection:
            query = "SELECT count(*) FROM procrastinate_jobs WHERE status <> 'succeeded'"
            found = connection.execute(query).fetchone()
        return int(found[0]) if found else 0

    def close(self) -> None:
        if self._sync is not None:
            self._sync.close()
