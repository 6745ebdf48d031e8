"""A thread's events in the protocol's form, as server-sent events, until the client leaves.

A stream without `since` begins with the run that is under way, or with the last one: a client that starts a run, and
then opens its streams, misses nothing of a short one. If nothing is under way it waits a moment first, since clients
that go on with a thread open a stream and start a run at once, and take the end of the run before for that of theirs.

A stream of nothing but lifecycle and input tells of a pause or a failure a little later than the others: the Python
client watches one beside those that it reads, and stops reading them when the watched one tells of such an end.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator

from fastapi import APIRouter, Request, WebSocket
from sqlalchemy import Connection
from starlette.responses import Response, StreamingResponse

from everstep.checkpoints import conversations, events, jobs, runs
from everstep.checkpoints.events import Event
from everstep.errors import RequestInvalid, RunNotFound, ThreadNotFound
from everstep.server import access
from everstep.server.bodies import JsonRoute
from everstep.server.context import CalledBy, Caller, Served, ServedBy
from everstep.server.langgraph import thread_events
from everstep.server.langgraph.protocol.requests import EventsWanted
from everstep.server.langgraph.protocol.translation import Translation, row_of
from everstep.server.langgraph.run_context import RunContext
from everstep.server.watch import Watch

logger = logging.getLogger("everstep.server")
router = APIRouter(tags=["threads"], route_class=JsonRoute)

MOMENT_S = 1.0
BEHIND_S = 0.2
_CONTROL = frozenset({"lifecycle", "input"})
NO_WEBSOCKET = "WebSocket is not supported: the thread's events are streamed as server-sent events"
LOOK_FOR_THREAD_S = 4.0


@router.post("/threads/{thread_id}/stream/events", response_class=StreamingResponse)
async def stream_events(
    thread_id: str, body: EventsWanted, request: Request, served: ServedBy, caller: CalledBy
) -> Response:
    """The events of a thread's runs, by channel and graph; a thread that is not there yet is waited for."""
    filters = await access.allow(request, "threads", "read", {"thread_id": thread_id})
    watch = RunContext(request, served, caller).watch
    frames = _frames(served, watch, caller, filters, thread_id.lower(), body)
    return StreamingResponse(frames, media_type="text/event-stream", headers=thread_events.HEADERS)


@router.get("/threads/{thread_id}/stream/events")
async def refuse_upgrade(thread_id: str) -> None:
    """Refused: this is where a WebSocket would be asked for."""
    raise RequestInvalid(NO_WEBSOCKET, next_step='POST to this path; in Python: transport="sse"')


@router.websocket("/threads/{thread_id}/stream/events")
async def refuse_websocket(websocket: WebSocket, thread_id: str) -> None:
    """Refused, in the way its clients understand: the status behind 4000."""
    await websocket.accept()
    await websocket.close(4422, NO_WEBSOCKET)


async def _frames(
    served: Served, watch: Watch, caller: Caller, filters: access.Filters, thread_id: str, wanted: EventsWanted
) -> AsyncGenerator[bytes]:
    translation = Translation(frozenset(wanted.channels))
    try:
        while not await thread_events.until(
            lambda c: _sees(c, caller, filters, thread_id), thread_id, served, watch, LOOK_FOR_THREAD_S
        ):
            yield thread_events.HEARTBEAT
        after = await _begin(served, watch, thread_id, wanted.since)
        async for page in thread_events.pages(served, watch, thread_id, after):
            await _name_graphs(served, translation, page)
            for row in page:
                told = _told(translation, row, wanted)
                if told:
                    if _CONTROL.issuperset(wanted.channels) and _cuts(row):
                        await asyncio.sleep(BEHIND_S)
                    yield told
            if not page:
                yield thread_events.HEARTBEAT
    except Exception as error:  # the status is sent: what went wrong is told as the protocol has it
        logger.error("the stream of thread %s failed", thread_id, exc_info=error)
        told = {"type": "error", "id": None, "error": "unknown_error", "message": "the stream failed; open it again"}
        yield f"event: error\ndata: {json.dumps(told)}\n\n".encode()
    finally:
        translation.close()


async def _begin(served: Served, watch: Watch, thread_id: str, since: int | None) -> int:
    """The row of the log behind which to read."""
    if since is not None:
        return await thread_events.begun_at(served, thread_id, row_of(since))
    await thread_events.until(lambda c: thread_events.is_under_way(c, thread_id), thread_id, served, watch, MOMENT_S)

    def look(connection: Connection) -> int:
        chosen = runs.going(connection, thread_id=thread_id)[:1] or runs.of_thread(
            connection, thread_id, limit=1, with_values=False
        )
        first = events.first_of_run(connection, chosen[0].run_id) if chosen else None
        return events.newest(connection, thread_id) if first is None else first - 1

    return await served.store.aread(look)


async def _name_graphs(served: Served, translation: Translation, page: list[Event]) -> None:
    unknown = {row.run_id for row in page} - set(translation.graphs)
    if unknown:
        translation.graphs |= await served.store.aread(lambda c: {one: graph_of(c, one) for one in unknown})


def graph_of(connection: Connection, run_id: str) -> str:
    """The name of a run's graph; empty if the run is gone."""
    try:
        return jobs.get(connection, runs.find(connection, run_id).job_id).graph
    except RunNotFound:
        return ""


def _told(translation: Translation, row: Event, wanted: EventsWanted) -> bytes:
    since = wanted.since or 0
    return b"".join(
        f"id: {event.number}\nevent: {event.method}\ndata: {event.text()}\n\n".encode()
        for event in translation.of(row)
        if event.number > since and wanted.takes(event)
    )


def _cuts(row: Event) -> bool:
    """Whether a run paused or failed here."""
    return row.method == events.END and row.data != {"status": "success"}


def _sees(connection: Connection, caller: Caller, filters: access.Filters, thread_id: str) -> bool:
    try:
        thread = conversations.find(connection, thread_id, owner=caller.owner)
    except ThreadNotFound:
        return False
    return access.matches(filters, thread.metadata)
