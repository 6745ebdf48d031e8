"""The worker of a crash test: `everstep worker --until-idle`, watched from inside, and killed where told."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from everstep import crash
from everstep.checkpoints.store import Store
from everstep.graphs.loader import GraphCatalogue
from everstep.graphs.policies import read_policies
from everstep.graphs.provider_sections import providers_of
from everstep.observability.tracing import Tracing
from everstep.runtime.crash_test import watch
from everstep.runtime.crash_test.order import Order
from everstep.runtime.worker import Worker


def work(order: Order) -> int:
    """Run jobs until none is left that could run without a person, or the crash point is reached.

    Returns:
        The process's exit code.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("langgraph.checkpoint.serde.jsonplus").setLevel(logging.ERROR)
    catalogue = GraphCatalogue.from_config(order.config)
    catalogue.prepare()
    providers = providers_of(read_policies(Path(order.config)).providers, catalogue.folder)
    with Store.open(order.store, create=False) as store:
        watch.begin(Path(order.observed), folder=Path(order.folder), place=Path(order.place))
        crash.arm(order.crash_at)
        worker = Worker(store, catalogue, concurrency=1, tracing=Tracing(), isolate=False, providers=providers)
        worker.run(until_idle=True)
    return 0
