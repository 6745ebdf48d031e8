"""`create_app`: the ASGI application. It may be served by itself or mounted in another one."""

from __future__ import annotations

import logging
import re
from functools import cache
from typing import Any

from fastapi import APIRouter, Depends, FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute

from everstep.checkpoints.metrics import RecordSamples
from everstep.checkpoints.store import Store
from everstep.graphs.http_configuration import Cors, HttpConfiguration, read_http
from everstep.graphs.loader import GraphCatalogue
from everstep.graphs.policies import Policies
from everstep.graphs.provider_faults import usable_providers
from everstep.nodes.providers.registry import Providers
from everstep.observability.measures import NOTHING, Measures
from everstep.observability.metric_names import OF_SERVERS
from everstep.observability.prometheus import PrometheusPage
from everstep.observability.tally import Tally
from everstep.server import auth_hook, description, failures, webhooks
from everstep.server.access import Access
from everstep.server.browsers import EXPOSED, Browsers
from everstep.server.context import Served, Settings
from everstep.server.langgraph import (
    assistants,
    crons,
    items,
    meta,
    run_ends,
    runs,
    thread_states,
    thread_streams,
    threads,
)
from everstep.server.langgraph.protocol import commands, streaming
from everstep.server.native import (
    dead_letters,
    deliveries,
    health,
    jobs,
    provider_tasks,
    quotes,
    reviews,
    schedules,
    services,
    signals,
    triggers,
)
from everstep.server.open_streams import OpenStreams
from everstep.server.queries import only_known
from everstep.server.wire import Shut, Wire

logger = logging.getLogger("everstep.server")

KNOWN_QUERIES = (Depends(only_known),)
_GROUPS = {
    "assistants": r"/assistants(/.*)?",
    "threads": r"/threads(/(?!.*/runs(/|$)).*)?",
    "runs": r"/runs(/.*)?|/threads/[^/]+/(runs(/.*)?|commands|stream(/events)?)",
    "store": r"/store(/.*)?",
    "meta": r"/ok|/info|/docs(/.*)?|/openapi\.json",
}
"""Which of LangGraph's paths `http.disable_…` takes away."""


def create_app(
    store: Store,
    graphs: GraphCatalogue,
    *,
    policies: Policies | None = None,
    settings: Settings | None = None,
    measures: Measures = NOTHING,
    providers: Providers | None = None,
) -> FastAPI:
    """The application.

    Args:
        store: The record; whoever opened it closes it.
        graphs: The graphs by name; what their `langgraph.json` says about the server holds.
        policies: What `everstep.toml` says.
        settings: How it answers.
        measures: What the process measures with; `GET /everstep/metrics` tells of its streams without it, too.
        providers: The providers of paid work; those of `policies` when omitted.

    Raises:
        ConfigInvalid: `langgraph.json` asks for something the server cannot honour safely, or its auth hook cannot be
            loaded.
    """
    policies, settings = policies or Policies(), settings or Settings()
    http = read_http(graphs.configuration.content) if graphs.configuration else HttpConfiguration()
    for sentence in http.unsupported:
        logger.warning("langgraph.json: %s", sentence)
    app = FastAPI(
        title="Everstep",
        openapi_url="/openapi.json",
        docs_url="/docs",
        redoc_url=None,
        redirect_slashes=False,  # a redirect would name a host that whoever asks made up
    )
    tally = Tally()
    page = PrometheusPage(RecordSamples(store), tally, shown=OF_SERVERS, of_process=False)
    streams = OpenStreams(tally, measures)
    app.state.metrics = page.registry
    app.state.served = Served(
        store, graphs, policies, settings, http, streams, providers or usable_providers(policies.providers, graphs)
    )
    app.state.auth_hook = _hook(graphs, http)
    failures.install(app)
    app.router.routes.extend(_routes())
    assistants.make_system_assistants(store, graphs)
    graphs.items_of(store, "default")  # what is configured and not possible is told now
    _describe(app, http)
    _guard(app, app.state.served)
    return app


@cache
def _routes() -> list[BaseRoute]:
    """What every application answers; what each of them takes is worked out once, when the first is asked."""
    router = APIRouter()
    router.include_router(meta.router)
    known = (assistants, threads, thread_states, items, crons, runs, run_ends, thread_streams, commands, streaming)
    paid = (provider_tasks, quotes)
    native = (jobs, reviews, dead_letters, services, schedules, deliveries, signals, *paid, health)
    for part in (*known, *native):
        router.include_router(part.router, dependencies=KNOWN_QUERIES)
    router.include_router(triggers.router)
    router.include_router(webhooks.router)
    return router.routes


def _hook(graphs: GraphCatalogue, http: HttpConfiguration) -> auth_hook.AuthHook | None:
    if graphs.configuration is None or http.auth_path is None:
        return None
    graphs.prepare()
    return auth_hook.load(graphs.configuration, http.auth_path)


def _shut(http: HttpConfiguration) -> re.Pattern[str]:
    """The paths of the groups that the configuration shuts."""
    return re.compile("|".join(f"(?:{_GROUPS[group]})" for group in sorted(http.shut)) or "(?!)")


def _describe(app: FastAPI, http: HttpConfiguration) -> None:
    """The description of the interface has the paths that are there, and the security schemes that are given."""
    described, shut = app.openapi, _shut(http)

    @cache
    def openapi() -> dict[str, Any]:
        schema = described()
        schema["paths"] = {path: one for path, one in schema.get("paths", {}).items() if not shut.fullmatch(path)}
        return description.complete(schema, http.auth_openapi)

    app.openapi = openapi


def _guard(app: FastAPI, served: Served) -> None:
    """What stands before every path, the outermost last: an error's answer, too, is one that pages may read."""
    settings, http = served.settings, served.http
    cors = (http.cors if settings.cors is None else settings.cors) or Cors()
    if http.shut:
        app.add_middleware(Shut, paths=_shut(http))
    app.add_middleware(Wire, most_body_bytes=settings.most_body_bytes)
    app.add_middleware(Access, store=served.store, settings=settings, hook=app.state.auth_hook)
    app.add_middleware(Browsers, cors=cors, hosts=settings.hosts)
    app.add_middleware(
        CORSMiddleware,
        allow_origins=cors.allow_origins,
        allow_origin_regex=cors.allow_origin_regex,
        allow_methods=cors.allow_methods,
        allow_headers=cors.allow_headers,
        allow_credentials=cors.allow_credentials,
        allow_private_network=True,
        expose_headers=(*EXPOSED, *cors.expose_headers),
        max_age=cors.max_age,
    )
