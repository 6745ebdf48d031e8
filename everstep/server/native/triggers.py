"""Events over HTTP: taken from whoever can sign them, stored before they are answered, looked at and replayed."""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from typing import Any, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse

from everstep.checkpoints import api_keys, trigger_events
from everstep.checkpoints.trigger_events import Event
from everstep.errors import EventNotFound, EventTooLarge, StoreUnavailable, TriggerNotFound, TriggerUnusable
from everstep.graphs.event_sections import CloudEventsTrigger, GithubTrigger, HttpTrigger, OverHttp, Trigger
from everstep.runtime.triggers import incoming, signatures
from everstep.runtime.triggers.registry import Triggers, view
from everstep.server.access import require
from everstep.server.bodies import JsonRoute
from everstep.server.context import CalledBy, Caller, Served, ServedBy

logger = logging.getLogger("everstep.triggers")
router = APIRouter(prefix="/everstep/triggers", tags=["triggers"], route_class=JsonRoute)

_ANYTHING: dict[str, Any] = {"schema": {}}
_BODY: dict[str, Any] = {
    "requestBody": {"content": {"application/json": _ANYTHING, "text/plain": _ANYTHING}, "required": True}
}


class Replay(BaseModel):
    """How an event is handled once more."""

    model_config = ConfigDict(extra="forbid")

    again: bool = Field(False, description="Start another job of an event that started one.")


@router.post("/{name}", openapi_extra=_BODY)
async def take_event(name: str, request: Request, served: ServedBy, caller: CalledBy) -> Response:
    """Take an event. Its trigger's signature decides who may send one; without one it takes an API key.

    200 when it is handled: `state` tells whether it `started` a job, was `filtered` out or `failed` to become a job's
    input. 202 when it is stored and will be handled. An event that comes again is answered as it was.
    """
    triggers = Triggers(served.store, served.policies)
    trigger = triggers.sections.get(name)
    if not isinstance(trigger, HttpTrigger | CloudEventsTrigger | GithubTrigger) or not trigger.enabled:
        raise _no_trigger(name)
    if not signatures.is_signed(trigger):
        await _require_key(request, served, caller)
        if caller.scopes and not caller.sees(trigger.owner):
            raise _no_trigger(name)
    body = await _body(request, trigger)
    headers = {header.lower(): value for header, value in request.headers.items()}
    try:
        signatures.verify(name, trigger, headers, body, now_ms=served.store.clock.now_ms())
    except TriggerUnusable as error:  # its text is for whoever runs the server
        logger.error("%s", error)
        raise TriggerUnusable("the trigger cannot take events now", trigger=name) from None
    event, created = await triggers.receive(name, incoming.read(trigger, headers, body))
    with suppress(StoreUnavailable):  # it is stored, and whoever serves the trigger handles it when the record is back
        event = await triggers.handle(event)
    return _answer(event, created=created)


@router.get("")
async def list_triggers(served: ServedBy, caller: CalledBy) -> list[dict[str, Any]]:
    """The triggers of `everstep.toml`, each with how many events it has had, by state."""
    counts = await served.store.aread(trigger_events.counts)
    seen = {name: one for name, one in served.policies.triggers.items() if caller.sees(one.owner)}
    return [view(name, trigger, counts.get(name, {})) for name, trigger in seen.items()]


@router.get("/{name}/events")
async def list_events(
    name: str,
    served: ServedBy,
    caller: CalledBy,
    state: Literal["stored", "started", "filtered", "failed"] | None = None,
    limit: int = Query(100, ge=1, le=1000),
) -> list[dict[str, Any]]:
    """A trigger's events, newest first, without their bodies."""
    _visible(served, caller, name)
    found = await served.store.aread(partial(trigger_events.every, trigger=name, state=state, limit=limit))
    return [event.view() for event in found]


@router.get("/{name}/events/{event_id}")
async def get_event(name: str, event_id: str, served: ServedBy, caller: CalledBy) -> dict[str, Any]:
    """An event with its body, and what is kept of its headers."""
    event = await _event(served, caller, name, event_id)
    document = event.document()
    return {**event.view(), "headers": document["headers"], "body": document["body"]}


@router.post("/{name}/events/{event_id}/replay")
async def replay_event(
    name: str, event_id: str, served: ServedBy, caller: CalledBy, body: Replay | None = None
) -> dict[str, Any]:
    """Handle an event with what `everstep.toml` says now; no second job is made of it unless `again` says so."""
    event = await _event(served, caller, name, event_id)
    again = body is not None and body.again
    return (await Triggers(served.store, served.policies).replay(event, again=again)).view()


async def _require_key(request: Request, served: Served, caller: Caller) -> None:
    """Refuse whoever has to say who they are, and did not: this path lets all in, for triggers that are signed."""
    if request.app.state.auth_hook is None and not await served.store.aread(api_keys.any_made):
        return
    require(caller, "run")


async def _body(request: Request, trigger: OverHttp) -> bytes:
    """What was sent, as far as the trigger takes it."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > trigger.max_bytes:
            raise EventTooLarge(
                f"the event has more than {trigger.max_bytes} bytes", next_step="max_bytes of the trigger is the limit"
            )
    return bytes(body)


def _answer(event: Event, *, created: bool) -> Response:
    told = {"event": event.public_id, "trigger": event.trigger, "state": event.state, "job": event.job}
    error = event.view()["error"]
    status = 202 if event.state == "stored" else 200
    return JSONResponse({**told, "error": error, "duplicate": not created}, status_code=status)


def _visible(served: Served, caller: Caller, name: str) -> Trigger:
    trigger = served.policies.triggers.get(name)
    if trigger is None or not caller.sees(trigger.owner):
        raise _no_trigger(name)
    return trigger


async def _event(served: Served, caller: Caller, name: str, event_id: str) -> Event:
    _visible(served, caller, name)
    event = await served.store.aread(partial(trigger_events.find, public_id=event_id))
    if event.trigger != name:
        raise EventNotFound(f"no event has the id {event_id!r}", event=event_id)
    return event


def _no_trigger(name: str) -> TriggerNotFound:
    return TriggerNotFound(
        f"no trigger takes events at /everstep/triggers/{name}", next_step="check the name", trigger=name
    )
