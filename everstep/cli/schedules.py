"""`everstep schedules`: what runs when: list, add, pause, fire by hand, look ahead and back, and run them all."""

from __future__ import annotations

import getpass
import signal
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from everstep.cli.confirm import require_consent, yes_option
from everstep.cli.options import config_option, json_option, log_options, opened, read_input, store_option
from everstep.cli.schedule_views import print_schedule, print_slot, schedule_view, slot_view
from everstep.cli.views import print_json, text
from everstep.cli.worker import metrics_option
from everstep.clock import rfc3339
from everstep.errors import EX_FAILED, PayloadInvalid

if TYPE_CHECKING:
    from everstep.checkpoints.schedule import Schedule

name_argument = click.argument("name", metavar="NAME")


@click.group(invoke_without_command=True)
@store_option
@json_option
@click.pass_context
def schedules(context: click.Context, store_url: str, as_json: bool) -> None:
    """List what runs when; add, pause, fire or remove schedules.

    \b
      everstep schedules add nightly --graph report --cron "30 2 * * *" \\
          --timezone Europe/Berlin --overlap resume --input '{}'
      everstep schedules next nightly              when it runs next
      everstep schedules fire nightly              run it now, by hand
      everstep schedules history nightly           what became of its slots

    `everstep worker` fires them; `everstep schedules run` does in a process that runs no jobs.
    """  # noqa: D301
    if context.invoked_subcommand is None:
        _list(store_url, as_json)


@schedules.command(name="list")
@store_option
@json_option
def list_(store_url: str, as_json: bool) -> None:
    """List all schedules: when each runs next, and what became of its last slot."""
    _list(store_url, as_json)


def _list(store_url: str, as_json: bool) -> None:
    from everstep.checkpoints import schedules as kept
    from everstep.checkpoints import slots

    with opened(store_url) as store:
        found = store.read(kept.every)
        last = [store.read(partial(slots.history, schedule=schedule, limit=1)) for schedule in found]
        label = store.database.label
    views = [schedule_view(schedule, *latest) for schedule, latest in zip(found, last, strict=True)]
    if as_json:
        print_json(views)
        return
    if not views:
        click.echo(f"no schedules in {label}", err=True)
    for view in views:
        print_schedule(view)


@schedules.command()
@name_argument
@click.option("--graph", required=True, metavar="GRAPH", help="Which graph runs.")
@click.option("--cron", required=True, help="When: minute hour day-of-month month day-of-week.")
@click.option("--timezone", default="UTC", show_default=True, metavar="ZONE", help="Where its hours are.")
@click.option(
    "--overlap",
    required=True,
    type=click.Choice(["skip", "queue", "resume"]),
    help="While an earlier run is unfinished: run nothing, a new run behind it, or let it go on from its checkpoint.",
)
@click.option(
    "--missed",
    type=click.Choice(["skip", "latest", "all"]),
    default="latest",
    show_default=True,
    help="Of slots at which nobody was there: run none, the latest, or all (the last hundred).",
)
@click.option("--input", "given", metavar="FILE|JSON", default="{}", help="What the graph starts with; or {}.")
@click.option("--slot-field", metavar="FIELD", help="The field of the input that gets the slot's time.")
@click.option("--jitter", type=click.IntRange(0), default=0, metavar="SECONDS", help="Begin up to so long after it.")
@click.option("--end", metavar="TIME", help="No slots after this: 2027-01-01T00:00:00Z.")
@click.option("--priority", type=click.IntRange(0, 10), default=5, show_default=True, help="10 is the most urgent.")
@click.option("--max-attempts", type=click.IntRange(1, 1000), default=3, show_default=True, help="Of its jobs.")
@click.option("--workflow-version", default="1", show_default=True, help="Of its jobs.")
@click.option("--owner", default="default", show_default=True, help="Whose jobs they are.")
@config_option
@store_option
@json_option
def add(
    name: str,
    graph: str,
    cron: str,
    timezone: str,
    overlap: Any,
    missed: Any,
    given: str,
    slot_field: str | None,
    jitter: int,
    end: str | None,
    priority: int,
    max_attempts: int,
    workflow_version: str,
    owner: str,
    config_path: Path,
    store_url: str,
    as_json: bool,
) -> None:
    """Add a schedule. Those of everstep.toml are taken over when a worker starts, and need no command."""
    import re

    from everstep.checkpoints import schedules as kept
    from everstep.checkpoints.schedule import Definition, JobOptions
    from everstep.cli.dlq import moment
    from everstep.graphs.configuration import read_configuration, require_name
    from everstep.graphs.policies import NAME

    if not re.fullmatch(NAME, name):
        raise PayloadInvalid(f"{name!r} is no name", next_step="use letters, digits, dots, dashes and underscores")
    configuration = read_configuration(config_path)
    require_name(graph, list(configuration.graphs), configuration.path)
    definition = Definition(
        graph=graph,
        cron=cron,
        overlap=overlap,
        timezone=timezone,
        input=read_input(given),
        missed=missed,
        jitter_s=jitter,
        ends_at=None if end is None else moment(end, 0),
        job=JobOptions(priority, max_attempts, workflow_version, slot_field),
    )
    definition.check()
    with opened(store_url, create=True) as store:
        make = partial(kept.create, definition=definition, origin="command", name=name, owner=owner)
        schedule = store.write(partial(make, now=store.clock.now_ms())).result()
    _show(schedule, as_json)


@schedules.command()
@name_argument
@yes_option
@store_option
@json_option
def remove(name: str, yes: bool, store_url: str, as_json: bool) -> None:
    """Delete a schedule and the history of its slots; its jobs stay."""
    from everstep.checkpoints import schedules as kept

    with opened(store_url) as store:
        schedule = store.read(partial(kept.find, given=name))
        kept.require_removable(schedule)
        require_consent(f"Delete the schedule {schedule.label}?", yes=yes)
        store.write(lambda connection: kept.remove(connection, kept.locked(connection, schedule.public_id))).result()
    if as_json:
        print_json({"id": schedule.public_id, "name": schedule.name, "removed": True})
    else:
        click.echo(f"{text(schedule.label)} is removed; its jobs stay")


@schedules.command()
@name_argument
@store_option
@json_option
def pause(name: str, store_url: str, as_json: bool) -> None:
    """Switch a schedule off; a restart does not switch it on."""
    _switch(name, store_url, as_json, on=False)


@schedules.command()
@name_argument
@store_option
@json_option
def resume(name: str, store_url: str, as_json: bool) -> None:
    """Switch a schedule on again; what it missed while it was off is not made up for."""
    _switch(name, store_url, as_json, on=True)


def _switch(name: str, store_url: str, as_json: bool, *, on: bool) -> None:
    from everstep.checkpoints import schedules as kept

    with opened(store_url) as store:
        now = store.clock.now_ms()
        schedule = store.write(lambda c: kept.switch(c, kept.locked(c, name), on=on, now=now)).result()
    _show(schedule, as_json)


def _show(schedule: Schedule, as_json: bool) -> None:
    view = schedule_view(schedule)
    if as_json:
        print_json(view)
    else:
        print_schedule(view)


@schedules.command()
@name_argument
@config_option
@store_option
@json_option
def fire(name: str, config_path: Path, store_url: str, as_json: bool) -> int:
    """Run a schedule now, by its own rule of overlap; its slots stay what they are. Exits 1 if no job could be made."""
    from everstep.graphs.policies import read_policies
    from everstep.runtime import schedules as runtime

    policies = read_policies(config_path)
    with opened(store_url) as store:
        _, slot = runtime.fire(store, name, policies, actor=getpass.getuser())
    view = slot_view(slot)
    if as_json:
        print_json(view)
    else:
        print_slot(view)
    return EX_FAILED if slot.outcome == "failed" else 0


@schedules.command(name="next")
@name_argument
@click.option("--count", type=click.IntRange(1, 1000), default=5, show_default=True, help="How many.")
@store_option
@json_option
def next_(name: str, count: int, store_url: str, as_json: bool) -> None:
    """Tell when a schedule runs next."""
    from everstep.checkpoints import cron, slots
    from everstep.checkpoints import schedules as kept

    with opened(store_url) as store:
        schedule = store.read(partial(kept.find, given=name))
        coming = slots.coming(schedule, now=store.clock.now_ms(), count=count)
    zone = schedule.definition.timezone
    views = [
        {"slot": rfc3339(slot), "begins_at": rfc3339(begins), "local": cron.local(slot, zone)}
        for slot, begins in coming
    ]
    if as_json:
        print_json(views)
        return
    if not views:
        click.echo(f"{text(schedule.label)} is {schedule.off or 'over'}; it has no next slot", err=True)
    for view in views:
        click.echo(f"{view['begins_at']}  {view['local']} {zone}")


@schedules.command()
@name_argument
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="At most this many.")
@store_option
@json_option
def history(name: str, limit: int, store_url: str, as_json: bool) -> None:
    """Tell what became of a schedule's slots, the newest first."""
    from everstep.checkpoints import schedules as kept
    from everstep.checkpoints import slots

    with opened(store_url) as store:
        schedule = store.read(partial(kept.find, given=name))
        views = [slot_view(slot) for slot in store.read(partial(slots.history, schedule=schedule, limit=limit))]
    if as_json:
        print_json(views)
        return
    if not views:
        click.echo(f"no slot of {text(schedule.label)} was handled yet", err=True)
    for view in views:
        print_slot(view)


@schedules.command()
@click.option("--once", is_flag=True, help="Handle what is due now, and end.")
@metrics_option
@config_option
@store_option
@log_options
@json_option
def run(
    once: bool,
    metrics_at: tuple[str, int] | None,
    config_path: Path,
    store_url: str,
    log_format: str | None,
    log_level: str | None,
    as_json: bool,
) -> None:
    """Fire schedules until stopped, in a process that runs no jobs; a worker does it beside its jobs.

    Any number may run at once: each slot is handled once.
    """
    import os

    from everstep.checkpoints import database
    from everstep.graphs.configuration import read_configuration
    from everstep.graphs.policies import read_policies
    from everstep.observability import logs
    from everstep.runtime import measuring
    from everstep.runtime.schedules import Scheduler

    for variable, value in ((logs.FORMAT_VARIABLE, log_format), (logs.LEVEL_VARIABLE, log_level)):
        if value is not None:
            os.environ[variable] = value
    policies = read_policies(config_path, read_configuration(config_path).graphs)
    logs.configure(fields=policies.logs.fields, default_level="info")
    with opened(store_url, create=True) as store:
        store.write(database.require_writable).result()
        measures = measuring.begin(store, serve=None if once else metrics_at)
        scheduler = Scheduler(store, policies, measures=measures)
        scheduler.take_over(config_path)
        try:
            if once:
                views = [slot_view(slot) for slot in scheduler.look()]
                if as_json:
                    print_json(views)
                else:
                    for view in views:
                        print_slot(view)
                return
            stopping = _signalled()
            scheduler.start()
            click.echo(f"scheduler on {store.database.label}", err=True)
            stopping.wait()
            scheduler.stop()
        finally:
            measures.close()


def _signalled() -> threading.Event:
    """What is set by SIGTERM or SIGINT from now on."""
    stopping = threading.Event()

    def stop(_number: int, _frame: object) -> None:
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    return stopping
