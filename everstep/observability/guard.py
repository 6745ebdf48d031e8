"""The rule that telemetry never harms a run: whatever goes wrong in here is told once and swallowed."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import ParamSpec

_logger = logging.getLogger(__name__)
_told: set[str] = set()

Parameters = ParamSpec("Parameters")


def harmless(function: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """Keep the function's exceptions from its caller; the first of each function is logged as a warning."""

    @functools.wraps(function)
    def guarded(*arguments: Parameters.args, **named: Parameters.kwargs) -> None:
        try:
            function(*arguments, **named)
        except Exception:
            first = function.__qualname__ not in _told
            _told.add(function.__qualname__)
            level = logging.WARNING if first else logging.DEBUG
            _logger.log(
                level, "Tracing failed in %s; the run goes on without this span.", function.__qualname__, exc_info=True
            )

    return guarded
