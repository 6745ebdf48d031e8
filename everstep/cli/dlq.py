"""`everstep dlq`: the dead letters, jobs that failed by themselves: list, show, run again, or delete them."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from everstep.cli.confirm import require_consent, yes_option
from everstep.cli.dlq_evidence import evidence_view, letter_view, print_letter
from everstep.cli.exceptions import verbose_option
from everstep.cli.options import config_option, json_option, opened, store_option
from everstep.cli.views import print_json, short_error, text
from everstep.counts import counted
from everstep.errors import EX_DATAERR, EverstepError, JobStateConflict, PayloadInvalid

if TYPE_CHECKING:
    from everstep.checkpoints.jobs import Job
    from everstep.checkpoints.store import Store

DAY_MS = 86_400_000
_UNITS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": DAY_MS}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)([smhd])")

graph_option = click.option("--graph", metavar="NAME", help="Only jobs of this graph.")
code_option = click.option(
    "--code",
    metavar="CODE",
    help="Only with this error: its code (worker_died) or its type (ValueError, httpx.ReadError).",
)
since_option = click.option(
    "--since", metavar="WHEN", help="Only those that failed since: 90m, 24h, 7d, or 2026-11-30T08:00:00Z."
)


MOST = 1e9
"""The most units of time that a span counts: longer than there are computers."""


def moment(given: str, now: int) -> int:
    """A moment, UTC milliseconds: a span before now (`90m`, `24h`, `7d`), or RFC 3339 with `Z` or an offset.

    Raises:
        PayloadInvalid: It is neither; a time without an offset could be any hour.
    """
    if span := _SPAN.fullmatch(given.strip()):
        return max(now - int(min(float(span[1]), MOST) * _UNITS[span[2]]), 0)
    try:
        when = datetime.fromisoformat(given.strip())
    except ValueError:
        when = None
    if when is None or when.tzinfo is None:
        raise PayloadInvalid(
            f"{given!r} is no moment", next_step="give a span (90m, 24h, 7d) or a time with Z or an offset"
        )
    return round(when.timestamp() * 1000)


@click.group(invoke_without_command=True)
@store_option
@json_option
@click.pass_context
def dlq(context: click.Context, store_url: str, as_json: bool) -> None:
    """List the dead letters: jobs that failed by themselves, newest first; show, redrive or purge them.

    \b
      everstep dlq show JOB                        what went wrong, and what was done before
      everstep dlq redrive JOB                     run it again from its last checkpoint
      everstep dlq redrive --code worker_died --all
      everstep dlq purge --older-than 30           delete them; their keys stay known
    """  # noqa: D301
    context.obj = {"store_url": store_url, "as_json": as_json}
    if context.invoked_subcommand is None:
        _list(store_url, as_json)


def _options(context: click.Context, store_url: str, as_json: bool) -> tuple[str, bool]:
    """Options given after the subcommand win over those before it."""
    explicit = context.get_parameter_source("store_url") is click.core.ParameterSource.COMMANDLINE
    return (store_url if explicit else context.obj["store_url"]), as_json or context.obj["as_json"]


@dlq.command(name="list")
@graph_option
@code_option
@since_option
@click.option("--all", "everything", is_flag=True, help="Those that a person cancelled or rejected, too.")
@click.option("--limit", type=click.IntRange(1), default=1000, show_default=True, help="At most this many.")
@store_option
@json_option
@click.pass_context
def list_(
    context: click.Context,
    graph: str | None,
    code: str | None,
    since: str | None,
    everything: bool,
    limit: int,
    store_url: str,
    as_json: bool,
) -> None:
    """List the dead letters, newest first."""
    store_url, as_json = _options(context, store_url, as_json)
    _list(store_url, as_json, graph=graph, code=code, since=since, everything=everything, limit=limit)


def _list(
    store_url: str,
    as_json: bool,
    *,
    graph: str | None = None,
    code: str | None = None,
    since: str | None = None,
    everything: bool = False,
    limit: int = 1000,
) -> None:
    with opened(store_url) as store:
        found = _chosen(store, graph=graph, code=code, since=since, everything=everything, limit=limit)
        views = [letter_view(job) for job in found]
        label = store.database.label
    if as_json:
        print_json(views)
        return
    if not views:
        click.echo(f"no dead letters in {label}", err=True)
    for view in views:
        ended = "" if view["ended_by"] == "error" else f"{view['ended_by']}: "
        click.echo(
            f"{view['failed_at']}  {view['id']}  {text(view['graph'])} at step {view['step']}"
            f"  {ended}{text(short_error(view['error']), 120)}"
        )


def _chosen(
    store: Store,
    *,
    graph: str | None = None,
    code: str | None = None,
    since: str | None = None,
    until: int | None = None,
    everything: bool = False,
    limit: int | None = None,
) -> list[Job]:
    from itertools import islice

    from everstep.checkpoints import dead_letters

    first = None if since is None else moment(since, store.clock.now_ms())
    return store.read(
        lambda connection: list(
            islice(
                dead_letters.every(
                    connection, graph=graph, code=code, since=first, until=until, with_ended_by_person=everything
                ),
                limit,
            )
        )
    )


@dlq.command()
@click.argument("job_id", metavar="JOB")
@verbose_option
@store_option
@json_option
@click.pass_context
def show(context: click.Context, job_id: str, verbose: bool, store_url: str, as_json: bool) -> None:
    """Show a dead letter: the exceptions, the last steps, effects, reviews, evidence, traces, and what to do next."""
    store_url, as_json = _options(context, store_url, as_json)
    with opened(store_url) as store:
        view = evidence_view(store, _failed(store.job(job_id)))
    if as_json:
        print_json(view)
    else:
        print_letter(view, verbose=verbose)


def _failed(job: Job) -> Job:
    if job.status != "failed":
        raise JobStateConflict(
            f"job {job.public_id} is {job.status}; it is not among the dead letters",
            next_step=f"look at it with: everstep show {job.public_id}",
            job=job.public_id,
            status=job.status,
        )
    return job


@dlq.command()
@click.argument("job_ids", metavar="[JOB]…", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All dead letters that --graph, --code and --since leave.")
@graph_option
@code_option
@since_option
@yes_option
@store_option
@json_option
@click.pass_context
def redrive(
    context: click.Context,
    job_ids: tuple[str, ...],
    everything: bool,
    graph: str | None,
    code: str | None,
    since: str | None,
    yes: bool,
    store_url: str,
    as_json: bool,
) -> int:
    """Run dead letters again, each from its last checkpoint, with its failures forgotten.

    Of two people who do it at once one starts a job, and the other is told that it is not among the dead letters.
    """
    store_url, as_json = _options(context, store_url, as_json)
    with opened(store_url) as store:
        found = _named_or_chosen(store, job_ids, everything, graph=graph, code=code, since=since)
        if len(found) > 1:
            require_consent(f"Run {len(found)} jobs again?", yes=yes)
        results: list[dict[str, Any]] = []
        for job in found:
            try:
                status, error = store.redrive(job.public_id, only_failed=True).status, None
            except EverstepError as refused:
                if len(job_ids) == 1:
                    raise
                status, error = None, refused.as_dict()
            results.append({"id": job.public_id, "redriven": error is None, "status": status, "error": error})
            if not as_json:
                click.echo(
                    f"{job.public_id} {'pending' if error is None else 'not redriven: ' + text(error['message'], 500)}"
                )
    if as_json:
        print_json(results)
    elif results:
        click.echo("a worker will take them: everstep worker", err=True)
    return EX_DATAERR if job_ids and not all(one["redriven"] for one in results) else 0


@dlq.command()
@click.argument("job_ids", metavar="[JOB]…", nargs=-1)
@click.option("--older-than", type=click.FloatRange(min=0), metavar="DAYS", help="Those that failed so long ago.")
@click.option("--all", "everything", is_flag=True, help="All dead letters that --graph and --code leave.")
@graph_option
@code_option
@click.option(
    "--key-days", type=click.FloatRange(min=0), help="Know their keys this many days; from everstep.toml, or 365."
)
@yes_option
@config_option
@store_option
@json_option
@click.pass_context
def purge(
    context: click.Context,
    job_ids: tuple[str, ...],
    older_than: float | None,
    everything: bool,
    graph: str | None,
    code: str | None,
    key_days: float | None,
    yes: bool,
    config_path: Path,
    store_url: str,
    as_json: bool,
) -> int:
    """Delete dead letters with everything of them. Their keys stay known, as after everstep prune."""
    from everstep.checkpoints import retention
    from everstep.graphs.policies import read_policies

    store_url, as_json = _options(context, store_url, as_json)
    configured = read_policies(config_path).retention.key_days
    rules = retention.Rules(key_days=configured if key_days is None else key_days, failed_days=older_than or 0)
    with opened(store_url) as store:
        now = store.clock.now_ms()
        before = {"failed": rules.ended_before(now)["failed"]}
        chosen = everything or older_than is not None
        found = _named_or_chosen(store, job_ids, chosen, graph=graph, code=code, until=before["failed"])
        if found:
            require_consent(f"Delete {counted(len(found), 'dead letter')} and all that was kept?", yes=yes)
        purged = retention.remove_all(store, [job.id for job in found], rules, now=now, ended_before=before)
    gone = {job.id for job in purged}
    why = "it was redriven, or a parent or child of it has not ended"
    results = [
        {"id": job.public_id, "purged": job.id in gone, "reason": None if job.id in gone else why} for job in found
    ]
    if as_json:
        print_json(results)
    else:
        for one in results:
            click.echo(f"{one['id']} {'deleted' if one['purged'] else 'kept: ' + str(one['reason'])}")
    return EX_DATAERR if job_ids and len(gone) < len(found) else 0


def _named_or_chosen(
    store: Store,
    job_ids: tuple[str, ...],
    chosen: bool,
    *,
    graph: str | None,
    code: str | None,
    since: str | None = None,
    until: int | None = None,
) -> list[Job]:
    """The jobs a command is about; either by their ids, or by what they have in common, never both."""
    filtered = any(option is not None for option in (graph, code, since))
    if job_ids and (chosen or filtered):
        raise click.UsageError("Name jobs, or choose them by options; not both.")
    if job_ids:
        return list({job.id: job for job in (_failed(store.job(one)) for one in job_ids)}.values())
    if not chosen:
        raise click.UsageError(
            "Name the jobs, or say --all" + (" beside what they have in common." if filtered else ".")
        )
    return _chosen(store, graph=graph, code=code, since=since, until=until)
