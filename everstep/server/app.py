"""`create_app`: the ASGI application. It may be served by itself or mounted in another one."""

from __future__ import annotations

from fastapi import FastAPI

from everstep.checkpoints.store import Store
from everstep.graphs.loader import GraphCatalogue
from everstep.graphs.policies import Policies
from everstep.server import failures
from everstep.server.context import Served, Settings
from everstep.server.langgraph import meta


def create_app(
    store: Store, graphs: GraphCatalogue, *, policies: Policies | None = None, settings: Settings | None = None
) -> FastAPI:
    """The application.

    Args:
        store: The record; whoever opened it closes it.
        graphs: The graphs by name.
        policies: What `everstep.toml` says.
        settings: How it answers.
    """
    app = FastAPI(title="Everstep", openapi_url="/openapi.json", docs_url="/docs", redoc_url=None)
    app.state.served = Served(store, graphs, policies or Policies(), settings or Settings())
    failures.install(app)
    app.include_router(meta.router)
    return app
