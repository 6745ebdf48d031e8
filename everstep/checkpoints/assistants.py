"""Assistants: a graph with a configuration of its own, in versions, as LangGraph's interface has them.

Each graph has one of its own, whose id derives from the graph's name as LangGraph's servers derive it, so that every
server and every start has the same. It belongs to nobody: all see it. A row is a version; one of them is the latest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal
from uuid import UUID, uuid5

from sqlalchemy import ColumnElement, Connection, RowMapping, and_, bindparam, delete, func, or_, select, update

from everstep.checkpoints.database import insert_or_ignore
from everstep.checkpoints.json_filters import check_storable, contains
from everstep.checkpoints.schema import assistants as table
from everstep.checkpoints.statements import Statement
from everstep.clock import rfc3339, uuid7
from everstep.errors import AssistantExists, AssistantNotFound, AssistantProtected

NAMESPACE = UUID("6ba7b821-9dad-11d1-80b4-00c04fd430c8")
"""LangGraph's servers derive the ids of graphs' own assistants from names in this one."""
SYSTEM = "system"
"""The owner of graphs' own assistants."""
SortBy = Literal["assistant_id", "graph_id", "name", "created_at", "updated_at"]
_SORTED_BY = {
    "assistant_id": table.c.assistant_id,
    "graph_id": table.c.graph,
    "name": table.c.name,
    "created_at": table.c.created_at,
    "updated_at": table.c.updated_at,
}
_named = or_(table.c.assistant_id == bindparam("given"), table.c.assistant_id == bindparam("of_graph"))
_resolved = select(table).where(_named, table.c.is_latest == 1)
_RESOLVE = Statement(_resolved)
_RESOLVE_SEEN = Statement(_resolved.where(or_(table.c.owner == bindparam("owner"), table.c.owner == SYSTEM)))
_CHANGEABLE = {one: one for one in ("name", "description", "config", "context")} | {"graph_id": "graph"}


@dataclass(frozen=True)
class Assistant:
    """One version of an assistant.

    Attributes:
        assistant_id: Its id, in all versions.
        version: From 1 on.
        owner: Whose it is; `system`: its graph's and everybody's.
        graph: Name of the graph it runs.
        name: Its name for people.
        config: What a run's config is laid over.
        context: What a run's context is laid over.
        created_at: When the assistant was made, UTC milliseconds.
        updated_at: When this version was, UTC milliseconds.
    """

    assistant_id: str
    version: int
    owner: str
    graph: str
    name: str
    description: str | None
    config: dict[str, Any]
    context: Any
    metadata: dict[str, Any]
    created_at: int
    updated_at: int

    def as_dict(self) -> dict[str, Any]:
        """As LangGraph's clients read it."""
        return {
            "assistant_id": self.assistant_id,
            "graph_id": self.graph,
            "config": self.config,
            "context": self.context,
            "created_at": rfc3339(self.created_at),
            "updated_at": rfc3339(self.updated_at),
            "metadata": self.metadata,
            "version": self.version,
            "name": self.name,
            "description": self.description,
        }


@dataclass(frozen=True)
class Wanted:
    """Which assistants are looked for.

    Attributes:
        owner: Only those that this owner sees; None: everybody's.
        graphs: Only those of these graphs.
        graph: Only those of this graph.
        name: Only those with this in their name, whatever its case.
        metadata: Only those whose metadata contain this.
        passing: Only those whose metadata contain this, too, and graphs' own: what the `auth` hook lets pass.
    """

    owner: str | None
    graphs: Sequence[str]
    graph: str | None = None
    name: str | None = None
    metadata: Mapping[str, Any] | None = None
    passing: Mapping[str, Any] | None = None


def system_id(graph: str) -> str:
    """The id of a graph's own assistant."""
    return str(uuid5(NAMESPACE, graph))


def make_system(connection: Connection, graphs: Iterable[tuple[str, str]], *, now: int) -> None:
    """Make sure that each graph has an assistant of its own; those that are there stay as they are.

    Args:
        connection: The write transaction.
        graphs: Names of graphs, and what is said about them.
        now: UTC milliseconds.
    """
    for graph, description in graphs:
        _insert(
            connection,
            Assistant(
                assistant_id=system_id(graph),
                version=1,
                owner=SYSTEM,
                graph=graph,
                name=graph,
                description=description or None,
                config={},
                context={},
                metadata={"created_by": "system"},
                created_at=now,
                updated_at=now,
            ),
        )


def resolve(connection: Connection, id_or_name: str, *, owner: str | None = None) -> Assistant:
    """The latest version of an assistant, by its id or by the name of its graph.

    Args:
        connection: A snapshot or transaction.
        id_or_name: An assistant's id, or a graph's name for that graph's own assistant.
        owner: Who asks; None sees all.

    Raises:
        AssistantNotFound: There is none that the owner sees.
    """
    asked = {"given": id_or_name.lower(), "of_graph": system_id(id_or_name), "owner": owner}
    found = [_assistant(row) for row in (_RESOLVE if owner is None else _RESOLVE_SEEN).rows(connection, asked)]
    if not found:
        raise AssistantNotFound(
            f"there is no assistant {id_or_name!r}, and no graph of this name",
            next_step="POST /assistants/search lists those there are",
            assistant_id=id_or_name,
        )
    return next((one for one in found if one.assistant_id == id_or_name.lower()), found[0])


def create(
    connection: Connection,
    graph: str,
    *,
    owner: str,
    now: int,
    assistant_id: str | None = None,
    name: str | None = None,
    description: str | None = None,
    config: Mapping[str, Any] | None = None,
    context: Any = None,
    metadata: Mapping[str, Any] | None = None,
    keep_existing: bool = False,
) -> Assistant:
    """Make an assistant.

    Args:
        connection: The write transaction.
        graph: Name of its graph.
        owner: Whose it is.
        now: UTC milliseconds.
        assistant_id: Its id; a new one when omitted.
        name: Its name; `Untitled` when omitted, as on LangGraph's servers.
        description: What it is for.
        config: What a run's config is laid over.
        context: What a run's context is laid over.
        metadata: What it can be found by.
        keep_existing: Answer with the assistant of this id, if there is one.

    Raises:
        AssistantExists: There is one with this id.
        RequestInvalid: Something of it cannot be stored.
    """
    assistant = Assistant(
        assistant_id=(assistant_id or uuid7(now)).lower(),
        version=1,
        owner=owner,
        graph=graph,
        name=name or "Untitled",
        description=description,
        config=dict(config or {}),
        context={} if context is None else context,
        metadata=dict(metadata or {}),
        created_at=now,
        updated_at=now,
    )
    if not _insert(connection, assistant):
        existing = _latest(connection, assistant.assistant_id)
        if existing is None or not keep_existing or existing.owner not in (owner, SYSTEM):
            raise AssistantExists(
                f"there is an assistant {assistant.assistant_id} already",
                next_step='give another id, or "if_exists": "do_nothing"',
                assistant_id=assistant.assistant_id,
            )
        return existing
    return assistant


def change(
    connection: Connection, current: Assistant, changes: Mapping[str, Any], *, now: int, owner: str | None
) -> Assistant:
    """Make a new version, the latest, of an assistant.

    Args:
        connection: The write transaction.
        current: The assistant.
        changes: `graph_id`, `name`, `description`, `config`, `context` take the place of what was there; `metadata` are
            laid over it.
        now: UTC milliseconds.
        owner: Who does it; None may change all.

    Raises:
        AssistantProtected: It is a graph's own, and the owner is not everybody's.
        RequestInvalid: Something of it cannot be stored.
    """
    _require_changeable(current, owner)
    _lock(connection, current.assistant_id)
    newest = select(func.max(table.c.version)).where(table.c.assistant_id == current.assistant_id)
    given: dict[str, Any] = {_CHANGEABLE[name]: value for name, value in changes.items() if name in _CHANGEABLE}
    metadata = {**current.metadata, **changes.get("metadata", {})}
    version = connection.execute(newest).scalar_one() + 1
    changed = replace(current, **given, metadata=metadata, version=version, updated_at=now)
    connection.execute(update(table).where(table.c.assistant_id == current.assistant_id).values(is_latest=0))
    _insert(connection, changed)
    return changed


def set_latest(connection: Connection, current: Assistant, version: int, *, now: int, owner: str | None) -> Assistant:
    """Make a version the latest again.

    Raises:
        AssistantNotFound: There is no such version.
        AssistantProtected: It is a graph's own, and the owner is not everybody's.
    """
    _require_changeable(current, owner)
    _lock(connection, current.assistant_id)
    of_it = table.c.assistant_id == current.assistant_id
    if connection.execute(select(table.c.id).where(of_it, table.c.version == version)).first() is None:
        raise AssistantNotFound(
            f"assistant {current.assistant_id} has no version {version}",
            assistant_id=current.assistant_id,
            version=version,
        )
    connection.execute(update(table).where(of_it).values(is_latest=0))
    changed = {"is_latest": 1, "updated_at": now}
    connection.execute(update(table).where(of_it, table.c.version == version).values(**changed))
    return resolve(connection, current.assistant_id)


def remove(connection: Connection, current: Assistant, *, owner: str | None) -> None:
    """Delete an assistant, in all versions.

    Raises:
        AssistantProtected: It is a graph's own, which each start of a server makes again.
    """
    if current.owner == SYSTEM:
        raise AssistantProtected(
            f"assistant {current.assistant_id} is graph {current.graph!r}'s own and is made at each start",
            next_step="take the graph out of langgraph.json",
            assistant_id=current.assistant_id,
        )
    _require_changeable(current, owner)
    connection.execute(delete(table).where(table.c.assistant_id == current.assistant_id))


def search(
    connection: Connection, wanted: Wanted, *, limit: int, offset: int, sort_by: SortBy, ascending: bool
) -> list[Assistant]:
    """The latest versions of the assistants that are looked for.

    Raises:
        RequestInvalid: The metadata cannot be looked for.
    """
    column: Any = _SORTED_BY[sort_by]
    order = (column.asc(), table.c.id.asc()) if ascending else (column.desc(), table.c.id.desc())
    query = select(table).where(_matching(connection, wanted)).order_by(*order).limit(limit).offset(offset)
    return [_assistant(row) for row in connection.execute(query).mappings()]


def count(connection: Connection, wanted: Wanted) -> int:
    """How many assistants there are of those that are looked for.

    Raises:
        RequestInvalid: The metadata cannot be looked for.
    """
    return connection.execute(select(func.count()).where(_matching(connection, wanted))).scalar_one()


def versions(
    connection: Connection, assistant_id: str, *, metadata: Mapping[str, Any] | None, limit: int, offset: int
) -> list[Assistant]:
    """An assistant's versions, newest first.

    Raises:
        RequestInvalid: The metadata cannot be looked for.
    """
    query = select(table).where(table.c.assistant_id == assistant_id)
    if metadata:
        query = query.where(contains(table.c.metadata_json, metadata, connection.dialect.name))
    query = query.order_by(table.c.version.desc()).limit(limit).offset(offset)
    return [_assistant(row) for row in connection.execute(query).mappings()]


def _matching(connection: Connection, wanted: Wanted) -> ColumnElement[bool]:
    conditions = [table.c.is_latest == 1, _seen_by(wanted.owner), table.c.graph.in_(wanted.graphs)]
    if wanted.graph is not None:
        conditions.append(table.c.graph == wanted.graph)
    if wanted.name:
        conditions.append(func.lower(table.c.name).contains(wanted.name.lower(), autoescape=True))
    dialect = connection.dialect.name
    if wanted.metadata:
        conditions.append(contains(table.c.metadata_json, wanted.metadata, dialect))
    if wanted.passing:
        conditions.append(or_(table.c.owner == SYSTEM, contains(table.c.metadata_json, wanted.passing, dialect)))
    return and_(*conditions)


def _seen_by(owner: str | None) -> ColumnElement[bool]:
    return table.c.owner.in_((owner, SYSTEM)) if owner is not None else table.c.owner.is_not(None)


def _require_changeable(current: Assistant, owner: str | None) -> None:
    if current.owner == SYSTEM and owner is not None:
        raise AssistantProtected(
            f"assistant {current.assistant_id} is graph {current.graph!r}'s own; it is everybody's",
            next_step="make one of your own: POST /assistants",
            assistant_id=current.assistant_id,
        )


def _lock(connection: Connection, assistant_id: str) -> None:
    """Of two who change an assistant at once, the second sees what the first did."""
    connection.execute(select(table.c.id).where(table.c.assistant_id == assistant_id).with_for_update())


def _latest(connection: Connection, assistant_id: str) -> Assistant | None:
    query = select(table).where(table.c.assistant_id == assistant_id, table.c.is_latest == 1)
    row = connection.execute(query).mappings().first()
    return None if row is None else _assistant(row)


def _insert(connection: Connection, assistant: Assistant) -> bool:
    """Whether it was not there yet."""
    for name in ("name", "description", "config", "context", "metadata"):
        check_storable(getattr(assistant, name), name)
    values = {
        name: getattr(assistant, name)
        for name in ("assistant_id", "version", "owner", "graph", "name", "description", "created_at", "updated_at")
    }
    values |= {
        "is_latest": 1,
        "config_json": json.dumps(assistant.config),
        "context_json": json.dumps(assistant.context),
        "metadata_json": json.dumps(assistant.metadata),
    }
    return insert_or_ignore(connection, table, values) is not None


def _assistant(row: Mapping[str, Any] | RowMapping) -> Assistant:
    return Assistant(
        assistant_id=row["assistant_id"],
        version=row["version"],
        owner=row["owner"],
        graph=row["graph"],
        name=row["name"],
        description=row["description"],
        config=json.loads(row["config_json"]),
        context=json.loads(row["context_json"]),
        metadata=json.loads(row["metadata_json"]),
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )
