"""`Fence`: what a saver asks of the claim that it writes under."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection

from everstep.observability.measures import Measures

T = TypeVar("T")


class Fence(Protocol):
    """The claim a saver writes under."""

    job_id: int
    claim_no: int

    @property
    def blocked(self) -> BaseException | None:
        """Why this run must not write any more, if it must not."""
        ...

    def block(self, reason: BaseException) -> None:
        """Refuse every later write."""
        ...

    def end_task(self, task_id: str) -> None:
        """A task's output is about to be stored; raises if something it began is still under way."""
        ...

    def write(
        self,
        operation: Callable[[Connection], T],
        *,
        patient: bool = False,
        task_id: str | None = None,
        graph_ns: str | None = None,
    ) -> Future[T]:
        """Queue a write of this run, and what goes along with it (see `SpanWriter.submit`)."""
        ...

    def refused(self, reason: BaseException) -> None:
        """A write was refused."""
        ...

    @property
    def measures(self) -> Measures:
        """What the process measures."""
        ...

    @property
    def graph(self) -> str:
        """Name of the job's graph, for measures."""
        ...

    @property
    def progress(self) -> Callable[[], dict[str, Any]]:
        """Further columns of the job to keep current with each step."""
        ...

    @property
    def stepped(self) -> Callable[[Connection], None]:
        """Told of each checkpoint in its transaction."""
        ...

    @property
    def committed(self) -> Callable[[str, str], None]:
        """Told of each checkpoint that is stored: its id and namespace."""
        ...
