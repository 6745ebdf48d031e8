"""The systems that are compared: a module each with a class `Queue`, and here an entry that says what it cannot do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol

from bench.processes import OWN, PEERS

Ran = Callable[[int], None]
"""Called with a job's number as it runs."""


class Queue(Protocol):
    """One system on one database. `place` is a folder for SQLite, a URL for PostgreSQL."""

    def create(self) -> None:
        """Make its tables in an empty place."""
        ...

    def put(self, numbers: Iterable[int]) -> None:
        """Enqueue a job for each number, one after the other, each durable before the next."""
        ...

    def work(self, ran: Ran) -> float | None:
        """Run jobs until none is left.

        Returns:
            When the last was done, in monotonic seconds; None if that was just now.
        """
        ...

    def serve(self, ran: Ran, ready: Callable[[], Any], stopped: threading.Event) -> None:
        """As a worker that waits for jobs: call `ready` when it listens, run jobs until `stopped`."""
        ...

    def left(self) -> int:
        """How many jobs are not done."""
        ...

    def close(self) -> None:
        """Close what is open."""
        ...


@dataclass(frozen=True)
class Contender:
    """One row of the tables.

    Attributes:
        name: What it is called there.
        module: The module in this package.
        database: `sqlite` or `postgres`.
        python: The interpreter that has it.
        options: Given to its `Queue`.
        package: The distribution whose version is told.
        enqueues: Whether this row takes part in the enqueue scenario; variants of one system enqueue the same way.
        workers: How many worker processes it can be given.
        waits: Whether it has a worker that waits for jobs.
        keeps: Whether a claimed job survives a crash of its worker.
        share: Part of the number of jobs it is given, for a system that is much slower than the rest.
    """

    name: str
    module: str
    database: str
    python: str
    options: dict[str, Any] = field(default_factory=dict)
    package: str | None = None
    enqueues: bool = True
    workers: int = 2
    waits: bool = True
    keeps: str = "yes"
    share: float = 1.0


FUSED = "Everstep queue, done + next claim in one commit"
FUSED_TEN = "Everstep queue, the same, 10 a commit"
TWO_COMMITS = "Everstep queue, claim and done in two commits"
WORKER = "Everstep worker, one-node graph"
WIDE_WORKER = "Everstep worker, one-node graph, 32 at once"
SQLITE_LOOP = "hand-written sqlite3 loop, one claim a commit"
SQLITE_LOOP_TEN = "hand-written sqlite3 loop, 10 a commit"
SQLITE_ROWS = "hand-written sqlite3 loop with Everstep's rows, done + next claim in one commit"
POSTGRES_LOOP = "hand-written SKIP LOCKED loop, one claim a commit"
POSTGRES_LOOP_TEN = "hand-written SKIP LOCKED loop, 10 a commit"


def _everstep(database: str) -> list[Contender]:
    functions = "everstep_functions"
    return [
        Contender(FUSED, functions, database, OWN, {"fused": True}),
        Contender(TWO_COMMITS, functions, database, OWN, {"fused": False}, enqueues=False, waits=False),
        Contender(FUSED_TEN, functions, database, OWN, {"fused": True, "batch": 10}, enqueues=False, waits=False),
        Contender(WORKER, "everstep_worker", database, OWN, {"concurrency": 4}, enqueues=False, share=0.25),
        Contender(WIDE_WORKER, "everstep_worker", database, OWN, {"concurrency": 32}, enqueues=False, share=0.25),
    ]


def _all() -> list[Contender]:
    return [
        *_everstep("sqlite"),
        Contender(SQLITE_LOOP, "sqlite_loop", "sqlite", OWN, {"batch": 1}),
        Contender(SQLITE_LOOP_TEN, "sqlite_loop", "sqlite", OWN, {"batch": 10}, enqueues=False, waits=False),
        Contender(SQLITE_ROWS, "sqlite_rows", "sqlite", OWN, waits=False),
        Contender("huey", "huey_queue", "sqlite", PEERS, package="huey", keeps="no: deleted as it is dequeued"),
        Contender(
            "persist-queue",
            "persist_queue",
            "sqlite",
            PEERS,
            package="persist-queue",
            workers=1,
            waits=False,
            keeps="with ack, by one process",
        ),
        Contender("litequeue", "lite_queue", "sqlite", PEERS, package="litequeue", waits=False, share=0.25),
        Contender("DBOS", "dbos_queue", "sqlite", PEERS, package="dbos", share=0.25),
        *_everstep("postgres"),
        Contender(POSTGRES_LOOP, "postgres_loop", "postgres", PEERS, {"batch": 1}, package="psycopg"),
        Contender(
            POSTGRES_LOOP_TEN,
            "postgres_loop",
            "postgres",
            PEERS,
            {"batch": 10},
            package="psycopg",
            enqueues=False,
            waits=False,
        ),
        Contender("procrastinate", "procrastinate_queue", "postgres", PEERS, package="procrastinate", share=0.25),
        Contender("pgqueuer", "pgqueuer_queue", "postgres", PEERS, package="pgqueuer"),
        Contender("DBOS", "dbos_queue", "postgres", PEERS, package="dbos", share=0.25),
    ]


def contenders(database: str) -> list[Contender]:
    """All on this database, Everstep first."""
    return [contender for contender in _all() if contender.database == database]


def open_queue(module: str, place: str, options: dict[str, Any]) -> Queue:
    """A contender's queue, in the process that has its packages."""
    queue: Queue = import_module(f"bench.contenders.{module}").Queue(place, **options)
    return queue
