"""The native interface as tests meet it: the application without sockets, and a worker in a thread where jobs run."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import httpx
from fastapi import FastAPI
from langgraph.types import interrupt

from everstep.checkpoints import api_keys
from everstep.checkpoints.store import Store
from everstep.graphs.loader import GraphCatalogue
from everstep.graphs.policies import Policies
from everstep.nodes.providers.registry import Providers
from everstep.runtime.worker import Worker
from everstep.server.app import create_app
from everstep.server.context import Settings
from tests.support.jobs import chain
from tests.support.waiting import PATIENCE, Halt


def agent(halt: Halt | None = None) -> Any:
    """A graph that does what its input's first entry says: `ask` a person, `fail`, `stand` at a halt; else it ends."""

    def act(state: dict[str, Any]) -> dict[str, Any]:
        wish = state["log"][0] if state["log"] else None
        if wish == "ask":
            return {"log": [interrupt({"question": "Go on?"})]}
        if wish == "fail":
            raise ValueError("as it was told")
        if wish == "stand":
            assert halt is not None
            halt.stand()
        return {"log": ["acted"]}

    return chain(act)


def app_on(
    store: Store,
    graph: Any = None,
    *,
    policies: Policies | None = None,
    providers: Providers | None = None,
    **settings: Any,
) -> tuple[FastAPI, GraphCatalogue]:
    """An application with one graph, `agent`, and the catalogue a worker runs it from."""
    graphs = GraphCatalogue.from_graphs({"agent": graph if graph is not None else agent()})
    given = Settings(**{"key_memory_s": 0.0, **settings})
    return create_app(store, graphs, policies=policies, settings=given, providers=providers), graphs


@asynccontextmanager
async def asking(app: FastAPI, key: str | None = None) -> AsyncGenerator[httpx.AsyncClient]:
    """A client of the application."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    headers = {} if key is None else {"x-api-key": key}
    async with httpx.AsyncClient(
        transport=transport, base_url="http://localhost", headers=headers, timeout=PATIENCE
    ) as client:
        yield client


@contextmanager
def working(store: Store, graphs: GraphCatalogue) -> Generator[None]:
    """A worker runs jobs while entered."""
    worker = Worker(store, graphs, concurrency=4)
    thread = threading.Thread(target=worker.run, name="worker", daemon=True)
    thread.start()
    try:
        yield
    finally:
        worker.drain()
        thread.join(PATIENCE)


async def until_idle(store: Store, graphs: GraphCatalogue) -> None:
    """Run jobs until only a person could go on."""
    await Worker(store, graphs).run_async(until_idle=True)


def key_for(store: Store, owner: str, *scopes: str) -> str:
    """A new API key."""
    wanted = scopes or ("read", "run", "review")
    make = partial(api_keys.create, name=owner, owner=owner, scopes=wanted, now=store.clock.now_ms())
    return store.write(make).result()[1]


async def job_of(client: httpx.AsyncClient, *log: Any, **more: Any) -> dict[str, Any]:
    """A job that was submitted."""
    answered = await client.post("/everstep/jobs", json={"graph": "agent", "input": {"log": list(log)}, **more})
    assert answered.status_code == 200, answered.text
    return answered.json()


def events_of(body: str) -> list[tuple[str, str, str]]:
    """A stream's frames: name, data and id of each; comments are left out."""
    found: list[tuple[str, str, str]] = []
    for frame in body.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in frame.splitlines() if not line.startswith(":"))
        if lines:
            found.append((lines["event"], lines["data"], lines.get("id", "")))
    return found
