"""Everstep's whole worker: every job is one run of a LangGraph graph with a single node, with its checkpoints."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, TypedDict

from langgraph.graph import END, START, StateGraph

from bench.contenders import everstep_functions
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.store import Store
from everstep.runtime.worker import Worker


class State(TypedDict):
    """What the graph holds."""

    number: int


def one_node(ran: Callable[[int], None]) -> Any:
    """A graph whose only node tells that it ran."""

    async def node(state: State) -> dict[str, Any]:
        ran(state["number"])
        return {}

    graph = StateGraph(State)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    graph.add_edge("node", END)
    return graph.compile()


class Queue:
    """See `bench.contenders.Queue`.

    Args:
        place: Where the record is.
        concurrency: Jobs at once.
    """

    def __init__(self, place: str, *, concurrency: int) -> None:
        self._place, self._concurrency = place, concurrency
        self._store = Store.open(everstep_functions.url_of(place))

    def create(self) -> None:
        """Opening it was enough."""

    def put(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._store.enqueue("empty", {"number": number})

    def work(self, ran: Callable[[int], None]) -> float | None:
        done_at: list[float] = []

        def tell(event: str, _job: Job) -> None:
            if event == "done":
                done_at.append(time.monotonic())

        self._worker(ran, tell).run(until_idle=True)
        return max(done_at, default=None)

    def serve(self, ran: Callable[[int], None], ready: Callable[[], Any], stopped: threading.Event) -> None:
        worker = self._worker(ran, None)

        def watch() -> None:
            ready()
            stopped.wait()
            worker.drain()

        threading.Thread(target=watch, daemon=True).start()
        worker.run()

    def _worker(self, ran: Callable[[int], None], listener: Callable[[str, Job], None] | None) -> Worker:
        return Worker(self._store, {"empty": one_node(ran)}, concurrency=self._concurrency, listener=listener)

    def left(self) -> int:
        return sum(job.status != "done" for job in self._store.jobs(limit=1_000_000))

    def close(self) -> None:
        self._store.close()
