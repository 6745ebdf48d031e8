"""Jobs as the command line knows them: submit one, look at one."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection

from everstep.checkpoints import canonical, jobs, payload, submission
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.replies import Reply
from everstep.clock import rfc3339
from everstep.errors import JobNotFound
from everstep.runtime.addresses import Guard
from everstep.server.context import CalledBy, Caller, ServedBy
from everstep.server.once import AskedOnce

router = APIRouter(prefix="/everstep/jobs", tags=["jobs"])


class JobCreate(BaseModel):
    """A job to submit: one run of a graph."""

    model_config = ConfigDict(extra="forbid")

    graph: str = Field(description="The graph's name.")
    input: Any = Field(description="What the graph starts with.")
    key: str | None = Field(None, min_length=1, max_length=500, description="Made of the rest when omitted.")
    priority: int = Field(jobs.DEFAULT_PRIORITY, ge=0, le=10)
    max_attempts: int = Field(jobs.DEFAULT_MAX_ATTEMPTS, ge=1, le=1000)
    workflow_version: str = Field("1", max_length=200, description="A new version processes old input again.")
    concurrency_key: str | None = Field(None, max_length=500)
    services: list[str] = Field(default_factory=list[str], max_length=50, description="Services it needs.")
    webhook: str | None = Field(None, description="Who is told when it ends or waits for a person.")
    allow_secret_keys: bool = Field(False, description="Accept input that looks as if it held credentials.")


@router.post("")
async def create_job(body: JobCreate, served: ServedBy, caller: CalledBy, once: AskedOnce) -> Response:
    """Add a job. The same graph, input and version (or the same `key`) are the same job, however often they come."""
    served.graphs.require(body.graph)
    if body.webhook is not None:
        Guard.of(served.policies.webhooks.allow).require(body.webhook)
    payload.check_input(body.input, allow_secret_keys=body.allow_secret_keys)
    digest = submission.same_payload(body.graph, body.input)
    key = body.key or canonical.job_key(body.graph, body.input, body.workflow_version)
    owned_key = key if caller.owner is None else f"{caller.owner}:{key}"
    policy = served.policies.of_graph(body.graph)
    policy = replace(policy, services=(*policy.services, *body.services), concurrency_key=body.concurrency_key)
    now = served.store.clock.now_ms()

    def create(connection: Connection) -> Reply:
        job, created = submission.enqueue(
            connection,
            now=now,
            graph=body.graph,
            payload_json=json.dumps(body.input),
            payload_digest=digest,
            key=owned_key,
            workflow_version=body.workflow_version,
            priority=body.priority,
            max_attempts=body.max_attempts,
            owner=caller.makes_for,
            policy=policy,
            webhook=body.webhook,
        )
        where = {"Content-Location": f"/everstep/jobs/{job.public_id}"}
        return Reply(200, {"created": created, **job_view(job)}, where)

    return (await once.write(create)).response()


@router.get("/{job_id}")
async def get_job(job_id: str, served: ServedBy, caller: CalledBy) -> dict[str, Any]:
    """A job by its id, or by the beginning of it that fits one job only."""
    return job_view(await visible(served, caller, job_id))


async def visible(served: ServedBy, caller: Caller, job_id: str) -> Job:
    """The job, if the caller may see it.

    Raises:
        JobNotFound: There is none for this caller.
    """
    job = await served.store.aread(lambda connection: jobs.find(connection, job_id))
    if not caller.sees(job.owner):
        raise JobNotFound(f"no job has the id {job_id!r}", next_step="list them with: everstep jobs", job=job_id)
    return job


def job_view(job: Job) -> dict[str, Any]:
    """A job as JSON data."""
    return {
        "id": job.public_id,
        "graph": job.graph,
        "thread_id": job.thread_id,
        "status": job.status,
        "attempts": job.attempts,
        "max_attempts": job.max_attempts,
        "failures": job.failures,
        "step": job.step,
        "node": job.node,
        "priority": job.priority,
        "idempotency_key": job.idempotency_key,
        "workflow_version": job.workflow_version,
        "owner": job.owner,
        "created_at": rfc3339(job.created_at),
        "updated_at": rfc3339(job.updated_at),
        "next_run_at": rfc3339(job.next_run_at) if job.status in ("pending", "retry") else None,
        "cancel_requested_at": rfc3339(job.cancel_requested_at),
        "input": json.loads(job.payload_json),
        "error": json.loads(job.error_json) if job.error_json else None,
        "result": json.loads(job.result_json) if job.result_json else None,
        "result_digest": job.result_digest,
    }
