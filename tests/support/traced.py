"""Workers in processes of their own whose environment names a collector, to be killed or stopped there."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from multiprocessing.process import BaseProcess

from everstep import crash
from everstep.checkpoints.store import Store
from everstep.runtime.worker import Worker
from tests.support.kill_graphs import GRAPHS
from tests.support.record import CONTEXT
from tests.support.waiting import PATIENCE


def _work(url: str, graph: str, environment: Mapping[str, str], crash_at: str | None, lease: float) -> None:
    os.environ.update(environment)
    crash.arm(crash_at)
    with Store.open(url) as store:
        Worker(store, {graph: GRAPHS[graph]()}, lease=lease).run(until_idle=True)


def start(
    url: str, graph: str, environment: Mapping[str, str], *, crash_at: str | None = None, lease: float = 60.0
) -> BaseProcess:
    """Start a worker that ends when it is idle, or is killed at a crash point."""
    process = CONTEXT.Process(target=_work, args=(url, graph, environment, crash_at, lease))
    process.start()
    return process


def run(url: str, graph: str, environment: Mapping[str, str], *, crash_at: str | None = None) -> bool:
    """Run a worker until it is idle or killed; returns whether it was killed."""
    process = start(url, graph, environment, crash_at=crash_at)
    process.join(PATIENCE)
    if process.is_alive():
        process.kill()
        raise AssertionError(f"the worker is still running (crash point {crash_at})")
    assert process.exitcode in (0, -signal.SIGKILL), f"the worker exited with {process.exitcode}"
    return process.exitcode != 0
