"""What became of a submission, as its effect keeps it: how it is read, and how the task is told, whoever does it.

The node that submitted tells the task, and when its job is ended before that, whoever ends it.
"""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Connection

from everstep.checkpoints import effects, provider_tasks
from everstep.checkpoints.effects import Effect
from everstep.checkpoints.provider_status import SUBMIT, ProviderStatus, what_became_of_it
from everstep.checkpoints.provider_task import ProviderTask

Outcome = str | dict[str, Any] | None
"""What is known of a submission, as its effect keeps it: the provider's id alone, which is also what a person answers;
with what it is already; why it was refused; or nothing, when only that it happened is known."""


def effect_of(connection: Connection, job_id: int, task: ProviderTask) -> Effect | None:
    """The effect by which a job submitted a task, if it began to."""
    asked = {"key": task.provider_key}
    found = (one for one in effects.of_job(connection, job_id) if one.name == SUBMIT)
    return next((one for one in found if json.loads(one.arguments_json) == asked), None)


def tell(
    connection: Connection, task: ProviderTask, outcome: Any, *, actor: str, now: int, next_poll_at: int
) -> ProviderTask:
    """Tell a task what is known of its submission; twice is nothing. Needs no claim: it is true whoever knows.

    Args:
        connection: The write transaction.
        task: The task.
        outcome: What the effect keeps; a person may have given any, and what says nothing is as good as none.
        actor: Who tells it.
        now: UTC milliseconds.
        next_poll_at: When the provider is asked first, UTC milliseconds.

    Returns:
        The task as it is now.

    Raises:
        ProviderTaskConflict: The id is another task's; that is kept as evidence if the transaction is committed.
    """
    told = what_became_of_it(outcome)
    if "refused" in told:
        return _ended(connection, task, ProviderStatus("failed", error=told["refused"]), actor=actor, now=now)
    if "provider_task_id" in told:
        known: str = told["provider_task_id"]
        task = provider_tasks.accepted(connection, task, known, now=now, next_poll_at=next_poll_at)
        if "status" in told:
            task = _ended(connection, task, ProviderStatus.of(told["status"]), actor=actor, now=now)
        return task
    return task if told else provider_tasks.unknown(connection, task, now=now)


def _ended(connection: Connection, task: ProviderTask, status: ProviderStatus, *, actor: str, now: int) -> ProviderTask:
    if task.is_final:
        return task
    return provider_tasks.reconcile(connection, task, status, source="submit", actor=actor, now=now).task
