"""One agent run by a worker whose traces go somewhere, nowhere, or to an address that never answers."""

from __future__ import annotations

import os
from pathlib import Path

from bench.child import Control


def run(control: Control, folder: str, steps: int, endpoint: str | None) -> dict[str, float]:
    """Run the agent; what it took.

    Args:
        control: The harness.
        folder: Where the record goes.
        steps: How many steps.
        endpoint: Where traces go; nowhere when None.
    """
    if endpoint is not None:
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = endpoint  # before anything reads it
    from bench import agent
    from everstep.checkpoints.store import Store

    found = agent.run(control, agent.WORKER, folder, 1, steps)
    with Store.open(f"sqlite:///{Path(folder) / 'everstep.db'}") as store:
        (job,) = store.jobs()
    return found | {"seconds": job.run_ms / 1000, "bytes": agent.size_of(Path(folder))}
