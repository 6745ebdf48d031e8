"""A job as JSON, whose fields other programs rely on: what commands print, the server answers and webhooks are sent."""

from __future__ import annotations

import json
from typing import Any

from everstep.checkpoints.budgets import Account, Use, of_json
from everstep.checkpoints.job import Job
from everstep.clock import rfc3339


def of(job: Job, account: Account | None = None) -> dict[str, Any]:
    """A job, as it is shown.

    Args:
        job: The job.
        account: What it may use and used, its children included; what the job used alone when omitted.
    """
    account = account or Account(job.public_id, None, of_json(job.budget_json), Use.of_job(job))
    return {
        "id": job.public_id,
        "graph": job.graph,
        "thread_id": job.thread_id,
        "status": job.status,
        "attempts": job.attempts,
        "max_attempts": job.max_attempts,
        "failures": job.failures,
        "worker_deaths": job.worker_deaths,
        "suspect": job.suspect > 0,
        "step": job.step,
        "node": job.node,
        "priority": job.priority,
        "idempotency_key": job.idempotency_key,
        "workflow_version": job.workflow_version,
        "owner": job.owner,
        "leased_by": job.leased_by,
        "lease_until": rfc3339(job.lease_until),
        "claim_no": job.claim_no,
        "next_run_at": rfc3339(job.next_run_at),
        "cancel_requested_at": rfc3339(job.cancel_requested_at),
        "created_at": rfc3339(job.created_at),
        "updated_at": rfc3339(job.updated_at),
        "input_tokens": job.input_tokens,
        "output_tokens": job.output_tokens,
        "budget": account.as_dict(),
        "parent": account.parent,
        "input": job.payload,
        "error": None if job.error_json is None else json.loads(job.error_json),
        "result": None if job.result_json is None else json.loads(job.result_json),
        "result_digest": job.result_digest,
    }
