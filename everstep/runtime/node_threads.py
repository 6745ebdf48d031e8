"""The threads sync nodes run in."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from everstep.errors import NodeExited
from everstep.nodes.effect_life import in_thread

P = ParamSpec("P")
T = TypeVar("T")


class NodeThreads(ThreadPoolExecutor):
    """Threads for sync nodes; a node that calls `sys.exit()` in one has failed, and ends nothing but itself."""

    def __init__(self, most: int) -> None:
        super().__init__(most, thread_name_prefix="everstep-node")
        self._at_work: set[int] = set()

    @property
    def busy(self) -> int:
        """How many of them a node occupies."""
        return len(self._at_work)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """As in the base class."""

        def contained() -> T:
            try:
                self._at_work.add(threading.get_ident())
                return fn(*args, **kwargs)
            except (SystemExit, KeyboardInterrupt) as error:
                raise NodeExited(
                    f"a node raised {type(error).__name__} ({error})", next_step="raise an ordinary error instead"
                ) from error
            finally:
                self._at_work.discard(threading.get_ident())

        work = super().submit(contained)
        in_thread(work)
        return work

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As in the base class, but a node that does not end is not waited for: its job was settled without it."""
        super().shutdown(wait=wait and not self.busy, cancel_futures=cancel_futures)
