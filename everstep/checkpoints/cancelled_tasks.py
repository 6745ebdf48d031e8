"""Paid tasks of a job that a person ended: what was not submitted is withdrawn, the rest is cancelled and settled.

A task that the provider has is not ended by ending its job. The provider is asked to end it, once, by whoever polls it
next; what it is then settles it, as ever. A task that another job waits for goes on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from sqlalchemy import Connection, select

from everstep.checkpoints import provider_outcome, provider_task, provider_tasks
from everstep.checkpoints import provider_settlement as settlement
from everstep.checkpoints.job import Job
from everstep.checkpoints.provider_task import ProviderTask
from everstep.checkpoints.schema import agent_jobs, evidence, waits
from everstep.errors import ProviderTaskConflict

ASKED: Final = "cancel_asked"
_LIVING: Final = ("pending", "running", "retry", "review")


def let_go(connection: Connection, job: Job, *, now: int, actor: str) -> None:
    """A person ended a job, which is locked: see to its tasks.

    Args:
        connection: The write transaction.
        job: The job as it ended.
        now: UTC milliseconds.
        actor: Who ended it.
    """
    unfinished = provider_task.unfinished(connection, job=job.public_id)
    held = [provider_task.lock(connection, task) for task in unfinished]  # all before an account, as everybody does
    for task in held:
        task = _told_by_effect(connection, job, task, now=now, actor=actor)
        if task.state == "created":
            error = {"code": "cancelled", "message": "its job was ended before it was submitted"}
            provider_tasks.withdraw(connection, task, error=error, actor=actor, now=now)
        elif task.state == "pending":
            settlement.ask_now(connection, task, now=now)


def withdraw_of(connection: Connection, jobs: Sequence[str], *, now: int, actor: str) -> None:
    """Jobs are deleted, and their rows held: what they never submitted has failed, and its charge is given back.

    All of the tasks are locked before the first account, and accounts in one order: so nobody waits in a circle.

    Args:
        connection: The write transaction.
        jobs: Their public ids.
        now: UTC milliseconds.
        actor: Who deletes them.
    """
    held = [provider_task.lock(connection, task) for task in provider_task.unsubmitted(connection, jobs)]
    error = {"code": "cancelled", "message": "its job was deleted before it was submitted"}
    for task in sorted(held, key=lambda one: (one.owner, one.currency or "", one.id)):
        if task.state == "created":
            provider_tasks.withdraw(connection, task, error=error, actor=actor, now=now)


def _told_by_effect(connection: Connection, job: Job, task: ProviderTask, *, now: int, actor: str) -> ProviderTask:
    """What the submission is known to have come to, which the job's node will not come to note."""
    if task.state == "pending" or task.is_final:
        return task
    effect = provider_outcome.effect_of(connection, job.id, task)
    if effect is None:
        return provider_tasks.not_accepted(connection, task, now=now) if task.state == "submitting" else task
    if effect.state == "rejected":
        return provider_tasks.not_accepted(connection, task, now=now)
    result: Any = effect.value() if effect.state == "confirmed" else None
    with suppress(ProviderTaskConflict):  # another's: that is kept as evidence, and must not keep the job alive
        return provider_outcome.tell(connection, task, result, actor=actor, now=now, next_poll_at=now)
    return provider_tasks.unknown(connection, task, now=now)


def is_to_be_cancelled(connection: Connection, task: ProviderTask) -> bool:
    """Whether the provider is to be asked to end a task: a person ended its job, and no other job waits for it."""
    job = agent_jobs.c
    ended = select(job.id).where(
        job.public_id == task.job, job.status == "failed", job.cancel_requested_at.is_not(None)
    )
    row = connection.execute(ended).first()
    if row is None:
        return False
    others = select(waits.c.id).join(agent_jobs, job.id == waits.c.job_id)
    others = others.where(waits.c.signal == task.signal, job.status.in_(_LIVING))  # also between two windows
    if connection.execute(others.limit(1)).first() is not None:
        return False
    kept = select(evidence.c.detail_json).where(evidence.c.job_id == row[0], evidence.c.kind == settlement.EVIDENCE)
    told = [json.loads(detail) for detail in connection.execute(kept).scalars()]
    return not any(one.get("what") == ASKED and one.get("task") == task.public_id for one in told)


def note_asked(connection: Connection, task: ProviderTask, *, supported: bool, now: int) -> None:
    """The provider was asked to end a task; it is not asked a second time.

    Args:
        connection: The write transaction.
        task: The task.
        supported: Whether the provider can.
        now: UTC milliseconds.
    """
    settlement.keep(connection, task, ASKED, {"supported": supported}, now=now)
