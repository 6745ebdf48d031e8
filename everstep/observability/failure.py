"""What a failing span says: type and message, a bounded stack trace, and which exceptions are no failure at all."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from langgraph.errors import GraphBubbleUp

from everstep.credentials import LONGEST_TEXT, without_secrets
from everstep.observability import exception_chain, frames, names
from everstep.observability.attributes import STACK_LIMIT, STATUS_LIMIT, bounded


@dataclass(frozen=True)
class Failure:
    """An exception as a span tells it.

    Attributes:
        kind: The class, with its module unless it is a builtin: few distinct values, fit for grouping.
        message: The exception's own text, bounded.
        description: `Type: message`, what a person reads first.
        stack: It and those that led to it or that it groups, each with the places in the user's own code, where any
            has one (`exception_chain.told`); at most 8 KiB.
        whole_stack: The traceback as Python writes it, at most 8 KiB; too long a one without frames in libraries.
    """

    kind: str
    message: str
    description: str
    stack: str = ""
    whole_stack: str = ""

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
            names.EXCEPTION_STACKTRACE: self.whole_stack,
        }

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Describe an exception, without credentials; one whose text cannot be had is described without it."""
        name = type(error).__name__
        try:
            message = without_secrets(bounded(str(error), LONGEST_TEXT))
        except Exception:
            message = "(the exception has no readable text)"
        stacks: list[str] = []
        for write in (exception_chain.told, _whole):
            try:
                stacks.append(bounded(without_secrets(bounded(write(error), LONGEST_TEXT)), STACK_LIMIT))
            except Exception:
                stacks.append("")
        return cls(
            kind=exception_chain.kind_of(error),
            message=bounded(message, STATUS_LIMIT),
            description=bounded(f"{name}: {message}" if message else name, STATUS_LIMIT),
            stack=stacks[0],
            whole_stack=stacks[1],
        )

    def because(self, reason: str) -> Failure:
        """The failure with the reason of what is done about it in its description; see `explained`."""
        return replace(self, description=explained(self.description, self.kind, reason))


def explained(description: str, kind: str, reason: str) -> str:
    """What failed and what is done about it, in one sentence, as a leg's span and `everstep trace` say it.

    Args:
        description: `Type: message`.
        kind: The exception's class, with its module.
        reason: Why the job was settled as it was, as its history has it.
    """
    said = without_secrets(bounded(reason.removeprefix(f"{kind}: "), STATUS_LIMIT))
    return bounded(f"{description} ({said})" if said and said not in description else description, STATUS_LIMIT)


def _whole(error: BaseException) -> str:
    return frames.python_s(error, STACK_LIMIT)


def is_failure(error: BaseException) -> bool:
    """Whether an exception means that something went wrong.

    LangGraph steers by exceptions: an interrupt, a command to the parent graph and a drain are `GraphBubbleUp`. A
    cancelled task was stopped from outside (a sibling failed, the lease was lost): the cause is told where it happened.
    """
    return not isinstance(error, GraphBubbleUp | asyncio.CancelledError | GeneratorExit)
