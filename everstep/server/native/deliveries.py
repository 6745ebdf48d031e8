"""The outbox of webhooks: which messages wait, were taken or given up, and sending one again."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from sqlalchemy import Connection

from everstep.checkpoints import deliveries, views
from everstep.checkpoints.replies import Reply
from everstep.server.bodies import JsonRoute
from everstep.server.context import CalledBy, ServedBy
from everstep.server.native import seen
from everstep.server.native.seen import Cursor, Limit, shows
from everstep.server.native.shown import DeliveryDetail, DeliveryList, DeliveryShown
from everstep.server.once import AskedOnce
from everstep.server.texts import Text

router = APIRouter(prefix="/everstep/deliveries", tags=["deliveries"], route_class=JsonRoute)
State = Literal["pending", "delivered", "dead"]


@router.get("", responses=shows(DeliveryList, "A page of messages."))
async def list_deliveries(
    served: ServedBy,
    caller: CalledBy,
    state: Annotated[State | None, Query(description="In this state; `dead`: given up.")] = None,
    job: Annotated[Text | None, Query(description="About this job.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """List the messages about the caller's jobs, newest first."""

    def look(connection: Connection) -> dict[str, Any]:
        about = None if job is None else seen.job(connection, caller, job).public_id
        found = deliveries.every(
            connection, state=state, job=about, owner=caller.owner, behind=seen.row_id(cursor), limit=limit + 1
        )
        following = str(found[limit - 1].id) if len(found) > limit else None
        return {"deliveries": [views.delivery(one) for one in found[:limit]], "next_cursor": following}

    return seen.answer(await served.store.aread(look))


@router.get("/{delivery_id}", responses=shows(DeliveryDetail, "The message with its body."))
async def get_delivery(delivery_id: str, served: ServedBy, caller: CalledBy) -> Response:
    """Show a message, by its id or the beginning of it, with what is sent."""
    find = partial(deliveries.find, public_id=delivery_id, owner=caller.owner)
    found = await served.store.aread(find)
    return seen.answer({**views.delivery(found), "body": found.body})


@router.post("/{delivery_id}/replay", responses=shows(DeliveryShown, "The message as it is then."))
async def replay_delivery(delivery_id: str, served: ServedBy, caller: CalledBy, once: AskedOnce) -> Response:
    """Send a message again, under the same id, whatever became of it: any worker does, at once."""
    now = served.store.clock.now_ms()

    def write(connection: Connection) -> Reply:
        found = deliveries.find(connection, delivery_id, owner=caller.owner)
        return Reply(200, views.delivery(deliveries.replay(connection, found, now=now)))

    return (await once.write(write)).response()
