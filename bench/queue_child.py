"""What a queue is asked to do, in a process of its own: make its tables, enqueue, work, serve, count what is left."""

from __future__ import annotations

import random
import time
from typing import Any

from bench.child import Control
from bench.contenders import open_queue


def create(_control: Control, module: str, place: str, options: dict[str, Any]) -> None:
    """Make its tables."""
    queue = open_queue(module, place, options)
    queue.create()
    queue.close()


def left(_control: Control, module: str, place: str, options: dict[str, Any]) -> int:
    """How many jobs are not done."""
    queue = open_queue(module, place, options)
    count = queue.left()
    queue.close()
    return count


def enqueue(control: Control, module: str, place: str, options: dict[str, Any], count: int) -> dict[str, Any]:
    """Make its tables and enqueue jobs one after the other; from when to when that was."""
    queue = open_queue(module, place, options)
    queue.create()
    queue.put([0])  # connections are open, statements compiled
    begin = control.ready()
    queue.put(range(1, count))
    answer = {"begin": begin, "end": time.monotonic(), "count": count - 1, "left": queue.left()}
    queue.close()
    return answer


def work(control: Control, module: str, place: str, options: dict[str, Any]) -> dict[str, Any]:
    """Run jobs until none is left; from when to when that was, which ran, and how many are not done."""
    queue = open_queue(module, place, options)
    ran: list[int] = []
    begin = control.ready()
    end = queue.work(ran.append)
    answer = {"begin": begin, "end": end or time.monotonic(), "ran": ran, "left": queue.left()}
    queue.close()
    return answer


def serve(control: Control, module: str, place: str, options: dict[str, Any]) -> dict[str, float]:
    """Wait for jobs; when each number ran first."""
    queue = open_queue(module, place, options)
    at: dict[str, float] = {}
    queue.serve(lambda number: at.setdefault(str(number), time.monotonic()), control.ready, control.stopped)
    return at


def send(control: Control, module: str, place: str, options: dict[str, Any], pauses: list[float]) -> dict[str, float]:
    """Enqueue a job after each pause (seconds); when each was durable."""
    queue = open_queue(module, place, options)
    at: dict[str, float] = {}
    control.ready()
    for number, pause in enumerate(pauses):
        time.sleep(pause)
        queue.put([number])
        at[str(number)] = time.monotonic()
    queue.close()
    return at


def pauses(count: int, longest: float, seed: int) -> list[float]:
    """Random pauses, so that no polling interval fits them."""
    source = random.Random(seed)
    return [source.uniform(0.2, 1.0) * longest for _ in range(count)]
