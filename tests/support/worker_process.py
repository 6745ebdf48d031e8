"""A worker in a process of its own that a test stops, signals and lets go on, in the middle of a node."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
from langgraph.config import get_stream_writer

from everstep import effect
from everstep.checkpoints.store import Store
from everstep.runtime.worker import Worker
from tests.support.jobs import Log, chain
from tests.support.outside import note
from tests.support.waiting import PATIENCE, until


@effect("world.act")
def act(world: str, text: str) -> str:
    """An effect on the outside world."""
    note(world, text)
    return text


def gated(world: str) -> Any:
    """Three nodes that tell of themselves and act; the second waits for a file, and says so, unless it is there."""

    def node(name: str) -> Any:
        def body(_state: Log) -> Log:
            note(world + ".bodies", name)
            if name == "b":
                Path(world + ".entered").touch()
                until(Path(world + ".go").exists, "the permission to go on")
            get_stream_writer()({"at": name})
            return {"log": [act(world, name)]}

        return body

    return chain(node("a"), node("b"), node("c"))


def _serve(url: str, world: str, lease: float) -> None:
    with Store.open(url) as store:
        Worker(store, {"graph": gated(world)}, lease=lease).run(until_idle=True)


class Process:
    """A worker in a process of its own, in the second node of the gated graph."""

    def __init__(self, store: Store, world: str, lease: float = 300.0) -> None:
        # A child of ours, which a fork server's would not be: only of a child can one wait for it to stand still.
        own = multiprocessing.get_context("spawn")
        self._process = own.Process(target=_serve, args=(store.url, world, lease), daemon=True)
        self._process.start()
        until(Path(world + ".entered").exists, "the worker's entry into the node")

    def signal(self, number: int) -> bool:
        """Send it a signal; whether it had ended before."""
        assert self._process.pid is not None
        try:
            os.kill(self._process.pid, number)
        except ProcessLookupError:
            return True
        return self._process.exitcode is not None

    @contextmanager
    def stopped(self, store: Store) -> Iterator[None]:
        """It stands still for the length of the block, and not in the middle of a write that all others wait for."""
        try:
            self._stop()
            while not writable(store):
                self.signal(signal.SIGCONT)
                self._stop()
            yield
        finally:
            self.signal(signal.SIGCONT)

    def _stop(self) -> None:
        """Stop it, and wait until all its threads stand: the signal alone returns before, and one may still write."""
        assert self._process.pid is not None
        self.signal(signal.SIGSTOP)
        os.waitpid(self._process.pid, os.WUNTRACED)

    def end(self) -> int | None:
        """Wait for its end; returns its exit code."""
        self._process.join(PATIENCE)
        code = self._process.exitcode
        if code is None:
            self._process.kill()
        return code


def writable(store: Store) -> bool:
    """Whether nobody is in the middle of a write."""
    if not store.url.startswith("sqlite"):
        with psycopg.connect(store.url) as connection:
            others = "datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
            busy = f"SELECT count(*) FROM pg_stat_activity WHERE {others} AND state <> 'idle'"
            return connection.execute(busy).fetchone() == (0,)  # type: ignore[arg-type]
    with closing(sqlite3.connect(store.path, timeout=0.2, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        connection.execute("ROLLBACK")
        return True


def go(world: str) -> None:
    """Let the second node go on, here and in any process."""
    Path(world + ".go").touch()
