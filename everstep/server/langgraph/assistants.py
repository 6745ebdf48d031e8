"""Paths of assistants: graphs with configurations of their own, what they look like, and what they take."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Literal, cast, get_type_hints
from uuid import UUID

from fastapi import APIRouter, Request
from pydantic import Field, TypeAdapter, create_model
from sqlalchemy import Connection
from starlette.responses import Response
from typing_extensions import is_typeddict

from everstep.checkpoints import assistants, conversation_search, payload, thread_removal
from everstep.checkpoints.assistants import Assistant, SortBy, Wanted
from everstep.checkpoints.replies import Reply
from everstep.checkpoints.store import Store
from everstep.errors import AssistantNotFound, RequestInvalid
from everstep.graphs.loader import GraphCatalogue
from everstep.graphs.opening import Graph
from everstep.runtime.results import json_ready
from everstep.server import access
from everstep.server.bodies import JsonRoute, apart
from everstep.server.context import CalledBy, Caller, Served, ServedBy
from everstep.server.langgraph.body import Body, Order, Page, answer, page_headers, selected
from everstep.server.langgraph.permitted import as_metadata
from everstep.server.once import AskedOnce

router = APIRouter(tags=["assistants"], route_class=JsonRoute)

Name = Annotated[str, Field(min_length=1, max_length=1000)]
SelectField = Literal[
    "assistant_id",
    "graph_id",
    "name",
    "description",
    "config",
    "context",
    "created_at",
    "updated_at",
    "metadata",
    "version",
]


class NewAssistant(Body):
    """What an assistant is made from."""

    graph_id: str
    config: dict[str, Any] | None = None
    context: Any = None
    metadata: dict[str, Any] | None = None
    assistant_id: UUID | None = None
    if_exists: Literal["raise", "do_nothing"] | None = None
    name: Name | None = None
    description: str | None = None


class AssistantChange(Body):
    """What a new version of an assistant changes."""

    graph_id: str | None = None
    config: dict[str, Any] | None = None
    context: Any = None
    metadata: dict[str, Any] | None = None
    name: Name | None = None
    description: str | None = None


class AssistantFilter(Body):
    """Which assistants are looked for."""

    metadata: dict[str, Any] | None = None
    graph_id: str | None = None
    name: str | None = None


class AssistantSearch(AssistantFilter, Page):
    """Which assistants are wanted, and how."""

    sort_by: SortBy | None = None
    sort_order: Order | None = None
    select: list[SelectField] | None = None


class VersionSearch(Page):
    """Which versions are wanted."""

    metadata: dict[str, Any] | None = None


class Version(Body):
    """A version of an assistant."""

    version: Annotated[int, Field(ge=1, le=2**31 - 1)]


def make_system_assistants(store: Store, graphs: GraphCatalogue) -> None:
    """Make sure that each graph has its own assistant; for the server's start."""
    now = store.clock.now_ms()
    described = [(name, graphs.describe(name).description) for name in graphs.names()]
    store.write(partial(assistants.make_system, graphs=described, now=now)).result()


@router.post("/assistants")
async def create(body: NewAssistant, request: Request, served: ServedBy, caller: CalledBy, once: AskedOnce) -> Response:
    """Make an assistant."""
    served.graphs.require(body.graph_id)
    value: dict[str, Any] = {**body.model_dump(), "metadata": body.metadata or {}}
    await access.allow(request, "assistants", "create", value)
    await apart(payload.check_payload, value)
    given = {name: value[name] for name in ("config", "context", "metadata", "name", "description")}
    now = served.store.clock.now_ms()

    def make(connection: Connection) -> Reply:
        made = assistants.create(
            connection,
            body.graph_id,
            owner=caller.makes_for,
            now=now,
            assistant_id=str(body.assistant_id) if body.assistant_id else None,
            keep_existing=body.if_exists == "do_nothing",
            **given,
        )
        return Reply(200, made.as_dict(), {"Content-Location": f"/assistants/{made.assistant_id}"})

    return (await once.write(make)).response()


@router.post("/assistants/search")
async def search(
    body: AssistantSearch, request: Request, served: ServedBy, caller: CalledBy, response: Response
) -> list[dict[str, Any]]:
    """Find assistants."""
    wanted = await _wanted(body, request, served, caller)

    def look(connection: Connection) -> tuple[list[Assistant], int]:
        found = assistants.search(
            connection,
            wanted,
            limit=body.limit,
            offset=body.offset,
            sort_by=body.sort_by or "created_at",
            ascending=body.sort_order == "asc",
        )
        return found, assistants.count(connection, wanted)

    found, total = await served.store.aread(look)
    page_headers(response, body, found, total)
    return [selected(one.as_dict(), body.select) for one in found]


@router.post("/assistants/count")
async def count(body: AssistantFilter, request: Request, served: ServedBy, caller: CalledBy) -> int:
    """How many assistants there are."""
    wanted = await _wanted(body, request, served, caller)
    return await served.store.aread(partial(assistants.count, wanted=wanted))


@router.get("/assistants/{assistant_id}")
async def get(assistant_id: str, request: Request, served: ServedBy, caller: CalledBy) -> dict[str, Any]:
    """An assistant by its id, or its graph's name."""
    return (await _found(assistant_id, request, served, caller)).as_dict()


@router.patch("/assistants/{assistant_id}")
async def change(
    assistant_id: str, body: AssistantChange, request: Request, served: ServedBy, caller: CalledBy
) -> dict[str, Any]:
    """Make a new version of an assistant."""
    changes = {name: value for name, value in body.model_dump(exclude_unset=True).items() if value is not None}
    changes.setdefault("metadata", {})
    known = await _found(assistant_id, request, served, caller, "update", changes)
    await apart(payload.check_payload, changes)
    if "graph_id" in changes:
        served.graphs.require(changes["graph_id"])
    now = served.store.clock.now_ms()

    def operation(connection: Connection) -> Assistant:
        current = assistants.resolve(connection, known.assistant_id, owner=caller.owner)
        return assistants.change(connection, current, changes, now=now, owner=caller.owner)

    return (await served.store.awrite(operation)).as_dict()


@router.delete("/assistants/{assistant_id}")
async def remove(
    assistant_id: str, request: Request, served: ServedBy, caller: CalledBy, delete_threads: bool = False
) -> dict[str, Any]:
    """Delete an assistant; with `delete_threads` also the threads that it ran last."""
    now, tables = served.store.clock.now_ms(), served.store.database.checkpoint_tables
    known = await _found(assistant_id, request, served, caller, "delete")

    def operation(connection: Connection) -> None:
        current = assistants.resolve(connection, known.assistant_id, owner=caller.owner)
        assistants.remove(connection, current, owner=caller.owner)
        if not delete_threads:
            return
        for thread in conversation_search.of_assistant(connection, current.assistant_id, owner=caller.owner):
            thread_removal.remove(connection, thread, now=now, actor=caller.identity, checkpoint_tables=tables)

    await served.store.awrite(operation)
    return {}


@router.post("/assistants/{assistant_id}/versions")
async def versions(
    assistant_id: str, body: VersionSearch, request: Request, served: ServedBy, caller: CalledBy
) -> list[dict[str, Any]]:
    """The versions of an assistant, newest first."""
    known = await _found(assistant_id, request, served, caller)
    query = partial(
        assistants.versions,
        assistant_id=known.assistant_id,
        metadata=body.metadata,
        limit=body.limit,
        offset=body.offset,
    )
    return [one.as_dict() for one in await served.store.aread(query)]


@router.post("/assistants/{assistant_id}/latest")
async def set_latest(
    assistant_id: str, body: Version, request: Request, served: ServedBy, caller: CalledBy
) -> dict[str, Any]:
    """Make a version of an assistant the latest again."""
    now = served.store.clock.now_ms()
    known = await _found(assistant_id, request, served, caller, "update", body.model_dump())

    def operation(connection: Connection) -> Assistant:
        current = assistants.resolve(connection, known.assistant_id, owner=caller.owner)
        return assistants.set_latest(connection, current, body.version, now=now, owner=caller.owner)

    return (await served.store.awrite(operation)).as_dict()


@router.get("/assistants/{assistant_id}/graph")
async def drawn(
    assistant_id: str, request: Request, served: ServedBy, caller: CalledBy, xray: str = "false"
) -> Response:
    """The nodes and edges of an assistant's graph; with `xray` those of its subgraphs, or so many levels of them."""
    levels = _xray(xray)
    assistant = await _found(assistant_id, request, served, caller)
    async with _opened(assistant, served) as graph:
        shown = (await graph.aget_graph(cast(Any, assistant.config), xray=levels)).to_json()
    return await answer(served.store, shown)


@router.get("/assistants/{assistant_id}/schemas")
async def schemas(assistant_id: str, request: Request, served: ServedBy, caller: CalledBy) -> Response:
    """What an assistant's graph takes and gives, as JSON Schema; null where that has no such form."""
    assistant = await _found(assistant_id, request, served, caller)
    async with _opened(assistant, served) as graph:
        shown = await served.store.in_thread(_schemas, graph)
    return await answer(served.store, {"graph_id": assistant.graph, **shown})


@router.get("/assistants/{assistant_id}/subgraphs")
async def subgraphs(
    assistant_id: str, request: Request, served: ServedBy, caller: CalledBy, recurse: bool = False
) -> Response:
    """The subgraphs of an assistant's graph, with what they take and give."""
    return await _subgraphs(assistant_id, None, recurse, request, served, caller)


@router.get("/assistants/{assistant_id}/subgraphs/{namespace}")
async def subgraph(
    assistant_id: str, namespace: str, request: Request, served: ServedBy, caller: CalledBy, recurse: bool = False
) -> Response:
    """As `subgraphs`, those of one namespace."""
    return await _subgraphs(assistant_id, namespace, recurse, request, served, caller)


async def _subgraphs(
    assistant_id: str, namespace: str | None, recurse: bool, request: Request, served: Served, caller: Caller
) -> Response:
    assistant = await _found(assistant_id, request, served, caller)
    shown: dict[str, Any] = {}
    async with _opened(assistant, served) as graph:
        async for name, found in graph.aget_subgraphs(namespace=namespace, recurse=recurse):
            shown[name] = await served.store.in_thread(_schemas, cast(Graph, found))
    return await answer(served.store, shown)


def _opened(assistant: Assistant, served: Served) -> Any:
    return served.graphs.open(assistant.graph, cast(Any, assistant.config), purpose="assistants.read")


async def _found(
    assistant_id: str,
    request: Request,
    served: Served,
    caller: Caller,
    action: str = "read",
    value: dict[str, Any] | None = None,
) -> Assistant:
    """An assistant that the caller sees; a graph's own passes any filter of the `auth` hook."""
    asked = {} if value is None else value
    filters = await access.allow(request, "assistants", action, {**asked, "assistant_id": assistant_id})
    found = await served.store.aread(partial(assistants.resolve, id_or_name=assistant_id, owner=caller.owner))
    if found.owner != assistants.SYSTEM and not access.matches(filters, found.metadata):
        raise AssistantNotFound(f"there is no assistant {assistant_id!r}", assistant_id=assistant_id)
    return found


async def _wanted(body: AssistantFilter, request: Request, served: Served, caller: Caller) -> Wanted:
    value = body.model_dump(exclude_none=True)
    filters = await access.allow(request, "assistants", "search", value)
    return Wanted(
        caller.owner,
        served.graphs.names(),
        body.graph_id,
        body.name,
        value.get("metadata"),
        passing=as_metadata(filters),
    )


def _xray(given: str) -> bool | int:
    text = given.lower()
    if text in ("true", "false"):
        return text == "true"
    if not text.isdigit() or len(text) > 3:
        raise RequestInvalid(f"xray is {given[:20]!r}", next_step="give true, false, or how many levels", field="xray")
    return int(text)


def _schemas(graph: Graph) -> dict[str, Any]:
    builder: Any = getattr(graph, "builder", None)
    context = _or_none(lambda: _schema_of("Context", graph.context_schema))
    return {
        "input_schema": _or_none(graph.get_input_jsonschema, lambda: _schema_of("Input", builder.input_schema)),
        "output_schema": _or_none(graph.get_output_jsonschema, lambda: _schema_of("Output", builder.output_schema)),
        "state_schema": _or_none(lambda: _schema_of("State", builder.state_schema)),
        "config_schema": context,
        "context_schema": context,
    }


def _schema_of(name: str, kind: Any) -> Any:
    if kind is None:
        return None
    if is_typeddict(kind):  # pydantic refuses those of `typing` before Python 3.12
        fields: dict[str, Any] = {field: (hint, ...) for field, hint in get_type_hints(kind).items()}
        return create_model(name, **fields).model_json_schema()
    return TypeAdapter[Any](kind).json_schema()


def _or_none(*ways: Callable[[], Any]) -> Any:
    """What the first way gives that gives anything: types of a user's own may have no such form."""
    for way in ways:
        with suppress(Exception):
            return json_ready(way())
    return None
