"""What a process has loaded, and the garbage collector: for a process that is a worker's own.

Its full pass looks at every object, and with LangGraph loaded there are some hundred thousands: it takes a tenth of a
second and more, in which no job begins and none steps. What is there once the libraries and the graphs are loaded stays
until the process ends, so the collector is told not to look at it again.
"""

from __future__ import annotations

import gc
from functools import cache
from typing import Literal

YOUNG_OBJECTS = 10_000
"""After how many new objects the young ones are looked through. A hundred agents that step at once hold more of these
than Python's 700 (2,000 since 3.13), so that each pass finds next to nothing to free and takes a fifth of a step."""


@cache
def keep(_since: Literal["start", "first job"]) -> None:
    """Take all that is there now for what stays; once a process for each occasion, because garbage stays as well.

    A collector that somebody has set to look less often, or not at all, is left so.
    """
    gc.freeze()
    if 0 < gc.get_threshold()[0] < YOUNG_OBJECTS:
        gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
