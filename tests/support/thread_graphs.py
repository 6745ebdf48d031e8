"""Graphs whose threads are looked at and changed from outside, and LangGraph's client of a server in this process."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, TypedDict

import httpx
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import interrupt
from langgraph_sdk.client import LangGraphClient
from pydantic import BaseModel
from starlette.types import ASGIApp

from everstep.checkpoints.store import Store
from everstep.graphs.loader import GraphCatalogue
from everstep.runtime.worker import Worker
from everstep.server.app import create_app
from everstep.server.context import Caller


class Asking(MessagesState):
    answer: str


def asking() -> Any:
    """Says hello, then asks a person."""
    builder = StateGraph(Asking)
    builder.add_node("greet", lambda _: {"messages": [("ai", "hello")]})
    builder.add_node("ask", lambda _: {"answer": interrupt({"question": "may I?"})})
    builder.add_edge(START, "greet")
    builder.add_edge("greet", "ask")
    builder.add_edge("ask", END)
    return builder.compile()


class Log(TypedDict):
    log: Annotated[list[str], operator.add]


def nested() -> Any:
    """Asks in a subgraph."""
    inner = StateGraph(Log)
    inner.add_node("within", lambda _: {"log": [interrupt("inner?")]})
    inner.add_edge(START, "within")
    builder = StateGraph(Log)
    builder.add_node("outer", inner.compile())
    builder.add_edge(START, "outer")
    return builder.compile()


class Point(BaseModel):
    x: int
    at: datetime


@dataclass
class Named:
    name: str


class Odd(TypedDict):
    point: Point
    named: Named
    tags: set[str]
    rate: float


def odd() -> Any:
    """A state of values that are no JSON."""
    moment = datetime(2030, 1, 2, tzinfo=UTC)
    value = {"point": Point(x=1, at=moment), "named": Named("n"), "tags": {"t"}, "rate": float("inf")}
    builder = StateGraph(Odd)
    builder.add_node("make", lambda _: value)
    builder.add_edge(START, "make")
    return builder.compile()


class Note(TypedDict):
    text: str


def remembering() -> Any:
    """Writes what it was told into the key-value store, and gives how many items are there."""

    async def keep(state: Note, runtime: Runtime[Any]) -> dict[str, Any]:
        assert runtime.store is not None
        await runtime.store.aput(("notes",), state["text"], {"text": state["text"]})
        return {"text": str(len(await runtime.store.asearch(("notes",))))}

    builder = StateGraph(Note)
    builder.add_node("keep", keep)
    builder.add_edge(START, "keep")
    return builder.compile()


def faulty() -> Any:
    """Has a fault that a person must look at."""

    def fail(state: Note) -> dict[str, Any]:
        raise KeyError(state["text"])

    builder = StateGraph(Note)
    builder.add_node("fail", fail)
    builder.add_edge(START, "fail")
    return builder.compile()


def catalogue() -> GraphCatalogue:
    """All of them, by name."""
    made = (asking, nested, odd, remembering, faulty)
    return GraphCatalogue.from_graphs({make.__name__: make() for make in made})


class _As:
    """An application that is asked by somebody."""

    def __init__(self, app: ASGIApp, caller: Caller) -> None:
        self._app, self._caller = app, caller

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        scope["state"] = {"caller": self._caller}
        await self._app(scope, receive, send)


def client_of(store: Store, graphs: GraphCatalogue | None = None, *, owner: str | None = None) -> LangGraphClient:
    """LangGraph's client of a server in this process, that asks as an owner."""
    app: ASGIApp = create_app(store, graphs or catalogue())
    if owner is not None:
        app = _As(_bare(app), Caller(owner, identity=owner))
    transport = httpx.ASGITransport(app)
    return LangGraphClient(httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:2024", timeout=180))


def _bare(app: Any) -> ASGIApp:
    """The application without the middleware that finds out who asks."""
    app.user_middleware.clear()
    return app


async def work(store: Store, graphs: GraphCatalogue | None = None) -> None:
    """Run what there is to run, as a worker does."""
    await Worker(store, graphs or catalogue()).run_async(until_idle=True)
