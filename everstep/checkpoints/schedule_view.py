"""Schedules and their slots as JSON, whose fields other programs rely on."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from everstep.checkpoints.schedule import Schedule
from everstep.checkpoints.slots import Slot
from everstep.clock import rfc3339


def schedule(one: Schedule, last: Slot | None = None) -> dict[str, Any]:
    """A schedule; with the last slot that was handled, if there is one."""
    definition = one.definition
    return {
        "id": one.public_id,
        "name": one.name,
        "origin": one.origin,
        "owner": one.owner,
        "graph": definition.graph,
        "cron": definition.cron,
        "timezone": definition.timezone,
        "overlap": definition.overlap,
        "missed": definition.missed,
        "jitter": definition.jitter_s,
        "end": rfc3339(definition.ends_at),
        "enabled": one.enabled,
        "off": one.off,
        "next_slot": rfc3339(one.next_slot_at),
        "begins_at": rfc3339(one.next_fire_at),
        "input": definition.input,
        **asdict(definition.job),
        "last": None if last is None else slot(last),
    }


def slot(one: Slot) -> dict[str, Any]:
    """A slot that was handled."""
    return {
        "schedule": one.schedule,
        "slot": rfc3339(one.at),
        "handled_at": rfc3339(one.fired_at),
        "late_ms": one.late_ms,
        "outcome": one.outcome,
        "job": one.job,
        "detail": one.detail,
    }
