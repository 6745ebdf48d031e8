"""Crash points by name: where a test, a demo or `crash-test` kills this very process with SIGKILL.

`EVERSTEP_CRASH_AT="effect.called@2"` kills the process the second time it passes the point `effect.called`; a point may
carry a
subject: `effect.called:git.push`. Without the variable, and without an observer, a point costs two comparisons.

Points, in the order of a job's life: `job.claimed`, `checkpoint.before_put`, `checkpoint.after_put`,
`writes.after_put`, `effect.intended`, `effect.called` (its function returned) or `effect.raised`,
`effect.confirmed`; of a job with an acceptance, when its graph
has finished, `acceptance.before` and `acceptance.verified`; `job.before_settle`, `job.settled`; and
`dead_letter.sent`, when the webhook took the message that a job failed. Of a webhook `webhook.sent`, when it took a
message; of a trigger `trigger.stored` and `trigger.handled`, when its event was; of a provider
`provider.polled`, when it answered how a task is, and `provider.told`, when it sent an event that is genuine, and
nothing of that is stored. The workers of `everstep crash-test`
have two more: `node.finished`, when a node's body has ended and nothing of it is stored, and `effect.touched`, when an
effect's function has touched the world and not ended.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from threading import Lock
from typing import Any

VARIABLE = "EVERSTEP_CRASH_AT"

Observer = Callable[[str, str, Any], None]

_armed = os.environ.get(VARIABLE)
_observer: Observer | None = None
_passed = 0
_lock = Lock()


def arm(where: str | None) -> None:
    """Crash at another point than the environment said when this process started; None: nowhere."""
    global _armed, _passed
    _armed, _passed = where, 0


def armed(name: str) -> bool:
    """Whether this process may die at the point of this name: then what comes before it must be as the name says."""
    return _armed is not None and _armed.startswith(name)


def observe(observer: Observer | None) -> None:
    """Tell of every point that is passed, before the process may die there: its name, its subject, what it is about."""
    global _observer
    _observer = observer


def point(name: str, subject: str = "", about: Any = None) -> None:
    """Die here with SIGKILL if this point, for the n-th time, is where the environment says to.

    Args:
        name: The point's name.
        subject: What is being done there (an effect's or graph's name); matched when the variable names one.
        about: The thing itself, for an observer.
    """
    if _armed is None and _observer is None:
        return
    if _observer is not None:
        _observer(name, subject, about)
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
