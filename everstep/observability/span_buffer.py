"""The finished spans of one leg on their way into the record: each goes along with the leg's next write.

A step's own span is held back until what the step wrote is stored, so that a step that is not committed has none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

ROOM: Final = 4_096
"""Spans that wait at most, when the record cannot be written."""
MUCH: Final = 256
"""So many wait for no other write, when a leg writes nothing for long."""


class FinishedSpan(NamedTuple):
    """A span that has ended.

    Attributes:
        span_id: 16 hexadecimal digits.
        started_ns: Start, nanoseconds since the Unix epoch.
        body: The span as it is stored (`stored_form`).
        step_ns: Of a step's own span, the checkpoint namespace of its task.
    """

    span_id: str
    started_ns: int
    body: bytes
    step_ns: str | None = None


class SpanBuffer:
    """Keeps what has ended until it is written. Thread-safe.

    Attributes:
        lost: How many spans found no room.
    """

    def __init__(self) -> None:
        self.lost = 0
        self._lock = threading.Lock()
        self._ready: dict[str, FinishedSpan] = {}
        self._steps: dict[str, FinishedSpan] = {}
        self._when_much: Callable[[], None] | None = None

    def when_much(self, act: Callable[[], None]) -> None:
        """What to do when much waits; done on the thread that ends a span."""
        self._when_much = act

    def add(self, span: FinishedSpan) -> None:
        """Keep a span; the oldest ordinary one goes when there is no room, and is counted."""
        with self._lock:
            kept = self._ready if span.step_ns is None else self._steps
            kept[span.span_id] = span
            if len(self._ready) + len(self._steps) > ROOM:
                crowded = self._ready or self._steps
                del crowded[next(iter(crowded))]
                self.lost += 1
            is_much = span.step_ns is None and len(self._ready) % MUCH == 0
        if is_much and self._when_much is not None:
            self._when_much()

    def release(self, *, task_id: str | None = None, graph_ns: str | None = None) -> None:
        """What a step wrote is about to be stored: its span may go with it.

        Args:
            task_id: The step that is this task.
            graph_ns: All steps of the graph or subgraph with this checkpoint namespace.
        """
        if not self._steps:  # as before every other write
            return
        with self._lock:
            for span in list(self._steps.values()):
                graph, _, task = (span.step_ns or "").rpartition("|")
                if graph == graph_ns or (task_id is not None and task.endswith(f":{task_id}")):
                    self._ready[span.span_id] = self._steps.pop(span.span_id)

    def release_all(self) -> None:
        """The leg is over."""
        with self._lock:
            self._ready |= self._steps
            self._steps.clear()

    def take(self) -> list[FinishedSpan]:
        """What may be written now; give it back if it is not."""
        if not self._ready:
            return []
        with self._lock:
            taken, self._ready = list(self._ready.values()), {}
            return taken

    def give_back(self, spans: Iterable[FinishedSpan]) -> None:
        """These were not written: they go with the next write."""
        with self._lock:
            self._ready = {span.span_id: span for span in spans} | self._ready

    def waiting(self) -> Sequence[FinishedSpan]:
        """What may be written now, which stays here."""
        with self._lock:
            return list(self._ready.values())

    def forget(self, spans: Iterable[FinishedSpan]) -> None:
        """These were written."""
        with self._lock:
            for span in spans:
                self._ready.pop(span.span_id, None)

    def __len__(self) -> int:
        return len(self._ready) + len(self._steps)
