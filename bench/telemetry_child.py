"""One agent run by a worker whose traces go somewhere, nowhere, or to an address that never answers."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from bench.child import Control


class _Noted(Iterator[str]):
    """The agent's texts, one a step, and the processor time that the process had used when it took each."""

    def __init__(self, texts: Iterator[str]) -> None:
        self._texts = texts
        self.cpu: list[float] = []

    def __next__(self) -> str:
        self.cpu.append(time.process_time())
        return next(self._texts)


def run(control: Control, folder: str, steps: int, endpoint: str | None) -> dict[str, float]:
    """Run the agent; what it took, and the processor time of all threads from its first step to its last.

    Args:
        control: The harness.
        folder: Where the record goes.
        steps: How many steps; two at least.
        endpoint: Where traces go; nowhere when None.
    """
    if endpoint is not None:
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = endpoint  # before anything reads it
    from bench import agent
    from everstep.checkpoints.store import Store

    agent.TEXTS = noted = _Noted(agent.TEXTS)
    found = agent.run(control, agent.WORKER, folder, 1, steps)
    with Store.open(f"sqlite:///{Path(folder) / 'everstep.db'}") as store:
        (job,) = store.jobs()
    cpu = (noted.cpu[-1] - noted.cpu[0]) * steps / (steps - 1)
    return found | {"seconds": job.run_ms / 1000, "bytes": agent.size_of(Path(folder)), "cpu": cpu}
