"""The key-value store of graphs (`runtime.store`): LangGraph's own, in the record, written by its single writer.

The stock stores of the two databases make all SQL; their tables are their own. What they would write is recorded and
run in the writer's transaction, with the check of the claim where a run writes: so items share the fsync of the steps
beside them, never wait for a lock that a step holds, and change nothing once the claim is lost.

Each owner has a store of its own: the owner's name is the first label of every namespace in the tables, and is not seen
outside.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import quote

from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
)
from sqlalchemy import Connection

from everstep.checkpoints import claims, jobs
from everstep.checkpoints.fence import Fence
from everstep.checkpoints.recorder import Statement

if TYPE_CHECKING:
    from everstep.checkpoints.store import Store


class ItemTables(Protocol):
    """The tables of items in a database.

    Attributes:
        ttl_config: How long items are kept.
        embeds: Whether items can be found by meaning.
    """

    ttl_config: TTLConfig | None
    embeds: bool

    def look_up(self, ops: Sequence[Op]) -> tuple[list[Result], list[Statement]]:
        """What is read, and what is to be written because of it: times to live that begin anew."""
        ...

    def statements(self, ops: Sequence[PutOp]) -> list[Statement]:
        """What is to be written."""
        ...

    def close(self) -> None:
        """Close its connections."""
        ...


class OwnedItems(BaseStore):
    """An owner's items, for one run of a graph or for a client.

    Args:
        store: The record.
        tables: Its tables of items.
        owner: Whose items.
        fence: The claim to write under; none outside of runs.
    """

    supports_ttl = True

    def __init__(self, store: Store, tables: ItemTables, owner: str, fence: Fence | None = None) -> None:
        self._store = store
        self._tables = tables
        self._fence = fence
        self._owner = quote(owner, safe="@+=, ").replace(".", "%2E")
        self.ttl_config = tables.ttl_config

    @property
    def refreshes(self) -> bool:
        """Whether a read lets an item's time to live begin anew, unless it says otherwise."""
        return bool(self.ttl_config and self.ttl_config.get("refresh_on_read", True))

    @property
    def embeds(self) -> bool:
        """Whether items can be found by meaning."""
        return self._tables.embeds

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Read and write; returns when what is written is durable.

        Raises:
            LostClaim: The run's claim is no longer its job's; nothing was written.
        """
        asked = [self._scoped(op) for op in ops]
        found, written = self._prepared(asked)
        if written:
            self._write(written).result()
        return found

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """As `batch`, without blocking the event loop."""
        import asyncio

        asked = [self._scoped(op) for op in ops]
        if self._tables.embeds:  # asks a provider, for which the record's own threads are too few
            found, written = await asyncio.to_thread(self._prepared, asked)
        elif all(isinstance(op, PutOp) for op in asked):
            found, written = self._prepared(asked)
        else:
            found, written = await self._store.in_thread(self._prepared, asked)
        if written:
            await asyncio.wrap_future(self._write(written))
        return found

    def _prepared(self, ops: Sequence[Op]) -> tuple[list[Result], list[Statement]]:
        """What is read now, and what is to be written."""
        results: list[Result] = [None] * len(ops)
        reads = [index for index, op in enumerate(ops) if not isinstance(op, PutOp)]
        if reads:
            found, refreshed = self._tables.look_up([ops[index] for index in reads])
            for index, one in zip(reads, found, strict=True):
                results[index] = self._unscoped(one)
            if refreshed:
                self._store.write(_running(refreshed), patient=True)
        puts = [op for op in ops if isinstance(op, PutOp)]
        return results, self._tables.statements(puts) if puts else []

    def _write(self, statements: Sequence[Statement]) -> Future[None]:
        fence, run = self._fence, _running(statements)
        if fence is None:
            return self._store.write(run)
        if fence.blocked is not None:
            fence.refused(fence.blocked)
            raise fence.blocked

        def fenced(connection: Connection) -> None:
            try:
                claims.fence(connection, fence.job_id, fence.claim_no)
            except jobs.LostClaim as lost:
                fence.refused(lost)
                fence.block(lost)
                raise
            run(connection)

        return fence.write(fenced)

    def _scoped(self, op: Op) -> Op:
        if isinstance(op, (GetOp, PutOp)):
            return op._replace(namespace=(self._owner, *op.namespace))
        if isinstance(op, SearchOp):
            return op._replace(namespace_prefix=(self._owner, *op.namespace_prefix))
        wanted = op.match_conditions or ()
        prefixes = [one for one in wanted if one.match_type == "prefix"]
        others = [one for one in wanted if one.match_type != "prefix"]
        scoped = [MatchCondition("prefix", (self._owner, *cast("tuple[Any, ...]", one.path))) for one in prefixes]
        mine = scoped or [MatchCondition("prefix", (self._owner,))]
        depth = None if op.max_depth is None else op.max_depth + 1
        return op._replace(match_conditions=(*mine, *others), max_depth=depth)

    def _unscoped(self, result: Result) -> Result:
        if isinstance(result, Item):
            return _without_owner(result)
        if isinstance(result, list):
            listed = cast("list[Any]", result)
            return cast(Result, [_without_owner(one) if isinstance(one, Item) else tuple(one)[1:] for one in listed])
        return result


def _running(statements: Sequence[Statement]) -> Any:
    def run(connection: Connection) -> None:
        for sql, parameters in statements:
            connection.exec_driver_sql(sql, parameters)

    return run


def _without_owner(item: Item) -> Item:
    known: dict[str, Any] = {
        "namespace": tuple(item.namespace)[1:],
        "key": item.key,
        "value": item.value,
        "created_at": item.created_at,
        "updated_at": item.updated_at,
    }
    return SearchItem(**known, score=item.score) if isinstance(item, SearchItem) else Item(**known)
