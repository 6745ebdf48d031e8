"""What an interface needs to show a paid job again after a reload, from the record alone.

Neither the provider's ids nor its result as it stands are in it: what was made is in `artefacts`.
"""

from __future__ import annotations

import json
from typing import Any, cast

from sqlalchemy import Connection

from everstep.checkpoints import ledger, provider_task, waits
from everstep.checkpoints.job import Job
from everstep.checkpoints.provider_task import ProviderTask
from everstep.clock import rfc3339
from everstep.errors import ProviderTaskNotFound

SIGNAL = "everstep.provider-task:"
_STAGES = {
    "created": "submitting",
    "submitting": "submitting",
    "submission_unknown": "unknown",
    "pending": "working",
    "succeeded": "keeping",
    "failed": "presenting",
}


def of(connection: Connection, job: Job) -> dict[str, Any] | None:
    """The paid work of a job; None if it has none (yet).

    `stage` is `submitting`, `unknown` (whether the provider took it), `working` (the provider is), `keeping` or
    `presenting` what came of it, `asking` a person, `cancelling` (a person ended the job, and the provider still has
    the task), `done` or `failed`.

    Args:
        connection: A snapshot.
        job: The job.
    """
    tasks = _tasks(connection, job)
    if not tasks:
        return None
    newest = tasks[-1]
    quote = newest.quote
    entries = [entry for task in tasks for entry in ledger.entries(connection, task=task.public_id)]
    return {
        "stage": _stage(job, newest),
        "request": newest.request,
        "price": None if quote is None else {**quote.as_dict(), "text": quote.text},
        "charged": -sum(entry.amount for entry in entries if entry.kind == "charge"),
        "refunded": sum(entry.amount for entry in entries if entry.kind == "refund"),
        "currency": newest.currency,
        "tasks": [_task(task) for task in tasks],
        "artefacts": _artefacts(job),
    }


def _tasks(connection: Connection, job: Job) -> list[ProviderTask]:
    """The tasks it submits, and those of others that it waits for, oldest first."""
    found = {task.id: task for task in provider_task.listed(connection, job=job.public_id)}
    for wait in waits.of_job(connection, job.id):
        if wait.signal is not None and wait.signal.startswith(SIGNAL):
            try:
                task = provider_task.find(connection, wait.signal.removeprefix(SIGNAL), owner=job.owner)
            except ProviderTaskNotFound:
                continue
            found[task.id] = task
    return [found[row] for row in sorted(found)]


def _task(task: ProviderTask) -> dict[str, Any]:
    return {
        "id": task.public_id,
        "provider": task.provider,
        "submission_key": task.submission_key,
        "generation": task.generation,
        "state": task.state,
        "progress": task.progress,
        "error": task.error,
        "submitted_at": rfc3339(task.submitted_at),
        "finished_at": rfc3339(task.finished_at),
    }


def _stage(job: Job, task: ProviderTask) -> str:
    was_cancelled = job.status == "failed" and job.cancel_requested_at is not None
    if was_cancelled and task.state == "pending" and task.job == job.public_id:
        return "cancelling"
    if job.status in ("done", "failed"):
        return job.status
    return "asking" if job.status == "review" else _STAGES[task.state]


def _artefacts(job: Job) -> list[Any]:
    result: Any = json.loads(job.result_json or "null")
    found: Any = cast("dict[str, Any]", result).get("artefacts") if isinstance(result, dict) else None
    return cast("list[Any]", found) if isinstance(found, list) else []
