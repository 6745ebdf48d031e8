"""LangGraph's crons: schedules whose slots are runs of an assistant, on a thread or each on one of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, cast

from sqlalchemy import ColumnElement, Connection, and_, func, select

from everstep.checkpoints import assistants, conversations, jobs, runs
from everstep.checkpoints.job import Job
from everstep.checkpoints.json_filters import contains
from everstep.checkpoints.laid_over import laid_over
from everstep.checkpoints.policy import JobPolicy
from everstep.checkpoints.runs import RunRequest
from everstep.checkpoints.schedule import Definition, Schedule, of_row
from everstep.checkpoints.schema import schedules as table
from everstep.clock import uuid7

ORIGIN = "langgraph"
SortBy = Literal["cron_id", "assistant_id", "thread_id", "created_at", "updated_at", "next_run_date", "end_time"]
_SORTED_BY = {
    "cron_id": table.c.public_id,
    "assistant_id": table.c.assistant_id,
    "thread_id": table.c.thread_id,
    "created_at": table.c.created_at,
    "updated_at": table.c.updated_at,
    "next_run_date": table.c.next_fire_at,
    "end_time": table.c.ends_at,
}


@dataclass(frozen=True)
class Wanted:
    """Which crons are looked for.

    Attributes:
        owner: Only this owner's; None: everybody's.
        assistant_id: Only those of this assistant.
        thread_id: Only those on this thread.
        enabled: Only those that are on, or off.
        metadata: Only those whose metadata contain each of these.
    """

    owner: str | None
    assistant_id: str | None = None
    thread_id: str | None = None
    enabled: bool | None = None
    metadata: Sequence[Mapping[str, Any] | None] = ()


def definition(
    request: RunRequest,
    *,
    cron: str,
    timezone: str,
    ends_at: int | None,
    thread_id: str | None,
    payload: Mapping[str, Any],
    thread_metadata: Mapping[str, Any],
) -> Definition:
    """What a cron is to do.

    Args:
        request: Its runs; the assistant's own configuration is laid under it when one starts.
        cron: When.
        timezone: Where its hours are.
        ends_at: Slots after it are none, UTC milliseconds.
        thread_id: The thread its runs are on; None: each has its own.
        payload: The request as its maker sees it again.
        thread_metadata: What the threads of its runs are marked with.
    """
    return Definition(
        graph=request.graph,
        cron=cron,
        timezone=timezone,
        overlap="queue",  # what a run does on a busy thread says its own strategy
        input=request.input,
        ends_at=ends_at,
        metadata=request.metadata,
        assistant_id=request.assistant_id,
        thread_id=thread_id,
        run={"request": asdict(request), "payload": dict(payload), "thread_metadata": dict(thread_metadata)},
    )


def start(connection: Connection, schedule: Schedule, *, now: int, actor: str, policy: JobPolicy) -> Job:
    """Start a cron's run, with its assistant as it is now; the run's job.

    Raises:
        AssistantNotFound: The assistant is gone.
        ThreadNotFound: The thread is gone.
        ThreadBusy: The thread is, and the run does not wait.
    """
    definition = schedule.definition
    kept = RunRequest(**definition.run["request"])
    assistant = assistants.resolve(connection, kept.assistant_id)
    config = laid_over(assistant.config, kept.config)
    context: Any = kept.context
    if isinstance(assistant.context, dict) and isinstance(context, dict):
        context = laid_over(cast("dict[str, Any]", assistant.context), cast("dict[str, Any]", context))
    context = cast("Any", assistant.context or None) if context is None else context
    kwargs = {**kept.kwargs, "config": config, "context": context}
    request = replace(kept, graph=assistant.graph, config=config, context=context, kwargs=kwargs)
    thread = conversations.ensure(
        connection,
        definition.thread_id or uuid7(now),
        owner=schedule.owner,
        now=now,
        graph=request.graph,
        assistant_id=request.assistant_id,
        metadata=definition.run["thread_metadata"],
        make=definition.thread_id is None,
    )
    run = runs.create(
        connection, request, thread_id=thread.thread_id, owner=thread.owner, now=now, actor=actor, policy=policy
    )
    return jobs.get(connection, run.job_id)


def search(
    connection: Connection, wanted: Wanted, *, limit: int, offset: int, sort_by: SortBy, ascending: bool
) -> list[Schedule]:
    """The crons that are looked for.

    Raises:
        RequestInvalid: The metadata cannot be looked for.
    """
    column: Any = _SORTED_BY[sort_by]
    order = column.asc().nulls_last() if ascending else column.desc().nulls_last()
    query = select(table).where(_matching(connection, wanted)).order_by(order, table.c.id)
    return [of_row(row) for row in connection.execute(query.limit(limit).offset(offset)).mappings()]


def count(connection: Connection, wanted: Wanted) -> int:
    """How many crons there are of those that are looked for.

    Raises:
        RequestInvalid: The metadata cannot be looked for.
    """
    return connection.execute(select(func.count()).where(_matching(connection, wanted))).scalar_one()


def _matching(connection: Connection, wanted: Wanted) -> ColumnElement[bool]:
    conditions: list[ColumnElement[bool]] = [table.c.origin == ORIGIN]
    for column, value in (
        (table.c.owner, wanted.owner),
        (table.c.assistant_id, wanted.assistant_id),
        (table.c.thread_id, wanted.thread_id),
        (table.c.enabled, None if wanted.enabled is None else int(wanted.enabled)),
    ):
        if value is not None:
            conditions.append(column == value)
    for metadata in wanted.metadata:
        if metadata:
            conditions.append(contains(table.c.metadata_json, metadata, connection.dialect.name))
    return and_(*conditions)
