"""Paths of the key-value store that graphs and clients share; each owner has one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from langgraph.store.base import (
    NOT_PROVIDED,
    GetOp,
    InvalidNamespaceError,
    Item,
    ListNamespacesOp,
    MatchCondition,
    PutOp,
    SearchItem,
    SearchOp,
)
from pydantic import Field

from everstep.checkpoints import payload
from everstep.checkpoints.items import OwnedItems
from everstep.checkpoints.json_filters import check_storable
from everstep.errors import RequestInvalid
from everstep.server import access
from everstep.server.bodies import JsonRoute, apart
from everstep.server.context import CalledBy, Caller, Served, ServedBy
from everstep.server.langgraph.body import Body, Limit, Offset

router = APIRouter(prefix="/store", tags=["store"], route_class=JsonRoute)

MOST_LABELS, LONGEST_LABEL, LONGEST_KEY = 100, 1000, 4000
MOST_MINUTES = 60 * 24 * 366 * 100
Label = Annotated[str, Field(max_length=LONGEST_LABEL)]
Namespace = Annotated[list[Label], Field(max_length=MOST_LABELS)]
Key = Annotated[str, Field(min_length=1, max_length=LONGEST_KEY)]


class ItemPut(Body):
    """An item."""

    namespace: Namespace
    key: Key
    value: dict[str, Any]
    index: Literal[False] | list[str] | None = None
    ttl: Annotated[float, Field(gt=0, le=MOST_MINUTES)] | None = None


class ItemNamed(Body):
    """Which item."""

    namespace: Namespace
    key: Key


class ItemSearch(Body):
    """Which items are wanted."""

    namespace_prefix: Namespace
    filter: dict[str, Any] | None = None
    limit: Limit = 10
    offset: Offset = 0
    query: str | None = None
    refresh_ttl: bool | None = None


class NamespaceSearch(Body):
    """Which namespaces are wanted."""

    prefix: Namespace | None = None
    suffix: Namespace | None = None
    max_depth: Annotated[int, Field(ge=1, le=MOST_LABELS)] | None = None
    limit: Limit = 100
    offset: Offset = 0


@router.put("/items", status_code=204)
async def put(body: ItemPut, request: Request, served: ServedBy, caller: CalledBy) -> None:
    """Store an item in place of the one with its namespace and key, if there is one."""
    asked = body.model_dump()
    await access.allow(request, "store", "put", asked)
    await apart(payload.check_payload, asked["value"])
    await apart(check_storable, asked["value"], "value")
    items = _items(served, caller)
    try:
        ttl: Any = NOT_PROVIDED if body.ttl is None else body.ttl
        await items.aput(_checked(asked["namespace"]), asked["key"], asked["value"], index=body.index, ttl=ttl)
    except InvalidNamespaceError as error:
        raise RequestInvalid(f"namespace: {error}", field="namespace") from error
    except TypeError as error:  # a number of more than 64 bits
        raise RequestInvalid(f"value: {error}", field="value") from error


@router.get("/items")
async def get(
    request: Request,
    served: ServedBy,
    caller: CalledBy,
    key: Key,
    namespace: str = "",
    refresh_ttl: bool | None = None,
) -> dict[str, Any] | None:
    """An item, its namespace as labels with dots between; null, if there is none."""
    asked: dict[str, Any] = {"namespace": namespace.split(".") if namespace else [], "key": key}
    await access.allow(request, "store", "get", asked)
    items = _items(served, caller)
    refresh = items.refreshes if refresh_ttl is None else refresh_ttl
    (found,) = await items.abatch([GetOp(_checked(asked["namespace"]), asked["key"], refresh)])
    return _view(found) if isinstance(found, Item) else None


@router.delete("/items", status_code=204)
async def remove(body: ItemNamed, request: Request, served: ServedBy, caller: CalledBy) -> None:
    """Delete an item, if there is one."""
    asked = body.model_dump()
    await access.allow(request, "store", "delete", asked)
    await _items(served, caller).abatch([PutOp(_checked(asked["namespace"]), asked["key"], None)])


@router.post("/items/search")
async def search(body: ItemSearch, request: Request, served: ServedBy, caller: CalledBy) -> dict[str, Any]:
    """Items below a namespace: those whose values pass a filter, and by meaning, if the store has an index."""
    asked: dict[str, Any] = {**body.model_dump(), "namespace": body.namespace_prefix}
    await access.allow(request, "store", "search", asked)
    items = _items(served, caller)
    if body.query is not None and not items.embeds:
        raise RequestInvalid(
            "query needs an index, and this store has none",
            next_step='set "store": {"index": {"dims": …, "embed": …}} in langgraph.json',
            field="query",
        )
    wanted = SearchOp(
        _checked(asked["namespace"]),
        filter=asked["filter"],
        limit=body.limit,
        offset=body.offset,
        query=body.query,
        refresh_ttl=items.refreshes if body.refresh_ttl is None else body.refresh_ttl,
    )
    check_storable(asked["filter"], "filter")
    try:
        found: Any = (await items.abatch([wanted]))[0]
    except ValueError as error:  # an operator or key that the stock store does not know
        raise RequestInvalid(f"filter: {error}", field="filter") from error
    return {"items": [_view(one) for one in found]}


@router.post("/namespaces")
async def namespaces(body: NamespaceSearch, request: Request, served: ServedBy, caller: CalledBy) -> dict[str, Any]:
    """The namespaces that have items; `*` in a prefix or suffix stands for any label."""
    asked: dict[str, Any] = {**body.model_dump(), "namespace": body.prefix}
    await access.allow(request, "store", "list_namespaces", asked)
    conditions: list[MatchCondition] = []
    if asked["namespace"]:
        conditions.append(MatchCondition("prefix", _checked(asked["namespace"])))
    if body.suffix:
        conditions.append(MatchCondition("suffix", _checked(body.suffix)))
    wanted = ListNamespacesOp(tuple(conditions), max_depth=body.max_depth, limit=body.limit, offset=body.offset)
    found: Any = (await _items(served, caller).abatch([wanted]))[0]
    return {"namespaces": [list(one) for one in found]}


def _items(served: Served, caller: Caller) -> OwnedItems:
    return served.graphs.items_of(served.store, caller.makes_for)


def _checked(labels: Sequence[str]) -> tuple[str, ...]:
    for label in labels:
        if "." in label or not label or "\0" in label:
            raise RequestInvalid(
                f"the namespace's label {label[:80]!r} is empty, or has a dot or a NUL character", field="namespace"
            )
    return tuple(labels)


def _view(item: Item) -> dict[str, Any]:
    view: dict[str, Any] = {
        "namespace": list(item.namespace),
        "key": item.key,
        "value": item.value,
        "created_at": item.created_at.isoformat(),
        "updated_at": item.updated_at.isoformat(),
    }
    return {**view, "score": item.score} if isinstance(item, SearchItem) else view
