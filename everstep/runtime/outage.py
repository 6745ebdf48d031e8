"""The record cannot be written (disk full, read-only, server away): told once when it begins and once when it is over.

While it lasts the worker claims nothing; what runs goes on as far as it can, and is settled afterwards.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from everstep.errors import StoreUnavailable

logger = logging.getLogger("everstep.worker")

BACKOFF_S = 60.0


class RecordOutage:
    """Whether what a process writes reaches the record. Thread-safe.

    It is over when everything that failed has been written after all, or is no longer tried: a small write may pass
    where a big one does not, and must not call off the alarm.

    Attributes:
        backoff_s: Seconds after a failure in which nothing is claimed.

    Args:
        monotonic: Where seconds come from.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.backoff_s = BACKOFF_S
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._failing: set[str] = set()
        self._since = self._look_at = 0.0

    @property
    def wait_s(self) -> float:
        """Seconds until the record may be tried again; 0 when it may."""
        with self._lock:
            return max(self._look_at - self._monotonic(), 0.0)

    @property
    def is_on(self) -> bool:
        """Whether something could not be written, and still cannot."""
        with self._lock:
            return bool(self._failing)

    def met(self, what: str, error: StoreUnavailable) -> None:
        """`what` could not be written."""
        with self._lock:
            now = self._monotonic()
            first = not self._failing
            self._failing.add(what)
            self._look_at = now + self.backoff_s
            if first:
                self._since = now
        if first:
            logger.error("%s; claiming stops, and is tried again every %.0f s", error, self.backoff_s)

    def passed(self, what: str) -> None:
        """`what` was written, or is no longer tried."""
        with self._lock:
            over = what in self._failing
            self._failing.discard(what)
            if not over or self._failing:
                return
            self._look_at = 0.0
            lasted = self._monotonic() - self._since
        logger.warning("the record can be written again, after %.0f s", lasted)

    def look_again(self) -> None:
        """There is a sign that the record is back: try it without waiting longer."""
        with self._lock:
            self._look_at = 0.0
