"""What a failing span says: type and message, a bounded stack trace, and which exceptions are no failure at all."""

from __future__ import annotations

import asyncio
import traceback
from dataclasses import dataclass

from langgraph.errors import GraphBubbleUp

from everstep.credentials import LONGEST_TEXT, without_secrets
from everstep.observability import names
from everstep.observability.attributes import STACK_LIMIT, STATUS_LIMIT, bounded


@dataclass(frozen=True)
class Failure:
    """An exception as a span tells it.

    Attributes:
        kind: The class, with its module unless it is a builtin: few distinct values, fit for grouping.
        message: The exception's own text, bounded.
        description: `Type: message`, what a person reads first.
        stack: The stack trace, at most 8 KiB.
    """

    kind: str
    message: str
    description: str
    stack: str

    @property
    def attributes(self) -> dict[str, str]:
        """What it says on the span."""
        return {names.ERROR_TYPE: self.kind, names.observation_metadata("stacktrace"): self.stack}

    @property
    def event(self) -> dict[str, str]:
        """What its event says."""
        return {
            names.EXCEPTION_TYPE: self.kind,
            names.EXCEPTION_MESSAGE: self.message,
            names.EXCEPTION_STACKTRACE: self.stack,
        }

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Describe an exception, without credentials; one whose text cannot be had is described without it."""
        kind = type(error)
        name = kind.__name__
        try:
            message = without_secrets(bounded(str(error), LONGEST_TEXT))
        except Exception:
            message = "(the exception has no readable text)"
        try:
            stack = without_secrets(bounded("".join(traceback.format_exception(error)), LONGEST_TEXT))
        except Exception:
            stack = ""
        return cls(
            kind=name if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}",
            message=bounded(message, STATUS_LIMIT),
            description=bounded(f"{name}: {message}" if message else name, STATUS_LIMIT),
            stack=bounded(stack, STACK_LIMIT),
        )


def is_failure(error: BaseException) -> bool:
    """Whether an exception means that something went wrong.

    LangGraph steers by exceptions: an interrupt, a command to the parent graph and a drain are `GraphBubbleUp`. A
    cancelled task was stopped from outside (a sibling failed, the lease was lost): the cause is told where it happened.
    """
    return not isinstance(error, GraphBubbleUp | asyncio.CancelledError | GeneratorExit)
