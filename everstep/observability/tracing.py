"""Traces of jobs, as the worker uses them: configured by the environment alone, free of cost when nothing is.

Importing this module loads no OpenTelemetry and no LangChain; both come with the first destination.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from everstep.observability import destinations
from everstep.observability.identity import root_span_id, trace_id
from everstep.observability.leg import UNRECORDED, EffectSpan, Leg, LegDescription, Outcome, current

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

__all__ = [
    "EffectSpan",
    "Leg",
    "Outcome",
    "Tracing",
    "current_leg",
    "effect",
    "exporting_to",
    "from_environment",
    "root_span_id",
    "trace_id",
]

_logger = logging.getLogger(__name__)


class Tracing:
    """Tracing that is off; `from_environment` tells which one a process gets."""

    def is_enabled(self) -> bool:
        """Whether spans are made and sent."""
        return False

    def leg(
        self,
        *,
        job_id: str,
        leg: int,
        graph: str,
        thread_id: str,
        worker: str,
        attempts: int,
        previous_leg: int | None = None,
        user_id: str | None = None,
        tags: Sequence[str] = (),
    ) -> Leg:
        """A leg to be entered around one run of a job; see `LegDescription` for the arguments.

        ```python
        with tracer.leg(job_id=…, leg=2, graph="agent", thread_id=…, worker=…, attempts=2, previous_leg=1) as leg:
            config["callbacks"] = [*config.get("callbacks", []), *leg.callbacks]
            …
            leg.outcome("done")
        ```
        """
        described = LegDescription(job_id, leg, graph, thread_id, worker, attempts, previous_leg, user_id, tuple(tags))
        return self._leg(described)

    def flush(self, timeout_ms: int = 1_000) -> bool:
        """Send what waits, for at most this long; blocks the caller.

        Returns:
            Whether the queues were worked off in time; delivered or not is for `dropped_spans` to say.
        """
        return True

    def shutdown(self, timeout_ms: int = 1_500) -> None:
        """Send what waits, for at most this long, then give up the rest; also runs at interpreter exit."""

    def dropped_spans(self) -> int:
        """How many spans of this process did not arrive, over all destinations."""
        return 0

    def _leg(self, description: LegDescription) -> Leg:
        return UNRECORDED


def from_environment(*, service_version: str) -> Tracing:
    """Tracing as the environment configures it.

    Args:
        service_version: The version that stands on every span's resource.

    Returns:
        Tracing that is off when nothing is configured, or what is configured cannot be used (a warning then says why).
    """
    configured = destinations.from_environment()
    if not configured:
        return Tracing()
    try:
        from everstep.observability import provider

        return provider.sending_to(configured, service_version)
    except Exception as error:
        _logger.warning(
            "Traces are off: %s: %s. Next: check the OTEL_* and LANGFUSE_* variables.", type(error).__name__, error
        )
        return Tracing()


def exporting_to(*exporters: SpanExporter, service_version: str) -> Tracing:
    """Tracing to OpenTelemetry exporters of one's own, whatever the environment says.

    Args:
        exporters: Each gets every span.
        service_version: The version that stands on every span's resource.
    """
    from everstep.observability import provider

    return provider.exporting_to(exporters, service_version)


def current_leg() -> Leg:
    """The leg that runs here; one that records nothing when there is none."""
    return current.get()


def effect(name: str, key_digest: str) -> AbstractContextManager[EffectSpan]:
    """Record an effect in the leg that runs here; see `Leg.effect`."""
    return current.get().effect(name, key_digest)
