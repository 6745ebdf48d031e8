"""`everstep jobs`, `show`, `history`, `retry` and `cancel`: look at jobs and move them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from everstep.cli.acceptance import acceptance_lines, acceptance_view
from everstep.cli.budget import budget_lines
from everstep.cli.dlq_evidence import evidence_line
from everstep.cli.exceptions import chain_lines, place_lines, verbose_option
from everstep.cli.legs import leg_lines, legs_view
from everstep.cli.options import json_option, opened, store_option
from everstep.cli.paid import paid_lines
from everstep.cli.views import (
    STATUS_COLOURS,
    effect_view,
    harmless,
    job_view,
    next_action,
    print_json,
    review_views,
    text,
)
from everstep.clock import rfc3339
from everstep.counts import counted
from everstep.observability.links import Links

if TYPE_CHECKING:
    from everstep.checkpoints.budgets import Account
    from everstep.checkpoints.jobs import Job

SHOWN_EFFECTS = 50
STATUSES = ("pending", "running", "retry", "review", "done", "failed")


@click.command()
@click.option("--status", type=click.Choice(STATUSES), help="Only jobs in this state.")
@click.option(
    "--limit", type=click.IntRange(1), default=1000, show_default=True, help="At most this many, newest first."
)
@store_option
@json_option
def jobs(status: str | None, limit: int, store_url: str, as_json: bool) -> None:
    """List jobs, newest first."""
    with opened(store_url) as store:
        found = store.jobs(status=status, limit=limit)
        accounts = store.accounts(found) if as_json else {}
    if as_json:
        print_json([job_view(job, accounts.get(job.id)) for job in found])
        return
    if not found:
        state = f" in state {status}" if status else ""
        click.echo(f"no jobs{state} in {store.database.label}; add one with: everstep submit", err=True)
        return
    click.echo("\n".join(_table(found)))  # by hand: rich takes four times as long for a thousand rows as all the rest


def _table(found: Sequence[Job]) -> list[str]:
    rows = [["id", "graph", "status", "step", "attempts", "priority", "updated"]]
    for job in found:
        numbers = [str(number) for number in (job.step, job.attempts, job.priority)]
        rows.append([job.public_id, text(job.graph, 40), job.status, *numbers, str(rfc3339(job.updated_at))])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    padded = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    for row, job in zip(padded[1:], found, strict=True):
        row[2] = click.style(row[2], fg=STATUS_COLOURS[job.status])
    return [click.style("  ".join(padded[0]), bold=True), *("  ".join(row).rstrip() for row in padded[1:])]


@click.command()
@click.argument("job_id", metavar="JOB")
@click.option("--all-effects", is_flag=True, help=f"Every effect of the job, not only its newest {SHOWN_EFFECTS}.")
@verbose_option
@store_option
@json_option
def show(job_id: str, all_effects: bool, verbose: bool, store_url: str, as_json: bool) -> None:
    """Show a job: state, steps, attempts, effects, reviews, evidence, and what to do next.

    JOB is an id, or its first characters as long as they fit one job only.
    """
    from everstep.checkpoints import paid_view, trigger_events, views

    links = Links()
    with opened(store_url) as store:
        job = store.job(job_id)
        view = job_view(job, store.accounts([job]).get(job.id))
        reviews = store.reviews(job)
        newest = None if all_effects else SHOWN_EFFECTS
        view["effects"] = [effect_view(effect) for effect in store.effects(job, newest=newest)]
        view["effects_count"] = store.effect_count(job)
        view["reviews"] = review_views(store, [(review, job.public_id) for review in reviews])
        view["evidence"] = store.evidence(job)
        view["acceptance"] = acceptance_view(job, view["evidence"])
        view["events"] = store.events(job)
        view["trigger"] = store.read(lambda connection: trigger_events.start_of(connection, job.id))
        view["paid"] = store.read(lambda connection: paid_view.of(connection, job))
        view["legs"] = legs_view(store, job, links)
        waits = store.waits(job)
        view["waits"] = [wait.view() for wait in waits]
        view["next_action"] = next_action(job, reviews, store.services_out(job), waits, views.unsubmitted(store, job))
    if as_json:
        print_json(view)
    else:
        _print_job(view, with_legs=links.lead_somewhere, verbose=verbose)


def _print_job(view: dict[str, Any], *, with_legs: bool, verbose: bool) -> None:
    status = click.style(view["status"], fg=STATUS_COLOURS[view["status"]], bold=True)
    click.echo(f"job        {view['id']}  {status}")
    click.echo(
        f"graph      {text(view['graph'])} (workflow version {view['workflow_version']}, priority {view['priority']})"
    )
    click.echo(f"step       {view['step']}" + (f", next: {text(view['node'])}" if view["node"] else ""))
    failures = f"{view['failures']} of {view['max_attempts']} failures in a row without progress"
    click.echo(f"attempts   {view['attempts']}; {failures}; started {counted(view['claim_no'], 'time')}")
    if deaths := view["worker_deaths"]:
        click.echo(f"apart      runs in a process of its own; {counted(deaths, 'death')} in a row without progress")
    elif view["suspect"]:
        click.echo("apart      runs in a process of its own: it may have ended one that it ran in")
    if view["leased_by"]:
        click.echo(f"lease      {text(view['leased_by'])} until {view['lease_until']}")
    click.echo(f"tokens     {view['input_tokens']} in, {view['output_tokens']} out")
    for line in acceptance_lines(view["acceptance"]):
        click.echo(harmless(line))
    for number, line in enumerate(budget_lines(view["budget"]) if view["budget"]["limits"] else ()):
        click.echo(f"{'' if number else 'budget':<10} {line}")
    if view["parent"]:
        click.echo(f"parent     {view['parent']}")
    if view["trigger"]:
        trigger, waited = view["trigger"], view["trigger"]["event_to_start_ms"]
        since = "" if waited is None else f", {waited / 1000:.1f} s before the job began"
        click.echo(f"trigger    {text(trigger['trigger'])} ({trigger['source']}), event {trigger['id']}{since}")
    if view["thread_id"] != view["id"]:
        click.echo(f"thread     {view['thread_id']}")
    for line in paid_lines(view["paid"]):
        click.echo(line)
    click.echo(f"key        {harmless(view['idempotency_key'])}")
    click.echo(f"input      {text(view['input'])}")
    if view["result"] is not None:
        click.echo(f"result     {text(view['result'])}")
        click.echo(f"digest     {view['result_digest']}")
    if view["error"]:
        error = view["error"]
        click.echo(f"error      {text(error.get('type') or error['code'])}: {text(error['message'], 500)}")
        if error.get("words"):
            click.echo(f"           they said: {text(error['words'], 500)}")
        chain: list[dict[str, Any]] = error.get("chain") or [{}]
        for line in (*place_lines(chain[0], verbose=verbose), *chain_lines(chain[1:], verbose=verbose)):
            click.echo(f"       {harmless(line)}")
    shown, effects = len(view["effects"]), view["effects_count"]
    left_out = f" (the newest {shown} of {effects}; all of them: --all-effects)" if shown < effects else ""
    for title, rows in (
        (f"effects{left_out}", [_effect_line(effect) for effect in view["effects"]]),
        ("reviews", [_review_line(review) for review in view["reviews"]]),
        ("waits", [_wait_line(wait) for wait in view["waits"]]),
        ("evidence", [evidence_line(row, 160) for row in view["evidence"]]),
        ("history", [_event_line(event) for event in view["events"]]),
        ("traces", leg_lines(view["legs"], view["id"]) if with_legs else []),
    ):
        if rows:
            click.secho(f"\n{title}", bold=True)
            for row in rows:
                click.echo(f"  {harmless(row)}")
    click.echo(f"\nnext       {harmless(view['next_action'])}")


def _effect_line(effect: dict[str, Any]) -> str:
    by = f" by {effect['settled_by']}" if effect["settled_by"] else ""
    error = f"  {text(effect['error'], 120)}" if effect["error"] else ""
    return f"{effect['state']:<9}  {effect['name']} {text(effect['arguments'], 80)}  calls {effect['calls']}{by}{error}"


def _review_line(review: dict[str, Any]) -> str:
    answer = review["answer"]
    how = f"{answer['decision']} by {answer['by']}" if answer else review["status"]
    use = review["used_for"]
    used = f", {use['state']} by {text(use['effect'])}" if use else ""
    return f"{review['id']}  {review['kind']}: {how}{used}  {text(review['value'], 100)}"


def _wait_line(wait: dict[str, Any]) -> str:
    what = "" if wait["signal"] is None else f"for {text(wait['signal'], 120)} "
    until = "" if wait["until"] is None else f"until {wait['until']} "
    return f"{wait['state']:<9}  {what}{until}since {wait['since']}"


def _event_line(event: dict[str, Any]) -> str:
    change = f"{event['from'] or 'new'} → {event['to']}"
    return f"{event['at']}  {change:<18}  {text(event['reason'], 120)}  ({text(event['actor'], 40)})"


@click.command()
@click.argument("job_id", metavar="JOB")
@click.option(
    "--limit", type=click.IntRange(1), default=1000, show_default=True, help="At most this many, newest first."
)
@store_option
@json_option
def history(job_id: str, limit: int, store_url: str, as_json: bool) -> None:
    """List a job's checkpoints, newest first: where it can be resumed and looked at."""
    from everstep.checkpoints import views

    with opened(store_url) as store:
        rows = list(views.steps(store, store.job(job_id), limit))
    if as_json:
        print_json(rows)
        return
    if not rows:
        click.echo("no checkpoints yet: the job has not run", err=True)
    for row in rows:
        where = f" in {row['checkpoint_ns']}" if row["checkpoint_ns"] else ""
        following = ", ".join(row["next"]) or "-"
        click.echo(
            harmless(
                f"{row['created_at']}  step {row['step']:>4}  {row['source']:<6} {row['checkpoint_id']}"
                f"  next: {following}{where}"
            )
        )


@click.command()
@click.argument("job_id", metavar="JOB")
@store_option
@json_option
def retry(job_id: str, store_url: str, as_json: bool) -> None:
    """Retry a failed job from its last checkpoint, with fresh attempts; or let one in backoff run now."""
    with opened(store_url) as store:
        job = store.redrive(job_id)
        account = store.accounts([job]).get(job.id)
        note = next_action(job, [], store.services_out(job))
    _print_status(job, account, as_json, note)


@click.command()
@click.argument("job_id", metavar="JOB")
@store_option
@json_option
def cancel(job_id: str, store_url: str, as_json: bool) -> None:
    """Cancel a job. A running one stops when its worker acknowledges; an effect in flight goes to review."""
    with opened(store_url) as store:
        job = store.cancel(job_id)
        account = store.accounts([job]).get(job.id)
    note = {
        "running": "requested; its worker will stop it",
        "review": "an effect is in flight: settle its review first",
    }
    _print_status(job, account, as_json, note.get(job.status, "cancelled"))


def _print_status(job: Job, account: Account | None, as_json: bool, note: str) -> None:
    if as_json:
        print_json(job_view(job, account))
    else:
        click.echo(f"{job.public_id} {job.status}: {harmless(note)}")
