"""`ProviderTask`: a row of `provider_tasks`, and how it is found; what changes one is in `provider_tasks`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, and_, select

from everstep.checkpoints.database import has_id
from everstep.checkpoints.provider_status import FINAL
from everstep.checkpoints.quote import Quote
from everstep.checkpoints.schema import provider_tasks as table
from everstep.clock import rfc3339
from everstep.errors import ProviderTaskNotFound

UNFINISHED: Final = ("created", "submitting", "submission_unknown", "pending")


@dataclass(frozen=True)
class ProviderTask:
    """A row of `provider_tasks`: one paid piece of work at a provider. Times are UTC milliseconds.

    Attributes:
        owner: Whose it is, and who pays.
        submission_key: Names one logical submission of the owner's.
        generation: 1, and one more for each time it is tried again after it failed.
        job: Public id of the job that submits it; retention may have deleted that.
        provider_key: The idempotency key that the provider is given.
        provider_task_id: The provider's id of it, once that is known; not for interfaces.
        request_digest: SHA-256 of the request's canonical JSON.
        state: `created`, `submitting`, `submission_unknown`, `pending`, `succeeded` or `failed`.
        amount: The price, in the currency's smallest unit.
        progress: Percent; it only grows.
        settled_by: What told how it ended: `poll`, `webhook`, …
        next_poll_at: When the provider is asked next; while it is being asked, when that lease ends.
        polls: How often asking it began.
        poll_failures: Askings in a row that brought no answer.
        poll_error: Why the last one did not.
        submitted_at: When it was known that the provider has it.
    """

    id: int
    public_id: str
    owner: str
    submission_key: str
    generation: int
    job: str
    provider: str
    provider_key: str
    provider_task_id: str | None
    request_json: str
    request_digest: str
    state: str
    amount: int
    currency: str | None
    quote_json: str | None
    result_json: str | None
    result_digest: str | None
    error_json: str | None
    progress: int | None
    settled_by: str | None
    next_poll_at: int | None
    polls: int
    poll_failures: int
    poll_error: str | None
    leased_by: str | None
    lease_until: int | None
    created_at: int
    updated_at: int
    submitted_at: int | None
    finished_at: int | None

    @property
    def is_final(self) -> bool:
        """Whether it has ended, for ever."""
        return self.state in FINAL

    @property
    def signal(self) -> str:
        """The signal that tells its end."""
        return f"everstep.provider-task:{self.public_id}"

    @property
    def request(self) -> Any:
        """What the provider is asked for."""
        return json.loads(self.request_json)

    @property
    def result(self) -> Any:
        """What came of it."""
        return json.loads(self.result_json or "null")

    @property
    def error(self) -> Any:
        """Why it failed."""
        return json.loads(self.error_json or "null")

    @property
    def quote(self) -> Quote | None:
        """The price it was made with."""
        return None if self.quote_json is None else Quote.of(json.loads(self.quote_json))

    def view(self) -> dict[str, Any]:
        """As interfaces are told of it, JSON data: neither the provider's ids nor what only serves the work itself."""
        return {
            "id": self.public_id,
            "submission_key": self.submission_key,
            "generation": self.generation,
            "job": self.job,
            "provider": self.provider,
            "state": self.state,
            "progress": self.progress,
            "amount": self.amount,
            "currency": self.currency,
            "result": self.result,
            "error": self.error,
            "created_at": rfc3339(self.created_at),
            "updated_at": rfc3339(self.updated_at),
            "submitted_at": rfc3339(self.submitted_at),
            "finished_at": rfc3339(self.finished_at),
        }


def get(connection: Connection, task_id: int) -> ProviderTask:
    """The task by row id."""
    return ProviderTask(**connection.execute(select(table).where(table.c.id == task_id)).mappings().one())


def lock(connection: Connection, task: ProviderTask) -> ProviderTask:
    """The task as it is now, held until the transaction ends, so that what is decided by it stays true."""
    held = select(table).where(table.c.id == task.id).with_for_update()
    return ProviderTask(**connection.execute(held).mappings().one())


def find(connection: Connection, public_id: str, *, owner: str | None = None) -> ProviderTask:
    """The task by public id, or by a prefix of it that fits one only.

    Args:
        connection: A transaction.
        public_id: The id.
        owner: Only a task of this owner's is found.

    Raises:
        ProviderTaskNotFound: None, or more than one, fits.
    """
    query = select(table).where(has_id(table.c.public_id, public_id), _of_owner(owner)).limit(2)
    rows = connection.execute(query).mappings().all()
    if len(rows) != 1:
        what = "several provider tasks have ids that start with" if rows else "no provider task has the id"
        raise ProviderTaskNotFound(
            f"{what} {public_id!r}", next_step="list them with: everstep provider tasks", task=public_id
        )
    return ProviderTask(**rows[0])


def by_submission(connection: Connection, owner: str, key: str, generation: int | None = None) -> ProviderTask | None:
    """The task of a logical submission.

    Args:
        connection: A transaction.
        owner: Whose.
        key: The submission key.
        generation: Which; the newest when omitted.
    """
    query = select(table).where(table.c.owner == owner, table.c.submission_key == key)
    if generation is not None:
        query = query.where(table.c.generation == generation)
    row = connection.execute(query.order_by(table.c.generation.desc()).limit(1)).mappings().first()
    return None if row is None else ProviderTask(**row)


def by_provider_id(connection: Connection, provider: str, provider_task_id: str) -> ProviderTask | None:
    """The task that has this id at the provider."""
    return _one(connection, and_(table.c.provider == provider, table.c.provider_task_id == provider_task_id))


def by_provider_key(connection: Connection, provider: str, provider_key: str) -> ProviderTask | None:
    """The task that was submitted to the provider with this key."""
    return _one(connection, and_(table.c.provider == provider, table.c.provider_key == provider_key))


def listed(
    connection: Connection,
    *,
    owner: str | None = None,
    provider: str | None = None,
    state: str | None = None,
    job: str | None = None,
    submission_key: str | None = None,
    before: int | None = None,
    limit: int = 100,
) -> list[ProviderTask]:
    """Tasks, newest first.

    Args:
        connection: A snapshot.
        owner: Only theirs.
        provider: Only at this provider.
        state: Only in this state.
        job: Only those that the job with this public id submits.
        submission_key: Only generations of this submission.
        before: Only those with a lower row id.
        limit: Most of them.
    """
    wanted = {"owner": owner, "provider": provider, "state": state, "job": job, "submission_key": submission_key}
    query = select(table).where(*(table.c[name] == value for name, value in wanted.items() if value is not None))
    query = query if before is None else query.where(table.c.id < before)
    rows = connection.execute(query.order_by(table.c.id.desc()).limit(limit)).mappings()
    return [ProviderTask(**row) for row in rows]


def unfinished(connection: Connection, *, job: str) -> list[ProviderTask]:
    """All that a job submits, or is to submit, and that has not ended, oldest first."""
    query = select(table).where(table.c.job == job, table.c.state.in_(UNFINISHED)).order_by(table.c.id)
    return [ProviderTask(**row) for row in connection.execute(query).mappings()]


def unsubmitted(connection: Connection, jobs: Sequence[str]) -> list[ProviderTask]:
    """What jobs, by their public ids, were charged for or are to submit and have not begun to, oldest first."""
    query = select(table).where(table.c.job.in_(jobs), table.c.state == "created").order_by(table.c.id)
    return [ProviderTask(**row) for row in connection.execute(query).mappings()]


def _one(connection: Connection, condition: ColumnElement[bool]) -> ProviderTask | None:
    row = connection.execute(select(table).where(condition)).mappings().one_or_none()
    return None if row is None else ProviderTask(**row)


def _of_owner(owner: str | None) -> ColumnElement[bool]:
    return table.c.id.is_not(None) if owner is None else table.c.owner == owner
