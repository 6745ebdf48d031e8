"""What a caller may see of the record, and how it is answered."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated, Any

from fastapi import Query
from pydantic import BaseModel, ConfigDict
from sqlalchemy import Connection
from starlette.responses import Response

from everstep.checkpoints import budgets, effects, job_view, jobs, paid_view, reviews, services, views, waits
from everstep.checkpoints.job import Job
from everstep.checkpoints.reviews import Review
from everstep.errors import JobNotFound, ReviewNotFound
from everstep.server.context import Caller
from everstep.server.texts import Instant

MOST_IN_A_PAGE = 500
Limit = Annotated[int, Query(ge=1, le=MOST_IN_A_PAGE, description="At most so many.")]
Cursor = Annotated[
    str | None, Query(pattern=r"^[0-9]{1,18}(-[0-9]{1,18})?$", description="`next_cursor` of the page before.")
]
Moment = Annotated[Instant | None, Query(description="RFC 3339, with `Z` or an offset.")]


class Body(BaseModel):
    """A request's body; a field it does not know is refused."""

    model_config = ConfigDict(extra="forbid")


def shows(model: type[BaseModel], what: str, status: int = 200) -> dict[int | str, dict[str, Any]]:
    """What a path says of its answer."""
    return {status: {"model": model, "description": what}}


def answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """JSON as an answer."""
    body = json.dumps(value, separators=(",", ":")).encode()
    return Response(body, status_code=status, headers=headers, media_type="application/json")


def row_id(cursor: str | None) -> int | None:
    """The row behind which a page begins."""
    return None if cursor is None else int(cursor.partition("-")[0])


def milliseconds(moment: datetime | None) -> int | None:
    """UTC milliseconds."""
    return None if moment is None else round(moment.timestamp() * 1000)


def job(connection: Connection, caller: Caller, job_id: str) -> Job:
    """The job by its id, or by the beginning of it that fits one job only.

    Raises:
        JobNotFound: There is none for this caller.
    """
    found = jobs.find(connection, job_id)
    if not caller.sees(found.owner):
        raise JobNotFound(f"no job has the id {job_id!r}", next_step="list them with: everstep jobs", job=job_id)
    return found


def review(connection: Connection, caller: Caller, review_id: str) -> tuple[Review, Job]:
    """The review by its id, or by the beginning of it that fits one only, and its job.

    Raises:
        ReviewNotFound: There is none for this caller.
    """
    found = reviews.find(connection, review_id)
    asks = jobs.get(connection, found.job_id)
    if not caller.sees(asks.owner):
        raise ReviewNotFound(
            f"no review has the id {review_id!r}",
            next_step="list the open ones with: everstep review",
            review=review_id,
        )
    return found, asks


def detail(connection: Connection, found: Job) -> dict[str, Any]:
    """A job, and what it waits for."""
    account = budgets.accounts(connection, [found.id]).get(found.id)
    questions = reviews.of_job(connection, found.id) if found.status == "review" else []
    return {
        **job_view.of(found, account),
        "open_reviews": [one.public_id for one in questions if one.status == "open"],
        "waits_for": [service.name for service in services.holding(connection, found.id)],
        "waits": [wait.view() for wait in waits.of_job(connection, found.id) if wait.state == "open"],
        "paid": paid_view.of(connection, found),
    }


def effects_of(connection: Connection, found: Job, *, newest: int) -> dict[str, Any]:
    """A job's effects, each with the open question about it."""
    asked = {
        one.subject: one.public_id
        for one in reviews.of_job(connection, found.id)
        if one.kind == "effect" and one.status == "open"
    }
    known = effects.of_job(connection, found.id, newest=newest)
    return {
        "effects": [{**views.effect(one), "review": asked.get(one.key)} for one in known],
        "count": effects.how_many(connection, found.id),
    }
