"""What LangGraph 1.2 has to be helped with so that any graph runs with `durability="sync"`.

A subgraph compiled with `checkpointer=False` saves nothing, yet at the end of each of its steps LangGraph waits for the
save: `AttributeError: … no attribute '_put_checkpoint_fut'` (seen in 1.2.24; with its default durability it does not
wait). The attribute gets a default that is done already.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from langgraph.pregel import _loop


class _Done:
    """A save that has nothing to do: awaitable, and with the `result` of a finished future."""

    def __await__(self) -> Generator[Any, None, None]:
        yield from ()

    def result(self) -> None:
        """Nothing was saved."""


def apply() -> None:
    """Give both loops the default; harmless to call again, and where LangGraph has one of its own."""
    for loop in (_loop.AsyncPregelLoop, _loop.SyncPregelLoop):
        if not hasattr(loop, "_put_checkpoint_fut"):
            loop._put_checkpoint_fut = _Done()  # pyright: ignore[reportAttributeAccessIssue, reportPrivateUsage]
