"""OpenTelemetry's current span, set where a callback has no `with` block to restore it from.

A callback of an async node starts in one `contextvars` context and ends in a copy of it, where a token of the first
cannot be given back (OpenTelemetry would log "Failed to detach context"). So no tokens: the context before is set
again, and only where our span is still the current one.
"""

from __future__ import annotations

from opentelemetry.context import Context, attach, get_current
from opentelemetry.trace import Span, get_current_span, set_span_in_context


def enter(span: Span) -> Context:
    """Make a span the current one, for instrumentation and logs of other libraries.

    Returns:
        The context before.
    """
    before = get_current()
    attach(set_span_in_context(span, before))
    return before


def leave(span: Span, before: Context) -> None:
    """Bring back the context before, unless another span has become current here."""
    if get_current_span() is span:
        attach(before)


def restore(before: Context) -> None:
    """Bring back the context before, whatever is current here."""
    attach(before)
