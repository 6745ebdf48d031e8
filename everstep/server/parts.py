"""What runs beside the HTTP part in one process: the worker, the scheduler, what sends webhooks and watches folders.

A part is anything that starts and stops; all of them work in threads of their own, so that none holds up a request. One
that is new is a line in `beside`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from everstep.checkpoints.store import Store
from everstep.graphs.policies import Policies
from everstep.observability.measures import Measures
from everstep.runtime.schedules import Scheduler
from everstep.runtime.triggers.watching import Watching
from everstep.runtime.worker import Worker

SWITCH_S = 0.001
"""How long a thread that computes in Python keeps others waiting, seconds; a fifth of Python's own. A node that does
nothing but compute made a request that writes take 48 ms with Python's, and 27 ms with this, against 9 ms without it;
in a process of its own (`--isolate`, or a worker elsewhere) it costs requests nothing."""


class Part(Protocol):
    """What runs beside the HTTP part."""

    def start(self) -> None:
        """Begin to work, on threads of its own; returns at once."""
        ...

    def stop(self) -> None:
        """End what is under way in good order, and return when nothing of it runs any more."""
        ...


class WorkerThread:
    """The worker, in a thread with an event loop of its own: a graph that blocks it holds up no request.

    Args:
        worker: The worker.
        ended: Called, on its thread, when it has ended.

    Attributes:
        failure: What ended it before it was told to stop.
    """

    def __init__(self, worker: Worker, ended: Callable[[], None]) -> None:
        self.failure: BaseException | None = None
        self._worker = worker
        self._ended = ended
        self._thread = threading.Thread(target=self._run, name="everstep-worker", daemon=True)

    def start(self) -> None:
        """Begin to claim jobs."""
        sys.setswitchinterval(SWITCH_S)
        self._thread.start()

    def stop(self) -> None:
        """Drain: every job is given back at its next step."""
        self._worker.drain()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._worker.run()
        except BaseException as error:
            self.failure = error
        finally:
            self._ended()


def beside(
    store: Store, policies: Policies, config_path: Path, measures: Measures, *, actor: str, without: frozenset[str]
) -> list[tuple[str, Part]]:
    """The parts other than the worker, by name.

    Args:
        store: The record.
        policies: What `everstep.toml` says.
        config_path: The `langgraph.json` it stands beside.
        measures: What they measure with; whoever made it closes it.
        actor: Who they are in the record.
        without: Names of those that are not wanted.
    """
    parts: list[tuple[str, Part]] = []
    if "schedules" not in without:
        scheduler = Scheduler(store, policies, measures=measures, actor=actor)
        scheduler.take_over(config_path)
        parts.append(("schedules", scheduler))
    if "triggers" not in without:
        parts.append(("triggers", Watching(store, policies, config_path)))
    return parts
