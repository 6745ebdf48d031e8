"""Reads that many ask for at the same moment, such as the clients a commit woke: some of them in one go.

A look at the record from the event loop costs a way to a thread and back and a connection, which is more than what a
stream then reads. So whoever asks while all goes are taken is read with the next, by one connection and one snapshot,
that begins after it asked.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar, cast

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from everstep.checkpoints.store import Store

T = TypeVar("T")
MOST = 32
"""Reads of one go: what comes first is told while the next are read."""
GOES = 2
"""So many goes at once: one reads while what the other found is told."""


class SharedReads:
    """Reads for those who wait in one event loop.

    Args:
        store: The record.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._asked: deque[tuple[Callable[[Connection], Any], asyncio.Future[Any]]] = deque()
        self._goes: set[asyncio.Task[None]] = set()

    async def read(self, query: Callable[[Connection], T]) -> T:
        """Run a query on a snapshot that begins from now on.

        Args:
            query: Reads, and changes nothing.

        Raises:
            StoreUnavailable: The record cannot be read.
            EverstepError: What the query raised.
        """
        found: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._asked.append((query, found))
        if len(self._goes) < GOES:
            self._goes.add(asyncio.create_task(self._read_on()))
        return await found

    async def _read_on(self) -> None:
        try:
            await self._read_all()
        finally:  # in the turn in which it found nothing more: who asks in the next needs a go of its own
            self._goes.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    async def _read_all(self) -> None:
        while self._asked:
            asked = [self._asked.popleft() for _ in range(min(MOST, len(self._asked)))]
            asked = [each for each in asked if not each[1].done()]  # whoever is gone is not read for
            queries = [query for query, _ in asked]
            try:
                outcomes = await self._store.aread(lambda connection, queries=queries: _outcomes(connection, queries))
            except Exception as error:
                outcomes = [(None, error)] * len(asked)
            for (_, found), (value, error) in zip(asked, outcomes, strict=True):
                if found.done():
                    continue
                if error is None:
                    found.set_result(value)
                else:
                    found.set_exception(error)


def _outcomes(connection: Connection, queries: list[Callable[[Connection], Any]]) -> list[tuple[Any, Exception | None]]:
    """What each query came to; a database that fails fails all of them."""
    outcomes: list[tuple[Any, Exception | None]] = []
    for query in queries:
        try:
            outcomes.append((query(connection), None))
        except DBAPIError:
            raise
        except Exception as error:
            outcomes.append((None, error))
    return outcomes
