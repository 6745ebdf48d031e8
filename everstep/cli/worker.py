"""`everstep worker`: run jobs."""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from everstep.cli.address import METRICS_VARIABLE, Address
from everstep.cli.json_lines import JsonLines
from everstep.cli.options import config_option, json_option, log_options, opened, store_option
from everstep.cli.worker_lines import WorkerLines
from everstep.errors import WorkerEnded
from everstep.observability import logs

if TYPE_CHECKING:
    from everstep.checkpoints.store import Store
    from everstep.graphs.loader import GraphCatalogue
    from everstep.graphs.policies import Policies

logger = logging.getLogger("everstep.worker")


def finite(_context: click.Context, _parameter: click.Parameter, value: float) -> float:
    """Refuse NaN, which passes every comparison of a range."""
    if not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a number of seconds")
    return value


def prepared(
    config_path: Path, log_format: str | None, log_level: str | None
) -> tuple[GraphCatalogue, Policies, logs.Format]:
    """What a process that runs jobs begins with: its graphs, what `everstep.toml` says, and how its log looks.

    Raises:
        ConfigInvalid: One of the files cannot be honoured.
    """
    from everstep.graphs.loader import GraphCatalogue
    from everstep.graphs.policies import read_policies

    for variable, given in ((logs.FORMAT_VARIABLE, log_format), (logs.LEVEL_VARIABLE, log_level)):
        if given is not None:
            os.environ[variable] = given  # for the processes of isolated jobs, too
    logs.configure(default_level="info")
    catalogue = GraphCatalogue.from_config(config_path)
    policies = read_policies(config_path, catalogue.names())
    catalogue.prepare()  # the configuration's `env` may say where traces go, and how the log looks
    log_as = logs.configure(fields=policies.logs.fields, default_level="info")
    logs.own_process()
    return catalogue, policies, log_as


def warn_of_names(store: Store, policies: Policies) -> None:
    """Tell of names in `everstep.toml` that are near to one that is there, and not it."""
    from everstep.runtime import examination

    for finding in examination.services(store, policies):
        logger.warning("%s; %s", finding.detail, finding.advice)


metrics_option = click.option(
    "--metrics",
    "metrics_at",
    type=Address(),
    metavar="[HOST:]PORT",
    envvar=METRICS_VARIABLE,
    show_envvar=True,
    help="Serve metrics for Prometheus there; on this machine alone without a host, at a free port with port 0.",
)


def running_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """How jobs are run, of a command that runs them: `--concurrency`, `--lease`, `--isolate` and `--metrics`."""
    options = (
        click.option("--concurrency", type=click.IntRange(1), default=4, show_default=True, help="Most jobs at once."),
        click.option(
            "--lease",
            type=click.FloatRange(min=0.1, max=604_800),
            callback=finite,
            default=300.0,
            show_default=True,
            help="Seconds a claim lasts without a heartbeat; after that another worker may take the job over.",
        ),
        click.option(
            "--isolate/--no-isolate",
            default=None,
            help="Run every job in a process of its own, for graphs that leak or block; or none. Without either only"
            " those do that are suspected of having ended a worker.",
        ),
    )
    for option in reversed((*options, metrics_option)):
        command = option(command)
    return command


@click.command()
@running_options
@click.option("--until-idle", is_flag=True, help="Exit 0 when no job is left that could run without a person.")
@config_option
@store_option
@log_options
@json_option
def worker(
    concurrency: int,
    lease: float,
    isolate: bool | None,
    metrics_at: tuple[str, int] | None,
    until_idle: bool,
    config_path: Path,
    store_url: str,
    log_format: str | None,
    log_level: str | None,
    as_json: bool,
) -> None:
    """Run jobs until stopped.

    SIGTERM and Ctrl-C give every job back at its next step, with the attempt not counted; a second one exits at once,
    which is as safe as pulling the plug.
    """
    from everstep.checkpoints import database
    from everstep.runtime import measuring
    from everstep.runtime.schedules import Scheduler
    from everstep.runtime.worker import Worker

    catalogue, policies, log_as = prepared(config_path, log_format, log_level)
    output = sys.stdout
    with ExitStack() as stack:
        store = stack.enter_context(opened(store_url, create=True))
        json_lines = stack.enter_context(JsonLines(output)) if as_json else None
        stack.enter_context(redirect_stdout(sys.stderr if as_json else output))
        store.write(database.require_writable).result()  # what is an outage later is a mistake now
        warn_of_names(store, policies)
        measures = measuring.begin(store, serve=metrics_at)
        lines = WorkerLines(store, json_lines, log_as)
        running = Worker(
            store,
            catalogue,
            concurrency=concurrency,
            lease=lease,
            listener=lines,
            policies=policies,
            isolate=isolate,
            measures=measures,
        )
        lines.worker = running.id
        scheduler = Scheduler(store, policies, measures=measures, actor=running.id)
        scheduler.take_over(config_path)
        greeting = f"worker {running.id} on {store.database.label}: {', '.join(catalogue.names())}"
        if log_as == "json":
            logger.info("%s", greeting)
        elif not as_json:
            click.echo(greeting, err=True)
        if not until_idle:  # which has an end, where schedules have none
            scheduler.start()
        try:
            running.run(until_idle=until_idle)
        except SystemExit as exit_:
            raise WorkerEnded(
                f"a node ended this worker process: it called sys.exit({exit_.code!r})",
                next_step="raise an error instead; the next worker goes on, and a job that ends every worker fails",
            ) from exit_
        finally:
            scheduler.stop()
    if running.node_threads is not None and running.node_threads.busy:
        click.echo("a node of a job that was cancelled or taken over is still in its thread; it ends here", err=True)
        sys.stdout.flush()
        os._exit(0)  # Python would wait for it
