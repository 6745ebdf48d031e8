"""Dead letters: jobs that failed by themselves: list, look at, run again, or delete them.

What would run or delete many is done only when the request says how many they are: `confirm`. Without, or with another
number, it is refused with the number there is, and nothing is done.
"""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import Field, model_validator
from sqlalchemy import Connection

from everstep.checkpoints import dead_letters, jobs, retention, views
from everstep.checkpoints.job import Job
from everstep.checkpoints.replies import Reply
from everstep.counts import counted
from everstep.errors import ConfirmationNeeded, EverstepError, JobStateConflict
from everstep.server import failures
from everstep.server.bodies import JsonRoute
from everstep.server.context import CalledBy, Caller, ServedBy
from everstep.server.native import seen
from everstep.server.native.seen import Body, Cursor, Limit, Moment, shows
from everstep.server.native.shown import ErrorShown, LetterEvidence, LetterList, PurgeList, RedriveList
from everstep.server.once import AskedOnce
from everstep.server.texts import Instant, Text

router = APIRouter(prefix="/everstep/dead-letters", tags=["dead letters"], route_class=JsonRoute)
MOST_AT_ONCE = 1000
Graph = Annotated[Text | None, Query(description="Of this graph.")]
Code = Annotated[
    Text | None, Query(description="With this error: its code (`worker_died`) or its type (`ValueError`).")
]
_KEPT = "it was redriven, or a parent or child of it has not ended"


class Chosen(Body):
    """Which dead letters: named, or all that have something in common."""

    jobs: list[Text] | None = Field(None, min_length=1, max_length=MOST_AT_ONCE, description="Their ids.")
    all: bool = Field(False, description="All that `graph`, `code` and the times leave, a thousand at once.")
    graph: Text | None = Field(None, description="Of this graph.")
    code: Text | None = Field(None, description="With this error: its code or its type.")
    since: Instant | None = Field(None, description="Failed at this moment or later.")
    until: Instant | None = Field(None, description="Failed at this moment or earlier.")
    confirm: int | None = Field(None, ge=1, lt=2**31, description="How many they are.")

    @model_validator(mode="after")
    def _either(self) -> Chosen:
        if (self.jobs is not None) == self.all:
            raise ValueError("name the jobs, or say all")
        if self.jobs is not None and any(one is not None for one in (self.graph, self.code, self.since, self.until)):
            raise ValueError("name the jobs, or choose them by what they have in common")
        return self


@router.get("", responses=shows(LetterList, "A page of dead letters."))
async def list_letters(
    served: ServedBy,
    caller: CalledBy,
    graph: Graph = None,
    code: Code = None,
    since: Moment = None,
    until: Moment = None,
    everything: Annotated[bool, Query(description="Those that a person cancelled or rejected, too.")] = False,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """List the jobs that failed by themselves, the newest failure first."""

    def look(connection: Connection) -> list[Job]:
        found = dead_letters.every(
            connection,
            graph=graph,
            code=code,
            since=seen.milliseconds(since),
            until=seen.milliseconds(until),
            with_ended_by_person=everything,
            owner=caller.owner,
            behind=_behind(cursor),
        )
        return list(islice(found, limit + 1))

    found = await served.store.aread(look)
    last = found[limit - 1] if len(found) > limit else None
    following = None if last is None else f"{last.updated_at}-{last.id}"
    return seen.answer({"dead_letters": [views.letter(job) for job in found[:limit]], "next_cursor": following})


@router.get(
    "/{job_id}",
    responses={**shows(LetterEvidence, "All that is known of it."), **shows(ErrorShown, "It has not failed.", 409)},
)
async def get_letter(job_id: str, served: ServedBy, caller: CalledBy) -> Response:
    """Show a dead letter: the exceptions, the last steps, effects, reviews, evidence, traces, and what to do next."""
    job = await served.store.aread(lambda connection: _failed(seen.job(connection, caller, job_id)))
    return seen.answer(await served.store.in_thread(views.evidence, served.store, job))


@router.post("/redrive", responses=shows(RedriveList, "What became of each."))
async def redrive(body: Chosen, served: ServedBy, caller: CalledBy, once: AskedOnce) -> Response:
    """Run dead letters again, each from its last checkpoint, with its failures forgotten.

    One that is named needs no `confirm`; several do. Of two who do it at once one starts a job.
    """

    def write(connection: Connection) -> Reply:
        found = _chosen(connection, caller, body)
        if len(found) > 1 or body.all:
            _require_confirmation(body, len(found), "run again")
        return Reply(200, {"results": [_redriven(connection, caller, job, now) for job in found]})

    now = served.store.clock.now_ms()
    return (await once.write(write)).response()


def _redriven(connection: Connection, caller: Caller, job: Job, now: int) -> dict[str, Any]:
    try:
        moved = dead_letters.redrive(connection, jobs.lock(connection, job.id), now=now, actor=caller.identity)
    except EverstepError as refused:
        return {"id": job.public_id, "redriven": False, "status": None, "error": failures.told_of(refused)}
    return {"id": job.public_id, "redriven": True, "status": moved.status, "error": None}


@router.post("/purge", responses=shows(PurgeList, "What became of each."))
async def purge(body: Chosen, served: ServedBy, caller: CalledBy) -> Response:
    """Delete dead letters with everything of them; their keys stay known. It always needs `confirm`."""
    store, section = served.store, served.policies.retention
    found = await store.aread(lambda connection: _chosen(connection, caller, body))
    _require_confirmation(body, len(found), "deleted")
    now, rules = store.clock.now_ms(), retention.Rules(key_days=section.key_days, failed_days=0)
    before = {"failed": now if body.until is None else min(now, round(body.until.timestamp() * 1000))}

    def remove() -> set[int]:
        gone = retention.remove_all(store, [job.id for job in found], rules, now=now, ended_before=before)
        return {job.id for job in gone}

    gone = await store.in_thread(remove)
    results = [
        {"id": job.public_id, "purged": job.id in gone, "reason": None if job.id in gone else _KEPT} for job in found
    ]
    return seen.answer({"results": results})


def _chosen(connection: Connection, caller: Caller, body: Chosen) -> list[Job]:
    if body.jobs is not None:
        named = (_failed(seen.job(connection, caller, job_id)) for job_id in body.jobs)
        return list({job.id: job for job in named}.values())
    found = dead_letters.every(
        connection,
        graph=body.graph,
        code=body.code,
        since=seen.milliseconds(body.since),
        until=seen.milliseconds(body.until),
        owner=caller.owner,
    )
    return list(islice(found, MOST_AT_ONCE))


def _failed(job: Job) -> Job:
    if job.status != "failed":
        raise JobStateConflict(
            f"job {job.public_id} is {job.status}; it is not among the dead letters",
            job=job.public_id,
            status=job.status,
        )
    return job


def _require_confirmation(body: Chosen, number: int, what: str) -> None:
    if body.confirm != number and (number or body.confirm is not None):
        jobs_are = counted(number, "job is", "jobs are")
        raise ConfirmationNeeded(
            f"{jobs_are} to be {what}, and nothing was done", next_step=f'confirm it: "confirm": {number}', jobs=number
        )


def _behind(cursor: str | None) -> tuple[int, int] | None:
    if cursor is None:
        return None
    at, _, row = cursor.partition("-")
    return int(at), int(row or 0)
