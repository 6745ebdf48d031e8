"""Submitting jobs: the unique key decides whether an input was handled before."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from everstep.checkpoints import jobs, services, tombstones
from everstep.checkpoints.canonical import digest
from everstep.checkpoints.job import Job, from_row
from everstep.checkpoints.job_statements import WITH_KEY
from everstep.checkpoints.policy import JobPolicy
from everstep.clock import uuid7
from everstep.errors import KeyConflict


@dataclass(frozen=True)
class Enqueued:
    """The answer to an enqueue: the job, and whether this call created it. Unpacks as `job, created`."""

    job: Job
    created: bool

    def __iter__(self) -> Any:
        return iter((self.job, self.created))


def enqueue(
    connection: Connection,
    *,
    now: int,
    graph: str,
    payload_json: str,
    payload_digest: str,
    key: str,
    workflow_version: str,
    priority: int,
    max_attempts: int,
    owner: str,
    policy: JobPolicy | None = None,
    parent: str | None = None,
    webhook: str | None = None,
) -> Enqueued:
    """Add a job, or return the one that has this key already. The unique constraint decides, never a look before.

    Raises:
        JobPruned: The key belonged to a job with this graph and payload, which was deleted.
        KeyConflict: The key belongs to a job with another graph or payload.
        JobNotFound: There is no such parent.
    """
    public_id = uuid7(now)
    policy = policy or JobPolicy()
    values: dict[str, Any] = {
        "public_id": public_id,
        "idempotency_key": key,
        "payload_digest": payload_digest,
        "payload_json": payload_json,
        "owner": owner,
        "graph": graph,
        "thread_id": public_id,
        "workflow_version": workflow_version,
        "status": "pending",
        "priority": priority,
        "max_attempts": max_attempts,
        "next_run_at": now,
        "due_rank": jobs.rank(priority, now),
        "concurrency_key": policy.concurrency_key,
        "parent_id": None if parent is None else jobs.find(connection, parent).id,
        "budget_json": policy.budget and json.dumps(policy.budget.as_dict()),
        "acceptance_json": policy.acceptance and json.dumps(policy.acceptance.as_dict()),
        "webhook": webhook,
        "created_at": now,
        "updated_at": now,
    }
    while (job := jobs.add(connection, values, actor=owner)) is None:
        row = WITH_KEY.run(connection, {"idempotency_key": key}).fetchone()
        if row is None:  # deleted since, by retention
            continue
        found = from_row(row)
        if found.payload_digest != payload_digest:
            raise KeyConflict(
                f"the key {key!r} belongs to job {found.public_id} ({found.status}), which has another graph or input",
                next_step=f"look at it with: everstep show {found.public_id}; give this input another --key",
                key=key,
                job=found.public_id,
                status=found.status,
            )
        return Enqueued(jobs.whole(connection, found), created=False)
    # Only now: a deletion under way when we looked before would have left its tombstone unseen.
    tombstones.require_free(connection, key, payload_digest, now=now)
    services.need(connection, job.id, policy.services, now=now)
    return Enqueued(job, created=True)


def same_payload(graph: str, payload: Any) -> str:
    """The digest two enqueues of one key are compared by: graph and input."""
    return digest({"graph": graph, "input": payload})
