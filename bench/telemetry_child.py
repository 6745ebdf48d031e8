"""One agent run by a worker whose traces go nowhere, somewhere, or to an address that never answers, by turns.

All in one process: two processes of the same program differ by more than what traces cost.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench import agent
from bench.child import Control
from everstep.checkpoints.store import Store
from everstep.runtime.worker import Worker

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


class _Noted(Iterator[str]):
    """The agent's texts, one a step, and the processor time that the process had used when it took each."""

    def __init__(self, texts: Iterator[str]) -> None:
        self._texts = texts
        self.cpu: list[float] = []

    def __next__(self) -> str:
        self.cpu.append(time.process_time())
        return next(self._texts)


def run(
    control: Control, folder: str, steps: int, turns: int, endpoints: Mapping[str, str | None]
) -> dict[str, list[dict[str, float]]]:
    """Run the agent in turns; what each took, a step.

    Args:
        control: The harness.
        folder: Where the records go.
        steps: How many steps; two at least.
        turns: How often each is run, after once that does not count; the order changes from turn to turn.
        endpoints: Where traces go, by name; nowhere when None.
    """
    found: dict[str, list[dict[str, float]]] = {name: [] for name in endpoints}
    names = list(endpoints)
    control.ready()
    for turn in range(turns + 1):
        for name in names:
            with tempfile.TemporaryDirectory(dir=folder) as place:
                took = _run(Path(place), steps, endpoints[name])
            if turn:
                found[name].append(took)
        names = [*names[1:], names[0]] if turn % 2 else names[::-1]
    return found


def _run(folder: Path, steps: int, endpoint: str | None) -> dict[str, float]:
    os.environ.pop(ENDPOINT, None)
    if endpoint is not None:
        os.environ[ENDPOINT] = endpoint
    texts = agent.TEXTS
    agent.TEXTS = noted = _Noted(texts)
    try:
        with Store.open(f"sqlite:///{folder / 'everstep.db'}") as store:
            job, _ = store.enqueue("agent", {**agent.beginning(steps), "messages": []})
            before = store.commits
            Worker(store, {"agent": agent.graph().compile()}, concurrency=1).run(until_idle=True)
            commits, job = store.commits - before, store.job(job.public_id)
    finally:
        agent.TEXTS = texts
    if job.status != "done":
        raise AssertionError(f"the job is {job.status}")
    return {
        "ms_per_step": job.run_ms / steps,
        "cpu_ms_per_step": (noted.cpu[-1] - noted.cpu[0]) * 1000 / (steps - 1),
        "commits_per_step": commits / steps,
        "kilobytes_per_step": agent.size_of(folder) / 1000 / steps,
    }
