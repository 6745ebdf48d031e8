"""Crash points by name: where a test, a demo or `crash-test` kills this very process with SIGKILL.

`EVERSTEP_CRASH_AT="effect.called@2"` kills the process the second time it passes the point `effect.called`; a point may
carry a
subject: `effect.called:git.push`. Without the variable a point costs one comparison.

Points, in the order of a job's life: `job.claimed`, `checkpoint.before_put`, `checkpoint.after_put`,
`writes.after_put`, `effect.intended`, `effect.called`, `effect.confirmed`, `job.before_settle`, `job.settled`.
"""

from __future__ import annotations

import os
import signal
from threading import Lock

VARIABLE = "EVERSTEP_CRASH_AT"

_armed = os.environ.get(VARIABLE)
_passed = 0
_lock = Lock()


def arm(where: str | None) -> None:
    """Crash at another point than the environment said when this process started; None: nowhere."""
    global _armed, _passed
    _armed, _passed = where, 0


def point(name: str, subject: str = "") -> None:
    """Die here with SIGKILL if this point, for the n-th time, is where the environment says to.

    Args:
        name: The point's name.
        subject: What is being done there (an effect's or graph's name); matched when the variable names one.
    """
    if _armed is None:
        return
    wanted, _, count = _armed.partition("@")
    if wanted not in (name, f"{name}:{subject}"):
        return
    global _passed
    with _lock:
        _passed += 1
        if _passed == int(count or 1):
            os.kill(os.getpid(), signal.SIGKILL)
