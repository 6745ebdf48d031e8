"""Paid work of a provider, as nodes ask for it: submitted once, observed for as long as it takes, settled once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from everstep.nodes.providers.interface import Provider, Submitted

if TYPE_CHECKING:
    from everstep.checkpoints.quote import Quote

__all__ = [
    "Provider",
    "Submitted",
    "TaskView",
    "cancel_task",
    "cancel_task_sync",
    "observe_task",
    "observe_task_sync",
    "submit_task",
    "submit_task_sync",
]


class TaskView(TypedDict):
    """A task as graphs and people see it; JSON, so it may stand in a graph's state.

    Attributes:
        id: Its id; `observe_task` takes it, or all of this.
        provider: The provider's name.
        key: The submission's key.
        generation: Which try of the submission it is, from 1.
        state: `pending` until it is known to be `succeeded` or `failed`.
        result: What it gave, if it succeeded.
        error: Why it failed, if it did.
        progress: Percent, if the provider tells.
        amount: What it costs, in the currency's smallest unit; 0: nothing.
        currency: The currency.
    """

    id: str
    provider: str
    key: str
    generation: int
    state: str
    result: Any
    error: Any
    progress: int | None
    amount: int
    currency: str | None


async def submit_task(
    provider: str, request: Mapping[str, Any], *, key: str, generation: int = 1, quote: Quote | None = None
) -> TaskView:
    """Submit paid work, once, whatever happens to this process.

    Args:
        provider: The provider's name in `everstep.toml`.
        request: What is asked for; JSON.
        key: What makes it the same submission, among all of its owner's; a second one with it is the first.
        generation: 1, or one more than the generation that failed, to pay and try once more.
        quote: What it costs; None: nothing is charged.
    """
    raise NotImplementedError


def submit_task_sync(
    provider: str, request: Mapping[str, Any], *, key: str, generation: int = 1, quote: Quote | None = None
) -> TaskView:
    """As `submit_task`, in a node that is not async."""
    raise NotImplementedError


async def observe_task(task: TaskView | str, *, window: float | None = None) -> TaskView:
    """Wait for a task's end, which holds no worker; the job is parked until then.

    Args:
        task: The task, or its id.
        window: Seconds after which to go on without an end; the task goes on all the same. None: until the end.
    """
    raise NotImplementedError


def observe_task_sync(task: TaskView | str, *, window: float | None = None) -> TaskView:
    """As `observe_task`, in a node that is not async."""
    raise NotImplementedError


async def cancel_task(task: TaskView | str) -> TaskView:
    """Ask the provider to end a task; what it is then."""
    raise NotImplementedError


def cancel_task_sync(task: TaskView | str) -> TaskView:
    """As `cancel_task`, in a node that is not async."""
    raise NotImplementedError
