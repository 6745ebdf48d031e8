"""Reviews: the questions only a person can answer, each answered once."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import Field
from sqlalchemy import Connection

from everstep.checkpoints import answers, job_pages, payload, reviews, views
from everstep.checkpoints.json_filters import check_storable
from everstep.checkpoints.replies import Reply
from everstep.errors import ReviewChanged
from everstep.server.bodies import JsonRoute, apart
from everstep.server.context import CalledBy, ServedBy
from everstep.server.native import seen
from everstep.server.native.seen import Body, Cursor, Limit, shows
from everstep.server.native.shown import (
    Decision,
    ReviewAnsweredNow,
    ReviewKind,
    ReviewList,
    ReviewShown,
    ReviewStatus,
)
from everstep.server.once import AskedOnce
from everstep.server.texts import Text

router = APIRouter(prefix="/everstep/reviews", tags=["reviews"], route_class=JsonRoute)


class ReviewAnswer(Body):
    """A person's answer."""

    decision: Decision
    value: Any = Field(None, description="The value that goes with it: changed arguments, a result, new limits, words.")
    reason: Text | None = Field(None, max_length=10_000, description="Why, in the person's words.")
    argument_digest: Text | None = Field(
        None, description="That of the question as it was seen: should it have changed, the answer is refused."
    )


@router.get("", responses=shows(ReviewList, "A page of reviews."))
async def list_reviews(
    served: ServedBy,
    caller: CalledBy,
    status: Annotated[ReviewStatus | None, Query(description="`open` when omitted.")] = "open",
    kind: Annotated[ReviewKind | None, Query(description="Of this kind.")] = None,
    job: Annotated[Text | None, Query(description="Of this job.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """List the questions that wait for a person, oldest first; or those that were answered or closed."""

    def look(connection: Connection) -> dict[str, Any]:
        page = job_pages.reviews(
            connection,
            owner=caller.owner,
            status=status,
            kind=kind,
            job_id=None if job is None else seen.job(connection, caller, job).id,
            behind=seen.row_id(cursor),
            limit=limit,
        )
        found = views.reviews(connection, page.items)
        return {"reviews": found, "next_cursor": None if page.following is None else str(page.following)}

    return seen.answer(await served.store.aread(look))


@router.get("/{review_id}", responses=shows(ReviewShown, "The review."))
async def get_review(review_id: str, served: ServedBy, caller: CalledBy) -> Response:
    """Show a review: what is asked, the answers it takes, and its answer once it has one."""

    def look(connection: Connection) -> dict[str, Any]:
        review, job = seen.review(connection, caller, review_id)
        return views.reviews(connection, [(review, job.public_id)])[0]

    return seen.answer(await served.store.aread(look))


@router.post("/{review_id}/answer", responses=shows(ReviewAnsweredNow, "The review, and its job's status."))
async def answer_review(
    review_id: str, body: ReviewAnswer, served: ServedBy, caller: CalledBy, once: AskedOnce
) -> Response:
    """Answer a review, once; its job goes on.

    Of two answers the first stands: the second gets 409 with it, as `first_answer`. `approve` of an unknown effect says
    that it happened, with its result as `value`; `reject` that it did not.
    """
    value = body.value if "value" in body.model_fields_set else answers.MISSING
    if value is not answers.MISSING:
        await apart(payload.check_payload, value)
        await apart(check_storable, value, "value")

    def write(connection: Connection) -> Reply:
        review, _ = seen.review(connection, caller, review_id)
        if review.status == "open" and body.argument_digest not in (None, views.argument_digest(review)):
            raise ReviewChanged(
                f"what review {review.public_id} asks has changed since it was seen",
                next_step="look at it again, and answer what is asked now",
                review=review.public_id,
                argument_digest=views.argument_digest(review),
            )
        now, reason = served.store.clock.now_ms(), body.reason
        answered, job = reviews.answer(
            connection, review, decision=body.decision, value=value, reason=reason, by=caller.identity, now=now
        )
        return Reply(200, {**views.review(answered, job.public_id), "job_status": job.status})

    return (await once.write(write)).response()
