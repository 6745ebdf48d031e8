"""What OpenTelemetry's variables say of headers, time limit and compression; what cannot be used is told of once."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final, Literal

from opentelemetry.util.re import parse_env_headers

_logger = logging.getLogger(__name__)

TIMEOUT_S: Final = 10.0
MOST_TIMEOUT_S: Final = 86_400.0
COMPRESSIONS: Final = ("gzip", "deflate", "none")

Signal = Literal["TRACES", "METRICS"]


def variable(signal: Signal, name: str) -> tuple[str, str]:
    """The variable that tells this for a signal, or for all of them, and its value; two empty texts if none is set."""
    for full in (f"OTEL_EXPORTER_OTLP_{signal}_{name}", f"OTEL_EXPORTER_OTLP_{name}"):
        if value := os.environ.get(full, "").strip():
            return full, value
    return "", ""


def timeout_s(signal: Signal) -> float:
    """How long a request may take, seconds."""
    name, value = variable(signal, "TIMEOUT")
    if not name:
        return TIMEOUT_S
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if 0 < seconds <= MOST_TIMEOUT_S:
        return seconds
    _tell(f"{name}={value[:40]} is no number of seconds above 0; {TIMEOUT_S:g} s hold. Next: set {name}=10, say.")
    return TIMEOUT_S


def compression(signal: Signal) -> str:
    """One of `COMPRESSIONS`."""
    name, value = variable(signal, "COMPRESSION")
    if not name or value.lower() in COMPRESSIONS:
        return value.lower() or "none"
    _tell(f"{name}={value[:40]} is not supported; it is sent uncompressed. Next: set {name}=gzip.")
    return "none"


def headers(signal: Signal) -> dict[str, str]:
    """The headers to send. Of an entry that is none its place is told, not its text: that may be a key."""
    name, value = variable(signal, "HEADERS")
    found = dict[str, str]()
    with hushed():
        for place, entry in enumerate(value.split(","), 1):
            parsed = parse_env_headers(entry, liberal=True)
            found |= parsed
            if entry.strip() and not parsed:
                _tell(f"{name}: entry {place} is no name=value and is left out. Next: percent-encode its value.")
    return found


@contextmanager
def hushed() -> Generator[None]:
    """Keep OpenTelemetry from logging the text of headers it cannot read, in this thread."""
    before, _hush.is_on = _hush.is_on, True
    try:
        yield
    finally:
        _hush.is_on = before


class _Hush(threading.local):
    is_on = False

    def passes(self, _entry: logging.LogRecord) -> bool:
        return not self.is_on


_hush = _Hush()
logging.getLogger("opentelemetry.util.re").addFilter(_hush.passes)

_told: set[str] = set()


def _tell(warning: str) -> None:
    """Warn, once in the life of the process: traces and metrics share variables, and are set up more than once."""
    if warning not in _told:
        _told.add(warning)
        _logger.warning("%s", warning)
