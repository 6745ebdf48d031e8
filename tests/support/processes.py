"""Worker processes that can be killed at a named point, and the person who answers in between.

Processes are forked from a server that has everything imported, so that hundreds of real kills take seconds.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from typing import Any

from everstep import crash as crash_points
from everstep.checkpoints.reviews import Review
from everstep.checkpoints.store import Store
from everstep.runtime.worker import Worker
from tests.support.kill_graphs import GRAPHS

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.support.warm"])


def _work(url: str, graph: str, crash_at: str | None, lease: float) -> None:
    crash_points.arm(crash_at)
    with Store.open(url) as store:
        Worker(store, {graph: GRAPHS[graph]()}, lease=lease).run(until_idle=True)


def work_until_killed(url: str, graph: str, crash_at: str, lease: float = 60.0) -> bool:
    """Run a worker process until it is idle or killed; returns whether it was killed at its crash point."""
    process = _context.Process(target=_work, args=(url, graph, crash_at, lease))
    process.start()
    process.join(60)
    if process.is_alive():
        process.kill()
        raise AssertionError(f"the worker is still running (crash point {crash_at})")
    killed = process.exitcode == -signal.SIGKILL
    assert killed or process.exitcode == 0, f"the worker exited with {process.exitcode}"
    return killed


def work(url: str, graph: str) -> None:
    """Run a worker here until it is idle."""
    with Store.open(url) as store:
        Worker(store, {graph: GRAPHS[graph]()}).run(until_idle=True)


def drive(
    url: str, graph: str, answer: Callable[[Store, Review], Any], crash: tuple[int, str] | None = None
) -> tuple[int, bool]:
    """Run workers, one after another, and answer what they ask, until the job has ended.

    Args:
        url: The record.
        graph: The graph the job runs.
        answer: Answers a review.
        crash: Which worker (from 0) is killed, and at which point.

    Returns:
        How many workers ran, and whether one was killed.
    """
    killed, runs = False, 0
    while runs < 30:
        armed = crash is not None and runs == crash[0]
        if crash is not None and armed:
            killed = work_until_killed(url, graph, crash[1])
        else:
            work(url, graph)
        runs += 1
        with Store.open(url) as store:
            (job,) = store.jobs()
            if job.status in ("done", "failed"):
                return runs, killed
            if not (armed and killed):
                for review in store.reviews():
                    answer(store, review)
    raise AssertionError(f"the job did not end after {runs} workers")
