"""Threads, as far as whoever asks may see them: their owner's, and what the `auth` hook lets pass."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, cast

from fastapi import Request

from everstep.checkpoints import conversations
from everstep.checkpoints.thread import Thread
from everstep.errors import ThreadNotFound
from everstep.server import access
from everstep.server.context import Caller, Served


async def found_thread(
    request: Request, served: Served, caller: Caller, thread_id: str, action: str, value: dict[str, Any] | None = None
) -> Thread:
    """A thread that the caller sees, for what they want to do with it.

    Args:
        request: The request.
        served: What is served.
        caller: Who asks.
        thread_id: The thread's id.
        action: What is done, as the `auth` hook knows it: `read`, `update`, `delete`.
        value: What is asked besides; the hook may change it.

    Raises:
        ThreadNotFound: There is none that the caller sees.
        HTTPException: The hook refuses.
    """
    asked = {} if value is None else value
    asked["thread_id"] = thread_id
    filters = await access.allow(request, "threads", action, asked)
    found = await served.store.aread(partial(conversations.find, thread_id=thread_id, owner=caller.owner))
    if not access.matches(filters, found.metadata):
        raise ThreadNotFound(f"there is no thread {thread_id}", thread_id=thread_id)
    return found


def as_metadata(filters: access.Filters) -> dict[str, Any]:
    """What metadata must contain to pass a filter of the hook."""
    contained: dict[str, Any] = {}
    for key, wanted in filters.items():
        operator, operand = "$eq", wanted
        if isinstance(wanted, Mapping):
            operator, operand = next(iter(cast("Mapping[str, Any]", wanted).items()))
        several = isinstance(operand, (list, tuple))
        contained[key] = operand if operator == "$eq" else list(cast("list[Any]", operand)) if several else [operand]
    return contained
