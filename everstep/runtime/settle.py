"""How a leg ends: each outcome is one write that changes the job under its claim, or changes nothing."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sqlalchemy import Connection, insert

from everstep.checkpoints import budgets, effects, jobs, loose_ends, reviews, services, turns, waits
from everstep.checkpoints.effects import Effect
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.loose_ends import LooseEnds
from everstep.checkpoints.payload import LONGEST_TEXT, without_secrets
from everstep.checkpoints.reviews import Question
from everstep.checkpoints.schema import evidence
from everstep.checkpoints.services import Report
from everstep.counts import counted
from everstep.errors import ApprovalRejected, EffectNotRepeated, StoreUnavailable
from everstep.observability.exception_chain import links, text_of
from everstep.runtime import backoff
from everstep.runtime.acceptance import Judgement
from everstep.runtime.classify import Verdict
from everstep.runtime.results import json_ready

RECORD_OUT_MS = 60_000
NO_TIERS: Mapping[str, str] = {}
OutcomeKind = Literal["done", "returned", "review", "parked", "effect", "error", "released", "cancelled"]


@dataclass(frozen=True)
class Outcome:
    """What a leg came to.

    Attributes:
        kind: `done` (with `values`), `review` (with `questions`), `parked` (with `waits`, and `questions` besides),
            `effect` (with `effect_key`), `error` (with `error` and its `verdict`), `released` (given back by a
            draining worker), `cancelled`, or `returned` (not accepted: given back to its graph).
        judgement: What came of the acceptance of a graph that finished.
        told: What the client's run and its thread are told (`turns.tell_values`).
    """

    kind: OutcomeKind
    values: Any = None
    questions: list[Question] = field(default_factory=list[Question])
    waits: tuple[str, ...] = ()
    effect_key: str | None = None
    error: BaseException | None = None
    verdict: Verdict | None = None
    judgement: Judgement | None = None
    told: Mapping[str, str] = field(default_factory=dict[str, str])


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
    current, loose = loose_ends.lock(connection, job.id)
    if current.claim_no != job.claim_no or current.status != "running":
        raise jobs.LostClaim(f"job {job.public_id}: claim {job.claim_no} is no longer its claim")
    settlement = _Settlement(connection, current, loose, outcome, now, actor, randomness, tiers)
    settlement.tell_services(came_further=current.progress > job.progress)
    if outcome.told:
        turns.tell_values(connection, current, outcome.told)
    return settlement.write()


@dataclass(frozen=True)
class _Settlement:
    """The end of a leg in its transaction; the job is locked, and as the record has it now."""

    connection: Connection
    job: Job
    loose: LooseEnds
    outcome: Outcome
    now: int
    actor: str
    randomness: random.Random
    tiers: Mapping[str, str]

    def tell_services(self, *, came_further: bool) -> None:
        """What the leg tells of the services it was to try."""
        if not self.loose.tried:
            return
        outcome, out = self.outcome, self._service_out()
        if outcome.kind in ("done", "returned") or came_further:
            services.passed(self.connection, self.job, now=self.now, but=out)
        elif out is None and outcome.kind not in ("released", "cancelled"):
            services.end_trials(self.connection, self.job, now=self.now)

    def write(self) -> Job:
        """The job as it is settled."""
        outcome, judgement = self.outcome, self.outcome.judgement
        if judgement is not None and judgement.evidence:
            self._keep("acceptance", json.dumps(judgement.evidence))
        of_effects = self.loose.unsettled and outcome.kind in ("done", "effect")
        unsettled = effects.unsettled(self.connection, self.job.id) if of_effects else []
        if outcome.kind == "done" and not unsettled:
            return self._done()
        if self.job.cancel_requested_at is not None or outcome.kind == "cancelled":
            return jobs.end(self.connection, self.job, now=self.now, actor=self.actor)
        if outcome.kind == "returned" and judgement is not None:
            return self._returned(judgement)
        if outcome.kind == "review":
            return self._review()
        if outcome.kind == "parked":
            return self._parked()
        if outcome.kind in ("effect", "done"):  # a graph that finished past an unknown effect is not done
            return self._effect_review(unsettled)
        if outcome.kind == "released":
            return self._not_counted("given back by a draining worker")
        return self._failed()

    def _move(self, to: str, reason: str, **changes: Any) -> Job:
        return jobs.transition(self.connection, self.job, to, now=self.now, actor=self.actor, reason=reason, **changes)

    def _not_counted(self, reason: str, **changes: Any) -> Job:
        """It is pending again: a start that ended by pausing or draining is not an attempt that failed."""
        return self._move("pending", reason, attempts=max(self.job.attempts - 1, 0), next_run_at=self.now, **changes)

    def _keep(self, kind: str, detail_json: str) -> None:
        job = self.job
        kept = {"job_id": job.id, "claim_no": job.claim_no, "kind": kind, "detail_json": detail_json, "at": self.now}
        self.connection.execute(insert(evidence).values(**kept))

    def _returned(self, judgement: Judgement) -> Job:
        """Back to its graph: what it is fed next is stored as the thread's next input, to be applied once."""
        again = {"returns": self.job.returns + 1, "next_input_json": json.dumps(judgement.next_input)}
        return self._not_counted(judgement.reason, error_json=None, input_applied=0, **again)

    def _done(self) -> Job:
        result, judgement = json_ready(self.outcome.values), self.outcome.judgement
        if self.loose.asked:
            reviews.close_all(self.connection, self.job.id, now=self.now)
        return self._move(
            "done",
            judgement.reason if judgement else "finished",
            result_json=json.dumps(result),
            result_digest=jobs.loose_digest(result),
            error_json=None,
            node=None,
        )

    def _review(self) -> Job:
        questions = self.outcome.questions
        if budgets.is_lifted(self.connection, self.job, questions):
            return self._not_counted("its budget was raised meanwhile")
        opened = reviews.open_all(self.connection, self.job, questions, now=self.now)
        if any(question.kind == "interrupt" for question in questions):
            reviews.close_others(self.connection, self.job, opened, now=self.now)
        if any(review.status == "answered" for review in opened):  # answered while the job ran on another answer
            return self._not_counted("answered meanwhile")
        kinds = ", ".join(sorted({question.kind for question in questions}))
        return self._move("review", f"waits for a person: {kinds}")

    def _parked(self) -> Job:
        """It waits without a worker. What is asked besides is asked now; an answer wakes it as a signal does."""
        opened = reviews.open_all(self.connection, self.job, self.outcome.questions, now=self.now)
        reviews.close_others(self.connection, self.job, opened, now=self.now)
        due, waited = waits.parked(self.connection, self.job, self.outcome.waits, now=self.now)
        if due <= self.now or any(review.status == "answered" for review in opened):
            return self._not_counted("what it waited for came meanwhile")
        told = "; ".join(wait.told() for wait in waited)
        attempts = max(self.job.attempts - 1, 0)
        lives = {"suspect": 0, "worker_deaths": 0}  # its process: as at any other end of a leg
        return self._move("pending", f"waits {told}", attempts=attempts, next_run_at=due, error_json=None, **lives)

    def _effect_review(self, unsettled: Sequence[Effect]) -> Job:
        unknown = [effect for effect in unsettled if self._concerns(effect)]
        for effect in unknown:
            if effect.state == "intended":
                effect = effects.mark_unknown(self.connection, effect, now=self.now)
            reviews.open_for_effect(self.connection, self.job, effect, now=self.now)
        if not unknown:  # found out since the run was stopped; nobody need be asked
            return self._not_counted("found out meanwhile")
        return self._move("review", "an effect's outcome is unknown")

    def _concerns(self, effect: Effect) -> bool:
        return effect.state == "unknown" or self.outcome.kind == "done" or effect.key == self.outcome.effect_key

    def _service_out(self) -> str | None:
        """The service whose outage ended the leg: the job waits for it, and spends nothing."""
        verdict = self.outcome.verdict
        if self.outcome.kind != "error" or verdict is None or verdict.outage is None or verdict.kind == "failed":
            return None
        return verdict.service

    def _failed(self) -> Job:
        job, verdict, error = self.job, self.outcome.verdict, self.outcome.error
        if verdict is None or error is None:
            raise ValueError("an outcome of kind error needs its error and verdict")
        what = self._told(verdict, error)
        text = json.dumps(what)
        self._keep("error", text)
        if (service := self._service_out()) is not None:
            what |= {"service": service, "symptom": verdict.outage, "next_step": "everstep services"}
            return self._wait_for_service(verdict, what)
        if isinstance(error, StoreUnavailable):  # no fault of the job, however often it meets it
            return self._move(
                "retry",
                f"the record could not be written: {error.message}",
                next_run_at=self.now + RECORD_OUT_MS,
                error_json=text,
                attempts=max(job.attempts - 1, 0),
            )
        count = job.with_another_failure()
        if verdict.kind == "retry" and count["failures"] < job.max_attempts:
            wait = backoff.delay_ms(count["failures"] - 1, verdict.retry_after_ms, self.randomness)
            reason = f"{what['type']}: retry in {wait / 1000:.1f} s ({verdict.reason})"
            return self._move("retry", reason, next_run_at=self.now + wait, error_json=text, **count)
        if verdict.kind == "review":
            seen = [{key: value for key, value in link.items() if key != "frames"} for link in what["chain"]]
            question = Question("error", f"claim {job.claim_no}", {"question": "Try again?", **what, "chain": seen})
            reviews.open_all(self.connection, job, [question], now=self.now)
            return self._move("review", f"{what['type']}: {verdict.reason}", error_json=text, **count)
        used_up = f"{counted(count['failures'], 'failure')} without progress"
        reason = f"{what['type']}: {used_up if verdict.kind == 'retry' else verdict.reason}"
        return jobs.fail(self.connection, job, now=self.now, actor=self.actor, reason=reason, error_json=text, **count)

    def _told(self, verdict: Verdict, error: BaseException) -> dict[str, Any]:
        """What is kept of an error."""
        job, chain = self.job, [link.as_dict() for link in links(error)]
        what: dict[str, Any] = {
            "code": getattr(error, "code", "unhandled_exception"),
            "type": chain[0]["type"],
            "message": without_secrets(text_of(error)[:LONGEST_TEXT])[:4096],
            "step": job.step,
            "node": job.node,
            "attempt": job.attempts,
            "verdict": verdict.kind,
            "reason": verdict.reason,
            "next_step": getattr(error, "next_step", "") or f"mend the cause, then: everstep retry {job.public_id}",
            "chain": chain,
        }
        if isinstance(error, ApprovalRejected):
            what["words"] = error.words
        if isinstance(error, EffectNotRepeated):
            what["effects"] = error.ids["effects"]
        return what

    def _wait_for_service(self, verdict: Verdict, what: Mapping[str, Any]) -> Job:
        """Close the service's gate; the job waits for it without an attempt or a failure counted."""
        job, now, service, symptom = self.job, self.now, str(verdict.service), str(verdict.outage)

        def wait_ms(tries: int) -> int:
            return backoff.outage_delay_ms(symptom, tries, verdict.retry_after_ms, self.randomness)

        met = Report(service, symptom, verdict.reason, self.tiers.get(service))
        gate = services.report(self.connection, job, met, now=now, wait_ms=wait_ms)
        return self._move(
            "retry",
            f"{what['type']}: waits for {service} ({verdict.reason})",
            next_run_at=gate.opens_at or now,
            error_json=json.dumps(what),
            attempts=max(job.attempts - 1, 0),
        )
