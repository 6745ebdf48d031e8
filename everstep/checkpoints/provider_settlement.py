"""How what is told of a task changes its row: the one way to its end, for polls, webhooks, answers and people.

The first end wins, by compare-and-set: state, result or error, the refund of a failure and the signal are written in
one transaction. What contradicts it later is kept as evidence of the task's job and logged, and changes nothing.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, insert, select, update

from everstep.checkpoints import canonical, ledger, signals
from everstep.checkpoints import provider_task as tasks
from everstep.checkpoints.database import notify
from everstep.checkpoints.provider_status import ProviderStatus, finite
from everstep.checkpoints.provider_task import UNFINISHED, ProviderTask
from everstep.checkpoints.schema import agent_jobs, evidence
from everstep.checkpoints.schema import provider_tasks as table
from everstep.errors import PayloadInvalid

logger = logging.getLogger("everstep.provider")

TOPIC: Final = "everstep_provider_tasks"
"""What those who ask providers are woken by."""
FIRST_POLL_MS: Final = 10_000
"""When a task is asked for that the provider told of by itself, and whose submitter may be gone."""
EVIDENCE: Final = "provider"


@dataclass(frozen=True)
class Reconciled:
    """What came of telling a task a status.

    Attributes:
        task: The task as it is now.
        changed: Whether anything changed.
        contradiction: Whether the status contradicts what is known; it is kept as evidence.
        learned: Whether the task learned its provider's id by it.
    """

    task: ProviderTask
    changed: bool
    contradiction: bool = False
    learned: bool = False


def settle(
    connection: Connection, task: ProviderTask, status: ProviderStatus, *, source: str, actor: str, now: int
) -> Reconciled:
    """Tell a task what its provider says of it; see `provider_tasks.reconcile`, which applies parked events, too."""
    task = tasks.lock(connection, task)
    told = {"status": status.as_dict(), "source": source}
    learned = False
    if status.provider_task_id is not None and status.provider_task_id != task.provider_task_id:
        if not can_learn(connection, task, status.provider_task_id, told, now=now):
            return Reconciled(task, changed=False, contradiction=True)
        task, learned = learn(connection, task, status.provider_task_id, now=now), True
    if task.is_final:
        contradicts = status.is_final and status.state != task.state
        if contradicts:
            keep(connection, task, "contradiction", told, now=now)
            logger.warning(
                "provider task %s is %s; %s says %s, which changes nothing",
                task.public_id, task.state, source, status.state,
            )  # fmt: skip
        return Reconciled(task, learned, contradicts, learned)
    if task.state == "created" and task.provider_task_id is None:
        return Reconciled(task, changed=False)
    if status.is_final:
        return Reconciled(finish(connection, task, status, source=source, actor=actor, now=now), True, learned=learned)
    if status.retry_after_ms == 0 and source != "poll":
        task = ask_now(connection, task, now=now)
    progress = _percent(status.progress)
    if progress is None or progress <= (-1 if task.progress is None else task.progress):
        return Reconciled(task, learned, learned=learned)
    return Reconciled(write(connection, task, now=now, progress=progress), changed=True, learned=learned)


def ask_now(connection: Connection, task: ProviderTask, *, now: int) -> ProviderTask:
    """Have the provider asked for a locked task at once: something happened to it, and what is not known.

    Whoever asks for it at this moment may have asked too early: the answer counts, and it is asked for again.
    """
    if task.state != "pending" or task.next_poll_at is None or task.next_poll_at <= now:
        return task
    notify(connection, TOPIC)
    return write(connection, task, now=now, next_poll_at=now, leased_by=None, lease_until=None)


def finish(
    connection: Connection, task: ProviderTask, status: ProviderStatus, *, source: str, actor: str, now: int
) -> ProviderTask:
    """Bring a task that is locked and unfinished to its end: the row, the refund of a failure, and the signal."""
    ended: dict[str, Any] = {"state": status.state, "settled_by": source, "finished_at": now}
    ended |= {"next_poll_at": None, "leased_by": None, "lease_until": None, "poll_failures": 0, "poll_error": None}
    if status.state == "succeeded":
        result = _finite(status.result)
        ended |= {"result_json": json.dumps(result), "result_digest": _digest(result), "progress": 100}
    else:
        ended |= {"error_json": json.dumps(_finite(status.as_dict().get("error")))}
    mine = (table.c.id == task.id, table.c.state.in_(UNFINISHED))
    changed = connection.execute(update(table).where(*mine).values(**ended, updated_at=now)).rowcount
    if changed != 1:
        raise RuntimeError(f"provider task {task.public_id} was settled though it was held")
    if status.state == "failed":
        ledger.refund(connection, task, reason=f"task {task.public_id} failed", actor=actor, now=now)
    signals.emit(connection, task.signal, {"state": status.state}, owner=task.owner, by=actor, now=now)
    return tasks.get(connection, task.id)


def can_learn(
    connection: Connection, task: ProviderTask, provider_task_id: str, told: dict[str, Any], *, now: int
) -> bool:
    """Whether a locked task may learn this id of its provider's; if not, that is evidence: somebody submitted twice."""
    if task.provider_task_id is not None:
        what = "second_id"
        logger.error(
            "provider task %s was submitted twice: the provider has it under a second id; only the first one counts",
            task.public_id,
        )
    elif (other := tasks.by_provider_id(connection, task.provider, provider_task_id)) is not None:
        what = "id_of_another"
        told = {**told, "other": other.public_id}
        logger.error(
            "provider task %s is told an id of the provider's that is task %s's", task.public_id, other.public_id
        )
    else:
        return True
    keep(connection, task, what, {**told, "provider_task_id": provider_task_id}, now=now, once=True)
    return False


def learn(
    connection: Connection, task: ProviderTask, provider_task_id: str, *, now: int, next_poll_at: int | None = None
) -> ProviderTask:
    """The provider has a locked task under this id: from now on it is asked for it, unless it has ended."""
    known: dict[str, Any] = {"provider_task_id": provider_task_id, "submitted_at": now}
    if not task.is_final:
        known |= {"state": "pending", "next_poll_at": now + FIRST_POLL_MS if next_poll_at is None else next_poll_at}
        notify(connection, TOPIC)
    return write(connection, task, now=now, **known)


def write(connection: Connection, task: ProviderTask, *, now: int, **columns: Any) -> ProviderTask:
    """Change columns of a locked task."""
    connection.execute(update(table).where(table.c.id == task.id).values(**columns, updated_at=now))
    return tasks.get(connection, task.id)


def keep(
    connection: Connection, task: ProviderTask, what: str, told: dict[str, Any], *, now: int, once: bool = False
) -> None:
    """Keep what does not fit as evidence of the task's job, if that still exists; `once`: unless it is there."""
    query = select(agent_jobs.c.id, agent_jobs.c.claim_no).where(agent_jobs.c.public_id == task.job)
    job = connection.execute(query).first()
    if job is None:
        return
    detail = {"what": what, "task": task.public_id, "provider": task.provider, "stands": task.state, **told}
    row = {"job_id": job[0], "claim_no": job[1], "kind": EVIDENCE, "detail_json": json.dumps(detail), "at": now}
    kept = select(evidence.c.detail_json).where(evidence.c.job_id == job[0], evidence.c.kind == EVIDENCE)
    if once and row["detail_json"] in connection.execute(kept).scalars().all():
        return
    connection.execute(insert(evidence).values(**row))


def without_ids(detail: dict[str, Any]) -> dict[str, Any]:
    """What was kept, without the provider's ids, as owners are told of it."""
    shown = {name: value for name, value in detail.items() if name != "provider_task_id"}
    return {**shown, "status": without_ids(shown["status"])} if isinstance(shown.get("status"), dict) else shown


def _percent(progress: int | None) -> int | None:
    return None if progress is None else max(0, min(100, progress))


def _finite(value: Any) -> Any:
    """The value, as nearly as JSON can tell it: what a browser cannot read would spoil every list it stands in."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return finite(value)
    return value


def _digest(result: Any) -> str:
    """SHA-256 of the result; what has no canonical form must not keep a task from its end."""
    try:
        return canonical.digest(result)
    except PayloadInvalid:
        return hashlib.sha256(json.dumps(result, sort_keys=True).encode()).hexdigest()
