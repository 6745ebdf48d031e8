"""Effects, reviews, steps, dead letters and messages as JSON that programs rely on; a job is in `job_view`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from everstep.checkpoints import approvals, job_view, provider_status, provider_task
from everstep.checkpoints.answers import choices
from everstep.clock import rfc3339
from everstep.observability.identity import trace_id

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from everstep.checkpoints.approvals import Use
    from everstep.checkpoints.deliveries import Delivery
    from everstep.checkpoints.effects import Effect
    from everstep.checkpoints.job import Job
    from everstep.checkpoints.reviews import Review
    from everstep.checkpoints.services import Service
    from everstep.checkpoints.store import Store

GIVE_BACK = "everstep provider cancel"
"""What withdraws a paid task that was never submitted."""
STEPS = 5
LEGS = 5


def effect(one: Effect) -> dict[str, Any]:
    """An effect. A result that is not JSON data is described, and one that is a provider's id of a task left out."""
    plain = one.result_type in (None, "json")
    result = one.value() if plain else f"stored as {one.result_type}"
    return {
        "name": one.name,
        "state": one.state,
        "key": one.key,
        "calls": one.calls,
        "arguments": json.loads(one.arguments_json),
        "result": None if one.name == provider_status.SUBMIT else result,
        "settled_by": one.settled_by,
        "error": one.error,
        "created_at": rfc3339(one.created_at),
        "updated_at": rfc3339(one.updated_at),
    }


def delivery(one: Delivery) -> dict[str, Any]:
    """A message to a webhook, without its body."""
    return {
        "id": one.public_id,
        "job": one.job,
        "url": one.url,
        "state": one.state,
        "tries": one.tries,
        "next_try_at": rfc3339(one.next_try_at) if one.state == "pending" else None,
        "last_error": one.last_error,
        "created_at": rfc3339(one.created_at),
        "delivered_at": rfc3339(one.delivered_at),
    }


def reviews(connection: Connection, found: Sequence[tuple[Review, str]]) -> list[dict[str, Any]]:
    """Reviews, each with the public id of its job, and what their answers were used for."""
    uses = approvals.uses(connection, [one.id for one, _ in found])
    return [review(one, job_id, uses.get(one.id)) for one, job_id in found]


def review(one: Review, job_id: str, use: Use | None = None) -> dict[str, Any]:
    """A review of the job with this public id.

    `value` is what is asked. `argument_digest` is its digest: of a question that `review()` or an effect asked the very
    one that is in it, to which the answer is bound. `used_for` is the effect that an approval was used for.
    """
    answer = None
    if one.status == "answered":
        value: Any = None if one.answer_json is None else json.loads(one.answer_json)
        answer = {
            "decision": one.decision,
            "value": None if _asks_about_submission(one) else value,
            "reason": one.reason,
            "by": one.answered_by,
            "at": rfc3339(one.answered_at),
        }
    return {
        "id": one.public_id,
        "job": job_id,
        "kind": one.kind,
        "status": one.status,
        "value": one.value,
        "argument_digest": argument_digest(one),
        "choices": choices(one.kind, one.value),
        "answer": answer,
        "used_for": None if use is None else _use(use),
        "created_at": rfc3339(one.created_at),
    }


def _asks_about_submission(one: Review) -> bool:
    """Whether its answer is the provider's id of a task, which nobody is shown."""
    return one.kind == "effect" and one.value.get("effect") == provider_status.SUBMIT


def _use(use: Use) -> dict[str, Any]:
    return {
        "effect": use.action,
        "key": use.effect_key,
        "state": use.state,
        "argument_digest": use.argument_digest,
        "fingerprint": use.fingerprint,
        "reserved_at": rfc3339(use.reserved_at),
        "consumed_at": rfc3339(use.consumed_at),
    }


def argument_digest(one: Review) -> str:
    """What tells whether a question is still the one that somebody saw."""
    value = one.value
    own = cast("dict[str, Any]", value).get("argument_digest") if isinstance(value, dict) else None
    return own if isinstance(own, str) else one.value_digest


def service(one: Service, waiting: list[str]) -> dict[str, Any]:
    """A service, and the public ids of the jobs that need it."""
    return {
        "name": one.name,
        "gate": one.gate,
        "symptom": one.symptom,
        "closed_at": rfc3339(one.closed_at),
        "opens_at": rfc3339(one.opens_at),
        "outages": one.outages,
        "jobs": waiting,
    }


def steps(store: Store, job: Job, limit: int) -> Iterator[dict[str, Any]]:
    """A job's checkpoints, newest first, as `history --json` gives them."""
    from everstep.checkpoints.saver import StepSaver

    for saved in StepSaver(store).list({"configurable": {"thread_id": job.thread_id}}, limit=limit):
        configurable = saved.config.get("configurable", {})
        parent = (saved.parent_config or {}).get("configurable", {})
        values = saved.checkpoint["channel_values"]
        yield {
            "checkpoint_id": saved.checkpoint["id"],
            "checkpoint_ns": configurable.get("checkpoint_ns", ""),
            "parent_checkpoint_id": parent.get("checkpoint_id"),
            "step": saved.metadata.get("step"),
            "source": saved.metadata.get("source"),
            "created_at": rfc3339(round(datetime.fromisoformat(saved.checkpoint["ts"]).timestamp() * 1000)),
            "next": [name.removeprefix("branch:to:") for name in values if name.startswith("branch:to:")],
            "channels": sorted(name for name in values if not name.startswith(("branch:to:", "__"))),
            "pending_writes": len(saved.pending_writes or ()),
        }


def letter(job: Job) -> dict[str, Any]:
    """A dead letter, as it stands in a list."""
    whole = job_view.of(job)
    error = whole["error"] or {"code": "unknown", "message": ""}
    announced = job.announced_at if job.announced_at is not None and job.announced_at > 0 else None
    return {
        **{name: whole[name] for name in ("id", "graph", "status", "step", "node", "attempts", "idempotency_key")},
        "ended_by": error["code"] if job.cancel_requested_at is not None else "error",
        "error": {name: error.get(name) for name in ("code", "type", "message", "step", "node")},
        "failed_at": whole["updated_at"],
        "announced_at": rfc3339(announced),
    }


def evidence(store: Store, job: Job) -> dict[str, Any]:
    """All that is known of a dead letter."""
    whole = job_view.of(job)
    error: dict[str, Any] = whole["error"] or {}
    asked = [(one, job.public_id) for one in store.reviews(job)]
    legs = range(job.claim_no, max(job.claim_no - LEGS, 0), -1)
    return {
        **letter(job),
        "input": whole["input"],
        "error": error,
        "chain": error.get("chain", []),
        "steps": list(steps(store, job, STEPS)),
        "effects": [effect(one) for one in store.effects(job)],
        "reviews": store.read(lambda connection: reviews(connection, asked)),
        "evidence": store.evidence(job),
        "events": store.events(job),
        "session": job.thread_id,
        "traces": [{"leg": leg, "trace_id": trace_id(job.public_id, leg)} for leg in legs],
        "next_actions": _next_actions(job, error, unsubmitted(store, job)),
    }


def unsubmitted(store: Store, job: Job) -> list[str]:
    """The paid tasks that a job which failed was charged for and never submitted, by id."""
    if job.status != "failed":
        return []
    found = store.read(lambda connection: provider_task.unsubmitted(connection, [job.public_id]))
    return [task.public_id for task in found if task.amount]


def _next_actions(job: Job, error: dict[str, Any], unsubmitted: Sequence[str]) -> list[str]:
    advice = str(error.get("next_step") or "").removesuffix(f"; then: everstep retry {job.public_id}")
    again = f"everstep dlq redrive {job.public_id}"
    first = [advice] if advice and f"everstep retry {job.public_id}" not in advice else []
    back = [f"or have back what was charged for what it never submitted: {GIVE_BACK} {task}" for task in unsubmitted]
    return [
        *first,
        f"when the cause is mended, go on from step {job.step}: {again}",
        *back,
        f"or delete it, its key stays known: everstep dlq purge {job.public_id}",
    ]
