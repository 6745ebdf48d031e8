"""What happened to a job, in order: its changes of status, and what its runs emitted, if it has any.

A job's place in both logs together is one text, `STATUS-EVENT`; whoever names the last place they saw goes on behind it
and misses nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, func, select

from everstep.checkpoints import events
from everstep.checkpoints.job import Job
from everstep.checkpoints.schema import job_events, runs
from everstep.checkpoints.statements import Statement
from everstep.clock import rfc3339

PAGE = 500
STATUS = "status"
_PLACE = re.compile(r"(\d{1,18})-(\d{1,18})")


@dataclass(frozen=True)
class Place:
    """How far somebody has read.

    Attributes:
        status: Row id of the last change of status.
        event: Id of the last event of a run.
    """

    status: int = 0
    event: int = 0

    def __str__(self) -> str:
        return f"{self.status}-{self.event}"


START = Place()


@dataclass(frozen=True)
class Entry:
    """Something that happened.

    Attributes:
        place: How far has been read with it.
        name: `status`, or what a run emitted: a stream mode of LangGraph's, `metadata`, `error`, `end`.
        namespace: The subgraph it comes from; empty for the graph itself.
        run_id: The run that emitted it; None for a change of status.
        claim_no: The leg.
        data: What it tells.
        at: UTC milliseconds.
    """

    place: Place
    name: str
    namespace: str
    run_id: str | None
    claim_no: int
    data: Any
    at: int

    def as_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "id": str(self.place),
            "event": self.name,
            "namespace": self.namespace,
            "run_id": self.run_id,
            "leg": self.claim_no,
            "at": rfc3339(self.at),
            "data": self.data,
        }


def place_of(given: str | None) -> Place | None:
    """The place that a text names; the start for none at all, None for one that is no place."""
    if not given:
        return START
    found = _PLACE.fullmatch(given.strip())
    return found and Place(int(found[1]), int(found[2]))


_STATUSES = Statement(
    select(job_events)
    .where(job_events.c.job_id == bindparam("job_id"), job_events.c.id > bindparam("after"))
    .order_by(job_events.c.id)
    .limit(bindparam("most", type_=job_events.c.id.type))
)


def read(connection: Connection, job: Job, after: Place = START, *, limit: int = PAGE) -> list[Entry]:
    """A page of what happened to a job behind a place, in order; there may be more, unless it is empty.

    Args:
        connection: A snapshot.
        job: The job.
        after: Where to begin.
        limit: Most entries.
    """
    asked = {"job_id": job.id, "after": after.status, "most": limit}
    statuses = [dict(row) for row in _STATUSES.rows(connection, asked)]
    emitted = [] if job.run_json is None else _emitted(connection, job, after.event, limit)
    goes_on = bool(emitted)
    entries: list[Entry] = []
    place = after
    while (emitted or (statuses and not goes_on)) and len(entries) < limit:
        if not emitted or (statuses and statuses[0]["at"] <= emitted[0].at):
            row = statuses.pop(0)
            place = Place(row["id"], place.event)
            data = {
                "from": row["from_status"],
                "to": row["to_status"],
                "actor": row["actor"],
                "reason": row["reason"],
            }
            entries.append(Entry(place, STATUS, "", None, row["claim_no"], data, row["at"]))
        else:
            event = emitted.pop(0)
            place = Place(place.status, event.id)
            entries.append(
                Entry(place, event.method, event.namespace, event.run_id, event.claim_no, event.data, event.at)
            )
    return entries


def _emitted(connection: Connection, job: Job, after: int, limit: int) -> list[events.Event]:
    """A page of what a job's runs emitted; of one run at a time, so that it is found in its order by an index."""
    ids = select(runs.c.run_id).where(runs.c.job_id == job.id).order_by(runs.c.id)
    for run_id in connection.execute(ids).scalars().all():
        if found := events.of_run(connection, run_id, after=after, limit=limit):
            return found
    return []


def newest(connection: Connection, job_ids: Collection[int]) -> dict[int, int]:
    """By row id: of each job that is there the row id of its last change of status."""
    last = func.max(job_events.c.id)
    query = select(job_events.c.job_id, last).where(job_events.c.job_id.in_(list(job_ids)))
    rows: Sequence[Any] = connection.execute(query.group_by(job_events.c.job_id)).all()
    return {int(job_id): int(event_id) for job_id, event_id in rows}
