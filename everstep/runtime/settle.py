"""How a leg ends: each outcome is one write that changes the job under its claim, or changes nothing."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sqlalchemy import Connection, insert

from everstep.checkpoints import budgets, effects, jobs, reviews, services
from everstep.checkpoints.effects import Effect
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.payload import without_secrets
from everstep.checkpoints.reviews import Question
from everstep.checkpoints.schema import evidence
from everstep.checkpoints.services import Report
from everstep.errors import EffectNotRepeated, StoreUnavailable
from everstep.runtime import backoff
from everstep.runtime.acceptance import Judgement
from everstep.runtime.classify import Verdict
from everstep.runtime.results import error_chain, json_ready, text_of

RECORD_OUT_MS = 60_000
NO_TIERS: Mapping[str, str] = {}
OutcomeKind = Literal["done", "returned", "review", "effect", "error", "released", "cancelled"]


@dataclass(frozen=True)
class Outcome:
    """What a leg came to.

    Attributes:
        kind: `done` (with `values`), `review` (with `questions`), `effect` (with `effect_key`), `error` (with `error`
        and its
            `verdict`), `released` (given back by a draining worker), `cancelled`, or `returned` (not accepted: given
            back to its graph).
        judgement: What came of the acceptance of a graph that finished.
    """

    kind: OutcomeKind
    values: Any = None
    questions: list[Question] = field(default_factory=list[Question])
    effect_key: str | None = None
    error: BaseException | None = None
    verdict: Verdict | None = None
    judgement: Judgement | None = None


def settle(
    connection: Connection,
    job: Job,
    outcome: Outcome,
    *,
    now: int,
    actor: str,
    randomness: random.Random,
    tiers: Mapping[str, str] = NO_TIERS,
) -> Job:
    """Write the outcome of a leg.

    Args:
        connection: The write transaction.
        job: The job as it was claimed; its claim number is the fence.
        outcome: What the leg came to.
        now: UTC milliseconds.
        actor: The worker.
        randomness: For the jitter of a backoff.
        tiers: The plan each service's account should be on, where that is configured.

    Raises:
        LostClaim: The claim is no longer the job's; nothing was written.
    """
    current = jobs.lock(connection, job.id)
    if current.claim_no != job.claim_no or current.status != "running":
        raise jobs.LostClaim(f"job {job.public_id}: claim {job.claim_no} is no longer its claim")
    out = _service_out(outcome)
    if outcome.kind in ("done", "returned") or current.progress > job.progress:
        services.passed(connection, current, now=now, but=out)
    elif out is None and outcome.kind not in ("released", "cancelled"):
        services.end_trials(connection, current, now=now)
    if outcome.judgement is not None and outcome.judgement.evidence:
        detail = json.dumps(outcome.judgement.evidence)
        connection.execute(
            insert(evidence).values(job_id=job.id, claim_no=job.claim_no, kind="acceptance", detail_json=detail, at=now)
        )
    if outcome.kind == "done" and not effects.unsettled(connection, job.id):
        return _done(connection, current, outcome, now, actor)
    if current.cancel_requested_at is not None or outcome.kind == "cancelled":
        return jobs.end(connection, current, now=now, actor=actor)
    if outcome.kind == "returned" and outcome.judgement is not None:
        return _returned(connection, current, outcome.judgement, now, actor)
    if outcome.kind == "review":
        return _review(connection, current, outcome.questions, now, actor)
    if outcome.kind in ("effect", "done"):  # a graph that finished past an unknown effect is not done
        return _effect_review(connection, current, outcome, now, actor)
    if outcome.kind == "released":
        return jobs.transition(
            connection,
            current,
            "pending",
            now=now,
            actor=actor,
            reason="given back by a draining worker",
            **_uncounted(current, now),
        )
    return _failed(connection, current, outcome, now, actor, randomness, tiers)


def _uncounted(job: Job, now: int) -> dict[str, Any]:
    """A start that ended by pausing or draining is not an attempt that failed."""
    return {"attempts": max(job.attempts - 1, 0), "next_run_at": now}


def _returned(connection: Connection, job: Job, judgement: Judgement, now: int, actor: str) -> Job:
    """Give the job back to its graph: what it is fed next is stored as the thread's next input, to be applied once."""
    again = {"returns": job.returns + 1, "next_input_json": json.dumps(judgement.next_input), "input_applied": 0}
    return jobs.transition(
        connection,
        job,
        "pending",
        now=now,
        actor=actor,
        reason=judgement.reason,
        error_json=None,
        **again,
        **_uncounted(job, now),
    )


def _done(connection: Connection, job: Job, outcome: Outcome, now: int, actor: str) -> Job:
    result = json_ready(outcome.values)
    reviews.close_all(connection, job.id, now=now)
    return jobs.transition(
        connection,
        job,
        "done",
        now=now,
        actor=actor,
        reason=outcome.judgement.reason if outcome.judgement else "finished",
        result_json=json.dumps(result),
        result_digest=jobs.loose_digest(result),
        error_json=None,
        node=None,
    )


def _review(connection: Connection, job: Job, questions: list[Question], now: int, actor: str) -> Job:
    if budgets.is_lifted(connection, job, questions):
        reason = "its budget was raised meanwhile"
        uncounted = _uncounted(job, now)
        return jobs.transition(connection, job, "pending", now=now, actor=actor, reason=reason, **uncounted)
    opened = reviews.open_all(connection, job, questions, now=now)
    if any(review.status == "answered" for review in opened):  # answered while the job ran on another answer
        return jobs.transition(
            connection, job, "pending", now=now, actor=actor, reason="answered meanwhile", **_uncounted(job, now)
        )
    kinds = ", ".join(sorted({question.kind for question in questions}))
    return jobs.transition(connection, job, "review", now=now, actor=actor, reason=f"waits for a person: {kinds}")


def _effect_review(connection: Connection, job: Job, outcome: Outcome, now: int, actor: str) -> Job:
    unknown = [effect for effect in effects.unsettled(connection, job.id) if _concerns(effect, outcome)]
    for effect in unknown:
        if effect.state == "intended":
            effect = effects.mark_unknown(connection, effect, now=now)
        reviews.open_for_effect(connection, job, effect, now=now)
    if not unknown:  # found out since the run was stopped; nobody need be asked
        return jobs.transition(
            connection, job, "pending", now=now, actor=actor, reason="found out meanwhile", **_uncounted(job, now)
        )
    return jobs.transition(connection, job, "review", now=now, actor=actor, reason="an effect's outcome is unknown")


def _concerns(effect: Effect, outcome: Outcome) -> bool:
    return effect.state == "unknown" or outcome.kind == "done" or effect.key == outcome.effect_key


def _service_out(outcome: Outcome) -> str | None:
    """The service whose outage ended the leg: the job waits for it, and spends nothing."""
    verdict = outcome.verdict
    if outcome.kind != "error" or verdict is None or verdict.outage is None or verdict.kind == "failed":
        return None
    return verdict.service


def _failed(
    connection: Connection,
    job: Job,
    outcome: Outcome,
    now: int,
    actor: str,
    randomness: random.Random,
    tiers: Mapping[str, str],
) -> Job:
    verdict, error = outcome.verdict, outcome.error
    if verdict is None or error is None:
        raise ValueError("an outcome of kind error needs its error and verdict")
    what: dict[str, Any] = {
        "code": getattr(error, "code", "unhandled_exception"),
        "type": error_chain(error)[0]["type"],
        "message": without_secrets(text_of(error))[:4096],
        "step": job.step,
        "node": job.node,
        "attempt": job.attempts,
        "verdict": verdict.kind,
        "reason": verdict.reason,
        "next_step": getattr(error, "next_step", "") or f"mend the cause, then: everstep retry {job.public_id}",
        "chain": [{**link, "message": without_secrets(link["message"])} for link in error_chain(error)],
    }
    if isinstance(error, EffectNotRepeated):
        what["effects"] = error.ids["effects"]
    text = json.dumps(what)
    connection.execute(
        insert(evidence).values(job_id=job.id, claim_no=job.claim_no, kind="error", detail_json=text, at=now)
    )
    if (service := _service_out(outcome)) is not None:
        what |= {"service": service, "symptom": verdict.outage, "next_step": "everstep services"}
        return _wait_for_service(connection, job, verdict, what, now, actor, randomness, tiers.get(service))
    if isinstance(error, StoreUnavailable):  # no fault of the job, however often it meets it
        return jobs.transition(
            connection,
            job,
            "retry",
            now=now,
            actor=actor,
            reason=f"the record could not be written: {error.message}",
            next_run_at=now + RECORD_OUT_MS,
            error_json=text,
            attempts=max(job.attempts - 1, 0),
        )
    count = job.with_another_failure()
    if verdict.kind == "retry" and count["failures"] < job.max_attempts:
        wait = backoff.delay_ms(count["failures"] - 1, verdict.retry_after_ms, randomness)
        reason = f"{what['type']}: retry in {wait / 1000:.1f} s ({verdict.reason})"
        return jobs.transition(
            connection,
            job,
            "retry",
            now=now,
            actor=actor,
            reason=reason,
            next_run_at=now + wait,
            error_json=text,
            **count,
        )
    if verdict.kind == "review":
        question = Question("error", f"claim {job.claim_no}", {"question": "Try again?", **what})
        reviews.open_all(connection, job, [question], now=now)
        return jobs.transition(
            connection,
            job,
            "review",
            now=now,
            actor=actor,
            reason=f"{what['type']}: {verdict.reason}",
            error_json=text,
            **count,
        )
    used_up = f"{count['failures']} failures without progress"
    reason = f"{what['type']}: {used_up if verdict.kind == 'retry' else verdict.reason}"
    return jobs.fail(connection, job, now=now, actor=actor, reason=reason, error_json=text, **count)


def _wait_for_service(
    connection: Connection,
    job: Job,
    verdict: Verdict,
    what: Mapping[str, Any],
    now: int,
    actor: str,
    randomness: random.Random,
    tier: str | None,
) -> Job:
    """Close the service's gate; the job waits for it without an attempt or a failure counted."""
    service, symptom = str(verdict.service), str(verdict.outage)

    def wait_ms(tries: int) -> int:
        return backoff.outage_delay_ms(symptom, tries, verdict.retry_after_ms, randomness)

    gate = services.report(connection, job, Report(service, symptom, verdict.reason, tier), now=now, wait_ms=wait_ms)
    return jobs.transition(
        connection,
        job,
        "retry",
        now=now,
        actor=actor,
        reason=f"{what['type']}: waits for {service} ({verdict.reason})",
        next_run_at=gate.opens_at or now,
        error_json=json.dumps(what),
        attempts=max(job.attempts - 1, 0),
    )
