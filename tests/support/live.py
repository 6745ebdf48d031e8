"""The server as its clients meet it: real HTTP on a free port of this machine, with a worker beside it if wanted."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

from everstep.checkpoints.store import Store
from everstep.graphs.loader import GraphCatalogue
from everstep.graphs.policies import Policies
from everstep.nodes.providers.registry import Providers
from everstep.runtime.worker import Worker
from everstep.server.app import create_app
from everstep.server.context import Settings
from everstep.server.parts import WorkerThread
from everstep.server.serving import Serving, listen
from tests.support.waiting import PATIENCE


@contextmanager
def live(
    store: Store,
    graphs: GraphCatalogue,
    *,
    work: bool = True,
    policies: Policies | None = None,
    settings: Settings | None = None,
    providers: Providers | None = None,
) -> Generator[str]:
    """Serve while entered; gives the address.

    Args:
        store: The record.
        graphs: The graphs by name.
        work: Whether a worker runs the jobs, in a thread of its own.
        policies: What `everstep.toml` says.
        settings: How the server answers.
        providers: The providers of paid work.
    """
    listening = listen("127.0.0.1", 0)
    host, port = listening.getsockname()
    worker = Worker(store, graphs, policies=policies, providers=providers, concurrency=8) if work else None
    parts = [WorkerThread(worker, lambda: None)] if worker else []
    app = create_app(store, graphs, policies=policies, settings=settings, providers=providers)
    serving = Serving(app, listening, parts, grace_s=1)
    ready = threading.Event()
    thread = threading.Thread(target=serving.run, args=(ready.set,), name="server", daemon=True)
    thread.start()
    try:
        assert ready.wait(PATIENCE), "the server does not answer"
        yield f"http://{host}:{port}"
    finally:
        serving.end()
        thread.join(PATIENCE)
