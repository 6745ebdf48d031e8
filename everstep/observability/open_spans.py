"""The spans of one leg while they are open, as a tree; and the verdict on those that failed.

Whether a failure is an error or only a warning is known later than the failure: LangGraph may retry the node, the node
may handle its tool's exception, the worker may retry the job. A failed span therefore keeps its end time and waits,
until what encloses it settles the matter. (One error-level span would colour the whole trace for good.)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from opentelemetry.trace import Link, Span, SpanKind

from everstep.observability import names
from everstep.observability.attributes import NAME_LIMIT, bounded, exportable
from everstep.observability.failure import Failure
from everstep.observability.place import Place
from everstep.observability.span_makers import SpanMaker, record


@dataclass(eq=False, slots=True)
class Frame:
    """One span of the leg and its place in the tree.

    Attributes:
        span: The span.
        parent: The frame it lies in; None for the leg itself.
        place: Where in the graph this is, if it is in a step; a failing span says it.
        started_ns: Start, nanoseconds since the Unix epoch.
        ended_ns: When it failed, or is said to have ended; None: when it is settled.
        failed: Whether it failed.
        is_open: Whether it still runs.
        streams: Whether a first chunk came.
        failures: Frames below it that failed and wait for the verdict.
    """

    span: Span
    parent: Frame | None
    place: Place | None
    started_ns: int
    ended_ns: int | None = None
    failed: bool = False
    is_open: bool = True
    streams: bool = False
    failures: list[Frame] = field(default_factory=list["Frame"])

    def set(self, attributes: Mapping[str, object]) -> None:
        """Set attributes, made fit for export."""
        self.span.set_attributes(exportable(attributes))


class OpenSpans:
    """Starts, ends and settles the spans of one leg; safe to use from many threads.

    Args:
        maker: Makes spans.
        root: The leg's own span; it is ended by the leg, not here.
        now_ns: The leg's clock.

    Attributes:
        root: The leg's own span.
        now_ns: The leg's clock: nanoseconds since the Unix epoch.
    """

    def __init__(self, maker: SpanMaker, root: Span, now_ns: Callable[[], int] = time.time_ns) -> None:
        self.now_ns = now_ns
        self.root = Frame(root, None, None, now_ns())
        self._maker = maker
        self._lock = threading.Lock()
        self._open: dict[int, Frame] = {}
        self._closed = False

    def start(
        self,
        name: str,
        parent: Frame,
        attributes: Mapping[str, object],
        *,
        place: Place | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        links: Sequence[Link] = (),
        started_ns: int | None = None,
    ) -> Frame | None:
        """Open a span under its parent; None once the leg is over (a thread may outlive it).

        Args:
            name: Its name.
            parent: The frame it lies in.
            attributes: What is known of it.
            place: If it is a step's own span, which step.
            kind: Its kind.
            links: To other spans.
            started_ns: When it began, if that is not now.
        """
        started_ns = self.now_ns() if started_ns is None else started_ns
        with self._lock:
            if self._closed:
                return None
            span = self._maker.child(
                parent.span,
                bounded(name, NAME_LIMIT),
                exportable(attributes) if attributes else {},
                started_ns,
                place=place,
                kind=kind,
                links=links,
            )
            frame = Frame(span, parent, parent.place if place is None else place, started_ns)
            self._open[id(frame)] = frame
            return frame

    def end(self, frame: Frame, attributes: Mapping[str, object] | None = None, *, ended_ns: int | None = None) -> None:
        """End a span that did not fail; what failed below it was dealt with inside it, so it is a warning."""
        if not self._take(frame):
            return
        frame.ended_ns = ended_ns
        if attributes:
            frame.set(attributes)
        self.settle(frame, warning=True)

    def fail(self, frame: Frame, failure: Failure, attributes: Mapping[str, object] | None = None) -> None:
        """Mark a span as failed, now; it is exported when `settle` or `close` reaches it."""
        if not self._take(frame):
            return
        frame.failed, frame.ended_ns = True, self.now_ns()
        record(frame.span, failure, frame.ended_ns)
        is_step = frame.parent is None or frame.place is not frame.parent.place
        place = {} if is_step or frame.place is None else frame.place.attributes()  # a step's own span says it anyhow
        frame.set({**place, **(attributes or {})})
        with self._lock:
            enclosing = frame.parent
            while enclosing is not None and not enclosing.is_open:
                enclosing = enclosing.parent
            if enclosing is not None:
                enclosing.failures.append(frame)
                return
        self.settle(frame, warning=True)

    def supersede(self, frame: Frame) -> None:
        """Settle a failed span as a warning: its node is being tried again."""
        with self._lock:
            for enclosing in _upwards(frame):
                if frame in enclosing.failures:
                    enclosing.failures.remove(frame)
                    break
            else:
                return
        self.settle(frame, warning=True)

    def settle(self, frame: Frame, *, warning: bool) -> None:
        """Export a frame and all that failed below it.

        Args:
            frame: An ended or failed frame.
            warning: Whether failures are shown as warnings, because the run went on or will go on.
        """
        failures, frame.failures = frame.failures, []
        for failed in failures:
            self.settle(failed, warning=warning)
        if frame.failed and warning:
            frame.set({names.OBSERVATION_LEVEL: names.LEVEL_WARNING})
        if frame.parent is not None:
            frame.span.end(self.now_ns() if frame.ended_ns is None else frame.ended_ns)

    def close(self, *, warning: bool) -> None:
        """End the leg's spans: what still runs is marked as abandoned, what failed gets its verdict."""
        with self._lock:
            self._closed = True
            running = list(self._open.values())
            self.root.is_open = False
        for frame in reversed(running):
            if self._take(frame):
                frame.set({names.OUTCOME: "abandoned"})
                self.settle(frame, warning=warning)
        self.settle(self.root, warning=warning)

    def _take(self, frame: Frame) -> bool:
        with self._lock:
            frame.is_open = False
            return self._open.pop(id(frame), None) is not None


def _upwards(frame: Frame) -> list[Frame]:
    line: list[Frame] = []
    enclosing = frame.parent
    while enclosing is not None:
        line.append(enclosing)
        enclosing = enclosing.parent
    return line
