"""When a worker cannot start processes for isolated jobs: that is its machine's fault, and no job's.

Before such a process has begun nothing of its job ran, so no number of failed starts says anything of the job. A worker
in which none succeeds any more says so and ends, instead of trying the same jobs for ever.
"""

from __future__ import annotations

import time

from everstep.errors import IsolationImpossible

IN_A_ROW = 3
FOR_S = 60.0
"""How long no process may have begun, seconds: a machine is short of memory for a moment now and then."""


class FailedStarts:
    """Counts the processes that did not begin, since the last one that did."""

    def __init__(self) -> None:
        self._count = 0
        self._since = 0.0

    def after(self, began: bool, failed: str) -> IsolationImpossible | None:
        """A process has ended.

        Args:
            began: Whether it began to run its job: then whatever was wrong is over.
            failed: Why it did not, where it could not.

        Returns:
            What the worker is to end with; None while it may try again.
        """
        if began:
            self._count = 0
        if began or not failed:
            return None
        now = time.monotonic()
        self._since = self._since if self._count else now
        self._count += 1
        if self._count < IN_A_ROW or now - self._since < FOR_S:
            return None
        return IsolationImpossible(
            f"no process for an isolated job began in {now - self._since:.0f} s: {self._count} starts in a row failed;"
            f" the last one {failed}",
            next_step="stderr has what the processes said (a missing module, a changed environment, no memory); mend"
            " that, then start the worker again: its jobs wait, with no attempt counted",
        )
