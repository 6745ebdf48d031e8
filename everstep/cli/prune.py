"""`everstep prune`: delete jobs that ended long ago, and keys and outages that need not be known any more."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from everstep.cli.confirm import require_consent, yes_option
from everstep.cli.options import config_option, json_option, opened, store_option
from everstep.cli.views import print_json
from everstep.counts import counted

if TYPE_CHECKING:
    from everstep.checkpoints.retention import Pruned, Rules

days = click.FloatRange(min=0)


@click.command()
@click.option("--done-days", type=days, help="Keep done jobs this many days; from everstep.toml, or 30.")
@click.option("--failed-days", type=days, help="Keep failed jobs this many days; from everstep.toml, or 90.")
@click.option("--key-days", type=days, help="Know the keys of deleted jobs this many days; from everstep.toml, or 365.")
@click.option("--outage-days", type=days, help="Know what services were out this many days; from everstep.toml, or 90.")
@click.option("--span-days", type=days, help="Keep delivered spans this many days; from everstep.toml, or 30.")
@click.option("--event-days", type=days, help="Keep what runs emitted this many days; from everstep.toml, or 7.")
@click.option("--graph", metavar="NAME", help="Only jobs of this graph.")
@click.option("--dry-run", is_flag=True, help="Only tell what would be deleted.")
@click.option("--vacuum", is_flag=True, help="Then give the room back to the disk; nobody can write meanwhile.")
@yes_option
@config_option
@store_option
@json_option
def prune(
    done_days: float | None,
    failed_days: float | None,
    key_days: float | None,
    outage_days: float | None,
    span_days: float | None,
    event_days: float | None,
    graph: str | None,
    dry_run: bool,
    vacuum: bool,
    yes: bool,
    config_path: Path,
    store_url: str,
    as_json: bool,
) -> None:
    """Delete jobs that ended long ago, each with its checkpoints, effects, reviews and evidence.

    Threads and items of the store that clients gave a time to live go when that is over.

    How long things are kept is read from [retention] in the everstep.toml beside --config; options win. The key of a
    deleted job is known for --key-days: the same submission is told what became of it, and does nothing again.

    \b
      everstep prune --dry-run                 what would go
      everstep prune --yes                     from cron, beside workers
      everstep prune --done-days 7 --vacuum    and make the file smaller, while workers are idle
    """  # noqa: D301
    from everstep.checkpoints import space
    from everstep.checkpoints.retention import Rules
    from everstep.graphs.policies import read_policies

    configured = read_policies(config_path).retention
    rules = Rules(
        done_days=configured.done_days if done_days is None else done_days,
        failed_days=configured.failed_days if failed_days is None else failed_days,
        key_days=configured.key_days if key_days is None else key_days,
        outage_days=configured.outage_days if outage_days is None else outage_days,
        span_days=configured.span_days if span_days is None else span_days,
        event_days=configured.event_days if event_days is None else event_days,
        graph=graph,
    )
    with opened(store_url) as store:
        planned = store.prune(rules, dry_run=True)
        if not as_json:
            click.echo(f"{store.database.label}: {_what(planned, rules)}", err=True)
        before = space.measure(store)
        done, emptied = planned, False
        if not dry_run:
            others = (planned.keys, planned.outages, planned.spans, planned.events, planned.threads, planned.items)
            if any((*planned.jobs.values(), *others)):
                what = f"{counted(sum(planned.jobs.values()), 'job')}, {_rows(*others[:4])}"
                require_consent(f"Delete {what}{_of_clients(planned.threads, planned.items)}?", yes=yes)
                done = store.prune(rules, progress=_progress(sum(planned.jobs.values())))
            if vacuum:
                space.vacuum(store)
            emptied = space.truncate_log(store)
        after = space.measure(store)
    view: dict[str, Any] = {
        "dry_run": dry_run,
        "done_days": rules.done_days,
        "failed_days": rules.failed_days,
        "key_days": rules.key_days,
        "outage_days": rules.outage_days,
        "span_days": rules.span_days,
        "event_days": rules.event_days,
        "graph": graph,
        "jobs": done.jobs,
        "kept": done.kept,
        "keys": done.keys,
        "outages": done.outages,
        "spans": done.spans,
        "events": done.events,
        "threads": done.threads,
        "items": done.items,
        "bytes": {"before": before.taken, "after": after.taken, "free": after.free},
        "log_emptied": emptied,
        "vacuumed": vacuum and not dry_run,
    }
    if as_json:
        print_json(view)
    elif not dry_run:
        click.echo(_result(view))


def _what(planned: Pruned, rules: Rules) -> str:
    parts = [
        f"{counted(planned.jobs['done'], 'done job')} older than {_days(rules.done_days)}",
        f"{counted(planned.jobs['failed'], 'failed one')} older than {_days(rules.failed_days)}",
        f"{counted(planned.keys, 'key')} whose time is over",
        f"{counted(planned.outages, 'outage')} older than {_days(rules.outage_days)}",
        f"{counted(planned.spans, 'span')} older than {_days(rules.span_days)}",
        f"{counted(planned.events, 'event')} of runs that were over {_days(rules.event_days)} ago",
    ]
    stay = counted(planned.kept, "stays, because a parent or child of it", "stay, because a parent or child of them")
    kept = f" ({stay} has not ended)" if planned.kept else ""
    return ", ".join(parts) + kept + _of_clients(planned.threads, planned.items)


def _days(days: float) -> str:
    return f"{days:g} {'day' if days == 1 else 'days'}"


def _rows(keys: int, outages: int, spans: int, events: int) -> str:
    """What is deleted besides jobs."""
    return (
        f"{counted(keys, 'key')}, {counted(outages, 'outage')}, {counted(spans, 'span')} and {counted(events, 'event')}"
    )


def _of_clients(threads: int, items: int) -> str:
    """What clients gave a time to live, if any of it is over."""
    if not threads and not items:
        return ""
    of_both = f"{counted(threads, 'thread')} and {counted(items, 'item')}"
    return f"; {of_both} of the store whose time to live is over"


def _progress(total: int) -> Any:
    def tell(so_far: Pruned) -> None:
        if sys.stderr.isatty():
            click.echo(f"\rdeleted {sum(so_far.jobs.values())} of {counted(total, 'job')}", nl=False, err=True)

    return tell


def _result(view: dict[str, Any]) -> str:
    size = view["bytes"]
    done, failed = view["jobs"]["done"], view["jobs"]["failed"]
    line = f"deleted {done} done and {counted(failed, 'failed job')}, "
    line += _rows(view["keys"], view["outages"], view["spans"], view["events"])
    line += _of_clients(view["threads"], view["items"])
    line += f"; the record takes {size['after'] / 1e6:.1f} MB, {size['before'] / 1e6:.1f} MB before"
    if size["free"]:
        line += f"; {size['free'] / 1e6:.1f} MB of it are free to be used again (--vacuum gives them back)"
    return ("\n" if sys.stderr.isatty() else "") + line
