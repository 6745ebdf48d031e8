"""Items in PostgreSQL: LangGraph's `PostgresStore` makes the SQL and reads; what is put goes through the writer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import psycopg
from langgraph.store.base import Op, PutOp, Result, TTLConfig
from langgraph.store.postgres import PostgresStore
from langgraph.store.postgres.base import PostgresIndexConfig
from psycopg.types.json import Jsonb

from everstep.checkpoints.postgres import Postgres
from everstep.checkpoints.recorder import Recorder, Statement
from everstep.errors import ConfigInvalid

if TYPE_CHECKING:
    from everstep.checkpoints.store import Store


class _Recorder(Recorder):
    """Keeps JSON as the text it is now, not as the object it may become."""

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        super().execute(sql, [json.dumps(one.obj) if isinstance(one, Jsonb) else one for one in parameters])


class PostgresItems(PostgresStore):
    """See `ItemTables`.

    Args:
        store: The record.
        index: By what items are found by meaning.
        ttl: How long they are kept.

    Raises:
        ConfigInvalid: Vectors are wanted, and the database has none.
    """

    def __init__(self, store: Store, index: PostgresIndexConfig | None, ttl: TTLConfig | None) -> None:
        database = store.database
        if not isinstance(database, Postgres):
            raise TypeError(f"{database.label} is no PostgreSQL database")
        self._record = store
        self._pool = database.item_pool()
        super().__init__(self._pool, index=index, ttl=ttl)
        self.embeds = index is not None
        if self.embeds:
            try:
                database.alone(self.setup)
            except psycopg.Error as error:
                self._pool.close()
                raise ConfigInvalid(
                    f"store.index: the database cannot compare vectors: {str(error).splitlines()[0]}",
                    next_step="install the extension vector (pgvector) there, or leave store.index out",
                ) from error

    def look_up(self, ops: Sequence[Op]) -> tuple[list[Result], list[Statement]]:
        """See `ItemTables`. Times to live begin anew in the statements that read."""
        try:
            return self.batch(ops), []
        except psycopg.Error as error:
            raise self._record.database.translate(error) from error

    def statements(self, ops: Sequence[PutOp]) -> list[Statement]:
        """See `ItemTables`."""
        recorder: Any = _Recorder()
        self._batch_put_ops([*enumerate(ops)], recorder)
        return recorder.statements

    def close(self) -> None:
        """See `ItemTables`."""
        self._pool.close()
