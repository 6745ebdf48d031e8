"""Jobs: list, submit, look at, wait for, cancel, retry, what they may use, and what they did."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import Field
from sqlalchemy import Connection

from everstep.checkpoints import budgets, job_log, job_pages, job_view
from everstep.checkpoints import jobs as queue
from everstep.checkpoints.job import Job
from everstep.checkpoints.job_log import Entry
from everstep.checkpoints.job_pages import JobFilter
from everstep.checkpoints.replies import Reply
from everstep.errors import RequestInvalid
from everstep.runtime.trace import build
from everstep.server.bodies import JsonRoute, apart
from everstep.server.context import CalledBy, ServedBy
from everstep.server.native import job_stream, seen, waiting
from everstep.server.native.seen import Body, Cursor, Limit, Moment, shows
from everstep.server.native.shown import (
    EffectList,
    EventList,
    JobCreated,
    JobDetail,
    JobList,
    Status,
    TraceShown,
)
from everstep.server.native.submitting import JobCreate, Submitting, owned_key
from everstep.server.native.waiting import Leaving, Wait
from everstep.server.once import AskedOnce
from everstep.server.texts import Text

router = APIRouter(prefix="/everstep/jobs", tags=["jobs"], route_class=JsonRoute)
SHOWN_EFFECTS = 500


@router.get("", responses=shows(JobList, "A page of jobs."))
async def list_jobs(
    served: ServedBy,
    caller: CalledBy,
    status: Annotated[list[Status] | None, Query(description="In one of these states.")] = None,
    graph: Annotated[Text | None, Query(description="Of this graph.")] = None,
    thread_id: Annotated[Text | None, Query(description="On this thread.")] = None,
    key: Annotated[Text | None, Query(description="With this idempotency key, as it was given.")] = None,
    parent: Annotated[Text | None, Query(description="Children of this job.")] = None,
    owner: Annotated[Text | None, Query(description="Of this owner, for those who see everybody's.")] = None,
    since: Moment = None,
    until: Moment = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """List jobs, newest first.

    Give `next_cursor` of a page as `cursor` to get the next one; what is made meanwhile shifts nothing.
    """

    def look(connection: Connection) -> dict[str, Any]:
        wanted = JobFilter(
            owner=caller.owner if owner is None or not caller.sees(owner) else owner,
            statuses=status or (),
            graph=graph,
            thread_id=thread_id,
            key=None if key is None else owned_key(caller, key),
            parent_id=None if parent is None else seen.job(connection, caller, parent).id,
            since=seen.milliseconds(since),
            until=seen.milliseconds(until),
        )
        page = job_pages.jobs(connection, wanted, behind=seen.row_id(cursor), limit=limit)
        accounts = budgets.accounts(connection, [job.id for job in page.items])
        jobs = [job_view.of(job, accounts.get(job.id)) for job in page.items]
        return {"jobs": jobs, "next_cursor": None if page.following is None else str(page.following)}

    if owner is not None and not caller.sees(owner):
        return seen.answer({"jobs": [], "next_cursor": None})
    return seen.answer(await served.store.aread(look))


@router.post("", responses={**shows(JobCreated, "The job."), **waiting.LATER})
async def create_job(
    body: JobCreate,
    request: Request,
    served: ServedBy,
    caller: CalledBy,
    once: AskedOnce,
    wait: Wait = None,
    cancel_on_disconnect: Leaving = False,
) -> Response:
    """Submit a job; with `wait`, answer when it ended or waits for a person.

    The same graph, input and version (or the same `key`) are the same job, however often they come; `created` tells
    whether this request made it. With `wait=30` the answer is 200 with the job's end if that comes within 30 seconds,
    and otherwise 202 with `Location`, where to ask. A client that leaves cancels nothing unless it said so.
    """
    asked = await apart(Submitting, body, served, caller)
    now = served.store.clock.now_ms()

    def create(connection: Connection) -> Reply:
        job, created = asked.write(connection, now)
        where = {"Content-Location": f"/everstep/jobs/{job.public_id}"}
        return Reply(200, {"created": created, **seen.detail(connection, job)}, where)

    answered = await once.write(create)
    if wait is None:
        return answered.response()
    made: dict[str, Any] = answered.reply.body
    waited = waiting.Waited(served, caller, request, wait, cancels=cancel_on_disconnect)
    return await waited.answer(made["id"], headers=answered.headers, more={"created": made["created"]})


@router.get("/{job_id}", responses={**shows(JobDetail, "The job."), **waiting.LATER})
async def get_job(
    job_id: str,
    request: Request,
    served: ServedBy,
    caller: CalledBy,
    wait: Wait = None,
    cancel_on_disconnect: Leaving = False,
) -> Response:
    """Show a job, by its id or the beginning of it; with `wait`, when it ended or waits for a person."""
    waited = waiting.Waited(served, caller, request, wait or 0, cancels=cancel_on_disconnect and bool(wait))
    return await waited.answer(job_id)


@router.post("/{job_id}/cancel", responses=shows(JobDetail, "The job as it is then."))
async def cancel_job(job_id: str, served: ServedBy, caller: CalledBy, once: AskedOnce) -> Response:
    """Cancel a job: at once when nothing runs it, otherwise as soon as its worker stops it.

    An effect that is under way goes to review: a person says what became of it.
    """
    return (await once.write(partial(_changed, queue.cancel, served, caller, job_id))).response()


@router.post("/{job_id}/retry", responses=shows(JobDetail, "The job as it is then."))
async def retry_job(job_id: str, served: ServedBy, caller: CalledBy, once: AskedOnce) -> Response:
    """Let a failed job go on from its last checkpoint with fresh attempts, or one in backoff run now."""
    return (await once.write(partial(_changed, queue.redrive, served, caller, job_id))).response()


def _changed(change: Any, served: ServedBy, caller: CalledBy, job_id: str, connection: Connection) -> Reply:
    job = queue.lock(connection, seen.job(connection, caller, job_id).id)
    job = change(connection, job, now=served.store.clock.now_ms(), actor=caller.identity)
    return Reply(200, seen.detail(connection, job))


class BudgetChange(Body):
    """Limits to set; those not named stay, null takes one away."""

    steps: int | None = Field(None, gt=0, lt=2**53, strict=True, description="Supersteps of its graph.")
    seconds: float | None = Field(None, gt=0, lt=1e12, description="Seconds it runs; waiting does not count.")
    tokens: int | None = Field(None, gt=0, lt=2**53, strict=True, description="Tokens of its model calls.")
    cost: float | None = Field(None, gt=0, lt=1e9, description="What its model calls cost, US dollars.")


@router.post("/{job_id}/budget", responses=shows(JobDetail, "The job as it is then."))
async def change_budget(
    job_id: str, body: BudgetChange, served: ServedBy, caller: CalledBy, once: AskedOnce
) -> Response:
    """Set limits of a job. It and its children go on if they wait in review for a budget that suffices now."""
    limits = body.model_dump(exclude_unset=True)
    if not limits:
        raise RequestInvalid("no limit is named", next_step='such as {"tokens": 200000}')

    def change(connection: Connection) -> Reply:
        public_id = seen.job(connection, caller, job_id).public_id
        now = served.store.clock.now_ms()
        job, _ = budgets.raise_(connection, public_id, limits, now=now, by=caller.identity)
        return Reply(200, seen.detail(connection, job))

    return (await once.write(change)).response()


After = Annotated[str | None, Query(pattern=r"^[0-9]{1,18}-[0-9]{1,18}$", description="`id` of the last one seen.")]


@router.get("/{job_id}/events", responses=shows(EventList, "What happened, in order."))
async def list_job_events(
    job_id: str, served: ServedBy, caller: CalledBy, after: After = None, limit: Limit = 100
) -> Response:
    """List what happened to a job: its changes of status and, where it has runs, what those emitted."""

    def look(connection: Connection) -> tuple[list[Entry], bool]:
        job = seen.job(connection, caller, job_id)
        found = job_log.read(connection, job, job_log.place_of(after) or job_log.START, limit=limit)
        return found, bool(found and job_log.read(connection, job, found[-1].place, limit=1))

    found, goes_on = await served.store.aread(look)
    following = str(found[-1].place) if goes_on else None
    return seen.answer({"events": [entry.as_dict() for entry in found], "next_after": following})


@router.get("/{job_id}/stream", responses=job_stream.DESCRIBED)
async def stream_job(
    job_id: str,
    request: Request,
    served: ServedBy,
    caller: CalledBy,
    after: After = None,
    last_event_id: Annotated[str | None, Header(description="As `after`, and before it.")] = None,
) -> Response:
    """Follow a job: its changes of status and, where it has runs, what those emit, as server-sent events.

    It ends with `end` when the job is done or has failed. A client whose connection breaks sends `Last-Event-ID`, to
    any server of the record, and misses nothing.
    """
    job = await served.store.aread(lambda connection: seen.job(connection, caller, job_id))
    begin = job_log.place_of(last_event_id or after)
    if begin is None:
        raise RequestInvalid("Last-Event-ID is no id of this stream", next_step="leave it out to begin anew")
    return job_stream.stream(request, served, job, begin)


@router.get("/{job_id}/trace", responses=shows(TraceShown, "The tree."))
async def get_trace(
    job_id: str,
    served: ServedBy,
    caller: CalledBy,
    leg: Annotated[int | None, Query(ge=1, lt=2**31, description="Only this attempt by one worker.")] = None,
    errors: Annotated[bool, Query(description="Only what failed, and what it happened in.")] = False,
) -> Response:
    """Show what a job did, as `everstep trace --json` does: legs, steps, model calls, tools, effects, errors, waits."""

    def draw(job: Job) -> Any:
        tree = build.of_job(served.store, job, leg=leg)
        tree = tree if leg is None else tree.only_leg(leg)
        return (tree.only_errors() if errors else tree).as_dict()

    job = await served.store.aread(lambda connection: seen.job(connection, caller, job_id))
    return seen.answer(await served.store.in_thread(draw, job))


@router.get("/{job_id}/effects", responses=shows(EffectList, "Its effects."))
async def list_effects(job_id: str, served: ServedBy, caller: CalledBy, limit: Limit = SHOWN_EFFECTS) -> Response:
    """List a job's effects, oldest first.

    One that is `unknown` names the review that asks about it: approve it, with the result as value, if it happened, and
    reject it if it did not.
    """
    return seen.answer(
        await served.store.aread(
            lambda connection: seen.effects_of(connection, seen.job(connection, caller, job_id), newest=limit)
        )
    )
