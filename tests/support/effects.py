"""What the record holds of a job's effects, and what an async one does to the world outside."""

from __future__ import annotations

import asyncio
from typing import Any

from everstep.checkpoints.effects import Effect
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.store import Store


def states(store: Store, job: Job) -> list[tuple[str, str, int]]:
    """The job's effects: name, state, calls."""
    return [(found.name, found.state, found.calls) for found in store.effects(job)]


def only(store: Store, job: Job) -> Effect:
    """The job's only effect."""
    (found,) = store.effects(job)
    return found


async def add_async(world: list[Any], text: str) -> str:
    """Add to the world outside, after others had their turn."""
    await asyncio.sleep(0)
    world.append(text)
    return text
