"""`Job`: a row of `agent_jobs`, and how it is read; what changes one is in `jobs`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, DefaultClause, RowMapping

from everstep.checkpoints.schema import agent_jobs

NOT_YET = 253_402_300_799_000
"""When a job is due whose turn on its thread has not come: in the last second of the year 9999, UTC milliseconds."""
PARKED = NOT_YET - 1000
"""When a job is due that waits for a signal, however long that takes; the second before, UTC milliseconds."""
_COLUMNS = tuple(agent_jobs.c.keys())


def _at_first(column: Column[Any]) -> Any:
    """What the database gives a column that an insertion does not name."""
    if not isinstance(column.server_default, DefaultClause):
        return None
    return column.type.python_type(column.server_default.arg)


_AT_FIRST = {column.name: _at_first(column) for column in agent_jobs.c}


@dataclass(frozen=True)
class Job:
    """A row of `agent_jobs`. Times are UTC milliseconds; see `schema` for the columns.

    Attributes:
        attempts: Starts; one that pauses for a person and its resumption count once, one given back by draining not.
        max_attempts: Failures in a row, without progress between them, after which the job has failed.
        failures: How many there are so far; a worker that died is none (`worker_deaths`).
        progress: Grows with every checkpoint and every finished task that is stored.
        progress_at_failure: Its value at the last failure, or death of its worker.
        due_rank: By which ready jobs are taken, the lowest first; see `rank`.
        concurrency_key: Jobs of one key run at most so many at once.
        parent_id: Row id of the job that enqueued it, whose budget it shares.
        budget_json: What it may use (`policy.Budget`).
        run_ms: How long it ran so far, all legs together, milliseconds.
        cost_micros: What its model calls cost so far, millionths of a US dollar.
        acceptance_json: What must hold before it is done (`policy.Acceptance`).
        returns: How often it was given back to its graph because that did not hold.
        next_input_json: What its graph is fed next in place of its input; see `returns`.
        worker_deaths: Processes in a row that died while they ran it alone; see `deaths`.
        suspect: Workers in a row that died while they ran it beside others; see `deaths`.
        announced_at: When its arrival among the dead letters was told; see `dead_letters`.
        run_json: How it runs on a thread that it may share with other jobs; None: alone, on its own; see `runs`.
        webhook: Where it is told that the job ended or waits for a person; see `deliveries`.
    """

    id: int
    public_id: str
    idempotency_key: str
    payload_digest: str
    payload_json: str
    owner: str
    graph: str
    thread_id: str
    workflow_version: str
    status: str
    priority: int
    attempts: int
    max_attempts: int
    failures: int
    progress: int
    progress_at_failure: int
    claim_no: int
    leased_by: str | None
    lease_until: int | None
    next_run_at: int
    step: int
    node: str | None
    input_tokens: int
    output_tokens: int
    input_applied: int
    cancel_requested_at: int | None
    fingerprint: str | None
    fingerprint_json: str | None
    error_json: str | None
    result_json: str | None
    result_digest: str | None
    created_at: int
    updated_at: int
    due_rank: int
    concurrency_key: str | None
    parent_id: int | None
    budget_json: str | None
    run_ms: int
    cost_micros: int
    acceptance_json: str | None
    returns: int
    next_input_json: str | None
    worker_deaths: int
    suspect: int
    announced_at: int | None
    run_json: str | None
    webhook: str | None

    @property
    def waits_for_its_turn(self) -> bool:
        """Whether another job is before it on its thread."""
        return self.next_run_at >= NOT_YET

    @property
    def payload(self) -> Any:
        """The input the graph starts with."""
        return json.loads(self.payload_json)

    @property
    def acceptance(self) -> Any:
        """What must hold before it is done, as `policy.Acceptance.of` takes it; None: nothing."""
        return None if self.acceptance_json is None else json.loads(self.acceptance_json)

    @property
    def next_input(self) -> Any:
        """What its graph is fed while nothing of that is part of its thread: its input, or what it was given back."""
        return json.loads(self.payload_json if self.next_input_json is None else self.next_input_json)

    def with_another_failure(self) -> dict[str, int]:
        """The columns to set when a start of this job fails now: progress since the last failure starts a new count."""
        stuck = self.progress <= self.progress_at_failure
        count = {"failures": self.failures + 1 if stuck else 1, "progress_at_failure": self.progress}
        return count if stuck else {**count, "worker_deaths": 0}


def job_of(row: RowMapping) -> Job:
    """The dataclass for a row."""
    return _job(dict(row))


def from_row(row: Sequence[Any]) -> Job:
    """The dataclass for a row with all columns, in the order of the table."""
    return _job(dict(zip(_COLUMNS, row, strict=True)))


def inserted(row_id: int, columns: Mapping[str, Any]) -> Job:
    """The dataclass for a row that was inserted with some columns; the others are as the table has them at first."""
    return _job({**_AT_FIRST, **columns, "id": row_id})


def with_columns(job: Job, columns: Mapping[str, Any]) -> Job:
    """The job with some columns changed."""
    return _job({**job.__dict__, **columns})


def _job(values: dict[str, Any]) -> Job:
    """A job that has these values, without the initialiser of a frozen dataclass: that takes as long as the row."""
    job = object.__new__(Job)
    object.__setattr__(job, "__dict__", values)
    return job
