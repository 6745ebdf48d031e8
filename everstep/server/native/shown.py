"""What the native interface shows, for its description; the values are made by `checkpoints` and `seen`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

Status = Literal["pending", "running", "retry", "review", "done", "failed"]
Decision = Literal["approve", "edit", "respond", "reject"]
ReviewKind = Literal["interrupt", "breakpoint", "effect", "error", "fingerprint", "policy", "budget"]
ReviewStatus = Literal["open", "answered", "closed"]
Moment = str
"""A time: RFC 3339, UTC, to the millisecond."""


class Limits(BaseModel):
    """Limits of a budget, or what was used of them."""

    steps: int | None = Field(None, description="Supersteps of the graph.")
    seconds: float | None = Field(None, description="Seconds of running; waiting does not count.")
    tokens: int | None = Field(None, description="Tokens of model calls, input and output together.")
    cost: float | None = Field(None, description="Cost of model calls, US dollars.")


class Account(BaseModel):
    """What a job may use, and what it and its descendants used."""

    limits: Limits
    used: Limits
    remaining: Limits


class WaitShown(BaseModel):
    """What a node waits for."""

    signal: str | None = Field(description="Null: for the moment alone.")
    until: Moment | None
    state: Literal["open", "met", "over"]
    node: str | None
    since: Moment
    decided_at: Moment | None


class JobShown(BaseModel):
    """A job."""

    id: str
    graph: str
    thread_id: str
    status: Status
    attempts: int = Field(description="Starts; one that pauses and its resumption count once.")
    max_attempts: int = Field(description="Failures in a row without progress after which it has failed.")
    failures: int = Field(description="How many there are so far.")
    worker_deaths: int
    suspect: bool
    step: int
    node: str | None = Field(description="What runs next, or runs now.")
    priority: int
    idempotency_key: str
    workflow_version: str
    owner: str
    leased_by: str | None
    lease_until: Moment | None
    claim_no: int = Field(description="How often it was started or taken over.")
    next_run_at: Moment
    cancel_requested_at: Moment | None
    created_at: Moment
    updated_at: Moment
    input_tokens: int
    output_tokens: int
    budget: Account
    parent: str | None = Field(description="The job it is a child of.")
    input: Any
    error: dict[str, Any] | None = Field(description="Why it failed, or what it waits or is tried again for.")
    result: Any
    result_digest: str | None


class PaidTask(BaseModel):
    """A paid piece of work at a provider, as the user sees it."""

    id: str
    provider: str
    submission_key: str
    generation: int
    state: Literal["created", "submitting", "submission_unknown", "pending", "succeeded", "failed"]
    progress: int | None = Field(description="Percent.")
    error: Any
    submitted_at: Moment | None
    finished_at: Moment | None


class Paid(BaseModel):
    """The paid work of a job: what an interface needs to show it again after a reload."""

    stage: Literal[
        "submitting", "unknown", "working", "keeping", "presenting", "asking", "cancelling", "done", "failed"
    ]
    request: Any = Field(description="What the provider was asked for last.")
    price: dict[str, Any] | None = Field(description="Of the last task: `amount`, `currency`, `text`, `lines`, ….")
    charged: int = Field(description="In the currency's smallest unit.")
    refunded: int
    currency: str | None
    tasks: list[PaidTask]
    artefacts: list[Any] = Field(description="What was made, when the job has kept it.")


class JobDetail(JobShown):
    """A job, and what it waits for."""

    open_reviews: list[str] = Field(description="Ids of its questions that wait for a person.")
    waits_for: list[str] = Field(description="Services it needs that are out.")
    waits: list[WaitShown] = Field(description="Signals and moments its nodes wait for.")
    paid: Paid | None = Field(description="Its paid work at providers.")


class JobCreated(JobDetail):
    """A job, and whether this request made it."""

    created: bool


class JobList(BaseModel):
    """A page of jobs, newest first."""

    jobs: list[JobShown]
    next_cursor: str | None = Field(description="Give it as `cursor` for the next page; null: this is the last.")


class EventShown(BaseModel):
    """Something that happened to a job."""

    id: str = Field(description="Its place in the log; give it as `after`, or as `Last-Event-ID`, to go on behind it.")
    event: str = Field(description="`status`, or what a run emitted.")
    namespace: str
    run_id: str | None
    leg: int
    at: Moment
    data: Any


class EventList(BaseModel):
    """What happened to a job, in order."""

    events: list[EventShown]
    next_after: str | None = Field(description="Give it as `after` to go on; null: nothing more so far.")


class EffectShown(BaseModel):
    """A call of a job that touches the outside world."""

    name: str
    state: Literal["intended", "confirmed", "rejected", "unknown"]
    key: str
    calls: int
    arguments: Any
    result: Any
    settled_by: str | None
    error: str | None
    created_at: Moment
    updated_at: Moment
    review: str | None = Field(description="The open question about it: answer that to settle it.")


class EffectList(BaseModel):
    """A job's effects, oldest first."""

    effects: list[EffectShown]
    count: int = Field(description="How many there are; the newest are listed.")


class TraceShown(BaseModel):
    """What a job did, as a tree."""

    id: str
    graph: str
    thread_id: str
    status: Status
    step: int
    input_tokens: int | None
    output_tokens: int | None
    cost: float | None = Field(description="US dollars; null: not known.")
    omitted: int = Field(description="How many steps were left out.")
    legs: list[dict[str, Any]]
    nodes: list[dict[str, Any]]


class Answer(BaseModel):
    """A person's answer."""

    decision: Decision
    value: Any
    reason: str | None
    by: str
    at: Moment


class UseShown(BaseModel):
    """The effect that an approval was used for."""

    effect: str
    key: str
    state: Literal["reserved", "consumed"] = Field(description="`consumed` when the effect is known to have happened.")
    argument_digest: str = Field(description="That of the arguments it was called with.")
    fingerprint: str | None = Field(description="That of the graph the approval was given for.")
    reserved_at: Moment
    consumed_at: Moment | None


class ReviewShown(BaseModel):
    """A question only a person can answer."""

    id: str
    job: str
    kind: ReviewKind
    status: ReviewStatus
    value: Any = Field(description="What is asked.")
    argument_digest: str = Field(description="Tells whether the question is still the one that was seen.")
    choices: dict[str, str] = Field(description="The decisions it takes, and what each would do.")
    answer: Answer | None
    used_for: UseShown | None = Field(description="The effect that the approval was used for.")
    created_at: Moment


class ReviewAnsweredNow(ReviewShown):
    """A review that was answered, and what became of its job."""

    job_status: Status


class ReviewList(BaseModel):
    """A page of reviews, oldest first."""

    reviews: list[ReviewShown]
    next_cursor: str | None = Field(description="Give it as `cursor` for the next page; null: this is the last.")


class LetterShown(BaseModel):
    """A job that failed by itself."""

    id: str
    graph: str
    status: Literal["failed"]
    step: int
    node: str | None
    attempts: int
    idempotency_key: str
    ended_by: str = Field(description="`error`, or how a person ended it.")
    error: dict[str, Any]
    failed_at: Moment
    announced_at: Moment | None


class LetterEvidence(LetterShown):
    """All that is known of a dead letter."""

    input: Any
    chain: list[Any]
    steps: list[dict[str, Any]]
    effects: list[dict[str, Any]]
    reviews: list[ReviewShown]
    evidence: list[dict[str, Any]]
    events: list[dict[str, Any]]
    session: str
    traces: list[dict[str, Any]]
    next_actions: list[str]


class LetterList(BaseModel):
    """A page of dead letters, the newest failure first."""

    dead_letters: list[LetterShown]
    next_cursor: str | None = Field(description="Give it as `cursor` for the next page; null: this is the last.")


class DeliveryShown(BaseModel):
    """A message to a webhook."""

    id: str = Field(description="The message's `webhook-id`, the same whenever it is sent.")
    job: str = Field(description="The job it is about.")
    url: str
    state: Literal["pending", "delivered", "dead"] = Field(description="`dead`: it was given up.")
    tries: int = Field(description="How often sending it began, since it was queued or replayed.")
    next_try_at: Moment | None
    last_error: str | None
    created_at: Moment
    delivered_at: Moment | None


class DeliveryDetail(DeliveryShown):
    """A message with its body."""

    body: dict[str, Any]


class DeliveryList(BaseModel):
    """A page of messages, newest first."""

    deliveries: list[DeliveryShown]
    next_cursor: str | None = Field(description="Give it as `cursor` for the next page; null: this is the last.")


class Redriven(BaseModel):
    """What became of a dead letter that was to run again."""

    id: str
    redriven: bool
    status: Status | None
    error: dict[str, Any] | None


class RedriveList(BaseModel):
    """What became of each."""

    results: list[Redriven]


class Purged(BaseModel):
    """What became of a dead letter that was to be deleted."""

    id: str
    purged: bool
    reason: str | None


class PurgeList(BaseModel):
    """What became of each."""

    results: list[Purged]


class ServiceShown(BaseModel):
    """A service that jobs need."""

    name: str
    gate: Literal["open", "closed"]
    symptom: str | None
    closed_at: Moment | None
    opens_at: Moment | None = Field(description="When it is tried next.")
    outages: int
    jobs: list[str] = Field(description="Jobs that need it, as far as the caller sees them.")


class ServiceList(BaseModel):
    """The services that are known, by name."""

    services: list[ServiceShown]


class ServiceOpened(BaseModel):
    """A service that works again."""

    service: str
    gate: Literal["open"]
    jobs: int = Field(description="How many jobs go on.")


class Alive(BaseModel):
    """The server answers."""

    status: Literal["ok"]


class Ready(BaseModel):
    """Whether the record can be read and written."""

    status: Literal["ready", "unavailable"]
    record: str | None = Field(description="What is wrong with it.")


class FindingShown(BaseModel):
    """One thing that was looked at."""

    check: str
    level: Literal["ok", "warning", "wrong"]
    detail: str
    advice: str


class Findings(BaseModel):
    """What was looked at, and what is wrong."""

    ok: bool
    findings: list[FindingShown]


class ErrorShown(BaseModel):
    """What went wrong."""

    detail: str
    code: str | None = Field(None, description="As the catalogue has it.")
    next_step: str | None = Field(None, description="What to do about it.")
