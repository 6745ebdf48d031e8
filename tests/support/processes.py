"""Worker processes that can be killed at a named point, and the person who answers in between.

Processes are forked from a server that has everything imported, so that hundreds of real kills take seconds.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from typing import Any

from everstep import crash as crash_points
from everstep.checkpoints.reviews import Review
from everstep.checkpoints.store import Store
from everstep.runtime.worker import Worker
from tests.support.kill_graphs import GRAPHS
from tests.support.record import CONTEXT
from tests.support.waiting import PATIENCE

POINTS = frozenset(
    {
        "job.claimed",
        "checkpoint.before_put",
        "checkpoint.after_put",
        "writes.after_put",
        "effect.intended",
        "effect.called",
        "effect.confirmed",
        "job.before_settle",
        "job.settled",
    }
)
"""The crash points in the life of a job that has effects."""


def _work(url: str, graph: str, crash_at: str | None, lease: float) -> None:
    crash_points.arm(crash_at)
    with Store.open(url) as store:
        Worker(store, {graph: GRAPHS[graph]()}, lease=lease).run(until_idle=True)


def work_until_killed(url: str, graph: str, crash_at: str, lease: float = 60.0) -> bool:
    """Run a worker process until it is idle or killed; returns whether it was killed at its crash point."""
    process = CONTEXT.Process(target=_work, args=(url, graph, crash_at, lease))
    process.start()
    process.join(PATIENCE)
    if process.is_alive():
        process.kill()
        raise AssertionError(f"the worker is still running (crash point {crash_at})")
    killed = process.exitcode == -signal.SIGKILL
    assert killed or process.exitcode == 0, f"the worker exited with {process.exitcode}"
    return killed


def work(url: str, graph: str) -> Counter[str]:
    """Run a worker here until it is idle; returns how often it passed each crash point."""
    passed: list[str] = []
    crash_points.observe(lambda name, _subject, _about: passed.append(name))
    try:
        with Store.open(url) as store:
            Worker(store, {graph: GRAPHS[graph]()}).run(until_idle=True)
    finally:
        crash_points.observe(None)
    return Counter(passed)


def drive(
    url: str,
    graph: str,
    answer: Callable[[Store, Review], Any],
    crash: tuple[int, str] | None = None,
    *,
    first: int = 0,
    before: Callable[[int], None] = lambda _number: None,
) -> tuple[list[Counter[str]], bool]:
    """Run workers, one after another, and answer what they ask, until the job has ended.

    Args:
        url: The record.
        graph: The graph the job runs.
        answer: Answers a review.
        crash: Which worker (from 0) is killed, and at which point.
        first: The number of the first worker: those before it have been.
        before: Called before each worker, with its number; nobody has the record open.

    Returns:
        How often each worker passed each crash point (the one that may be killed: not known), and whether one was
        killed.
    """
    killed = False
    passed = [Counter[str]() for _ in range(first)]
    while len(passed) < 30:
        before(len(passed))
        armed = crash is not None and len(passed) == crash[0]
        if crash is not None and armed:
            killed = work_until_killed(url, graph, crash[1])
            passed.append(Counter())
        else:
            passed.append(work(url, graph))
        with Store.open(url) as store:
            (job,) = store.jobs()
            if job.status in ("done", "failed"):
                return passed, killed
            if not (armed and killed):
                for review in store.reviews():
                    answer(store, review)
                for wait in store.waits(job):
                    if wait.state == "open" and wait.signal is not None:
                        store.emit(wait.signal, f"the payload of {wait.signal}")
    raise AssertionError(f"the job did not end after {len(passed)} workers")
