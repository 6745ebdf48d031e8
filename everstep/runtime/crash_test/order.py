"""What a worker of a crash test is told to do; of its own, so that giving orders loads no graph library."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Order:
    """What a worker is to do.

    Attributes:
        config: The user's `langgraph.json`.
        store: URL of the record.
        crash_at: The crash point it dies at, as `EVERSTEP_CRASH_AT` names it; None: it lives.
        folder: The run's own folder; what is written there is not the outside world, except below `place`.
        place: The run's part of the outside world.
        observed: File that is told of what the worker does.
        log: File for its output.
    """

    config: str
    store: str
    crash_at: str | None
    folder: str
    place: str
    observed: str
    log: str

    def as_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)
