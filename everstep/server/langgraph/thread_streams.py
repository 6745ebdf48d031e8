"""`GET /threads/{id}/stream`: the events of all runs of a thread, one after another, until the client leaves.

Each run's events come as it was started to be told (`run_modes`), or its beginning and end alone (`lifecycle`), or the
state when it is over (`state_update`). The stream goes on when a run is over, so that is told by
`metadata {"status": "run_done", "run_id": …}` and not by `end`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from sqlalchemy import Connection
from starlette.responses import Response, StreamingResponse

from everstep.checkpoints import events, runs
from everstep.checkpoints.events import Event
from everstep.errors import RequestInvalid, RunNotFound
from everstep.server.bodies import JsonRoute
from everstep.server.context import CalledBy, Served, ServedBy
from everstep.server.langgraph import frames, thread_events
from everstep.server.langgraph.frames import Frames, frame
from everstep.server.langgraph.permitted import found_thread
from everstep.server.langgraph.run_context import RunContext
from everstep.server.watch import Watch

router = APIRouter(tags=["threads"], route_class=JsonRoute)

MODES = ("run_modes", "lifecycle", "state_update")
_WITHOUT_MODES = ("values", "updates", "messages-tuple", "custom", "tasks", "tools", "checkpoints", "debug", "events")
"""As a run is told that went on though no client started it."""


@router.get("/threads/{thread_id}/stream", response_class=StreamingResponse)
async def stream_thread(
    thread_id: str,
    request: Request,
    served: ServedBy,
    caller: CalledBy,
    stream_mode: Annotated[list[str] | None, Query()] = None,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """The events of a thread's runs from now on, or from behind `Last-Event-ID`; `-` for all that are kept."""
    asked = {mode for given in stream_mode or () for mode in given.split(",") if mode} or {"run_modes"}
    if unknown := asked - set(MODES):
        raise RequestInvalid(f"stream_mode: {sorted(unknown)[0]!r} is none of {', '.join(MODES)}", field="stream_mode")
    thread = await found_thread(request, served, caller, thread_id, "read")
    watch = RunContext(request, served, caller).watch
    if last_event_id is None:
        after = await served.store.aread(lambda c: events.newest(c, thread.thread_id))
    else:
        after = frames.after(last_event_id)
    body = _frames(served, watch, thread.thread_id, frozenset(asked), after)
    return StreamingResponse(body, media_type="text/event-stream", headers=thread_events.HEADERS)


async def _frames(
    served: Served, watch: Watch, thread_id: str, asked: frozenset[str], after: int
) -> AsyncGenerator[bytes]:
    telling = _Telling(asked)
    begin = await thread_events.begun_at(served, thread_id, after)
    async for page in thread_events.pages(served, watch, thread_id, begin):
        await telling.look_up(served, page)
        for event in page:
            told = b"".join(telling.of(event))
            if told and event.id > after:
                yield told
        if not page:
            yield thread_events.HEARTBEAT


class _Telling:
    """Tells events in the form of their runs."""

    def __init__(self, asked: frozenset[str]) -> None:
        self._asked = asked
        self._runs: dict[str, Frames] = {}
        self._values: dict[str, Any] = {}

    async def look_up(self, served: Served, page: list[Event]) -> None:
        """How the runs of a page are to be told, and what those came to that end in it."""
        new = {event.run_id for event in page} - set(self._runs)
        over = {event.run_id for event in page if event.method == events.END}
        if not new | over:
            return
        found = await served.store.aread(lambda c: {one: _run(c, one) for one in new | over})
        for run_id in new:
            kwargs: dict[str, Any] = json.loads(found[run_id].kwargs_json) if found[run_id] else {}
            self._runs[run_id] = Frames(tuple(kwargs.get("stream_mode") or _WITHOUT_MODES))
        for run_id in over:
            self._values[run_id] = json.loads(found[run_id].values_json or "null") if found[run_id] else None

    def of(self, event: Event) -> Iterable[bytes]:
        """The frames of an event."""
        if event.method == events.END:
            return self._end(event)
        if event.method in (events.METADATA, events.ERROR):
            return self._runs[event.run_id].of(event) if self._asked & {"run_modes", "lifecycle"} else ()
        return self._runs[event.run_id].of(event) if "run_modes" in self._asked else ()

    def _end(self, event: Event) -> Iterator[bytes]:
        del self._runs[event.run_id]
        values = self._values.pop(event.run_id)
        if "state_update" in self._asked:
            told = {"run_id": event.run_id, "status": event.data["status"], "values": values}
            yield frame("state_update", json.dumps(told), event.id)
        if self._asked & {"run_modes", "lifecycle"}:
            yield frame(events.METADATA, json.dumps({"status": "run_done", "run_id": event.run_id}), event.id)


def _run(connection: Connection, run_id: str) -> Any:
    try:
        return runs.find(connection, run_id)
    except RunNotFound:
        return None
