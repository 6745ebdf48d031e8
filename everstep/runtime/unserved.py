"""Jobs a worker cannot run because it does not have their graph: it says so once for each graph.

They stay ready for a worker that has it. Without a word a misnamed graph would look like an idle queue.
"""

from __future__ import annotations

import logging
import time

from sqlalchemy import Connection, and_, func, or_, select

from everstep.checkpoints.schema import agent_jobs
from everstep.checkpoints.store import Store
from everstep.errors import StoreUnavailable
from everstep.graphs.loader import GraphCatalogue

logger = logging.getLogger("everstep.worker")

LOOK_EVERY_S = 5.0


class Unserved:
    """Looks for ready jobs of graphs a worker does not have.

    Args:
        store: The record.
        graphs: The graphs the worker has.
    """

    def __init__(self, store: Store, graphs: GraphCatalogue) -> None:
        self._store = store
        self._graphs = graphs
        self._told: set[str] = set()
        self._look_at = time.monotonic()

    async def tell(self, *, at_once: bool) -> None:
        """Warn of each graph that was not told yet.

        Args:
            at_once: Look now; otherwise at most every `LOOK_EVERY_S` seconds.
        """
        if not at_once and time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + LOOK_EVERY_S
        try:
            found = await self._store.aread(self._ready)
        except StoreUnavailable:
            return  # claiming meets it, too, and says so
        configuration = self._graphs.configuration
        lacks = "this worker was not given" if configuration is None else f"{configuration.path} does not name"
        advice = "give it to this Worker" if configuration is None else "add it there"
        for graph, jobs in found.items():
            self._told.add(graph)
            logger.warning(
                "%d %s for the graph %r, which %s; %s, or run everstep worker --config with the langgraph.json that"
                " names it",
                jobs,
                "job waits" if jobs == 1 else "jobs wait",
                graph,
                lacks,
                advice,
            )

    def _ready(self, connection: Connection) -> dict[str, int]:
        now = self._store.clock.now_ms()
        ready = or_(
            and_(agent_jobs.c.status.in_(("pending", "retry")), agent_jobs.c.next_run_at <= now),
            and_(agent_jobs.c.status == "running", agent_jobs.c.lease_until <= now),
        )
        unknown = agent_jobs.c.graph.not_in((*self._graphs.names(), *self._told))
        query = select(agent_jobs.c.graph, func.count()).where(ready, unknown).group_by(agent_jobs.c.graph)
        return {str(row[0]): int(row[1]) for row in connection.execute(query.order_by(agent_jobs.c.graph))}
