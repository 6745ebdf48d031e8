"""What the native interface shows of paid tasks, for its description; `runtime.task_care` makes the values."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from everstep.server.native.shown import Moment

TaskState = Literal["created", "submitting", "submission_unknown", "pending", "succeeded", "failed"]


class TaskShown(BaseModel):
    """A paid piece of work at a provider."""

    id: str
    submission_key: str = Field(description="What makes it one submission, among its owner's.")
    generation: int = Field(description="1, and one more for each time it is tried again after it failed.")
    job: str = Field(description="The job that submits it.")
    provider: str
    state: TaskState
    progress: int | None = Field(description="Percent.")
    amount: int = Field(description="The price, in the currency's smallest unit.")
    currency: str | None
    result: Any
    error: Any
    created_at: Moment
    updated_at: Moment
    submitted_at: Moment | None = Field(description="When it was known that the provider has it.")
    finished_at: Moment | None


class TaskList(BaseModel):
    """A page of tasks, newest first."""

    tasks: list[TaskShown]
    next_cursor: str | None = Field(description="Give it as `cursor` for the next page; null: this is the last.")


class Generation(BaseModel):
    """One try of a submission."""

    id: str
    generation: int
    state: TaskState


class LedgerEntry(BaseModel):
    """A movement of credit."""

    id: str
    owner: str
    kind: Literal["grant", "charge", "refund"]
    amount: int = Field(description="In the currency's smallest unit; below zero: taken.")
    currency: str
    task: str | None
    key: str | None
    reason: str
    actor: str
    at: Moment


class TaskDetail(TaskShown):
    """A task, and all that happened to it."""

    owner: str
    polls: int = Field(description="How often the provider was asked for it.")
    poll_failures: int = Field(description="The last ones in a row that brought no answer.")
    poll_error: str | None
    next_poll_at: Moment | None
    settled_by: str | None = Field(description="What told how it ended: `poll`, `webhook`, ….")
    review: str | None = Field(description="The open question whether the provider took it.")
    generations: list[Generation]
    entries: list[LedgerEntry] = Field(description="What it cost, and what was given back.")
    events: list[dict[str, Any]] = Field(description="What the provider told of it.")
    evidence: list[dict[str, Any]]
