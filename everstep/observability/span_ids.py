"""Where span ids come from: derived ones for the root of a leg, random ones for all else."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from opentelemetry.sdk.trace.id_generator import IdGenerator


@dataclass(frozen=True)
class _Given:
    trace_id: int
    span_id: int


class SpanIds(IdGenerator):
    """Gives the ids set by `use`, else random ones.

    They come from the operating system: a node that seeds `random` would make the SDK's own generator repeat itself.
    """

    def __init__(self) -> None:
        self._given: ContextVar[_Given | None] = ContextVar("everstep_span_ids", default=None)

    @contextmanager
    def use(self, trace_id: str, span_id: str) -> Generator[None]:
        """Let the span started in this block have these ids (hexadecimal)."""
        token = self._given.set(_Given(int(trace_id, 16), int(span_id, 16)))
        try:
            yield
        finally:
            self._given.reset(token)

    def generate_trace_id(self) -> int:
        given = self._given.get()
        return given.trace_id if given is not None else _random(16)

    def generate_span_id(self) -> int:
        given = self._given.get()
        return given.span_id if given is not None else _random(8)


def _random(size: int) -> int:
    return int.from_bytes(os.urandom(size)) or 1
