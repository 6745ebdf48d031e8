"""`Recorder`: keeps what LangGraph's saver wants to run, for the record's writer to run it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig

Statement = tuple[str, Any]
"""SQL, and its parameters: a tuple, or a list of tuples to run it once for each."""
Place = tuple[str, str]
"""A thread and a namespace in it."""


def place_of(config: RunnableConfig) -> Place:
    """Where a config points."""
    configurable = config.get("configurable", {})
    return str(configurable["thread_id"]), str(configurable.get("checkpoint_ns", ""))


class Recorder:
    """Stands in for the stock saver's cursor and keeps what it wants to run."""

    def __init__(self) -> None:
        self.statements: list[Statement] = []

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        """Keep a statement."""
        self.statements.append((sql, tuple(parameters)))

    def executemany(self, sql: str, parameters: Sequence[Sequence[Any]]) -> None:
        """Keep a statement that is run for each of the parameters."""
        self.statements.append((sql, [tuple(row) for row in parameters]))


def size_of(statements: Iterable[Statement]) -> int:
    """Bytes of the values that statements store."""
    rows: list[Sequence[Any]] = []
    for _, given in statements:
        rows += given if isinstance(given, list) else [given]
    return sum(len(value) for row in rows for value in row if isinstance(value, bytes))
