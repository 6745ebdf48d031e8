"""Dead letters: jobs that failed by themselves, and the mark that tells whether that was announced.

A job that a person cancelled or rejected has failed as well, but is no dead letter: nobody needs to be told. Its
`cancel_requested_at` tells them apart.

`agent_jobs.announced_at` is None when a job fails; the moment it was announced afterwards; and between, negative: a
worker is about to announce it, or could not, and nobody else tries before `-announced_at`. A redrive makes it None
again, so the next failure is announced as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, and_, func, or_, select, update

from everstep.checkpoints import jobs
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.payload import without_secrets
from everstep.checkpoints.schema import agent_jobs, job_events
from everstep.clock import rfc3339
from everstep.errors import JobStateConflict

MESSAGE_LENGTH = 1024
_DEAD = and_(agent_jobs.c.status == "failed", agent_jobs.c.cancel_requested_at.is_(None))


@dataclass(frozen=True)
class DeadLetter:
    """A job that failed.

    Attributes:
        job: The job.
        event: Id of this failure; another one of the same job has another.
        failed_at: When it failed, UTC milliseconds.
    """

    job: Job
    event: str
    failed_at: int

    @property
    def error(self) -> dict[str, Any]:
        """What went wrong: `code`, `message`, and more."""
        return json.loads(self.job.error_json or '{"code": "unknown", "message": ""}')

    def summary(self) -> dict[str, Any]:
        """What others are told of it; no input, no result, no credentials."""
        error = self.error
        return {
            "type": "job.failed",
            "event": self.event,
            "id": self.job.public_id,
            "graph": self.job.graph,
            "status": self.job.status,
            "error": {
                "code": error.get("code"),
                "type": error.get("type"),
                "message": without_secrets(str(error.get("message", "")))[:MESSAGE_LENGTH],
            },
            "step": self.job.step,
            "node": self.job.node,
            "attempts": self.job.attempts,
            "failed_at": rfc3339(self.failed_at),
        }


def of(connection: Connection, job: Job) -> DeadLetter:
    """A failed job with its last failure."""
    failures = select(job_events.c.id, job_events.c.at).where(
        job_events.c.job_id == job.id, job_events.c.to_status == "failed"
    )
    last = connection.execute(failures.order_by(job_events.c.id.desc()).limit(1)).one()
    return DeadLetter(job, f"{job.public_id}-{last.id}", last.at)


def every(
    connection: Connection,
    *,
    graph: str | None = None,
    code: str | None = None,
    since: int | None = None,
    until: int | None = None,
    with_ended_by_person: bool = False,
    owner: str | None = None,
    behind: tuple[int, int] | None = None,
) -> Iterator[Job]:
    """Failed jobs, the newest failure first; read on while the connection is open.

    Args:
        connection: A snapshot.
        graph: Only of this graph.
        code: Only with this error: its code (`worker_died`), its type (`openai.RateLimitError`), or the type without
            its module.
        since: Only those that failed at this moment or later, UTC milliseconds.
        until: Only those that failed at this moment or earlier.
        with_ended_by_person: Those that were cancelled or rejected, too.
        owner: Only of this owner.
        behind: Only those behind the one with this `updated_at` and row id.
    """
    query = select(agent_jobs).where(agent_jobs.c.status == "failed")
    query = query if graph is None else query.where(agent_jobs.c.graph == graph)
    query = query if since is None else query.where(agent_jobs.c.updated_at >= since)
    query = query if until is None else query.where(agent_jobs.c.updated_at <= until)
    query = query if with_ended_by_person else query.where(agent_jobs.c.cancel_requested_at.is_(None))
    query = query if owner is None else query.where(agent_jobs.c.owner == owner)
    if behind is not None:
        at, row_id = behind
        same_moment = and_(agent_jobs.c.updated_at == at, agent_jobs.c.id < row_id)
        query = query.where(or_(agent_jobs.c.updated_at < at, same_moment))
    ordered = query.order_by(agent_jobs.c.updated_at.desc(), agent_jobs.c.id.desc())
    for row in connection.execute(ordered, execution_options={"yield_per": 100}).mappings():
        job = jobs.job_of(row)
        if code is None or code in _names(job):
            yield job


def _names(job: Job) -> set[str]:
    error = json.loads(job.error_json or "{}")
    kind = str(error.get("type") or "")
    return {str(error.get("code")), kind, kind.rpartition(".")[2]} - {""}


def redrive(connection: Connection, job: Job, *, now: int, actor: str) -> Job:
    """Let a failed job run again from its last checkpoint, with its failures forgotten; `jobs.lock` it first.

    Raises:
        JobStateConflict: It has not failed, or was redriven meanwhile.
    """
    if job.status != "failed":
        raise JobStateConflict(
            f"job {job.public_id} is {job.status}; it is not among the dead letters",
            next_step=f"look at it with: everstep show {job.public_id}",
            job=job.public_id,
            status=job.status,
        )
    return jobs.redrive(connection, job, now=now, actor=actor)


# ---- announcing


def look_on(connection: Connection, seen: int) -> tuple[int, bool]:
    """Whether a job failed since a change was seen; it reads only what changed since.

    Args:
        connection: A snapshot.
        seen: Row id of the last change that was seen.

    Returns:
        The last change there is now, and whether a job failed since.
    """
    newest = connection.execute(select(func.max(job_events.c.id))).scalar_one() or 0
    failed = select(job_events.c.id).where(job_events.c.id > seen, job_events.c.to_status == "failed").limit(1)
    return newest, newest > seen and connection.execute(failed).first() is not None


def next_try(connection: Connection) -> int | None:
    """When the first dead letter that was not announced yet may be; None if there is none. It reads all that failed."""
    untold = or_(agent_jobs.c.announced_at.is_(None), agent_jobs.c.announced_at < 0)
    times = select(func.min(-func.coalesce(agent_jobs.c.announced_at, 0))).where(_DEAD, untold)
    return connection.execute(times).scalar_one()


def take(connection: Connection, *, now: int, until: int, limit: int) -> list[DeadLetter]:
    """Take dead letters to announce, the oldest first; nobody else takes them before `until`.

    Args:
        connection: The write transaction.
        now: UTC milliseconds.
        until: When another may take them, if they are not marked by then.
        limit: Most of them.
    """
    due = or_(
        agent_jobs.c.announced_at.is_(None), and_(agent_jobs.c.announced_at < 0, agent_jobs.c.announced_at >= -now)
    )
    query = select(agent_jobs.c.id).where(_DEAD, due).order_by(agent_jobs.c.updated_at, agent_jobs.c.id)
    ids = list(connection.execute(query.limit(limit).with_for_update(skip_locked=True)).scalars())
    connection.execute(update(agent_jobs).where(agent_jobs.c.id.in_(ids)).values(announced_at=-until))
    return [of(connection, jobs.get(connection, job_id)) for job_id in ids]


def mark(connection: Connection, letter: DeadLetter, *, announced_at: int) -> bool:
    """Note that a letter was announced, or with a negative time when to try again.

    Returns:
        Whether it was still the caller's; a job that was redriven or taken by another since is left alone.
    """
    mine = and_(
        agent_jobs.c.id == letter.job.id,
        agent_jobs.c.status == "failed",
        agent_jobs.c.announced_at == letter.job.announced_at,
    )
    return connection.execute(update(agent_jobs).where(mine).values(announced_at=announced_at)).rowcount == 1
