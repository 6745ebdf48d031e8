"""`everstep services`: which services jobs need, which are out, and who waits for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from everstep.cli.classify import OUTAGES
from everstep.cli.options import json_option, opened, store_option
from everstep.cli.views import print_json, text
from everstep.clock import rfc3339
from everstep.counts import counted

if TYPE_CHECKING:
    from everstep.checkpoints.services import Service
    from everstep.checkpoints.store import Store

SHOWN_EVENTS = 20


@click.group(invoke_without_command=True)
@store_option
@json_option
@click.pass_context
def services(context: click.Context, store_url: str, as_json: bool) -> None:
    """List the services jobs need, and which are out.

    While a service is out, jobs that need it wait without spending attempts. They go on from their checkpoint when one
    of them gets through, when the service's probe says so, or when you open it: everstep services open NAME.
    """
    if context.invoked_subcommand is not None:
        return
    with opened(store_url) as store:
        found = [_view(store, service) for service in store.services()]
        label = store.database.label
    if as_json:
        print_json(found)
        return
    if not found:
        click.echo(f"no job in {label} has named or reported a service", err=True)
    for view in found:
        _print_service(view)


@services.command(name="show")
@click.argument("name")
@store_option
@json_option
def show_service(name: str, store_url: str, as_json: bool) -> None:
    """Show a service: its state, the jobs that need it, and its newest outages."""
    from everstep.checkpoints import services as upstream

    with opened(store_url) as store:
        service = store.read(lambda connection: upstream.find(connection, name))
        view = _view(store, service)
        rows = store.read(lambda connection: upstream.events(connection, service.name, limit=SHOWN_EVENTS))
    view["events"] = [_event_view(row) for row in rows]
    if as_json:
        print_json(view)
        return
    _print_service(view)
    for job in view["jobs"]:
        click.echo(f"  job {job}")
    for event in view["events"]:
        tier = f", expected plan: {event['account_tier_expected']}" if event["account_tier_expected"] else ""
        click.echo(
            f"  {event['check_time']}  {event['symptom']}: {text(event['detail'], 500)} (job {event['job_id']}{tier})"
        )


@services.command(name="open")
@click.argument("name")
@store_option
@json_option
def open_service(name: str, store_url: str, as_json: bool) -> None:
    """Say that a service works again (a plan was renewed, a bill was paid): the jobs that wait for it go on."""
    with opened(store_url) as store:
        number = store.open_service(name)
    if as_json:
        print_json({"service": name.lower(), "gate": "open", "jobs": number})
    else:
        click.echo(f"{name.lower()} is open: {number} {'job goes' if number == 1 else 'jobs go'} on")


def _view(store: Store, service: Service) -> dict[str, Any]:
    from everstep.checkpoints import services as upstream
    from everstep.checkpoints import views

    return views.service(service, store.read(lambda connection: upstream.waiting(connection, service.name)))


def _event_view(row: Any) -> dict[str, Any]:
    return {
        "service": row["service"],
        "symptom": row["symptom"],
        "check_time": rfc3339(row["check_time"]),
        "account_tier_expected": row["account_tier_expected"],
        "job_id": row["public_id"],
        "detail": row["detail"],
    }


def _print_service(view: dict[str, Any]) -> None:
    jobs = f"{counted(len(view['jobs']), 'job needs', 'jobs need')} it"
    if view["gate"] == "open":
        click.echo(f"{click.style('open  ', fg='green')}  {view['name']}  {jobs}")
        return
    click.echo(f"{click.style('closed', fg='red')}  {view['name']}  {OUTAGES[view['symptom']]}; {jobs}")
    tries = counted(view["outages"], "try", "tries")
    click.echo(f"        out since {view['closed_at']}, {tries}; the next at {view['opens_at']}")
    click.echo(f"        next: when it works again, everstep services open {view['name']}")
