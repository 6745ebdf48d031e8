"""Jobs and reviews by the page, for whoever may see them; each page tells behind which row the next one begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from sqlalchemy import Connection, select

from everstep.checkpoints.job import Job, job_of
from everstep.checkpoints.jobs import whole
from everstep.checkpoints.reviews import Review
from everstep.checkpoints.schema import agent_jobs
from everstep.checkpoints.schema import reviews as reviews_table

T = TypeVar("T")


@dataclass(frozen=True)
class Page(Generic[T]):
    """A part of a list.

    Attributes:
        items: What is on it.
        following: Where the next page begins, to be given as `behind`; None: this is the last.
    """

    items: list[T]
    following: int | None


@dataclass(frozen=True)
class JobFilter:
    """Which jobs are wanted; None: whatever it is.

    Attributes:
        owner: Whose.
        statuses: In one of these states.
        graph: Of this graph.
        thread_id: On this thread.
        key: With this idempotency key.
        parent_id: Children of the job with this row id.
        since: Made at this moment or later, UTC milliseconds.
        until: Made before this moment.
    """

    owner: str | None = None
    statuses: Sequence[str] = ()
    graph: str | None = None
    thread_id: str | None = None
    key: str | None = None
    parent_id: int | None = None
    since: int | None = None
    until: int | None = None


def jobs(connection: Connection, wanted: JobFilter, *, behind: int | None, limit: int) -> Page[Job]:
    """Jobs, newest first.

    Args:
        connection: A snapshot.
        wanted: Which.
        behind: Where the page begins; None: with the newest.
        limit: Most of them.
    """
    job = agent_jobs.c
    asked = {
        job.owner: wanted.owner,
        job.graph: wanted.graph,
        job.thread_id: wanted.thread_id,
        job.idempotency_key: wanted.key,
        job.parent_id: wanted.parent_id,
    }
    query = select(agent_jobs).where(*(column == value for column, value in asked.items() if value is not None))
    query = query.where(job.status.in_(wanted.statuses)) if wanted.statuses else query
    query = query if wanted.since is None else query.where(job.created_at >= wanted.since)
    query = query if wanted.until is None else query.where(job.created_at < wanted.until)
    query = query if behind is None else query.where(job.id < behind)
    rows = connection.execute(query.order_by(job.id.desc()).limit(limit + 1)).mappings().all()
    found = [whole(connection, job_of(row)) for row in rows]
    return Page(found[:limit], found[limit - 1].id if len(found) > limit else None)


def reviews(
    connection: Connection,
    *,
    owner: str | None,
    status: str | None,
    kind: str | None,
    job_id: int | None,
    behind: int | None,
    limit: int,
) -> Page[tuple[Review, str]]:
    """Reviews, oldest first, each with the public id of its job.

    Args:
        connection: A snapshot.
        owner: Of whose jobs; None: of everybody's.
        status: `open`, `answered` or `closed`; None: any.
        kind: Of this kind; None: any.
        job_id: Of the job with this row id; None: of any.
        behind: Where the page begins; None: with the oldest.
        limit: Most of them.
    """
    review = reviews_table.c
    asked = {agent_jobs.c.owner: owner, review.status: status, review.kind: kind, review.job_id: job_id}
    query = select(reviews_table, agent_jobs.c.public_id.label("job")).join(
        agent_jobs, agent_jobs.c.id == review.job_id
    )
    query = query.where(*(column == value for column, value in asked.items() if value is not None))
    query = query if behind is None else query.where(review.id > behind)
    found: list[tuple[Review, str]] = []
    for row in connection.execute(query.order_by(review.id).limit(limit + 1)).mappings():
        values = dict(row)
        job = values.pop("job")
        found.append((Review(**values), job))
    return Page(found[:limit], found[limit - 1][0].id if len(found) > limit else None)
