"""What commands show of schedules and their slots: as JSON, and for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from everstep.cli.views import text

if TYPE_CHECKING:
    from everstep.checkpoints.schedule import Schedule
    from everstep.checkpoints.slots import Slot

COLOURS = {"fired": "green", "resumed": "cyan", "skipped": "yellow", "missed": "yellow", "failed": "red"}


def schedule_view(schedule: Schedule, last: Slot | None = None) -> dict[str, Any]:
    """A schedule, as `schedules --json` gives it; see `checkpoints.schedule_view`."""
    from everstep.checkpoints import schedule_view as view

    return view.schedule(schedule, last)


def slot_view(slot: Slot) -> dict[str, Any]:
    """A slot, as `schedules history --json` gives it; see `checkpoints.schedule_view`."""
    from everstep.checkpoints import schedule_view as view

    return view.slot(slot)


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
