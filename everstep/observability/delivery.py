"""Spans on their way out: a bounded queue and a background thread for each destination.

What cannot be delivered is counted, never waited for.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Final

from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import StatusCode

from everstep.observability import content

_logger = logging.getLogger(__name__)

QUEUE_LIMIT: Final = 4_096
"""Spans that wait for one destination at most."""
_RESERVED: Final = 4
"""One place in so many is kept for roots and failures, so that an overload loses the ordinary steps first."""
_DELAY_MS: Final = 1_000
_BATCH: Final = 512
_BATCH_WITH_CONTENT: Final = 64
"""Spans with content may hold 64 KiB an attribute; Langfuse warns beyond 16 MB a request."""


class Delivery(SpanProcessor):
    """Sends the spans of all legs to one destination.

    Args:
        name: The destination, for logs.
        exporter: What sends a batch.
        queue_limit: Spans that wait at most; beyond it new ones are dropped and counted.
    """

    def __init__(self, name: str, exporter: SpanExporter, queue_limit: int = QUEUE_LIMIT) -> None:
        self._exporter = _CountedExporter(name, exporter)
        self._queue_limit = queue_limit
        batch = _BATCH_WITH_CONTENT if content.is_captured() else _BATCH
        self._batches = BatchSpanProcessor(
            self._exporter,
            max_queue_size=queue_limit,
            schedule_delay_millis=None if os.environ.get("OTEL_BSP_SCHEDULE_DELAY") else _DELAY_MS,
            max_export_batch_size=min(batch, queue_limit),
        )
        self._lock = threading.Lock()
        self._accepted = 0
        self._refused = 0
        self._is_closed = False
        self._flushing: threading.Thread | None = None

    @property
    def dropped(self) -> int:
        """Spans that were refused by a full queue, could not be sent, or at shutdown had not verifiably arrived."""
        with self._lock:
            unanswered = self._accepted - self._exporter.delivered - self._exporter.failed
            return self._refused + self._exporter.failed + (unanswered if self._is_closed else 0)

    def on_start(self, span: Span, parent_context: object = None) -> None:
        return None

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is None or not span.context.trace_flags.sampled:
            return
        is_essential = span.parent is None or span.status.status_code is StatusCode.ERROR
        limit = self._queue_limit if is_essential else self._queue_limit - self._queue_limit // _RESERVED
        with self._lock:
            if self._is_closed or self._accepted - self._exporter.taken >= limit:
                self._refused += 1
                return
            self._accepted += 1
        self._batches.on_end(span)

    def begin_flush(self) -> threading.Thread:
        """Start sending all that waits; one flush runs at a time.

        Returns:
            The thread that sends: join it for as long as is bearable (the SDK's own flush knows no time limit).
        """
        with self._lock:
            if self._flushing is None or not self._flushing.is_alive():
                self._flushing = _in_background(self._batches.force_flush)
            return self._flushing

    def begin_shutdown(self) -> threading.Thread:
        """Take no more spans and start sending the rest.

        Returns:
            The thread that sends.
        """
        with self._lock:
            self._is_closed = True
        return _in_background(self._batches.shutdown)

    def abandon(self) -> None:
        """Stop retrying and give up what has not been sent."""
        self._exporter.shutdown()


class _CountedExporter(SpanExporter):
    """Counts what arrives, and says once that a destination fails and once that it is back, not at every batch."""

    def __init__(self, name: str, exporter: SpanExporter) -> None:
        self.taken = 0
        self.delivered = 0
        self.failed = 0
        self._name = name
        self._exporter = exporter
        self._is_failing = False
        self._has_shut_down = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.taken += len(spans)
        reason = self._attempt(spans)
        if reason is not None:
            self.failed += len(spans)
            if not self._is_failing and not self._has_shut_down:
                _logger.warning(
                    "Traces do not arrive at %s (%s). Runs go on; lost spans are counted.", self._name, reason
                )
            self._is_failing = True
            return SpanExportResult.FAILURE
        self.delivered += len(spans)
        if self._is_failing:
            _logger.info("Traces arrive at %s again.", self._name)
        self._is_failing = False
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        if not self._has_shut_down:
            self._has_shut_down = True
            self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)

    def _attempt(self, spans: Sequence[ReadableSpan]) -> str | None:
        if self._has_shut_down:
            return "shut down"
        try:
            with _hushed:
                result = self._exporter.export(spans)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None if result is SpanExportResult.SUCCESS else _hushed.last_message


class _Hushed(threading.local):
    """Keeps the exporter library from logging our every failed batch and retry; its other users are not touched."""

    is_on = False
    last_message = "no reason given"

    def __enter__(self) -> None:
        self.is_on = True

    def __exit__(self, *_: object) -> None:
        self.is_on = False

    def filter(self, entry: logging.LogRecord) -> bool:
        """Let an entry pass unless it comes from one of our exports, whose last word is kept."""
        if self.is_on:
            self.last_message = entry.getMessage()
        return not self.is_on


_hushed = _Hushed()
logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter").addFilter(_hushed.filter)


def _in_background(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, name="everstep-traces", daemon=True)
    thread.start()
    return thread
