"""`Store`: a record, and what users do with it."""

from __future__ import annotations

import getpass
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from sqlalchemy import Connection, select

from everstep.checkpoints import (
    answers,
    budgets,
    canonical,
    dead_letters,
    deliveries,
    payload,
    retention,
    signals,
    submission,
    waits,
)
from everstep.checkpoints import effects as ledger
from everstep.checkpoints import jobs as queue
from everstep.checkpoints import reviews as questions
from everstep.checkpoints import services as upstream
from everstep.checkpoints.budgets import Account
from everstep.checkpoints.effects import Effect
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.owner import require_owner
from everstep.checkpoints.policy import JobPolicy
from everstep.checkpoints.record import Record
from everstep.checkpoints.reviews import Review
from everstep.checkpoints.schema import agent_jobs, job_events
from everstep.checkpoints.schema import evidence as evidence_table
from everstep.checkpoints.services import Service
from everstep.checkpoints.signals import Signal
from everstep.checkpoints.submission import Enqueued
from everstep.checkpoints.waits import Wait
from everstep.clock import rfc3339
from everstep.errors import PayloadInvalid
from everstep.observability import leg


class Store(Record):
    """The record behind a store URL. Use `Store.open`; close it, or use it in a `with` block."""

    def enqueue(
        self,
        graph: str,
        input: Any,
        *,
        key: str | None = None,
        priority: int = queue.DEFAULT_PRIORITY,
        max_attempts: int = queue.DEFAULT_MAX_ATTEMPTS,
        workflow_version: str = "1",
        owner: str = "default",
        allow_secret_keys: bool = False,
        policy: JobPolicy | None = None,
        parent: str | None = None,
        webhook: str | None = None,
    ) -> Enqueued:
        """Add a job: one run of a graph. The same key and input give the same job, whoever asks and however often.

        Args:
            graph: The graph's name.
            input: What the graph starts with; JSON data.
            key: Idempotency key; derived from graph, input and workflow version when omitted.
            priority: 0 (can wait) to 10 (urgent).
            max_attempts: Failures in a row, without progress between them, after which the job has failed.
            workflow_version: Part of the derived key: a new version processes old input again, on purpose.
            owner: Whose job it is.
            allow_secret_keys: Accept keys that look like credentials.
            policy: What it may use, what must hold before it is done, and which services it needs.
            parent: Id of the job it is a child of, whose budget it shares; in a node `everstep.current_job()`.
            webhook: Who is told when the job ends or waits for a person: the URL that gets the job as JSON.

        Returns:
            The job, and whether this call created it.

        Raises:
            PayloadInvalid: The input is None or has no exact JSON form, or a parameter is out of range.
            SecretInPayload: The input has a key that looks like a credential.
            KeyConflict: The key belongs to a job with another graph or input.
            JobNotFound: There is no such parent.
            JobPruned: The job ended and was deleted by retention, and its key is not free yet.
            WebhookInvalid: The webhook is no URL, or holds credentials.
        """
        if webhook is not None:
            deliveries.check_url(webhook)
        payload.check_input(input, allow_secret_keys=allow_secret_keys)
        require_owner(owner)
        given = canonical.submitted(graph, input, workflow_version)
        _check_range("priority", priority, 0, 10)
        _check_range("max_attempts", max_attempts, 1, 1000)
        now = self.clock.now_ms()
        enqueued = self.carry_out(
            lambda connection: submission.enqueue(
                connection,
                now=now,
                graph=graph,
                payload_json=json.dumps(input),
                payload_digest=given.digest,
                key=key or given.key,
                workflow_version=workflow_version,
                priority=priority,
                max_attempts=max_attempts,
                owner=owner,
                policy=policy,
                parent=parent,
                webhook=webhook,
            )
        )
        leg.current.get().enqueued(enqueued.job.public_id, graph)
        return enqueued

    def job(self, public_id: str) -> Job:
        """The job by id, or by a prefix of it that fits one job only.

        Raises:
            JobNotFound: No job, or more than one, fits.
        """
        return self.read(lambda connection: queue.find(connection, public_id))

    def jobs(self, *, status: str | None = None, limit: int = 1000) -> list[Job]:
        """Jobs, newest first."""
        query = select(agent_jobs).order_by(agent_jobs.c.id.desc()).limit(limit)
        if status is not None:
            query = query.where(agent_jobs.c.status == status)

        def look(connection: Connection) -> list[Job]:
            rows = connection.execute(query).mappings().all()
            return [queue.whole(connection, queue.job_of(row)) for row in rows]

        return self.read(look)

    def effects(self, job: Job, *, newest: int | None = None) -> list[Effect]:
        """A job's effects, oldest first; only so many of the newest if a number is given."""
        return self.read(lambda connection: ledger.of_job(connection, job.id, newest=newest))

    def effect_count(self, job: Job) -> int:
        """How many effects a job has."""
        return self.read(lambda connection: ledger.how_many(connection, job.id))

    def reviews(self, job: Job | None = None) -> list[Review]:
        """A job's reviews; without a job, every open one."""
        return self.read(
            lambda connection: questions.all_open(connection) if job is None else questions.of_job(connection, job.id)
        )

    def review(self, review_id: str) -> Review:
        """The review by id, or by a prefix of it that fits one only.

        Raises:
            ReviewNotFound: No review, or more than one, fits.
        """
        return self.read(lambda connection: questions.find(connection, review_id))

    def job_by_row(self, row_id: int) -> Job:
        """The job by row id, as reviews and effects refer to it."""
        return self.read(lambda connection: queue.get(connection, row_id))

    def evidence(self, job: Job) -> list[dict[str, Any]]:
        """What was kept of a job's failures and verifications, oldest first; no ids of providers'."""
        from everstep.checkpoints.provider_settlement import EVIDENCE, without_ids

        query = select(evidence_table).where(evidence_table.c.job_id == job.id).order_by(evidence_table.c.id)
        rows = self.read(lambda connection: connection.execute(query).mappings().all())
        told = [(row, json.loads(row["detail_json"])) for row in rows]
        return [
            {
                "kind": row["kind"],
                "claim_no": row["claim_no"],
                "at": rfc3339(row["at"]),
                "detail": without_ids(detail) if row["kind"] == EVIDENCE else detail,
            }
            for row, detail in told
        ]

    def events(self, job: Job) -> list[dict[str, Any]]:
        """A job's changes of status, oldest first."""
        query = select(job_events).where(job_events.c.job_id == job.id).order_by(job_events.c.id)
        rows = self.read(lambda connection: connection.execute(query).mappings().all())
        return [
            {
                "from": row["from_status"],
                "to": row["to_status"],
                "claim_no": row["claim_no"],
                "at": rfc3339(row["at"]),
                "actor": row["actor"],
                "reason": row["reason"],
            }
            for row in rows
        ]

    def answer(
        self,
        review_id: str,
        decision: str,
        *,
        value: Any = answers.MISSING,
        reason: str | None = None,
        by: str | None = None,
    ) -> tuple[Review, Job]:
        """Answer a review, once; its job goes on.

        Args:
            review_id: The review's id, or a prefix that fits one only.
            decision: `approve`, `edit`, `respond` or `reject`.
            value: The value that goes with it; JSON data.
            reason: Why, in the person's words.
            by: Who answers; this machine's user when omitted.

        Raises:
            ReviewNotFound: No review, or more than one, fits.
            ReviewAnswered: It was answered before; the first answer stands, and the error shows it.
            ReviewAnswerInvalid: This kind of review does not take this answer.
            SecretInPayload: The value has a key that looks like a credential.
        """
        if value is not answers.MISSING:
            payload.check_payload(value)
        now, who = self.clock.now_ms(), by or _user()

        def operation(connection: Connection) -> tuple[Review, Job]:
            review = questions.find(connection, review_id)
            return questions.answer(connection, review, decision=decision, value=value, reason=reason, by=who, now=now)

        return self.carry_out(operation)

    def cancel(self, public_id: str, *, by: str | None = None) -> Job:
        """Cancel a job: at once when nothing runs it, otherwise as a request its worker acknowledges.

        Raises:
            JobNotFound: No job, or more than one, fits.
            JobStateConflict: The job has ended already.
        """
        return self._change(queue.cancel, public_id, by)

    def redrive(self, public_id: str, *, by: str | None = None, only_failed: bool = False) -> Job:
        """Retry a failed job from its last checkpoint; or, unless `only_failed`, let one in backoff run now.

        Raises:
            JobNotFound: No job, or more than one, fits.
            JobStateConflict: The job is in no state to be retried.
        """
        return self._change(dead_letters.redrive if only_failed else queue.redrive, public_id, by)

    def set_budget(
        self, public_id: str, limits: Mapping[str, Any], *, by: str | None = None
    ) -> tuple[Job, list[Review]]:
        """Set limits of a job. It and its children go on if they wait in review for a budget that suffices now.

        Args:
            public_id: The job's id, or a prefix of it that fits one job only.
            limits: `steps`, `seconds`, `tokens` or `cost`; those not named stay, None takes one away.
            by: Who does it; this machine's user when omitted.

        Returns:
            The job as it is then, and the reviews that are answered by it.

        Raises:
            JobNotFound: No job, or more than one, fits.
            PayloadInvalid: There is no such limit, or it is no positive number.
        """
        now, who = self.clock.now_ms(), by or _user()
        return self.carry_out(lambda connection: budgets.raise_(connection, public_id, limits, now=now, by=who))

    def accounts(self, jobs: Sequence[Job]) -> dict[int, Account]:
        """By row id: what each job may use, and what it and its descendants used."""
        return self.read(lambda connection: budgets.accounts(connection, [job.id for job in jobs]))

    def prune(
        self,
        rules: retention.Rules | None = None,
        *,
        dry_run: bool = False,
        progress: Callable[[retention.Pruned], None] | None = None,
    ) -> retention.Pruned:
        """Delete jobs that ended long ago, each with everything of it; their keys stay known for a time.

        Args:
            rules: How long things are kept; the defaults when omitted.
            dry_run: Only count.
            progress: Called after each batch.
        """
        return retention.prune(self, rules or retention.Rules(), dry_run=dry_run, progress=progress)

    def services(self) -> list[Service]:
        """The services jobs need or reported, by name."""
        return self.read(upstream.every)

    def services_out(self, job: Job) -> list[Service]:
        """The services that a job needs and that are out."""
        return self.read(lambda connection: upstream.holding(connection, job.id))

    def open_service(self, name: str) -> int:
        """Open a service's gate: a person knows that it works again. The jobs that wait for it go on.

        Returns:
            How many they are.

        Raises:
            ServiceNotFound: No job reported or needs it.
        """
        now = self.clock.now_ms()
        return self.carry_out(
            lambda connection: upstream.open_gate(connection, upstream.find(connection, name), now=now)
        )

    def emit(
        self,
        name: str,
        payload: Any = None,
        *,
        owner: str = "default",
        by: str | None = None,
        allow_secret_keys: bool = False,
    ) -> tuple[Signal, bool]:
        """Emit a signal, and wake the jobs that wait for it; the first emission of a name wins.

        Args:
            name: The signal's name, such as `payment-received:order-17`.
            payload: What it carries; JSON data.
            owner: Whose it is: only jobs of this owner hear it.
            by: Who emits it; this machine's user when omitted.
            allow_secret_keys: Accept keys that look like credentials.

        Returns:
            The signal of this name, and whether it was emitted now.

        Raises:
            SignalInvalid: The name or the payload cannot be one.
            PayloadInvalid: The owner can be none.
            SecretInPayload: The payload seems to hold credentials.
        """
        payload_text = signals.payload_text(payload, allow_secret_keys=allow_secret_keys)
        emit = partial(
            signals.emit,
            name=signals.require_name(name),
            payload=json.loads(payload_text),
            owner=require_owner(owner),
            by=by or _user(),
            now=self.clock.now_ms(),
        )
        return self.carry_out(emit)

    def waits(self, job: Job) -> list[Wait]:
        """A job's waits for signals and moments, oldest first."""
        return self.read(lambda connection: waits.of_job(connection, job.id))

    def _change(self, change: Callable[..., Job], public_id: str, by: str | None) -> Job:
        now, who = self.clock.now_ms(), by or _user()
        return self.carry_out(
            lambda connection: change(
                connection, queue.lock(connection, queue.find(connection, public_id).id), now=now, actor=who
            )
        )


def _check_range(name: str, value: int, lowest: int, highest: int) -> None:
    if not lowest <= value <= highest:
        raise PayloadInvalid(f"{name} is {value}", next_step=f"give a number from {lowest} to {highest}")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
