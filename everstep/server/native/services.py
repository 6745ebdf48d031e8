"""Services: which ones jobs need, which are out, and who waits for them."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from sqlalchemy import Connection

from everstep.checkpoints import services, views
from everstep.checkpoints.replies import Reply
from everstep.checkpoints.services import Service
from everstep.server.bodies import JsonRoute
from everstep.server.context import CalledBy, Caller, ServedBy
from everstep.server.native import seen
from everstep.server.native.seen import shows
from everstep.server.native.shown import ServiceList, ServiceOpened, ServiceShown
from everstep.server.once import AskedOnce

router = APIRouter(prefix="/everstep/services", tags=["services"], route_class=JsonRoute)


@router.get("", responses=shows(ServiceList, "The services."))
async def list_services(served: ServedBy, caller: CalledBy) -> Response:
    """List the services that jobs need or reported, by name, and the jobs that need each."""
    return seen.answer(
        await served.store.aread(
            lambda connection: {"services": [_view(connection, caller, one) for one in services.every(connection)]}
        )
    )


@router.get("/{name}", responses=shows(ServiceShown, "The service."))
async def get_service(name: str, served: ServedBy, caller: CalledBy) -> Response:
    """Show a service: whether it is out, since when, and when it is tried next."""
    return seen.answer(
        await served.store.aread(lambda connection: _view(connection, caller, services.find(connection, name)))
    )


@router.post("/{name}/open", responses=shows(ServiceOpened, "It is open."))
async def open_service(name: str, served: ServedBy, once: AskedOnce) -> Response:
    """Say that a service works again (a plan was renewed, a bill was paid): the jobs that wait for it go on."""

    def write(connection: Connection) -> Reply:
        service = services.find(connection, name)
        number = services.open_gate(connection, service, now=served.store.clock.now_ms())
        return Reply(200, {"service": service.name, "gate": "open", "jobs": number})

    return (await once.write(write)).response()


def _view(connection: Connection, caller: Caller, service: Service) -> dict[str, Any]:
    return views.service(service, services.waiting(connection, service.name, owner=caller.owner))
