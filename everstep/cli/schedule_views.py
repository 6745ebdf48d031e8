"""What commands show of schedules and their slots: as JSON, and for people."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from everstep.cli.views import text
from everstep.clock import rfc3339

if TYPE_CHECKING:
    from everstep.checkpoints.schedule import Schedule
    from everstep.checkpoints.slots import Slot

COLOURS = {"fired": "green", "resumed": "cyan", "skipped": "yellow", "missed": "yellow", "failed": "red"}


def schedule_view(schedule: Schedule, last: Slot | None = None) -> dict[str, Any]:
    """A schedule, as `schedules --json` gives it; with the last slot that was handled, if there is one."""
    definition = schedule.definition
    return {
        "id": schedule.public_id,
        "name": schedule.name,
        "origin": schedule.origin,
        "owner": schedule.owner,
        "graph": definition.graph,
        "cron": definition.cron,
        "timezone": definition.timezone,
        "overlap": definition.overlap,
        "missed": definition.missed,
        "jitter": definition.jitter_s,
        "end": rfc3339(definition.ends_at),
        "enabled": schedule.enabled,
        "off": schedule.off,
        "next_slot": rfc3339(schedule.next_slot_at),
        "begins_at": rfc3339(schedule.next_fire_at),
        "input": definition.input,
        **asdict(definition.job),
        "last": None if last is None else slot_view(last),
    }


def slot_view(slot: Slot) -> dict[str, Any]:
    """A slot, as `schedules history --json` gives it."""
    return {
        "schedule": slot.schedule,
        "slot": rfc3339(slot.at),
        "handled_at": rfc3339(slot.fired_at),
        "late_ms": slot.late_ms,
        "outcome": slot.outcome,
        "job": slot.job,
        "detail": slot.detail,
    }


def print_schedule(view: dict[str, Any]) -> None:
    """A schedule for people."""
    when = f"next {view['begins_at']}" if view["begins_at"] else view["off"] or "over"
    what = f"{view['cron']} {view['timezone']}, overlap {view['overlap']}"
    click.echo(f"{text(view['name'] or view['id'])}  {text(view['graph'])}  {what}; {when}")
    if view["last"] is not None:
        click.echo("  ", nl=False)
        print_slot(view["last"])


def print_slot(view: dict[str, Any]) -> None:
    """A slot for people."""
    detail = view["detail"]
    more = detail.get("because") or detail.get("error", {}).get("message") or ""
    more = f"up to {detail['up_to']}" if "up_to" in detail else more
    about = f"  job {view['job']}" if view["job"] else ""
    outcome = click.style(f"{view['outcome']:<7}", fg=COLOURS[view["outcome"]])
    by_hand = "  by hand" if detail.get("by_hand") else ""
    click.echo(f"{view['slot']}  {outcome}{about}{by_hand}{'  ' + text(more, 200) if more else ''}")
