"""`everstep submit`: add a job, and wait for it if asked."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from everstep.cli import budget
from everstep.cli.acceptance import acceptance_options, merged
from everstep.cli.budget import budget_options
from everstep.cli.options import config_option, json_option, opened, owner_option, read_input, store_option
from everstep.cli.views import next_action, print_json, text
from everstep.errors import PayloadInvalid

if TYPE_CHECKING:
    from everstep.checkpoints.jobs import Job
    from everstep.checkpoints.store import Store

EXIT_CODES = {"done": 0, "failed": 1, "review": 2}
POLL_S = 0.1


@click.command()
@click.argument("graph")
@click.option(
    "--input", "given", metavar="FILE|JSON", required=True, help="The graph's input: JSON, a file of it, or -."
)
@click.option("--key", help="Idempotency key. Without one it is made of graph, input and workflow version.")
@click.option("--priority", type=click.IntRange(0, 10), default=5, show_default=True, help="10 is the most urgent.")
@click.option(
    "--max-attempts",
    type=click.IntRange(1, 1000),
    default=3,
    show_default=True,
    help="Failures without progress that end the job.",
)
@click.option("--workflow-version", default="1", show_default=True, help="A new version processes old input again.")
@owner_option("Whose job it is.")
@click.option("--service", "needed", multiple=True, metavar="NAME", help="A service it needs, such as api.openai.com.")
@click.option("--concurrency-key", metavar="KEY", help="Jobs of one key run one at a time, or as everstep.toml says.")
@acceptance_options
@budget_options
@click.option("--parent", metavar="JOB", help="The job it is a child of, whose budget it shares.")
@click.option("--webhook", metavar="URL", help="Who is told, by a POST of the job, when it ends or waits for a person.")
@click.option("--allow-secret-keys", is_flag=True, help="Accept input keys that look like credentials.")
@click.option("--wait", is_flag=True, help="Wait, with progress; exits 0 done, 2 review, 1 failed.")
@config_option
@store_option
@json_option
def submit(
    graph: str,
    given: str,
    key: str | None,
    priority: int,
    max_attempts: int,
    workflow_version: str,
    owner: str,
    needed: tuple[str, ...],
    concurrency_key: str | None,
    acceptance: dict[str, Any],
    limits: dict[str, Any],
    parent: str | None,
    webhook: str | None,
    allow_secret_keys: bool,
    wait: bool,
    config_path: Path,
    store_url: str,
    as_json: bool,
) -> int:
    """Add a job: one run of GRAPH. The same graph and input give the same job, however often they are submitted."""
    from everstep.checkpoints import payload
    from everstep.graphs.configuration import read_configuration, require_name
    from everstep.graphs.policies import read_policies
    from everstep.runtime.addresses import Guard

    value = read_input(given)
    if key is not None and not key.strip():
        raise PayloadInvalid("--key is empty", next_step="give a key, or leave the option out")
    payload.check_input(value, allow_secret_keys=allow_secret_keys)  # before there is a record
    configuration = read_configuration(config_path)
    require_name(graph, list(configuration.graphs), configuration.path)
    policies = read_policies(config_path, configuration.graphs)
    if webhook is not None:
        Guard.of(policies.webhooks.allow).require(webhook)
    policy = policies.of_graph(graph)
    policy = replace(policy, services=(*policy.services, *needed), concurrency_key=concurrency_key)
    policy = replace(policy, acceptance=merged(policy.acceptance, acceptance))
    policy = replace(policy, budget=budget.merged(policy.budget, limits))
    with opened(store_url, create=True) as store:
        job, created = store.enqueue(
            graph,
            value,
            key=key,
            priority=priority,
            max_attempts=max_attempts,
            workflow_version=workflow_version,
            owner=owner,
            allow_secret_keys=allow_secret_keys,
            policy=policy,
            parent=parent,
            webhook=webhook,
        )
        if not as_json:
            click.echo(job.public_id)
            if not created:
                click.echo(
                    f"already submitted, now {job.status}; another --key or --workflow-version would run it again",
                    err=True,
                )
        elif wait:
            click.echo(job.public_id, err=True)  # known whatever becomes of the waiting
        if wait:
            job = _wait(store, job)
    if as_json:
        answer: dict[str, Any] = {"id": job.public_id, "created": created, "status": job.status}
        print_json(answer)
    return EXIT_CODES[job.status] if wait else 0


def _wait(store: Store, job: Job) -> Job:
    """Show progress until the job is done, failed or in review."""
    seen: tuple[Any, ...] = ()
    started = time.monotonic()
    hinted = False
    while True:
        job = store.job(job.public_id)
        now = (job.status, job.step, job.node, job.attempts)
        if now != seen:
            following = f" → {text(job.node)}" if job.node else ""
            click.echo(f"{job.status}  step {job.step}{following}  attempt {job.attempts}", err=True)
            seen = now
        if job.status in EXIT_CODES:
            break
        if job.status == "pending" and not hinted and time.monotonic() - started > 3:
            out, waits = store.services_out(job), store.waits(job)
            hint = next_action(job, store.reviews(job), out, waits)
            untaken = "no worker has taken it yet; start one with: everstep worker"
            click.echo(hint if out or waits else untaken, err=True)
            hinted = True
        time.sleep(POLL_S)
    if job.status == "done":
        click.echo(f"result: {text(job.result_json or '', 500)}", err=True)
    else:
        click.echo(f"next: {next_action(job, store.reviews(job), waits=store.waits(job))}", err=True)
    return job
