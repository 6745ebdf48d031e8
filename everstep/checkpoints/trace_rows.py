"""What the record holds of the course of a job, in small rows: for drawing a trace, without reading any state.

A checkpoint's id is a UUIDv6, so it tells when the checkpoint was made; its metadata tell the step and the leg; which
nodes ran is told by the paths of the tasks whose writes belong to the checkpoint before. Values of channels, arguments,
results and answers are never read here. Every function reads inside a transaction it is given.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast
from uuid import UUID

from sqlalchemy import Connection, String, column, func, select, table

from everstep.checkpoints.schema import effects, evidence, job_events, reviews, spans

_AT_ONCE = 500
_UUID_EPOCH = 0x01B21DD213814000
"""100 ns ticks between the Gregorian reform, from which UUIDv6 counts (RFC 9562, section 5.6), and 1970."""
_PULL, _PUSH = "~__pregel_pull", "~__pregel_push"
ERROR, INTERRUPT = "__error__", "__interrupt__"

_checkpoints = table(
    "checkpoints",
    column("thread_id", String),
    column("checkpoint_ns", String),
    column("checkpoint_id", String),
    column("parent_checkpoint_id", String),
    column("metadata"),
)


@dataclass(frozen=True)
class Move:
    """A change of a job's status; `at` is UTC milliseconds."""

    origin: str | None
    to: str
    claim_no: int
    at: int
    actor: str
    reason: str


@dataclass(frozen=True)
class SavedStep:
    """A checkpoint, without the state in it.

    Attributes:
        namespace: The graph or subgraph it belongs to; empty for the root graph.
        checkpoint_id: Its id.
        parent_id: The checkpoint before it.
        number: LangGraph's step; −1 is the input, 0 the start.
        source: `input`, `loop`, `update` or `fork`.
        leg: The leg that stored it, if its metadata tell.
        at_ns: When it was made, UTC nanoseconds by the clock of its worker.
        around: Of a subgraph's, the checkpoint of the graph around it that it runs from.
    """

    namespace: str
    checkpoint_id: str
    parent_id: str | None
    number: int
    source: str
    leg: int | None
    at_ns: int | None
    around: str | None = None


@dataclass(frozen=True)
class SavedTask:
    """A task of which something is stored beside the checkpoint it ran from.

    Attributes:
        task_id: Its id, which is part of the namespaces below it.
        node: The node.
        failed: Whether an exception is stored for it.
        paused: Whether an interrupt is stored for it.
        sent: Which of the checkpoint's `Send`s it is, from 0; None of a node that was called by its channel.
    """

    task_id: str
    node: str
    failed: bool
    paused: bool
    sent: int | None = None


@dataclass(frozen=True)
class EffectRow:
    """An effect, without its arguments and its result; times are UTC milliseconds."""

    key: str
    name: str
    state: str
    claim_no: int
    calls: int
    settled_by: str | None
    error: str | None
    created_at: int
    updated_at: int
    place: str | None


@dataclass(frozen=True)
class ReviewRow:
    """A review, without what is asked and answered; times are UTC milliseconds."""

    public_id: str
    kind: str
    status: str
    decision: str | None
    answered_by: str | None
    created_at: int
    answered_at: int | None


@dataclass(frozen=True)
class EvidenceRow:
    """What was kept of a failure or a death; `at` is UTC milliseconds."""

    claim_no: int
    kind: str
    detail: dict[str, Any]
    at: int


@dataclass(frozen=True)
class SpanRow:
    """A stored span: OTLP `ResourceSpans` as protobuf bytes."""

    leg: int
    body: bytes


def moves(connection: Connection, job_id: int) -> list[Move]:
    """A job's changes of status, oldest first."""
    query = select(
        job_events.c.from_status,
        job_events.c.to_status,
        job_events.c.claim_no,
        job_events.c.at,
        job_events.c.actor,
        job_events.c.reason,
    )
    return [Move(*row) for row in connection.execute(query.where(job_events.c.job_id == job_id).order_by("id"))]


def last_reason(connection: Connection, job_id: int) -> str:
    """Why a job's status changed last."""
    query = select(job_events.c.reason).where(job_events.c.job_id == job_id).order_by(job_events.c.id.desc())
    return connection.execute(query.limit(1)).scalar() or ""


def steps(connection: Connection, thread_id: str, job_id: str) -> Iterator[SavedStep]:
    """A job's checkpoints in all namespaces of its thread, oldest first, a few at a time.

    Args:
        connection: The transaction to read in.
        thread_id: The thread.
        job_id: The job; what other jobs, or clients, stored on a thread that it shares is left out.
    """
    query = select(
        _checkpoints.c.checkpoint_ns,
        _checkpoints.c.checkpoint_id,
        _checkpoints.c.parent_checkpoint_id,
        _checkpoints.c.metadata,
    )
    query = query.where(_checkpoints.c.thread_id == thread_id).order_by(_checkpoints.c.checkpoint_id)
    for namespace, checkpoint_id, parent_id, raw in connection.execution_options(yield_per=_AT_ONCE).execute(query):
        told = _metadata(raw)
        if told.get("everstep_job", thread_id) != job_id:
            continue
        leg, number = told.get("everstep_leg"), told.get("step")
        yield SavedStep(
            namespace=namespace,
            checkpoint_id=checkpoint_id,
            parent_id=parent_id,
            number=number if isinstance(number, int) else 0,
            source=str(told.get("source", "loop")),
            leg=leg if isinstance(leg, int) else None,
            at_ns=made_at_ns(checkpoint_id),
            around=_around(namespace, told.get("parents")),
        )


def tasks(
    connection: Connection, thread_id: str, checkpoints: Sequence[str], checkpoint_tables: Sequence[str]
) -> dict[str, list[SavedTask]]:
    """The tasks that ran from each of these checkpoints, by its id, in LangGraph's order.

    Args:
        connection: The transaction.
        thread_id: The thread.
        checkpoints: Ids of checkpoints.
        checkpoint_tables: LangGraph's tables, as the database names them.
    """
    name = next(one for one in checkpoint_tables if one.endswith("writes"))
    names = ("thread_id", "checkpoint_id", "task_id", "task_path", "channel")
    writes = table(name, *(column(one, String) for one in names))
    found: dict[str, list[SavedTask]] = {}
    for start in range(0, len(checkpoints), _AT_ONCE):
        some = checkpoints[start : start + _AT_ONCE]
        query = (
            select(
                writes.c.checkpoint_id,
                writes.c.task_path,
                writes.c.task_id,
                func.count().filter(writes.c.channel == ERROR),
                func.count().filter(writes.c.channel == INTERRUPT),
            )
            .where(writes.c.thread_id == thread_id, writes.c.checkpoint_id.in_(some))
            .group_by(writes.c.checkpoint_id, writes.c.task_path, writes.c.task_id)
            .order_by(writes.c.checkpoint_id, writes.c.task_path, writes.c.task_id)
        )
        for checkpoint_id, path, task_id, failed, paused in connection.execute(query):
            if (node := _node(path)) is not None:
                task = SavedTask(task_id, node, failed > 0, paused > 0, _sent(path))
                found.setdefault(checkpoint_id, []).append(task)
    return found


def effects_of(connection: Connection, job_id: int, limit: int) -> list[EffectRow]:
    """A job's newest effects, oldest first."""
    columns = [effects.c[name] for name in EffectRow.__dataclass_fields__]
    query = select(*columns).where(effects.c.job_id == job_id).order_by(effects.c.id.desc()).limit(limit)
    return [EffectRow(*row) for row in connection.execute(query)][::-1]


def reviews_of(connection: Connection, job_id: int) -> list[ReviewRow]:
    """A job's reviews, oldest first."""
    columns = [reviews.c[name] for name in ReviewRow.__dataclass_fields__]
    query = select(*columns).where(reviews.c.job_id == job_id).order_by(reviews.c.id)
    return [ReviewRow(*row) for row in connection.execute(query)]


def evidence_of(connection: Connection, job_id: int) -> list[EvidenceRow]:
    """What was kept of a job's failures and deaths, oldest first."""
    query = select(evidence.c.claim_no, evidence.c.kind, evidence.c.detail_json, evidence.c.at)
    query = query.where(evidence.c.job_id == job_id, evidence.c.kind.in_(("error", "worker_death")))
    return [
        EvidenceRow(row.claim_no, row.kind, json.loads(row.detail_json), row.at)
        for row in connection.execute(query.order_by(evidence.c.id))
    ]


def span_counts(connection: Connection, job_id: int) -> dict[int, int]:
    """How many spans are stored, by leg."""
    query = select(spans.c.leg, func.count()).where(spans.c.job_id == job_id).group_by(spans.c.leg)
    return {row[0]: row[1] for row in connection.execute(query)}


def spans_of(connection: Connection, job_id: int, leg: int | None = None) -> Iterator[SpanRow]:
    """A job's stored spans in the order they began, a few at a time; of one leg, if given."""
    query = select(spans.c.leg, spans.c.body).where(spans.c.job_id == job_id)
    query = query if leg is None else query.where(spans.c.leg == leg)
    query = query.order_by(spans.c.leg, spans.c.started_ns, spans.c.id)
    for row in connection.execution_options(yield_per=_AT_ONCE).execute(query):
        yield SpanRow(row[0], bytes(row[1]))


def made_at_ns(checkpoint_id: str) -> int | None:
    """When a checkpoint was made, UTC nanoseconds, by the time that is in its id; None if there is none in it."""
    try:
        value = UUID(checkpoint_id)
    except ValueError:
        return None
    if value.version != 6:
        return None
    return ((value.int >> 80 << 12 | (value.int >> 64) & 0xFFF) - _UUID_EPOCH) * 100


def _metadata(raw: Any) -> dict[str, Any]:
    """SQLite's saver stores JSON as bytes, PostgreSQL's as JSON; both may hold anything a user put there."""
    if isinstance(raw, (bytes, str)):
        raw = json.loads(raw)
    return cast("dict[str, Any]", raw) if isinstance(raw, dict) else {}


def _around(namespace: str, parents: Any) -> str | None:
    """LangGraph notes for each graph around a subgraph the checkpoint from which it runs."""
    found = cast("dict[str, Any]", parents).get(namespace.rpartition("|")[0]) if isinstance(parents, dict) else None
    return found if namespace and isinstance(found, str) else None


def _node(path: str) -> str | None:
    """The node of a task: `~__pregel_pull, NODE`, or for one that was sent `~__pregel_push, …`, which is not named."""
    kind, _, rest = path.partition(", ")
    if kind == _PULL:
        return None if rest.startswith("__") else rest
    return "" if path else None


def _sent(path: str) -> int | None:
    kind, _, rest = path.partition(", ")
    number = rest.partition(",")[0]
    return int(number) if kind == _PUSH and number.isdecimal() else None
