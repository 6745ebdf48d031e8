"""Whether the server lives, whether it can work, what is wrong, and numbers for a monitor."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from typing import cast

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from everstep.checkpoints import database
from everstep.errors import EverstepError, NotPermitted
from everstep.runtime import examination
from everstep.runtime.advice import Finding
from everstep.server.access import require
from everstep.server.bodies import JsonRoute
from everstep.server.context import CalledBy, Caller, Served, ServedBy
from everstep.server.native import seen
from everstep.server.native.seen import shows
from everstep.server.native.shown import Alive, Findings, Ready

router = APIRouter(prefix="/everstep", tags=["health"], route_class=JsonRoute)
FRESH_S = 1.0
"""How long a look at the record is good for, however many ask."""
PATIENCE_S = 5.0


@router.get("/health", responses=shows(Alive, "It lives."))
async def is_alive() -> Response:
    """Tell that the server answers. It asks for no key and looks at nothing, so a restart mends what it finds."""
    return seen.answer({"status": "ok"})


@router.get(
    "/ready",
    responses={**shows(Ready, "The record can be read and written."), **shows(Ready, "It cannot.", 503)},
)
async def is_ready(request: Request, served: ServedBy) -> Response:
    """Tell whether the record can be read and written, as of the last second. It asks for no key."""
    state = request.app.state
    if not hasattr(state, "readiness"):
        state.readiness = Readiness(served)
    problem = await cast(Readiness, state.readiness).problem()
    if problem is None:
        return seen.answer({"status": "ready", "record": None})
    return seen.answer({"status": "unavailable", "record": problem}, 503, {"Retry-After": "1"})


class Readiness:
    """Tries the record, once a second at most.

    Args:
        served: What is served.
    """

    def __init__(self, served: Served) -> None:
        self._store = served.store
        self._tried_at = float("-inf")
        self._found: str | None = None
        self._trying: asyncio.Task[str | None] | None = None

    async def problem(self) -> str | None:
        """What is wrong with the record; the code of an error, as its text may name places."""
        if time.monotonic() - self._tried_at < FRESH_S:
            return self._found
        if self._trying is None or self._trying.done():
            self._trying = asyncio.create_task(self._try())
        return await asyncio.shield(self._trying)

    async def _try(self) -> str | None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._store.aread(lambda connection: connection.exec_driver_sql("SELECT 1").close())
                await self._store.awrite(database.require_writable)
            self._found = None
        except TimeoutError:
            self._found = "no answer"
        except EverstepError as error:
            self._found = error.code
        self._tried_at = time.monotonic()
        return self._found


@router.get("/doctor", responses=shows(Findings, "What was found."))
async def examine(served: ServedBy, caller: CalledBy) -> Response:
    """Tell what is wrong and what to do about it, as `everstep doctor --json` does. It needs the scope `admin`."""
    require(caller, "admin")
    _require_everybody(caller)
    found = await asyncio.to_thread(_findings, served)
    wrong = any(finding.level == "wrong" for finding in found)
    return seen.answer({"ok": not wrong, "findings": [asdict(finding) for finding in found]})


def _findings(served: Served) -> list[Finding]:
    store, graphs = served.store, served.graphs
    found = list(examination.environment())
    try:
        found += examination.inside(store, served.policies.limits(), graphs.names(), examination.QUICK_S)
    except EverstepError as error:
        found.append(Finding("record", "wrong", error.message, error.next_step))
    return [*found, *examination.graphs(graphs), *examination.traces(), *examination.langfuse()]


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {
            "description": "The metrics of `everstep metrics --serve`.",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        }
    },
)
async def show_metrics(request: Request, caller: CalledBy) -> Response:
    """Tell the health of the record, and of this server's streams, in the text format of Prometheus.

    docs/metrics.md has the list.

    It tells of everybody's jobs, so it takes a key that sees them all. Prometheus sends one as `Authorization: Bearer`.
    """
    _require_everybody(caller)
    page = await asyncio.to_thread(generate_latest, cast(CollectorRegistry, request.app.state.metrics))
    return Response(page, media_type=CONTENT_TYPE_LATEST)


def _require_everybody(caller: Caller) -> None:
    if caller.owner is not None:
        raise NotPermitted(
            "this tells of everybody's jobs; the key or user is one owner's",
            next_step="ask with a key for everybody: everstep keys create NAME --owner '*'",
        )
