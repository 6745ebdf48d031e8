"""Jobs run in this very process: graphs in a row, a worker until idle, the time moved on when a job waits."""

from __future__ import annotations

import json
import operator
import threading
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph

from everstep.checkpoints.jobs import Job
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock
from everstep.runtime.worker import Worker
from tests.support.waiting import PATIENCE, until

TWO_DAYS_MS = 2 * 24 * 3600 * 1000


class Log(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]


def chain(*nodes: Any, schema: Any = Log, node_options: dict[str, Any] | None = None, **compile_with: Any) -> Any:
    """A graph of nodes in a row, named `node_0`, `node_1`, …."""
    builder = StateGraph(schema)
    names = [f"node_{number}" for number in range(len(nodes))]
    for name, node in zip(names, nodes, strict=True):
        builder.add_node(name, node, **(node_options or {}))
    for before, after in zip([START, *names], [*names, END], strict=True):
        builder.add_edge(before, after)
    return builder.compile(**compile_with)


def beside(*nodes: Any, **compile_with: Any) -> Any:
    """A graph whose nodes run at the same time, named `node_0`, `node_1`, …."""
    builder = StateGraph(Log)
    for number, node in enumerate(nodes):
        builder.add_node(f"node_{number}", node)
        builder.add_edge(START, f"node_{number}")
        builder.add_edge(f"node_{number}", END)
    return builder.compile(**compile_with)


def work(store: Store, graph: Any, listener: Callable[[str, Job], None] | None = None, **worker: Any) -> None:
    """Run jobs of `graph` until only a person could go on; a job that waits for its backoff gets its time at once."""

    def on(event: str, job: Job) -> None:
        if event == "retry":
            assert isinstance(store.clock, ManualClock), "a backoff needs a clock that can be moved"
            store.clock.advance(TWO_DAYS_MS)

    def told(event: str, job: Job) -> None:
        if listener is not None:
            listener(event, job)
        on(event, job)

    at_work = Worker(store, {"graph": graph}, listener=told, **worker)
    impatient = threading.Timer(PATIENCE, at_work.drain)
    impatient.start()
    at_work.run(until_idle=True)
    assert impatient.is_alive(), f"the worker did not become idle: {[(job.status, job.step) for job in store.jobs()]}"
    impatient.cancel()


def run(store: Store, graph: Any, input: Any = None, **worker: Any) -> Job:
    """Enqueue one job of `graph` and work; returns the job as it is then."""
    job, _ = store.enqueue("graph", {"log": []} if input is None else input)
    work(store, graph, **worker)
    return store.job(job.public_id)


def wakes(store: Store, beside: Store) -> None:
    """Jobs that are enqueued beside an idle worker, one after another, wake it; unless it looks by itself."""
    worker = Worker(store, {"graph": chain(lambda _s: {"log": ["a"]})})
    working = threading.Thread(target=worker.run)
    working.start()
    try:
        for number in range(3):
            job, _ = beside.enqueue("graph", {"log": [number]})
            until(lambda job=job: beside.job(job.public_id).status == "done", "the job's end")
            assert result(beside, job) == [number, "a"]
    finally:
        worker.drain()
        working.join(PATIENCE)


def result(store: Store, job: Job) -> list[Any]:
    """The log the job ended with."""
    job = store.job(job.public_id)
    assert job.status == "done", f"{job.status}: {job.error_json}"
    return json.loads(job.result_json or "")["log"]


def moves(store: Store, job: Job) -> list[str]:
    """The statuses the job went through."""
    return [event["to"] for event in store.events(job)]
