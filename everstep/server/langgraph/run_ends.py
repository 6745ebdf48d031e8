"""LangGraph's runs: cancel and forget them."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict

from everstep.checkpoints import rollback, runs
from everstep.errors import RequestInvalid
from everstep.server.bodies import JsonRoute
from everstep.server.context import CalledBy, ServedBy
from everstep.server.langgraph import following
from everstep.server.langgraph.run_context import RunContext

router = APIRouter(tags=["runs"], route_class=JsonRoute)
LONGEST_CANCEL_S = 60.0


class CancelMany(BaseModel):
    """Which runs to cancel."""

    model_config = ConfigDict(extra="forbid")

    thread_id: str | None = None
    run_ids: list[str] | None = None
    status: Literal["pending", "running", "all"] | None = None


Action = Literal["interrupt", "rollback"]


@router.post(
    "/threads/{thread_id}/runs/{run_id}/cancel",
    status_code=202,
    response_class=Response,
    responses={204: {"description": "It is over."}},
)
async def cancel_run(
    thread_id: str,
    run_id: str,
    request: Request,
    served: ServedBy,
    caller: CalledBy,
    wait: bool = False,
    action: Action = "interrupt",
    reason: Annotated[str | None, Query(description="Taken, without effect.")] = None,
) -> Response:
    """Cancel a run; `rollback` takes its steps away, too. With `wait` answered when it is over."""
    context = RunContext(request, served, caller)
    run = await context.run(run_id, thread_id, "update")
    await context.cancel(run, rollback=action == "rollback")
    if not wait:
        return Response(status_code=202)
    await following.ended(served, context.watch, run, LONGEST_CANCEL_S)
    await rollback.take_away(served.store, run.thread_id)
    return Response(status_code=204)


@router.post("/runs/cancel", status_code=204)
async def cancel_runs(
    body: CancelMany, request: Request, served: ServedBy, caller: CalledBy, action: Action = "interrupt"
) -> Response:
    """Cancel several runs: those named, or all of a status, of one thread or of every one the caller sees."""
    if (body.run_ids is None) == (body.status is None):
        raise RequestInvalid("give either run_ids or status", next_step='such as {"status": "pending"}')
    context = RunContext(request, served, caller)
    if body.run_ids is not None:
        found = [await context.run(run_id, body.thread_id, "update") for run_id in body.run_ids]
    else:
        status = None if body.status == "all" else body.status
        found = await served.store.aread(
            lambda c: runs.going(c, status=status, thread_id=body.thread_id, owner=caller.owner)
        )
        found = [await context.run(run.run_id, None, "update") for run in found]
    for run in found:
        await context.cancel(run, rollback=action == "rollback")
    return Response(status_code=204)


@router.delete("/threads/{thread_id}/runs/{run_id}", status_code=204)
async def delete_run(thread_id: str, run_id: str, request: Request, served: ServedBy, caller: CalledBy) -> Response:
    """Forget a run that is over: it and its events. Its steps stay a part of the thread, unless it was rolled back."""
    context = RunContext(request, served, caller)
    run = await context.run(run_id, thread_id, "delete")
    await rollback.take_away(served.store, run.thread_id)
    await served.store.awrite(lambda connection: runs.forget(connection, run))
    return Response(status_code=204)
