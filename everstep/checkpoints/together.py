"""What the operations that share a transaction of the writer know of it, and what they leave for its end."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection

_KEY = "everstep.together"


@dataclass(eq=False, slots=True)
class Together:
    """One run of one transaction; should it be run again, that is another.

    Attributes:
        futures: Of the operations that succeed or fail together, in their order.
        moved: Whether one of them changed a job's status so far, so that a claim may be lost.
        topics: Whom the writer wakes once it is committed (`database.notify`).
    """

    futures: Sequence[Future[Any]] = ()
    moved: bool = False
    topics: set[str] = field(default_factory=set[str])


def begin(connection: Connection, futures: Sequence[Future[Any]]) -> Together:
    """The writer's transaction begins; without futures each operation stands or falls alone."""
    connection.info[_KEY] = begun = Together(futures)
    return begun


def of(connection: Connection) -> Together:
    """That of the transaction that is under way."""
    return connection.info.get(_KEY) or Together()
