"""Commands to a thread. Each is answered with 200, and with success or the protocol's error in the body.

Over HTTP a subscription is a stream that its client opens itself (`/threads/{id}/stream/events`), so there is nothing
to subscribe to by a command. Interrupts are named by their ids alone; the namespace an answer names is not needed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

from fastapi import APIRouter, Request
from pydantic import BaseModel, ValidationError
from sqlalchemy import Connection
from starlette.responses import JSONResponse

from everstep.checkpoints import events, reviews, runs, thread_questions
from everstep.checkpoints.runs import Run, RunRequest
from everstep.errors import JobStateConflict, RunNotFound
from everstep.server import access, failures
from everstep.server.bodies import JsonRoute
from everstep.server.context import CalledBy, ServedBy
from everstep.server.langgraph.frames import is_place
from everstep.server.langgraph.permitted import found_thread
from everstep.server.langgraph.protocol import requests, states, trees
from everstep.server.langgraph.protocol.answers import Refused, refusal, success
from everstep.server.langgraph.protocol.requests import Command
from everstep.server.langgraph.protocol.translation import row_of, through
from everstep.server.langgraph.run_context import RunContext
from everstep.server.langgraph.run_requests import RunCreate
from everstep.server.once import REPLAYED, AskedOnce, Once

router = APIRouter(tags=["threads"], route_class=JsonRoute)
Kind = TypeVar("Kind", bound=BaseModel)

RECORDED = ("values", "updates", "messages-tuple", "tools", "tasks", "custom", events.CHECKPOINT_IDS)
"""What the event log holds of a run that is started so: all that the protocol has channels for."""
_SCHEMA = {"requestBody": {"content": {"application/json": {"schema": Command.model_json_schema()}}, "required": True}}


@router.post("/threads/{thread_id}/commands", openapi_extra=_SCHEMA)
async def command(
    thread_id: str, request: Request, served: ServedBy, caller: CalledBy, once: AskedOnce
) -> JSONResponse:
    """Carry out a command on a thread; `run.start` makes it if it is not there."""
    command_id: int | None = None
    try:
        asked = _parsed(Command, await _body(request))
        command_id = asked.id
        context = _Context(RunContext(request, served, caller), once, thread_id.lower(), asked)
        return JSONResponse(await context.answer(), headers=context.headers)
    except Exception as error:  # whatever it is, the protocol has a form for it
        return failures.Told(refusal(command_id, failures.known(error, served.store)))


async def _body(request: Request) -> Any:
    try:
        return await request.json()
    except (ValueError, RecursionError) as error:
        raise Refused("invalid_argument", "a command is a JSON object with id, method and params") from error


def _parsed(kind: type[Kind], given: Any) -> Kind:
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "the command"
        told = f"{field} is not supported" if first["type"] == "extra_forbidden" else f"{field}: {first['msg']}"
        raise Refused("invalid_argument", told) from error


@dataclass
class _Context:
    """A command that is carried out."""

    runs: RunContext
    once: Once
    thread_id: str
    command: Command
    headers: dict[str, str] = field(default_factory=dict[str, str])

    async def answer(self) -> dict[str, Any]:
        known = _METHODS.get(self.command.method)
        if known is None:
            raise Refused("unknown_command", f"there is no command {self.command.method!r}")
        kind, carry_out = known
        result, applied = await carry_out(self, _parsed(kind, self.command.params))
        return success(self.command.id, result, await self._newest() if applied is None else applied)

    async def start(self, body: RunCreate, as_stands: Callable[[Connection, RunRequest], RunRequest]) -> _Result:
        """Start a run of which everything is recorded that the protocol tells."""

        def recorded(connection: Connection, thread_id: str, request: RunRequest) -> RunRequest:
            return replace(as_stands(connection, request), stream_mode=RECORDED)

        run, answered = await self.runs.start(body, self.once, self.thread_id, as_stands=recorded)
        if answered.replayed:
            self.headers[REPLAYED] = "true"
        return {"run_id": run.run_id}, await self.runs.served.store.aread(lambda c: _before(c, run))

    async def thread(self, action: str = "read") -> Any:
        """The thread, if the caller sees it."""
        return await found_thread(self.runs.request, self.runs.served, self.runs.caller, self.thread_id, action)

    async def _newest(self) -> int:
        return through(await self.runs.served.store.aread(lambda c: events.newest(c, self.thread_id)))


_Result = tuple[dict[str, Any], int | None]


def _before(connection: Connection, run: Run) -> int:
    """The number up to which events are older than a run's."""
    first = events.first_of_run(connection, run.run_id)
    return through(events.newest(connection, run.thread_id) if first is None else first - 1)


async def _start(context: _Context, params: requests.RunStart) -> _Result:
    config, checkpoint_id = _forked(params.config and params.config.model_dump(exclude_unset=True))
    body = _parsed(
        RunCreate,
        {
            "assistant_id": params.assistant_id,
            "input": params.input,
            "config": config,
            "metadata": params.metadata,
            "checkpoint_id": checkpoint_id,
            "multitask_strategy": params.multitask_strategy,
            "langsmith_tracer": params.langsmith_tracer,
            "if_not_exists": "create",
            "stream_subgraphs": True,
        },
    )
    if checkpoint_id is not None:
        await states.require_checkpoint(context.runs.served, context.thread_id, checkpoint_id)

    def as_stands(connection: Connection, request: RunRequest) -> RunRequest:
        """An input answers what the graph asks, if it asks."""
        if params.input is None or checkpoint_id is not None:
            return request
        asked = thread_questions.open_on(connection, context.thread_id)
        if not any(review.kind == "interrupt" for review in asked):
            return request
        access.require(context.runs.caller, "review")
        return replace(request, input=None, command={"resume": params.input})

    return await context.start(body, as_stands)


async def _respond(context: _Context, params: requests.InputRespond) -> _Result:
    answers = _answers(context.command.params, params)
    thread = await context.thread("update")
    config, checkpoint_id = _forked(params.config and params.config.model_dump(exclude_unset=True))
    if checkpoint_id is not None:
        raise Refused(
            "invalid_argument", "config.configurable.checkpoint_id: an answer cannot be given at an earlier one"
        )
    body = _parsed(
        RunCreate,
        {
            "assistant_id": thread.assistant_id or thread.graph or "",
            "command": {"resume": answers, "update": params.update, "goto": params.goto},
            "config": config,
            "metadata": params.metadata,
            "stream_subgraphs": True,
        },
    )

    def as_stands(connection: Connection, request: RunRequest) -> RunRequest:
        asked = {reviews.client_id(one) for one in thread_questions.open_on(connection, context.thread_id)}
        if unknown := sorted(set(answers) - asked):
            raise JobStateConflict(
                f"no question with the id {unknown[0]} waits for an answer on this thread",
                next_step="it was answered before, or never asked",
                interrupts=sorted(asked),
            )
        return request

    return await context.start(body, as_stands)


def _answers(given: Mapping[str, Any], params: requests.InputRespond) -> dict[str, Any]:
    if (params.interrupt_id is None) == (params.responses is None):
        raise Refused("invalid_argument", "give either interrupt_id with response, or responses")
    if params.responses is not None:
        return {one.interrupt_id: one.response for one in params.responses}
    if "response" not in given:
        raise Refused("invalid_argument", "response: Field required")
    return {cast(str, params.interrupt_id): params.response}


def _forked(config: dict[str, Any] | None) -> tuple[dict[str, Any] | None, str | None]:
    """A config without the checkpoint that its `configurable` names, and that."""
    configurable: Any = (config or {}).get("configurable")
    if config is None or not isinstance(configurable, dict) or "checkpoint_id" not in configurable:
        return config, None
    rest = dict(cast("dict[str, Any]", configurable))
    chosen = rest.pop("checkpoint_id")
    if chosen is not None and not isinstance(chosen, str):
        raise Refused("invalid_argument", "config.configurable.checkpoint_id: Input should be a valid string")
    return {**config, "configurable": rest}, chosen


async def _state(context: _Context, params: requests.StateGet) -> _Result:
    thread = await context.thread()
    return await states.get(context.runs.served, thread, params.namespace, params.keys), None


async def _checkpoints(context: _Context, params: requests.ListCheckpoints) -> _Result:
    thread = await context.thread()
    found = await states.history(context.runs.served, thread, params.namespace, params.limit, params.before)
    return {"checkpoints": found}, None


async def _fork(context: _Context, params: requests.StateFork) -> _Result:
    thread = await context.thread("update")
    await states.require_checkpoint(context.runs.served, thread.thread_id, params.checkpoint_id)
    config, _ = _forked(params.config and params.config.model_dump(exclude_unset=True))
    body = _parsed(
        RunCreate,
        {
            "assistant_id": thread.assistant_id or thread.graph or "",
            "input": params.input,
            "config": config,
            "checkpoint_id": params.checkpoint_id,
            "stream_subgraphs": True,
        },
    )
    result, applied = await context.start(body, lambda _, request: request)
    return {**result, "thread_id": thread.thread_id}, applied


async def _tree(context: _Context, params: requests.GetTree) -> _Result:
    run = await _run(context, params.run_id)
    return {"tree": await trees.of_run(context.runs.served, run)}, None


async def _run(context: _Context, run_id: str | None) -> Run:
    if run_id is not None:
        return await context.runs.run(run_id, context.thread_id)
    thread = await context.thread()
    newest = await context.runs.served.store.aread(lambda c: runs.of_thread(c, thread.thread_id, limit=1))
    if not newest:
        raise RunNotFound(f"nothing ran on thread {thread.thread_id}")
    return newest[0]


async def _subscribe(context: _Context, params: requests.Wanted) -> _Result:
    path = f"/threads/{context.thread_id}/stream/events"
    raise Refused("not_supported", f"over HTTP a subscription is a stream: POST the same parameters to {path}")


async def _unsubscribe(context: _Context, params: requests.Unsubscribe) -> _Result:
    raise Refused("no_such_subscription", "over HTTP a subscription is a stream: close it")


async def _reconnect(context: _Context, params: requests.Reconnect) -> _Result:
    """What was missed; the streams themselves go on with `since`."""
    if params.subscriptions:
        raise Refused("no_such_subscription", "over HTTP a subscription is a stream: open it again with since")
    seen = params.last_event_id or "0"
    if not is_place(seen):
        raise Refused("invalid_argument", "last_event_id: that of no event")
    run = await _run(context, params.run_id)
    missed = await context.runs.served.store.aread(
        lambda c: events.of_thread(c, run.thread_id, after=row_of(int(seen)))
    )
    current = await trees.statuses(context.runs.served, run)
    return {"restored": not missed, "missed_events": len(missed), "current_namespaces": current}, None


async def _inject(context: _Context, params: requests.Params) -> _Result:
    raise Refused("not_supported", "input.inject: nothing can be put into a run that goes on; start a run after it")


class _Anything(BaseModel):
    """Parameters of a command that is not supported."""


_METHODS: dict[str, tuple[type[BaseModel], Callable[[_Context, Any], Awaitable[_Result]]]] = {
    "run.start": (requests.RunStart, _start),
    "input.respond": (requests.InputRespond, _respond),
    "input.inject": (_Anything, _inject),
    "state.get": (requests.StateGet, _state),
    "state.listCheckpoints": (requests.ListCheckpoints, _checkpoints),
    "state.fork": (requests.StateFork, _fork),
    "agent.getTree": (requests.GetTree, _tree),
    "subscription.subscribe": (requests.Wanted, _subscribe),
    "subscription.unsubscribe": (requests.Unsubscribe, _unsubscribe),
    "subscription.reconnect": (requests.Reconnect, _reconnect),
}
