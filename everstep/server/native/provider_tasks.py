"""Paid provider tasks: list, look at, and cancel them; whoever runs Everstep says what became of one."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from pydantic import Field, model_validator
from sqlalchemy import Connection

from everstep.checkpoints import payload, provider_task
from everstep.checkpoints.json_filters import check_storable
from everstep.checkpoints.provider_status import ProviderStatus
from everstep.checkpoints.provider_task import ProviderTask
from everstep.checkpoints.replies import Reply
from everstep.errors import ProviderTaskNotFound
from everstep.runtime import task_care
from everstep.server.bodies import JsonRoute
from everstep.server.context import CalledBy, Caller, ServedBy
from everstep.server.native import seen
from everstep.server.native.seen import Body, Cursor, Limit, shows
from everstep.server.native.shown import ErrorShown
from everstep.server.native.shown_tasks import TaskDetail, TaskList, TaskState
from everstep.server.once import AskedOnce
from everstep.server.texts import Text

router = APIRouter(prefix="/everstep/provider-tasks", tags=["provider tasks"], route_class=JsonRoute)


class TaskEnd(Body):
    """How a task ended, as a person found it."""

    status: Literal["succeeded", "failed"]
    result: Any = Field(None, description="What came of it, if it succeeded; null: nothing.")
    error: Any = Field(None, description="Why it failed, if it did; or `reason` says it.")
    reason: Text | None = Field(None, max_length=1_000, description="How that is known.")

    @model_validator(mode="after")
    def _fits(self) -> TaskEnd:
        if (self.result if self.status == "failed" else self.error) is not None:
            raise ValueError("a result belongs to succeeded, an error to failed")
        if self.status == "succeeded" and "result" not in self.model_fields_set:
            raise ValueError("a success needs its result; null: nothing came of it")
        if self.status == "failed" and self.error is None and not (self.reason or "").strip():
            raise ValueError("a failure needs an error or a reason")
        return self


class TaskLink(Body):
    """Which task of the provider's it is."""

    provider_task_id: Text = Field(min_length=1, max_length=500)


@router.get("", responses=shows(TaskList, "A page of tasks."))
async def list_tasks(
    served: ServedBy,
    caller: CalledBy,
    state: Annotated[TaskState | None, Query(description="In this state.")] = None,
    provider: Annotated[Text | None, Query(description="Of this provider.")] = None,
    job: Annotated[Text | None, Query(description="Of the job with this id.")] = None,
    submission_key: Annotated[Text | None, Query(description="Generations of this submission.")] = None,
    owner: Annotated[Text | None, Query(description="Of this owner, for those who see everybody's.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """List paid tasks, newest first."""

    def look(connection: Connection) -> dict[str, Any]:
        found = provider_task.listed(
            connection,
            owner=caller.owner if owner is None else owner,
            provider=provider,
            state=state,
            job=None if job is None else seen.job(connection, caller, job).public_id,
            submission_key=submission_key,
            before=seen.row_id(cursor),
            limit=limit + 1,
        )
        following = str(found[limit - 1].id) if len(found) > limit else None
        return {"tasks": [task.view() for task in found[:limit]], "next_cursor": following}

    if owner is not None and not caller.sees(owner):
        return seen.answer({"tasks": [], "next_cursor": None})
    return seen.answer(await served.store.aread(look))


@router.get("/{task_id}", responses=shows(TaskDetail, "The task."))
async def get_task(task_id: str, served: ServedBy, caller: CalledBy) -> Response:
    """Show a task: its state, what it cost and what was given back, and what the provider told of it."""
    return seen.answer(
        await served.store.aread(lambda connection: _detail(connection, _task(connection, caller, task_id)))
    )


@router.post(
    "/{task_id}/cancel",
    responses={
        **shows(TaskDetail, "The task as it is then."),
        **shows(ErrorShown, "The provider gave no answer that can be used; the task is as it was.", 502),
    },
)
async def cancel_task(task_id: str, served: ServedBy, caller: CalledBy) -> Response:
    """Ask the provider to end a task; it then is what the provider says. Again does no harm."""
    task = await served.store.aread(lambda connection: _task(connection, caller, task_id))
    task = await task_care.cancel(served.store, served.providers, task, by=caller.identity)
    return seen.answer(await served.store.aread(partial(_detail, task=task)))


@router.post("/{task_id}/reconcile", responses=shows(TaskDetail, "The task as it is then."))
async def reconcile_task(task_id: str, body: TaskEnd, served: ServedBy, caller: CalledBy, once: AskedOnce) -> Response:
    """Say how a task ended, in the provider's place; a failure refunds its charge. It takes the scope `admin`."""
    told = {"result": body.result, "error": body.error}
    payload.check_payload(told)
    check_storable(told, "value")
    error = body.error if body.error is not None or body.status == "succeeded" else {"message": body.reason or ""}
    status = ProviderStatus(body.status, result=body.result, error=error)

    def write(connection: Connection) -> Reply:
        task = _task(connection, caller, task_id)
        found = task_care.repair(connection, task, status, now=served.store.clock.now_ms(), by=caller.identity)
        return Reply(200, _detail(connection, found.task))

    return (await once.write(write)).response()


@router.post("/{task_id}/link", responses=shows(TaskDetail, "The task as it is then."))
async def link_task(task_id: str, body: TaskLink, served: ServedBy, caller: CalledBy, once: AskedOnce) -> Response:
    """Say which task of the provider's it is, of one that nobody knew of. It takes the scope `admin`.

    It is observed from then on, and its job's question about it is answered.
    """

    def write(connection: Connection) -> Reply:
        task, now = _task(connection, caller, task_id), served.store.clock.now_ms()
        task = task_care.link(connection, task, body.provider_task_id, now=now, by=caller.identity)
        return Reply(200, _detail(connection, task))

    return (await once.write(write)).response()


def _task(connection: Connection, caller: Caller, task_id: str) -> ProviderTask:
    """The task by its id, or by the beginning of it that fits one only.

    Raises:
        ProviderTaskNotFound: There is none for this caller.
    """
    found = provider_task.find(connection, task_id)
    if not caller.sees(found.owner):
        raise ProviderTaskNotFound(
            f"no provider task has the id {task_id!r}",
            next_step="list them with: everstep provider tasks",
            task=task_id,
        )
    return found


def _detail(connection: Connection, task: ProviderTask) -> dict[str, Any]:
    return task_care.detail(connection, task, admin=False)
