"""What people see of a paid task, and what they can do about it; the commands and the HTTP interface share it.

Whatever is done ends in the same `reconcile` as a poll or a webhook, so a person cannot refund twice either.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any, TypeVar

from sqlalchemy import Connection, select

from everstep.checkpoints import jobs, ledger, provider_events, provider_task, provider_tasks, reviews
from everstep.checkpoints.provider_events import StoredEvent
from everstep.checkpoints.provider_outcome import effect_of
from everstep.checkpoints.provider_status import ProviderStatus
from everstep.checkpoints.provider_task import ProviderTask
from everstep.checkpoints.provider_tasks import Reconciled
from everstep.checkpoints.reviews import Review
from everstep.checkpoints.schema import evidence
from everstep.checkpoints.store import Store
from everstep.clock import rfc3339
from everstep.credentials import without_secrets
from everstep.errors import EverstepError, JobNotFound, JobPruned, ProviderAnswerInvalid, ProviderTaskConflict
from everstep.nodes.providers.registry import Providers

T = TypeVar("T")

ASK_S = 30.0
"""How long a provider has to answer a person, seconds."""


def detail(connection: Connection, task: ProviderTask, *, admin: bool) -> dict[str, Any]:
    """All that is known of a task.

    Args:
        connection: A snapshot.
        task: The task.
        admin: With the provider's ids, and what only serves the work itself.
    """
    tries = provider_task.listed(connection, owner=task.owner, submission_key=task.submission_key)
    question = open_question(connection, task)
    found = {
        **task.view(),
        "owner": task.owner,
        "polls": task.polls,
        "poll_failures": task.poll_failures,
        "poll_error": task.poll_error,
        "next_poll_at": rfc3339(task.next_poll_at),
        "settled_by": task.settled_by,
        "review": None if question is None else question.public_id,
        "generations": [{"id": one.public_id, "generation": one.generation, "state": one.state} for one in tries[::-1]],
        "entries": [one.view() for one in ledger.entries(connection, task=task.public_id)[::-1]],
        "events": [event(one, admin=admin) for one in provider_events.listed(connection, task=task.public_id)[::-1]],
        "evidence": _evidence(connection, task) if admin else [],
    }
    if admin:
        asked = {"request": task.request, "provider_key": task.provider_key, "provider_task_id": task.provider_task_id}
        found |= {**asked, "leased_by": task.leased_by, "lease_until": rfc3339(task.lease_until)}
    return found


def open_question(connection: Connection, task: ProviderTask) -> Review | None:
    """The open question whether the provider took a task."""
    if task.state != "submission_unknown":
        return None
    try:
        job = jobs.find(connection, task.job)
    except (JobNotFound, JobPruned):
        return None
    if (called := effect_of(connection, job.id, task)) is None:
        return None
    asked = (one for one in reviews.of_job(connection, job.id) if one.status == "open" and one.kind == "effect")
    return next((one for one in asked if one.subject == called.key), None)


def link(connection: Connection, task: ProviderTask, provider_task_id: str, *, now: int, by: str) -> ProviderTask:
    """Say that the provider took a task, and by which id it knows it: a person has looked. It is observed from now on.

    The job's question about it is answered thereby.

    Args:
        connection: The write transaction.
        task: A task of which nobody knew.
        provider_task_id: The provider's id.
        now: UTC milliseconds.
        by: Who says so.

    Raises:
        ProviderTaskConflict: Nobody asks that of this task, or another has the id.
    """
    question = open_question(connection, task)
    other = provider_task.by_provider_id(connection, task.provider, provider_task_id)
    if other is not None and other.id != task.id:
        raise ProviderTaskConflict(
            f"task {other.public_id} has this id at {task.provider}",
            next_step="look at the provider again: the one that is meant has an id that no task has",
            task=other.public_id,
        )
    if question is not None:  # its job's row is locked before the task's
        reason = "the submission was found at the provider"
        reviews.answer(connection, question, decision="approve", value=provider_task_id, reason=reason, by=by, now=now)
    task = provider_task.lock(connection, task)
    if question is not None and task.provider_task_id == provider_task_id:
        return task  # its job was cancelled: it ended with the answer, and told the task
    if task.state != "submission_unknown":
        raise ProviderTaskConflict(
            f"task {task.public_id} is {task.state}: nobody asks whether the provider took it",
            next_step=f"everstep provider show {task.public_id}",
            task=task.public_id,
            state=task.state,
        )
    return provider_tasks.accepted(connection, task, provider_task_id, now=now, next_poll_at=now)


def repair(connection: Connection, task: ProviderTask, status: ProviderStatus, *, now: int, by: str) -> Reconciled:
    """Say how a task ended, in the provider's place; a failure refunds what was charged.

    Args:
        connection: The write transaction.
        task: The task.
        status: `succeeded` or `failed`.
        now: UTC milliseconds.
        by: Who says so.

    Raises:
        ProviderTaskConflict: It has ended otherwise, or was never submitted.
    """
    found = provider_tasks.reconcile(connection, task, status, source="admin", actor=by, now=now)
    if found.contradiction or not (found.changed or found.task.is_final):
        raise ProviderTaskConflict(
            f"task {task.public_id} is {found.task.state}, and stays so",
            next_step=f"everstep provider show {task.public_id}",
            task=task.public_id,
            state=found.task.state,
        )
    return found


async def poll(store: Store, providers: Providers, task: ProviderTask, *, by: str) -> ProviderTask:
    """Ask the provider now how a task is, and note it; its own time of asking stays.

    Raises:
        ProviderTaskConflict: The provider's id of it is not known.
        ProviderNotFound: No provider of this name is configured.
        ProviderUnusable: It cannot be made.
        ProviderTaskMissing: The provider has no such task.
        ProviderAnswerInvalid: It did not answer, or not as it should.
    """
    status = await _answer(task, providers.get(task.provider).query(_known(task)))
    if status.provider_task_id not in (None, task.provider_task_id):
        raise ProviderAnswerInvalid(
            f"{task.provider} answered with another task's id",
            next_step="look at where the provider's description finds the id of a task",
            task=task.public_id,
            provider=task.provider,
        )

    def note(connection: Connection) -> Reconciled:
        now = store.clock.now_ms()
        return provider_tasks.reconcile(connection, task, status, source="poll", actor=by, now=now)

    return (await store.awrite(note)).task


async def cancel(store: Store, providers: Providers, task: ProviderTask, *, by: str) -> ProviderTask:
    """Ask the provider to end a task; it then is what the provider says it is. One that has ended stays as it is.

    One that was never submitted has failed, and is refunded.

    Raises:
        CancelUnsupported: The provider cannot.
        EverstepError: As of `poll`.
    """
    if task.is_final:
        return task
    if task.state == "created":
        now, error = store.clock.now_ms(), {"code": "cancelled", "message": "cancelled before it was submitted"}
        return await store.awrite(lambda c: provider_tasks.withdraw(c, task, error=error, actor=by, now=now))
    await _answer(task, providers.get(task.provider).cancel(_known(task)))
    return await poll(store, providers, task, by=by)


async def _answer(task: ProviderTask, asked: Coroutine[Any, Any, T]) -> T:
    """What the provider answers in time; its own errors as one of the catalogue."""
    try:
        async with asyncio.timeout(ASK_S):
            return await asked
    except EverstepError:
        raise
    except Exception as error:
        said = without_secrets(str(error))[:500] or f"no answer in {ASK_S:.0f} s"
        raise ProviderAnswerInvalid(
            f"{task.provider} gave no answer that can be used: {type(error).__name__}: {said}",
            next_step="nothing was changed; try again, or look at the provider",
            task=task.public_id,
            provider=task.provider,
        ) from error


def _known(task: ProviderTask) -> str:
    if task.provider_task_id is None:
        raise ProviderTaskConflict(
            f"task {task.public_id} is {task.state}: the provider's id of it is not known",
            next_step=f"cancel its job, or look at: everstep provider show {task.public_id}",
            task=task.public_id,
            state=task.state,
        )
    return task.provider_task_id


def event(one: StoredEvent, *, admin: bool) -> dict[str, Any]:
    """An event; for an administrator with the provider's ids and all it says."""
    if not admin:
        return one.view()
    ids = {"event_id": one.event_id, "provider_task_id": one.provider_task_id, "provider_key": one.provider_key}
    return {**one.view(), **ids, "status": one.status.as_dict()}


def _evidence(connection: Connection, task: ProviderTask) -> list[dict[str, Any]]:
    """What its job keeps of providers that contradict themselves."""
    try:
        job = jobs.find(connection, task.job)
    except (JobNotFound, JobPruned):
        return []
    query = select(evidence).where(evidence.c.job_id == job.id, evidence.c.kind == "provider").order_by(evidence.c.id)
    found = [(row["at"], json.loads(row["detail_json"])) for row in connection.execute(query).mappings()]
    return [{"at": rfc3339(at), "detail": told} for at, told in found if told.get("task") in (None, task.public_id)]
