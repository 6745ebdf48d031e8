"""What a line of the log is about: job, leg, step and span, found where the line is written.

The worker says once for each leg which job it is (`about_leg`); nodes, tools and effects run in copies of that context,
in threads too. Step and node are read from LangGraph's own context, the span from OpenTelemetry's. A thread that a node
starts by itself has an empty context, unless it is given a copy (`contextvars.copy_context().run`).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Final

from everstep.observability.identity import root_span_id, trace_id

FIELDS: Final = ("job", "leg", "attempt", "graph", "step", "node", "worker", "trace_id", "span_id")
"""What a line carries, in this order, as far as it is known."""

_about: ContextVar[Mapping[str, object]] = ContextVar("everstep_log", default=MappingProxyType({}))


@contextmanager
def about_leg(job: str, leg: int, *, graph: str, **known: object) -> Generator[None]:
    """Let every line that is written in this context, and in copies of it, say which leg it is about.

    Args:
        job: The job's public id.
        leg: Which leg of the job it is.
        graph: Name of the graph.
        **known: Others of `FIELDS`.
    """
    ids = {"trace_id": trace_id(job, leg), "span_id": root_span_id(job, leg)}
    token = _about.set({"job": job, "leg": leg, "graph": graph, **ids, **known})
    try:
        yield
    finally:
        _about.reset(token)


def fields() -> dict[str, object]:
    """What a line that is written here is about: those of `FIELDS` that are known."""
    about = _about.get()
    if not about:
        return {}
    known = {**about, **_place(), **_span(about["trace_id"])}
    return {name: known[name] for name in FIELDS if known.get(name) is not None}


class LegFilter(logging.Filter):
    """Puts `FIELDS` on every record, for a program that formats its own log; None where there is nothing to say."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Never drops a line."""
        known = fields()
        for name in FIELDS:
            if name in known or not hasattr(record, name):
                setattr(record, name, known.get(name))
        return True


def _place() -> dict[str, object]:
    """The step and node of LangGraph that run here."""
    runnables = sys.modules.get("langchain_core.runnables.config")  # not loaded: nothing of it runs
    config: Any = None if runnables is None else runnables.var_child_runnable_config.get()
    metadata: Any = config.get("metadata") if config else None
    return {"step": metadata.get("langgraph_step"), "node": metadata.get("langgraph_node")} if metadata else {}


def _span(trace: object) -> dict[str, object]:
    """The span of this trace that is current here; the leg's own stands when there is none."""
    traces = sys.modules.get("opentelemetry.trace")
    if traces is None:
        return {}
    context = traces.get_current_span().get_span_context()
    return {"span_id": f"{context.span_id:016x}"} if f"{context.trace_id:032x}" == trace else {}
