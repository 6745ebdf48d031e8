"""A run's graph and those that ran below it, with what became of each."""

from __future__ import annotations

from functools import partial
from typing import Any

from everstep.checkpoints import events, jobs
from everstep.checkpoints.runs import Run
from everstep.server.context import Served
from everstep.server.langgraph.protocol.namespaces import Namespace
from everstep.server.langgraph.protocol.translation import Translation

Known = dict[Namespace, dict[str, Any]]


async def of_run(served: Served, run: Run) -> dict[str, Any]:
    """The tree that `agent.getTree` gives.

    Args:
        served: What is served.
        run: The run.
    """
    known = await _known(served, run)

    def node(namespace: Namespace) -> dict[str, Any]:
        below = [node(one) for one in known if len(one) == len(namespace) + 1 and one[: len(namespace)] == namespace]
        return {"namespace": list(namespace), **known[namespace], **({"children": below} if below else {})}

    return node(())


async def statuses(served: Served, run: Run) -> list[dict[str, Any]]:
    """Each graph of a run and its status.

    Args:
        served: What is served.
        run: The run.
    """
    known = await _known(served, run)
    return [{"namespace": list(one), "status": told["status"]} for one, told in known.items()]


async def _known(served: Served, run: Run) -> Known:
    translation = Translation(frozenset({"lifecycle"}))
    graph = await served.store.aread(lambda connection: jobs.get(connection, run.job_id).graph)
    translation.graphs[run.run_id] = graph
    known: Known = {(): {"status": "started", "graph_name": graph}}
    rows = await served.store.aread(lambda connection: events.of_run(connection, run.run_id))
    while rows:
        for row in rows:
            for event in translation.of(row):
                data = event.data
                known[event.namespace] = {"status": data["event"], "graph_name": data["graph_name"]}
        rows = await served.store.aread(partial(events.of_run, run_id=run.run_id, after=rows[-1].id))
    return known
