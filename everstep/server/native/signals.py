"""Signals: waking jobs that wait for something, and seeing what is waited for."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Path, Response
from pydantic import BaseModel, Field
from sqlalchemy import Connection

from everstep.checkpoints import signals, waits
from everstep.checkpoints.replies import Reply
from everstep.server.bodies import JsonRoute
from everstep.server.context import CalledBy, ServedBy
from everstep.server.native import seen
from everstep.server.native.seen import Body, Cursor, Limit, shows
from everstep.server.native.shown import Moment, WaitShown
from everstep.server.once import AskedOnce

router = APIRouter(prefix="/everstep/signals", tags=["signals"], route_class=JsonRoute)


class SignalShown(BaseModel):
    """A signal that was emitted."""

    id: str
    name: str
    payload: Any
    emitted_by: str
    emitted_at: Moment


class SignalEmitted(BaseModel):
    """A signal, and whether this request emitted it."""

    emitted: bool = Field(description="False: it was emitted before, and that one stands.")
    signal: SignalShown


class SignalList(BaseModel):
    """A page of signals, newest first."""

    signals: list[SignalShown]
    next_cursor: str | None = Field(description="Give it as `cursor` for the next page; null: this is the last.")


class JobWait(WaitShown):
    """What a job waits for."""

    job: str


class WaitList(BaseModel):
    """What jobs wait for, oldest first."""

    waits: list[JobWait]


class SignalGiven(Body):
    """What a signal carries."""

    payload: Any = Field(None, description="JSON data.")


Name = Annotated[str, Path(description="The signal's name, such as `payment-received:order-17`.")]


@router.get("", responses=shows(SignalList, "The signals."))
async def list_signals(served: ServedBy, caller: CalledBy, limit: Limit = 100, cursor: Cursor = None) -> Response:
    """List signals that were emitted, newest first."""

    def read(connection: Connection) -> list[signals.Signal]:
        return signals.listed(connection, owner=caller.owner, limit=limit + 1, before=seen.row_id(cursor))

    found = await served.store.aread(read)
    more = str(found[limit - 1].id) if len(found) > limit else None
    return seen.answer({"signals": [each.view() for each in found[:limit]], "next_cursor": more})


@router.get("/waits", responses=shows(WaitList, "What is waited for."))
async def list_waits(served: ServedBy, caller: CalledBy, limit: Limit = 100) -> Response:
    """List what jobs that are parked wait for, the longest first."""
    found = await served.store.aread(lambda connection: waits.awaited(connection, owner=caller.owner, limit=limit))
    return seen.answer({"waits": [{"job": job, **wait.view()} for wait, job in found]})


@router.post("/{name:path}", responses=shows(SignalEmitted, "It is emitted, or was before."))
async def emit_signal(
    name: Name, served: ServedBy, caller: CalledBy, once: AskedOnce, body: SignalGiven | None = None
) -> Response:
    """Emit a signal: jobs that wait for it go on. The first emission of a name wins; a later one is told the first."""
    text = signals.payload_text(None if body is None else body.payload)
    signals.require_name(name)

    def write(connection: Connection) -> Reply:
        signal, emitted = signals.emit(
            connection,
            name,
            json.loads(text),
            owner=caller.makes_for,
            by=caller.identity,
            now=served.store.clock.now_ms(),
        )
        return Reply(200, {"emitted": emitted, "signal": signal.view()})

    return (await once.write(write)).response()
