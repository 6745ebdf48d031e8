"""A job over HTTP, as `everstep submit` takes it: what is asked is checked, and becomes one write."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from pydantic import Field
from sqlalchemy import Connection

from everstep.checkpoints import canonical, jobs, payload, submission
from everstep.checkpoints.policy import merged_acceptance, merged_budget
from everstep.checkpoints.submission import Enqueued
from everstep.errors import PayloadInvalid
from everstep.runtime.addresses import Guard
from everstep.server.access import require
from everstep.server.context import Caller, Served
from everstep.server.native import seen
from everstep.server.native.seen import Body
from everstep.server.texts import Text


class AcceptanceAsked(Body):
    """What must hold before the job is done, in place of what `everstep.toml` says. It needs the scope `admin`."""

    verify: list[Text] | None = Field(
        None, max_length=50, description="Commands that must pass, in order; no shell runs them."
    )
    workdir: Text | None = Field(None, description="Where they run; `{NAME}` is a value of the final state.")
    timeout: float | None = Field(None, gt=0, le=604_800, description="Seconds each may take.")
    returns: int | None = Field(None, ge=0, le=1000, description="How often a failure goes back to the graph first.")
    feedback: Text | None = Field(None, min_length=1, description="The channel of its state that gets the output.")
    high_risk: list[Text] | None = Field(
        None, max_length=200, description="Changed paths a person must approve; an empty list: none."
    )
    base: Text | None = Field(None, min_length=1, description="The commit that changed paths are told from.")


class BudgetAsked(Body):
    """Limits; with each that is set, a person is asked once it is used up."""

    steps: int | None = Field(None, gt=0, lt=2**53, strict=True, description="Supersteps of its graph.")
    seconds: float | None = Field(None, gt=0, lt=1e12, description="Seconds it runs; waiting does not count.")
    tokens: int | None = Field(None, gt=0, lt=2**53, strict=True, description="Tokens of its model calls.")
    cost: float | None = Field(None, gt=0, lt=1e9, description="What its model calls cost, US dollars.")


class JobCreate(Body):
    """A job to submit: one run of a graph."""

    graph: Text = Field(description="The graph's name.")
    input: Any = Field(description="What the graph starts with; anything but null.")
    key: Text | None = Field(
        None, min_length=1, max_length=500, description="Idempotency key of the job; made of the rest when omitted."
    )
    priority: int = Field(jobs.DEFAULT_PRIORITY, ge=0, le=10, description="10 is the most urgent.")
    max_attempts: int = Field(
        jobs.DEFAULT_MAX_ATTEMPTS, ge=1, le=1000, description="Failures without progress that end it."
    )
    workflow_version: Text = Field("1", max_length=200, description="A new version processes old input again.")
    services: list[Text] = Field(
        default_factory=list[str], max_length=50, description="Services it needs, such as `api.openai.com`."
    )
    concurrency_key: Text | None = Field(
        None, min_length=1, max_length=500, description="Jobs of one key run one at a time, or as everstep.toml says."
    )
    acceptance: AcceptanceAsked | None = None
    budget: BudgetAsked | None = None
    parent: Text | None = Field(None, description="Id of the job it is a child of, whose budget it shares.")
    webhook: Text | None = Field(None, description="The URL that is told when it ends or waits for a person.")
    allow_secret_keys: bool = Field(False, description="Accept input that looks as if it held credentials.")


def owned_key(caller: Caller, key: str) -> str:
    """The key as it stands in the record: owners do not share theirs."""
    return key if caller.owner is None else f"{quote(caller.owner, safe='')}:{key}"


class Submitting:
    """A job that is to be made.

    Args:
        body: What is asked.
        served: What is served.
        caller: Who asks.

    Raises:
        NotPermitted: It asks for commands to be run, and the caller may not.
        GraphNotFound: There is no such graph.
        PayloadInvalid: It cannot be honoured.
        SecretInPayload: The input seems to hold credentials.
        WebhookInvalid: The webhook is no URL, holds credentials, or leads where nothing may be sent.
    """

    def __init__(self, body: JobCreate, served: Served, caller: Caller) -> None:
        served.graphs.require(body.graph)
        if body.acceptance is not None:
            require(caller, "admin")  # a command on the worker's machine is more than a run of a graph
        if body.webhook is not None:
            Guard.of(served.policies.webhooks.allow).require(body.webhook)
        payload.check_input(body.input, allow_secret_keys=body.allow_secret_keys)
        if body.key is not None and not body.key.strip():
            raise PayloadInvalid("the key is empty", next_step="give a key, or leave it out")
        given = canonical.submitted(body.graph, body.input, body.workflow_version)
        self._digest, self._key = given.digest, body.key or given.key
        self._body = body
        self._caller = caller
        policy = served.policies.of_graph(body.graph)
        policy = replace(policy, services=(*policy.services, *body.services), concurrency_key=body.concurrency_key)
        policy = replace(policy, acceptance=merged_acceptance(policy.acceptance, _acceptance(body.acceptance)))
        self._policy = replace(policy, budget=merged_budget(policy.budget, _given(body.budget)))

    def write(self, connection: Connection, now: int) -> Enqueued:
        """Make it, or find the one that was made before.

        Args:
            connection: The write transaction.
            now: UTC milliseconds.

        Raises:
            JobNotFound: There is no such parent for the caller.
            JobPruned: It was made before, and deleted.
            KeyConflict: The key belongs to a job with another graph or input.
        """
        body = self._body
        parent = None if body.parent is None else seen.job(connection, self._caller, body.parent).public_id
        return submission.enqueue(
            connection,
            now=now,
            graph=body.graph,
            payload_json=json.dumps(body.input),
            payload_digest=self._digest,
            key=owned_key(self._caller, self._key),
            workflow_version=body.workflow_version,
            priority=body.priority,
            max_attempts=body.max_attempts,
            owner=self._caller.makes_for,
            policy=self._policy,
            parent=parent,
            webhook=body.webhook,
        )


def _given(body: Body | None) -> dict[str, Any]:
    return {} if body is None else body.model_dump(exclude_none=True)


def _acceptance(asked: AcceptanceAsked | None) -> dict[str, Any]:
    given = _given(asked)
    return given | {name: tuple(given[name]) for name in ("verify", "high_risk") if name in given}
