"""DBOS: each job is a workflow without steps on one of its queues. On SQLite its file is put into WAL beforehand."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import sqlalchemy
from dbos import DBOS, DBOSClient

NAME = "bench"
_ran: Callable[[int], None] = lambda _number: None  # noqa: E731


@DBOS.workflow(name="empty")
def empty(number: int) -> None:
    """A job."""
    _ran(number)


class Queue:
    """See `bench.contenders.Queue`."""

    def __init__(self, place: str) -> None:
        self._file = None if place.startswith("postgresql://") else Path(place) / "dbos.db"
        self._url = (
            place.replace("postgresql://", "postgresql+psycopg://")
            if self._file is None
            else (f"sqlite:///{self._file}")
        )
        self._client: DBOSClient | None = None
        logging.getLogger("dbos").setLevel(logging.ERROR)

    def create(self) -> None:
        if self._file is not None:
            with closing(sqlite3.connect(self._file)) as connection:
                connection.execute("PRAGMA journal_mode=WAL")
        self._launch()
        DBOS.destroy()

    def _launch(self) -> None:
        DBOS(
            config={
                "name": NAME,
                "system_database_url": self._url,
                "log_level": "ERROR",
                "application_version": "1",
                "run_admin_server": False,
            }
        )
        DBOS.launch()
        DBOS.register_queue(NAME)

    def put(self, numbers: Iterable[int]) -> None:
        client = self._client = self._client or DBOSClient(system_database_url=self._url)
        for number in numbers:
            client.enqueue({"workflow_name": "empty", "queue_name": NAME, "app_version": "1"}, number)

    def work(self, ran: Callable[[int], None]) -> None:
        global _ran
        _ran = ran
        self._launch()
        while self.left():
            time.sleep(0.02)

    def serve(self, ran: Callable[[int], None], ready: Callable[[], Any], stopped: threading.Event) -> None:
        global _ran
        _ran = ran
        self._launch()
        ready()
        stopped.wait()

    def left(self) -> int:
        table = "workflow_status" if self._file is not None else "dbos.workflow_status"
        with self._looking().connect() as connection:
            query = f"SELECT count(*) FROM {table} WHERE status <> 'SUCCESS' AND queue_name = '{NAME}'"
            return int(connection.execute(sqlalchemy.text(query)).scalar_one())

    def _looking(self) -> sqlalchemy.Engine:
        if not hasattr(self, "_engine"):
            self._engine = sqlalchemy.create_engine(self._url)
        return self._engine

    def close(self) -> None:
        if self._client is not None:
            self._client.destroy()
