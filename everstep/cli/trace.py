"""`everstep trace`: what a job did, from the record alone, as a tree, a page or an export."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from everstep.cli.exceptions import verbose_option
from everstep.cli.options import json_option, opened, store_option
from everstep.cli.views import print_json
from everstep.counts import counted

if TYPE_CHECKING:
    from everstep.runtime.trace.tree import TraceTree


@click.command()
@click.argument("job_id", metavar="JOB")
@click.option("--leg", type=click.IntRange(1), metavar="N", help="Only this leg (attempt by one worker).")
@click.option("--errors", is_flag=True, help="Only what failed, and what it happened in.")
@click.option("--all", "everything", is_flag=True, help="Draw every step, also of long runs that went well.")
@verbose_option
@click.option("--html", metavar="FILE", help="Write a page to send to a colleague; - for stdout.")
@click.option("--otlp", metavar="FILE", help="Write an OTLP export (JSON if FILE ends in .json); - for stdout.")
@store_option
@json_option
def trace(
    job_id: str,
    leg: int | None,
    errors: bool,
    everything: bool,
    verbose: bool,
    html: str | None,
    otlp: str | None,
    store_url: str,
    as_json: bool,
) -> None:
    """Draw what a job did: legs, steps, model calls, tools, effects, reviews, errors, waits and gaps.

    It needs no trace backend: spans that are in the record are shown; of legs without, the steps come from their
    checkpoints.

    \b
    Examples:
      everstep trace JOB --errors
      everstep trace JOB --html trace.html
      everstep trace JOB --otlp - | curl -sS -H 'content-type: application/x-protobuf' \\
        --data-binary @- http://localhost:4318/v1/traces
    """  # noqa: D301 (click's own mark for lines that keep their breaks)
    if sum((as_json, html is not None, otlp is not None)) > 1:
        raise click.UsageError("give one of --json, --html and --otlp")
    if "" in (html, otlp):
        raise click.UsageError("--html and --otlp need the name of a file, or - for stdout")
    if otlp is not None and errors:
        raise click.UsageError("--otlp exports whole legs: leave --errors out")
    from everstep.runtime.trace import build

    with opened(store_url) as store:
        job = store.job(job_id)
        if otlp is not None:
            from everstep.runtime.trace.otlp import export

            count = export(store, job, otlp, leg=leg)
            click.echo(f"wrote {counted(count, 'span')} to {'stdout' if otlp == '-' else otlp}", err=True)
            return
        tree = build.of_job(store, job, leg=leg)
    if leg is not None:
        tree = tree.only_leg(leg)
    if errors:
        tree = tree.only_errors()
    if as_json:
        print_json(tree.as_dict())
    elif html is not None:
        from everstep.runtime.trace.output import write
        from everstep.runtime.trace.page import page

        write(html, [page(tree)])
        click.echo(
            f"wrote {counted(tree.count(), 'entry', 'entries')} to {'stdout' if html == '-' else html}", err=True
        )
    else:
        _draw(tree, everything=everything, verbose=verbose)


def _draw(tree: TraceTree, *, everything: bool, verbose: bool) -> None:
    from rich.console import Console

    from everstep.cli.trace_screen import lines

    console = Console(highlight=False)
    for line in lines(tree, everything=everything, verbose=verbose):
        with console.capture() as drawn:  # a console that writes itself makes a reader who left exit code 1
            console.print(line, soft_wrap=not console.is_terminal)
        click.echo(drawn.get(), nl=False, color=True)
