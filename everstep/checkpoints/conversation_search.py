"""Looking for threads: by metadata, values, ids and status, in order and page by page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import ColumnElement, Connection, and_, func, select, true

from everstep.checkpoints.json_filters import contains
from everstep.checkpoints.schema import threads as table
from everstep.checkpoints.thread import Status, Thread, thread_of

SortBy = Literal["thread_id", "status", "created_at", "updated_at", "state_updated_at"]
_SORTED_BY: Mapping[str, Any] = {
    "thread_id": table.c.thread_id,
    "status": table.c.status,
    "created_at": table.c.created_at,
    "updated_at": table.c.updated_at,
    "state_updated_at": func.coalesce(table.c.state_updated_at, table.c.updated_at),
}


@dataclass(frozen=True)
class Wanted:
    """Which threads are looked for.

    Attributes:
        owner: Only this owner's; None: everybody's.
        metadata: Only those whose metadata contain this.
        values: Only those whose state, when their last run stopped, contains this.
        ids: Only these.
        status: Only those of this status.
        passing: Only those whose metadata contain this, too: what the `auth` hook lets pass.
    """

    owner: str | None
    metadata: Mapping[str, Any] | None = None
    values: Mapping[str, Any] | None = None
    ids: Sequence[str] | None = None
    status: Status | None = None
    passing: Mapping[str, Any] | None = None


def search(
    connection: Connection,
    wanted: Wanted,
    *,
    limit: int,
    offset: int,
    sort_by: SortBy,
    ascending: bool,
    with_values: bool = True,
) -> list[Thread]:
    """Some of the threads that are looked for.

    Args:
        connection: A snapshot.
        wanted: Which.
        limit: Most of them.
        offset: How many are passed over.
        sort_by: What they are in the order of; of equal ones the younger come first.
        ascending: The least first.
        with_values: Whether their state is read.

    Raises:
        RequestInvalid: The metadata or values cannot be looked for.
    """
    columns = [column for column in table.c if with_values or column.name != "values_json"]
    key = _SORTED_BY[sort_by]
    query = select(*columns).where(_matching(connection, wanted)).limit(limit).offset(offset)
    query = query.order_by(key.asc() if ascending else key.desc(), table.c.id.desc())
    return [thread_of(row) for row in connection.execute(query).mappings()]


def count(connection: Connection, wanted: Wanted) -> int:
    """How many threads there are of those that are looked for.

    Raises:
        RequestInvalid: The metadata or values cannot be looked for.
    """
    query = select(func.count()).select_from(table).where(_matching(connection, wanted))
    return connection.execute(query).scalar_one()


def _matching(connection: Connection, wanted: Wanted) -> ColumnElement[bool]:
    dialect = connection.dialect.name
    conditions: list[ColumnElement[bool]] = [true()]
    if wanted.owner is not None:
        conditions.append(table.c.owner == wanted.owner)
    if wanted.status is not None:
        conditions.append(table.c.status == wanted.status)
    if wanted.ids is not None:
        conditions.append(table.c.thread_id.in_([one.lower() for one in wanted.ids]))
    for metadata in (wanted.metadata, wanted.passing):
        if metadata:
            conditions.append(contains(table.c.metadata_json, metadata, dialect))
    if wanted.values:
        conditions += [table.c.values_json.is_not(None), contains(table.c.values_json, wanted.values, dialect)]
    return and_(*conditions)


def of_assistant(connection: Connection, assistant_id: str, *, owner: str | None) -> list[Thread]:
    """The threads that an assistant ran last, of those that the owner sees; None sees all."""
    query = select(*(each for each in table.c if each.name != "values_json"))
    query = query.where(table.c.assistant_id == assistant_id, _matching(connection, Wanted(owner)))
    return [thread_of(row) for row in connection.execute(query.order_by(table.c.id)).mappings()]
