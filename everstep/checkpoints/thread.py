"""`Thread`: a row of `threads`, or what a job without one is as a thread; what changes one is in `conversations`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from sqlalchemy import Connection, RowMapping, bindparam, select

from everstep.checkpoints import answers, large_texts
from everstep.checkpoints.assistants import system_id
from everstep.checkpoints.job import from_row
from everstep.checkpoints.schema import agent_jobs, reviews
from everstep.checkpoints.statements import Statement
from everstep.clock import rfc3339

MINUTE_MS = 60_000
Status = Literal["idle", "busy", "interrupted", "error"]
OF_JOB: Mapping[str, Status] = {"review": "interrupted", "done": "idle", "failed": "error"}
"""What a thread is whose job is so; `busy` otherwise."""
_NAMED = agent_jobs.c.public_id == bindparam("thread")
_OF_JOB = Statement(select(agent_jobs).where(_NAMED, agent_jobs.c.thread_id == bindparam("thread")))


@dataclass(frozen=True)
class Ttl:
    """How long a thread is kept after something last happened on it.

    Attributes:
        minutes: How long.
        strategy: What happens then: `delete` it, or `keep_latest`: drop all but the newest of its checkpoints.
    """

    minutes: float
    strategy: Literal["delete", "keep_latest"] = "delete"

    def as_dict(self) -> dict[str, Any]:
        """As it is stored, and as LangGraph's clients send it."""
        return {"ttl": self.minutes, "strategy": self.strategy}

    @classmethod
    def of(cls, stored: str | None) -> Ttl | None:
        """What a row's `ttl_json` says."""
        known = json.loads(stored) if stored else None
        return cls(known["ttl"], known["strategy"]) if known else None

    def from_now(self, now: int) -> int:
        """When it is over if nothing happens any more, UTC milliseconds."""
        return now + int(self.minutes * MINUTE_MS)


@dataclass(frozen=True)
class Thread:
    """A thread.

    Attributes:
        thread_id: Its id.
        owner: Whose it is.
        graph: Name of the graph it ran last; None: none yet.
        assistant_id: The assistant it ran last.
        status: `idle`, `busy`, `interrupted` (it waits for a person) or `error`.
        metadata: What it can be found by.
        config: Its own configuration.
        values_json: Its state when its last run stopped, as JSON; None: none yet, or not read.
        interrupts: By task, what it waits for: a list of `{"id", "value"}`.
        error: Why its last run failed.
        ttl: How long it is kept.
        expires_at: When that is over, UTC milliseconds.
        created_at: UTC milliseconds.
        updated_at: When something last happened on it, UTC milliseconds.
        state_updated_at: When its state last changed, UTC milliseconds.
        has_row: Whether it has a row of its own.
    """

    thread_id: str
    owner: str
    graph: str | None
    assistant_id: str | None
    status: Status
    metadata: dict[str, Any]
    config: dict[str, Any]
    values_json: str | None
    interrupts: dict[str, Any]
    error: Any
    ttl: Ttl | None
    expires_at: int | None
    created_at: int
    updated_at: int
    state_updated_at: int | None
    has_row: bool = True

    def as_dict(self) -> dict[str, Any]:
        """As LangGraph's clients read it."""
        view: dict[str, Any] = {
            "thread_id": self.thread_id,
            "created_at": rfc3339(self.created_at),
            "updated_at": rfc3339(self.updated_at),
            "state_updated_at": rfc3339(self.state_updated_at or self.updated_at),
            "metadata": self.metadata,
            "status": self.status,
            "config": self.config,
            "values": None if self.values_json is None else json.loads(self.values_json),
            "interrupts": self.interrupts,
        }
        return view if self.error is None else {**view, "error": self.error}


def thread_of(row: Mapping[str, Any] | RowMapping) -> Thread:
    """The thread of a row; columns that were not read are as if empty."""
    known: dict[str, Any] = dict(row)
    return Thread(
        thread_id=known["thread_id"],
        owner=known["owner"],
        graph=known["graph"],
        assistant_id=known["assistant_id"],
        status=known["status"],
        metadata=json.loads(known["metadata_json"]),
        config=json.loads(known["config_json"]),
        values_json=known.get("values_json"),
        interrupts=json.loads(known["interrupts_json"]),
        error=json.loads(known["error_json"]) if known["error_json"] else None,
        ttl=Ttl.of(known["ttl_json"]),
        expires_at=known["expires_at"],
        created_at=known["created_at"],
        updated_at=known["updated_at"],
        state_updated_at=known["state_updated_at"],
    )


def of_job(connection: Connection, thread_id: str) -> Thread | None:
    """The thread of a job that was submitted otherwise than by a client of threads."""
    row = _OF_JOB.run(connection, {"thread": thread_id}).fetchone()
    if row is None:
        return None
    job = from_row(row)
    return Thread(
        thread_id=job.thread_id,
        owner=job.owner,
        graph=job.graph,
        assistant_id=system_id(job.graph),
        status=OF_JOB.get(job.status, "busy"),
        metadata={"graph_id": job.graph, "assistant_id": system_id(job.graph)},
        config={},
        values_json=job.result_json and large_texts.whole(connection, job.thread_id, job.result_json),
        interrupts=asked_by(connection, job.id),
        error=json.loads(job.error_json) if job.error_json else None,
        ttl=None,
        expires_at=None,
        created_at=job.created_at,
        updated_at=job.updated_at,
        state_updated_at=job.updated_at,
        has_row=False,
    )


def asked_by(connection: Connection, job_id: int) -> dict[str, Any]:
    """The open questions of a job, as interrupts; those its graph did not ask itself in the form of Agent Inbox."""
    query = select(reviews).where(reviews.c.job_id == job_id, reviews.c.status == "open").order_by(reviews.c.id)
    found: dict[str, Any] = {}
    for row in connection.execute(query).mappings():
        value: Any = json.loads(row["value_json"])
        if row["kind"] == "interrupt":
            found[row["subject"]] = [{"id": row["subject"], "value": value}]
            continue
        offered = answers.choices(row["kind"], value)
        told = {
            "action_request": {"action": f"everstep.{row['kind']}", "args": value},
            "config": {
                "allow_accept": "approve" in offered,
                "allow_edit": False,
                "allow_respond": "respond" in offered,
                "allow_ignore": "reject" in offered,
            },
            "description": str(cast("dict[str, Any]", value).get("question", "")) if isinstance(value, dict) else "",
        }
        found[row["public_id"]] = [{"id": row["public_id"], "value": told}]
    return found
