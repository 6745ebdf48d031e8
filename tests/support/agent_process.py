"""The repository agent in a process of its own that can be killed at its n-th outward act."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Any

from langgraph.checkpoint.sqlite import SqliteSaver

from everstep import crash
from everstep.checkpoints.store import Store
from everstep.graphs import repository_agent
from everstep.runtime.worker import Worker
from tests.support.record import CONTEXT

ACTS = frozenset(
    (
        "subprocess.Popen",
        "os.rename",
        "os.remove",
        "os.mkdir",
        "os.chmod",
        "tempfile.mkstemp",
        "tempfile.mkdtemp",
        "shutil.rmtree",
    )
)
"""What counts as an outward act, by Python's audit events; a write of the checkpointer counts as well."""
THREAD: Any = {"configurable": {"thread_id": "one"}}


class _Saver(SqliteSaver):
    def __init__(self, connection: sqlite3.Connection, act: Any) -> None:
        super().__init__(connection)
        self.act = act

    def put(self, *given: Any, **named: Any) -> Any:
        self.act()
        return super().put(*given, **named)

    def put_writes(self, *given: Any, **named: Any) -> None:
        self.act()
        super().put_writes(*given, **named)


def _run(database: Path, payload: Any, die_at: int, counter: Path, workspaces: Path) -> None:
    os.environ["EVERSTEP_WORKSPACES"] = str(workspaces)
    acts = 0

    def act() -> None:
        nonlocal acts
        acts += 1
        if acts == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(lambda event, _: act() if event in ACTS else None)
    with sqlite3.connect(database, check_same_thread=False) as connection:
        saver = _Saver(connection, act)
        graph = repository_agent.build_graph().compile(checkpointer=saver)
        started = saver.get_tuple(THREAD) is not None
        # `next` leaves out tasks whose writes are stored though their step is not; `tasks` has them.
        if not started or graph.get_state(THREAD).tasks:
            graph.invoke(None if started else payload, THREAD, durability="sync")
    counter.write_text(str(acts))


def run(folder: Path, payload: Any, die_at: int = 0) -> int | None:
    """Run the agent, or go on where the last run was killed.

    Args:
        folder: Where the checkpoints, the working copy and the count go.
        payload: What to do.
        die_at: Number of the outward act before which the process is killed with SIGKILL, from 1; 0 for never.

    Returns:
        How many outward acts the run took; None if it was killed.
    """
    counter = folder / "acts"
    counter.unlink(missing_ok=True)
    child = CONTEXT.Process(target=_run, args=(folder / "steps.db", payload, die_at, counter, folder / "workspaces"))
    child.start()
    child.join()
    if child.exitcode not in (0, -signal.SIGKILL):
        raise AssertionError(f"the agent ended with {child.exitcode}")
    return int(counter.read_text()) if child.exitcode == 0 else None


def _work(url: str, crash_at: str | None, workspaces: Path) -> None:
    os.environ["EVERSTEP_WORKSPACES"] = str(workspaces)
    crash.arm(crash_at)
    with Store.open(url) as store:
        Worker(store, {"agent": repository_agent.graph}).run(until_idle=True)


def work(folder: Path, crash_at: str | None = None) -> bool:
    """Run a worker with the agent on the record in a folder, until it is idle or killed; whether it was killed."""
    child = CONTEXT.Process(target=_work, args=(record(folder), crash_at, folder / "workspaces"))
    child.start()
    child.join()
    if child.exitcode not in (0, -signal.SIGKILL):
        raise AssertionError(f"the worker ended with {child.exitcode}")
    return child.exitcode != 0


def record(folder: Path) -> str:
    """The URL of the record in a folder."""
    return f"sqlite:///{folder / 'record.db'}"
