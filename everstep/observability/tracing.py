"""Traces of jobs, as the worker uses them: configured by the environment alone, free of cost when nothing is.

Importing this module loads no OpenTelemetry and no LangChain; both come with the first destination.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from everstep.observability import destinations
from everstep.observability.destinations import Destination
from everstep.observability.identity import root_span_id, trace_id
from everstep.observability.leg import UNRECORDED, EffectSpan, Ending, Leg, LegDescription, Outcome, current

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.sdk.trace.export import SpanExporter

    from everstep.observability.enclosing import Enclosing
    from everstep.observability.span_buffer import FinishedSpan

__all__ = [
    "EffectSpan",
    "Ending",
    "Leg",
    "LegDescription",
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
    """Tracing that is off; `from_environment` tells which one a process gets.

    Attributes:
        destinations: Where the spans in the record are to be exported to.
    """

    destinations: tuple[Destination, ...] = ()

    def is_enabled(self) -> bool:
        """Whether spans are made."""
        return False

    def is_recorded(self) -> bool:
        """Whether they go into the record."""
        return False

    def news(self) -> None:
        """Spans were written to the record: whoever exports them may look."""

    def wait_for_news(self, seen: int, seconds: float) -> int:
        """Wait until `news` was called more than `seen` times, or for so long.

        Returns:
            How often it was called.
        """
        return seen

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
        now_ns: Callable[[], int] = time.time_ns,
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
        return self._leg(described, now_ns)

    def leg_of(self, description: LegDescription, now_ns: Callable[[], int]) -> Leg:
        """As `leg`.

        Args:
            description: The leg.
            now_ns: Its clock: nanoseconds since the Unix epoch.
        """
        return self._leg(description, now_ns)

    def closed(self, description: LegDescription, ending: Ending, lost: Sequence[Enclosing] = ()) -> list[FinishedSpan]:
        """What a leg whose process is gone could not end, for the record; nothing if its spans do not go there.

        Args:
            description: The leg.
            ending: How it ended, which its root tells.
            lost: The spans around those that had ended in it, which have not.
        """
        return self._closed(description, ending, lost)

    def flush(self, timeout_ms: int = 1_000) -> bool:
        """Let one's own exporters send what they hold, for at most this long.

        Returns:
            Whether they did in time.
        """
        return True

    def shutdown(self) -> None:
        """End one's own exporters."""

    def _leg(self, description: LegDescription, now_ns: Callable[[], int]) -> Leg:
        return UNRECORDED

    def _closed(self, description: LegDescription, ending: Ending, lost: Sequence[Enclosing]) -> list[FinishedSpan]:
        return []


def from_environment(*, service_version: str) -> Tracing:
    """Tracing into the record as the environment configures it; a worker exports from there.

    Args:
        service_version: The version that stands on every span's resource.

    Returns:
        Tracing that is off when nothing is configured, or what is configured cannot be used (a warning then says why).
    """
    configured = destinations.from_environment()
    if not configured and not destinations.is_recorded():
        return Tracing()
    try:
        from everstep.observability import provider

        return provider.recorded(configured, service_version)
    except Exception as error:
        _logger.warning(
            "Traces are off: %s: %s. Next: check the OTEL_* and LANGFUSE_* variables.", type(error).__name__, error
        )
        return Tracing()


def exporting_to(*exporters: SpanExporter | SpanProcessor, service_version: str) -> Tracing:
    """Tracing to OpenTelemetry exporters of one's own, whatever the environment says; nothing goes into the record.

    Args:
        exporters: Each gets every span as it ends; one that is slow belongs in a `BatchSpanProcessor`.
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
