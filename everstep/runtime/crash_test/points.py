"""The crash points a graph passes in an uninterrupted run, counted over all workers of that run."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from everstep.runtime.crash_test.inside import POINT

Trace = list[dict[str, Any]]
"""What one worker told of itself: see `watch`."""


@dataclass(frozen=True)
class Point:
    """One crash point.

    Attributes:
        name: Its name in `everstep.crash`.
        subject: The effect or node it concerns; may be empty.
        occurrence: How often it is passed in the whole run up to here.
        worker: Which worker of the run passes it, from 0; a review ends one and begins the next.
        local: How often that worker has passed it.
        after: The node that had finished last, for points without a subject; within an effect, what it had just done.
        settles: What settles the effect after a kill: `probe`, `key` (it may be called again) or `person`; else empty.
    """

    name: str
    subject: str
    occurrence: int
    worker: int
    local: int
    after: str = ""
    settles: str = ""

    @property
    def kind(self) -> str:
        """Name and subject, as `EVERSTEP_CRASH_AT` takes them."""
        return f"{self.name}:{self.subject}" if self.subject else self.name

    @property
    def label(self) -> str:
        """Name, subject and occurrence: which point of the run it is."""
        return f"{self.kind}@{self.occurrence}"

    @property
    def crash_at(self) -> str:
        """What `EVERSTEP_CRASH_AT` must be in that worker."""
        return f"{self.kind}@{self.local}"


def passed(traces: Sequence[Trace]) -> list[Point]:
    """The points of a run, in the order they were passed.

    Of what an effect does again and again at the same line only the first and the last time are points.
    """
    points: list[Point] = []
    settles: dict[str, str] = {}
    everywhere: Counter[tuple[str, str]] = Counter()
    for worker, trace in enumerate(traces):
        here: Counter[tuple[str, str]] = Counter()
        between = _between(trace)
        for number, event in enumerate(trace):
            if event["event"] != "point":
                continue
            which = (str(event["name"]), str(event["subject"]))
            key = str(event.get("key", ""))
            if "probe" in event:
                settles[key] = "probe" if event["probe"] else "key" if event["idempotent"] else "person"
            everywhere[which] += 1
            here[which] += 1
            if number not in between:
                counts = (everywhere[which], worker, here[which])
                points.append(Point(*which, *counts, _after(event), settles.get(key, "")))
    return points


def _between(trace: Trace) -> set[int]:
    """The touches, by their number in the trace, that neither begin nor end what one line of an effect does."""
    times: dict[tuple[str, str], list[int]] = {}
    for number, event in enumerate(trace):
        if event.get("name") == POINT:
            times.setdefault((str(event["key"]), str(event["where"] or event["what"])), []).append(number)
    return {number for same in times.values() for number in same[1:-1]}


def _after(event: dict[str, Any]) -> str:
    if event["name"] != POINT:
        return str(event.get("after", ""))
    return "  ".join(filter(None, (str(event["what"]), str(event["where"]))))


def choose(points: Sequence[Point], *, number: int | None, seed: int, only: Sequence[str]) -> list[Point]:
    """Those to test, in the order they are passed.

    Args:
        points: All of them.
        number: How many, drawn at random; None: all.
        seed: Of the draw, which goes by labels: points of two threads may be passed in another order next time.
        only: Beginnings of labels; when given, others are left out before the draw.
    """
    kept = [point for point in points if not only or point.label.startswith(tuple(only))]
    if number is None or number >= len(kept):
        return kept
    drawn = set(sorted(kept, key=lambda point: random.Random(f"{seed} {point.label}").random())[:number])
    return [point for point in kept if point in drawn]
