"""Paid tasks at providers: one row for each submission, its charge, and what becomes of it.

`created → submitting → pending → succeeded | failed`, and `submission_unknown` while nobody can say whether the
provider took it: then it is neither submitted again nor refunded. The charge is in the transaction that makes the row,
the refund of a failure in the one that settles it.

Every function runs inside a transaction it is given. On PostgreSQL each that decides by a task locks its row first, and
the account's after it.
"""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Connection, select

from everstep.checkpoints import canonical, ledger, provider_events
from everstep.checkpoints import provider_settlement as settlement
from everstep.checkpoints.database import insert_or_ignore
from everstep.checkpoints.provider_polls import next_poll as next_poll
from everstep.checkpoints.provider_polls import polled as polled
from everstep.checkpoints.provider_polls import take_due as take_due
from everstep.checkpoints.provider_settlement import TOPIC as TOPIC
from everstep.checkpoints.provider_settlement import Reconciled as Reconciled
from everstep.checkpoints.provider_status import ProviderStatus
from everstep.checkpoints.provider_task import ProviderTask as ProviderTask
from everstep.checkpoints.provider_task import by_submission as by_submission
from everstep.checkpoints.provider_task import find as find
from everstep.checkpoints.provider_task import get as get
from everstep.checkpoints.provider_task import listed as listed
from everstep.checkpoints.provider_task import lock as lock
from everstep.checkpoints.quote import Quote
from everstep.checkpoints.schema import agent_jobs
from everstep.checkpoints.schema import provider_tasks as table
from everstep.clock import uuid7
from everstep.errors import GenerationRefused, PayloadInvalid, ProviderTaskConflict, SubmissionConflict

ENDED = ("done", "failed")


def create(
    connection: Connection,
    *,
    owner: str,
    submission_key: str,
    generation: int,
    job: str,
    provider: str,
    request: Any,
    quote: Quote | None,
    now: int,
    actor: str,
) -> tuple[ProviderTask, bool]:
    """Make a task and charge its price; or load the one there is: of those who come with one key, the first wins.

    Args:
        connection: The write transaction. What this raises must end it: nothing of the task may stay.
        owner: Whose it is, and who pays.
        submission_key: Names the logical submission.
        generation: 1; one more to try again what failed.
        job: Public id of the job that submits it.
        provider: The provider's name.
        request: What it is asked for; JSON data.
        quote: The price; None: it costs nothing.
        now: UTC milliseconds.
        actor: Who does it.

    Returns:
        The task of this key and generation, and whether it was made now.

    Raises:
        PayloadInvalid: The request has no exact JSON form, or key or generation is none.
        SubmissionConflict: The key belongs to another request, or this generation to another provider.
        GenerationRefused: The generation before has not failed.
        InsufficientCredit: The owner's credit does not cover the price.
        CreditInvalid: The price is none.
    """
    if not submission_key or generation < 1:
        raise PayloadInvalid(
            f"{submission_key!r} and {generation} are no submission key and generation",
            next_step="give a key that is not empty, and 1 or a higher number",
        )
    digest = canonical.digest(request)
    public_id = uuid7(now)
    row = {
        "public_id": public_id,
        "owner": owner,
        "submission_key": submission_key,
        "generation": generation,
        "job": job,
        "provider": provider,
        "provider_key": f"everstep-{public_id}",
        "request_json": json.dumps(request),
        "request_digest": digest,
        "state": "created",
        "amount": 0 if quote is None else quote.amount,
        "currency": None if quote is None else quote.currency,
        "quote_json": None if quote is None else json.dumps(quote.as_dict()),
        "created_at": now,
        "updated_at": now,
    }
    before = None if generation == 1 else by_submission(connection, owner, submission_key, generation - 1)
    if generation > 1 and (before is None or before.state != "failed"):
        what = "does not exist" if before is None else f"is {before.state}"
        raise GenerationRefused(
            f"generation {generation} of {submission_key!r} is refused: generation {generation - 1} {what}",
            next_step="only what has failed is tried again; look at it with: everstep provider tasks",
            task=None if before is None else before.public_id,
        )
    if before is not None and before.request_digest != digest:
        raise _conflict(before, "another request")
    made = insert_or_ignore(connection, table, row) is not None
    task = by_submission(connection, owner, submission_key, generation)
    assert task is not None
    if not made:
        if task.request_digest != digest:
            raise _conflict(task, "another request")
        if task.provider != provider:
            raise _conflict(task, f"the provider {task.provider}")
        return task, False
    ledger.charge(connection, task, reason=f"task {task.public_id} at {provider}", actor=actor, now=now)
    return task, True


def submitting(connection: Connection, task: ProviderTask, *, job: str, now: int) -> ProviderTask:
    """A job is about to submit its task. One whose job has ended before it submitted becomes the caller's.

    Returns:
        The task as it is now. The caller submits only if it is `submitting` or `submission_unknown` and its `job` is
        the caller's; everybody else observes.
    """
    task = lock(connection, task)
    if task.state != "created" or (task.job != job and not _has_ended(connection, task.job)):
        return task
    return settlement.write(connection, task, now=now, state="submitting", job=job)


def unknown(connection: Connection, task: ProviderTask, *, now: int) -> ProviderTask:
    """The submission's answer was lost, and nobody can say whether the provider has the task.

    Returns:
        The task as it is now; if it was told of meanwhile, that stands.
    """
    task = lock(connection, task)
    if task.state not in ("created", "submitting"):  # `created`: an equal call beside this one was surely refused
        return task
    task = settlement.write(connection, task, now=now, state="submission_unknown")
    return provider_events.apply_parked(connection, task, actor="submit", now=now)


def not_accepted(connection: Connection, task: ProviderTask, *, now: int) -> ProviderTask:
    """The provider surely did not take the task: its job may submit it again. Its charge stays.

    Returns:
        The task as it is now; if it was told of meanwhile, that stands.
    """
    task = lock(connection, task)
    if task.state not in ("submitting", "submission_unknown"):
        return task
    return settlement.write(connection, task, now=now, state="created")


def accepted(
    connection: Connection, task: ProviderTask, provider_task_id: str, *, now: int, next_poll_at: int | None
) -> ProviderTask:
    """The provider has the task, under this id; what was parked for it is applied. Twice is nothing.

    A second id is a second submission: it is kept as evidence and logged, and changes nothing.

    Args:
        connection: The write transaction.
        task: The task.
        provider_task_id: The provider's id of it.
        now: UTC milliseconds.
        next_poll_at: When the provider is asked first, UTC milliseconds.

    Returns:
        The task as it is now.

    Raises:
        ProviderTaskConflict: The id is another task's.
    """
    provider_events.hold(connection, task.provider, provider_task_id)
    task = lock(connection, task)
    if task.provider_task_id == provider_task_id:
        return task
    told = {"source": "submit"}
    if not settlement.can_learn(connection, task, provider_task_id, told, now=now):
        if task.provider_task_id is None:
            raise ProviderTaskConflict(
                f"the provider's id for task {task.public_id} is another task's",
                next_step="ask the provider which of its tasks belongs to which request",
                task=task.public_id,
            )
        return task
    if task.is_final:
        settlement.keep(connection, task, "accepted_after_end", told, now=now)
    task = settlement.learn(connection, task, provider_task_id, now=now, next_poll_at=next_poll_at)
    return provider_events.apply_parked(connection, task, actor="submit", now=now)


def reconcile(
    connection: Connection, task: ProviderTask, status: ProviderStatus, *, source: str, actor: str, now: int
) -> Reconciled:
    """Tell a task what its provider says of it: the one way to its end.

    The first end wins; it stores the result, or the error and the refund, and emits the task's signal. One that
    contradicts it later, or speaks of a second task at the provider, is evidence and changes nothing. Of a task that
    is `created` nothing is believed unless the provider's id is known.

    Args:
        connection: The write transaction.
        task: The task.
        status: What the provider says; with its id of the task the task learns that, too.
        source: Where that comes from: `poll`, `webhook`, `submit`, `probe` or `admin`.
        actor: Who tells it.
        now: UTC milliseconds.

    Returns:
        What came of it.
    """
    provider_events.hold(connection, task.provider, status.provider_task_id)
    told = settlement.settle(connection, task, status, source=source, actor=actor, now=now)
    if not told.learned:
        return told
    task = provider_events.apply_parked(connection, told.task, actor=actor, now=now)
    return Reconciled(task, told.changed, told.contradiction, told.learned)


def withdraw(connection: Connection, task: ProviderTask, *, error: Any, actor: str, now: int) -> ProviderTask:
    """Give up a task that was never submitted: it has failed, and its charge is given back.

    Args:
        connection: The write transaction.
        task: The task.
        error: Why; JSON data.
        actor: Who does it.
        now: UTC milliseconds.

    Raises:
        ProviderTaskConflict: It is not `created` (any more).
    """
    task = lock(connection, task)
    if task.state != "created":
        raise ProviderTaskConflict(
            f"task {task.public_id} is {task.state}; only one that was never submitted can be withdrawn",
            next_step="cancel it at the provider: everstep provider cancel",
            task=task.public_id,
        )
    status = ProviderStatus("failed", error=error)
    return settlement.finish(connection, task, status, source="withdrawn", actor=actor, now=now)


def _conflict(task: ProviderTask, other: str) -> SubmissionConflict:
    return SubmissionConflict(
        f"the submission key {task.submission_key!r} belongs to {other}",
        next_step="give each request a key of its own; the same key is the same request, at the same provider",
        task=task.public_id,
    )


def _has_ended(connection: Connection, job: str) -> bool:
    status = connection.execute(select(agent_jobs.c.status).where(agent_jobs.c.public_id == job)).scalar_one_or_none()
    return status is None or status in ENDED
