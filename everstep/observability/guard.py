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
            swallowed(function.__qualname__)

    return guarded


def swallowed(where: str) -> None:
    """Tell of the exception that is being handled; for what runs in every step, where a wrapper would cost too much.

    Args:
        where: The function's name.
    """
    level = logging.DEBUG if where in _told else logging.WARNING
    _told.add(where)
    _logger.log(level, "Tracing failed in %s; the run goes on without this span.", where, exc_info=True)
