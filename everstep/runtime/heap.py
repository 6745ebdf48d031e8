"""What a process has loaded, and the garbage collector.

Its full pass looks at every object, and with LangGraph loaded there are some hundred thousands: it takes a tenth of a
second and more, in which no job begins and none steps. What is there once the libraries and the graphs are loaded stays
until the process ends, so the collector is told not to look at it again.
"""

from __future__ import annotations

import gc
from functools import cache
from typing import Literal


@cache
def keep(_since: Literal["start", "first job"]) -> None:
    """Take all that is there now for what stays; once a process for each occasion, because garbage stays as well."""
    gc.freeze()
