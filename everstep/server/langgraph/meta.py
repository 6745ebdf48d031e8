"""`/ok` and `/info`: whether the server is there, and what it can do."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from fastapi import APIRouter

from everstep.server.bodies import JsonRoute

router = APIRouter(tags=["meta"], route_class=JsonRoute)


@router.get("/ok")
async def is_well() -> dict[str, bool]:
    """Whether the server answers."""
    return {"ok": True}


@router.get("/info")
async def info() -> dict[str, Any]:
    """Versions, and what is supported."""
    flags = {"assistants": True, "crons": True, "langsmith": False, "strict_resume": True}
    return {"version": version("everstep"), "langgraph_py_version": version("langgraph"), "flags": flags}
