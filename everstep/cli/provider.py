"""`everstep provider`: the providers of paid work, their tasks, and what they told; what a person does is beside."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from everstep.cli.confirm import require_consent, yes_option
from everstep.cli.options import config_option, json_option, opened, store_option
from everstep.cli.provider_repairs import cancel_task, link_task, poll_task, reconcile_task
from everstep.cli.views import print_json, text
from everstep.clock import rfc3339
from everstep.counts import counted
from everstep.errors import PayloadInvalid, StoreNotFound

if TYPE_CHECKING:
    from everstep.checkpoints.provider_events import StoredEvent
    from everstep.checkpoints.provider_task import ProviderTask
    from everstep.checkpoints.store import Store
    from everstep.graphs.provider_sections import ProviderSection

STATES = ("created", "submitting", "submission_unknown", "pending", "succeeded", "failed")
COLOURS = {
    "submission_unknown": "magenta",
    "pending": "cyan",
    "succeeded": "green",
    "failed": "red",
    "parked": "yellow",
    "applied": "green",
}
NO_FAULTS: dict[str, list[str]] = {"wrong": [], "warnings": []}
MOST_REPLAYED = 10_000


@click.group()
def provider() -> None:
    """Look after paid work of providers: what is submitted, how it is, what it cost.

    Any worker or server whose everstep.toml names a provider asks it how its tasks are, and takes its webhooks at
    POST /webhooks/NAME. What nobody can know a person says: everstep provider link and reconcile.
    """


@provider.command(name="list")
@config_option
@store_option
@json_option
def list_providers(config_path: Path, store_url: str, as_json: bool) -> None:
    """List the providers that everstep.toml names, what is wrong with them, and how many tasks are unfinished.

    A file or class that cannot be used is wrong; a variable that is not set may be set where workers run.
    """
    from everstep.checkpoints import provider_health
    from everstep.graphs.policies import read_policies

    sections = read_policies(config_path).providers
    counts: dict[tuple[str, str], int] = {}
    try:
        with opened(store_url) as store:
            now = store.clock.now_ms()
            counts = dict(store.read(lambda connection: provider_health.look(connection, now)).tasks)
    except StoreNotFound:
        if not sections:  # a misspelled --store would look like an empty record
            raise
    names = sorted({*sections, *(name for name, _ in counts)})
    faults = _faults(sections, config_path)
    found = [{**_provider(name, sections.get(name), counts), **faults.get(name, NO_FAULTS)} for name in names]
    if as_json:
        print_json(found)
        return
    if not found:
        click.echo("everstep.toml names no provider: [providers.NAME] does", err=True)
    for one in found:
        click.echo(_provider_line(one))
        for level, colour in (("wrong", "red"), ("warnings", "yellow")):
            for told in one[level]:
                click.echo(f"  {click.style(level.removesuffix('s'), fg=colour)}: {text(told, 500)}")


@provider.command(name="tasks")
@click.option("--state", type=click.Choice(STATES), help="Only those in this state.")
@click.option("--provider", "provider_name", metavar="NAME", help="Only those at this provider.")
@click.option("--job", "job_id", metavar="JOB", help="Only those of this job.")
@click.option("--owner", help="Only those of this owner.")
@click.option("--key", metavar="KEY", help="Only generations of the submission with this key.")
@click.option(
    "--limit", type=click.IntRange(1), default=100, show_default=True, help="At most this many, newest first."
)
@store_option
@json_option
def list_tasks(
    state: str | None,
    provider_name: str | None,
    job_id: str | None,
    owner: str | None,
    key: str | None,
    limit: int,
    store_url: str,
    as_json: bool,
) -> None:
    """List paid tasks, newest first.

    Those that a person has to look at: everstep provider tasks --state submission_unknown
    """
    from everstep.checkpoints import provider_task

    with opened(store_url) as store:
        job = None if job_id is None else store.job(job_id).public_id
        wanted = {"owner": owner, "provider": provider_name, "state": state, "job": job, "submission_key": key}
        found = store.read(partial(provider_task.listed, **wanted, limit=limit))
    if as_json:
        print_json([{**task.view(), "owner": task.owner} for task in found])
        return
    if not found:
        click.echo("no provider tasks", err=True)
    for task in found:
        click.echo(_task_line(task))


@provider.command(name="show")
@click.argument("task_id", metavar="TASK")
@click.option("--admin", is_flag=True, help="With the provider's ids, the request and the evidence.")
@store_option
@json_option
def show_task(task_id: str, admin: bool, store_url: str, as_json: bool) -> None:
    """Show a task: its state, generations, what it cost and what was given back, what the provider told."""
    from everstep.checkpoints import provider_task
    from everstep.runtime import task_care

    with opened(store_url) as store:
        task = store.read(partial(provider_task.find, public_id=task_id))
        found = store.read(partial(task_care.detail, task=task, admin=admin))
    if as_json:
        print_json(found)
        return
    click.echo(_task_line(task))
    _print_detail(found)


@provider.command(name="events")
@click.option("--state", type=click.Choice(("parked", "applied", "ignored")), help="Only those in this state.")
@click.option("--provider", "provider_name", metavar="NAME", help="Only those of this provider.")
@click.option("--admin", is_flag=True, help="With the provider's ids, and all that they say.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="At most this many of a state.")
@store_option
@json_option
def list_events(
    state: str | None, provider_name: str | None, admin: bool, limit: int, store_url: str, as_json: bool
) -> None:
    """List what providers told by webhook: first what no task answers to (parked), then the rest, each newest first."""
    from everstep.checkpoints import provider_events
    from everstep.runtime import task_care

    with opened(store_url) as store:
        asked = [state] if state else ["parked", "applied", "ignored"]
        look = partial(provider_events.listed, provider=provider_name, limit=limit)
        parked, *others = [store.read(partial(look, state=one)) for one in asked]
    rest = sorted((event for found in others for event in found), key=lambda event: event.id, reverse=True)
    events = [*parked, *rest[:limit]]
    if as_json:
        print_json([task_care.event(one, admin=admin) for one in events])
        return
    if not events:
        click.echo("no events of providers", err=True)
    for event in events:
        click.echo(_event_line(event, admin=admin))


@provider.command(name="replay")
@click.argument("event_ids", metavar="[EVENT]…", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All that are parked.")
@yes_option
@store_option
@json_option
def replay_events(event_ids: tuple[str, ...], everything: bool, yes: bool, store_url: str, as_json: bool) -> None:
    """Tell tasks once more what events said of them; nothing that was told before happens twice.

    An event that is parked finds its task by itself when the task learns the provider's id.
    """
    from everstep.checkpoints import provider_events

    if bool(event_ids) == everything:
        raise PayloadInvalid("name events, or say --all", next_step="list them with: everstep provider events")
    with opened(store_url) as store:
        if everything:
            chosen = store.read(partial(provider_events.listed, state="parked", limit=MOST_REPLAYED))[::-1]
        else:
            chosen = [store.read(partial(provider_events.find, public_id=one)) for one in event_ids]
        if len(chosen) > 1:
            require_consent(f"Replay {len(chosen)} events?", yes=yes)
        after = [_replayed(store, event) for event in chosen]
    if as_json:
        print_json([event.view() for event in after])
        return
    for event in after:
        click.echo(_event_line(event))
    parked = sum(event.state == "parked" for event in after)
    click.echo(f"{counted(len(after) - parked, 'event')} found a task, {parked} did not", err=True)


for command in (reconcile_task, link_task, poll_task, cancel_task):
    provider.add_command(command)


def _replayed(store: Store, event: StoredEvent) -> StoredEvent:
    from everstep.checkpoints import provider_events

    replay = partial(provider_events.replay, event=event, actor="replay", now=store.clock.now_ms())
    return store.write(replay).result().event


def _faults(sections: dict[str, ProviderSection], config_path: Path) -> dict[str, dict[str, list[str]]]:
    """What is wrong with each, and what may be."""
    from everstep.runtime import examination

    found: dict[str, dict[str, list[str]]] = {}
    for name in sections:
        told = list(examination.providers(config_path, name))
        levels = {"wrong": "wrong", "warning": "warnings"}
        found[name] = {
            to: [finding.detail for finding in told if finding.level == level] for level, to in levels.items()
        }
    return found


def _provider(name: str, section: ProviderSection | None, counts: dict[tuple[str, str], int]) -> dict[str, Any]:
    tasks = {state: number for (one, state), number in sorted(counts.items()) if one == name}
    told = {"use": None, "work": None, "base_url": None, "rate": None, "burst": None, "poll_first": None}
    told |= {"poll_most": None, "prices": None}
    if section is not None:
        told = {field: getattr(section, field) for field in told}
    webhook = f"/webhooks/{name}" if section is not None and section.webhook is not None else None
    return {"name": name, "configured": section is not None, **told, "webhook": webhook, "tasks": tasks}


def _provider_line(one: dict[str, Any]) -> str:
    tasks = ", ".join(f"{number} {state}" for state, number in one["tasks"].items()) or "no unfinished tasks"
    if not one["configured"]:
        return f"{text(one['name'])}  {click.style('not in everstep.toml', fg='red')}: nobody asks it; {tasks}"
    parts = [one["use"], one["base_url"], f"at most {one['rate']}" if one["rate"] else None]
    parts.append(f"told at {one['webhook']}" if one["webhook"] else "no webhook")
    return f"{text(one['name'])}  {', '.join(text(part) for part in parts if part)}; {tasks}"


def _task_line(task: ProviderTask) -> str:
    state = click.style(f"{task.state:<18}", fg=COLOURS.get(task.state))
    generation = f" (try {task.generation})" if task.generation > 1 else ""
    told = [f"{task.progress} %" if task.progress is not None and not task.is_final else None, _price(task)]
    told.append(f"not asked: {text(task.poll_error, 80)}" if task.poll_error else None)
    return (
        f"{state}  {task.public_id}  {text(task.provider)}  {text(task.submission_key, 60)}{generation}"
        f"  job {task.job}{''.join(f'  {one}' for one in told if one)}"
    )


def _price(task: ProviderTask) -> str | None:
    quote = task.quote
    return None if quote is None or not task.amount else quote.text


def _print_detail(found: dict[str, Any]) -> None:
    lines = [("owner", found["owner"]), ("result", found["result"]), ("error", found["error"])]
    lines += [("request", found.get("request")), ("provider's id", found.get("provider_task_id"))]
    lines += [("our key there", found.get("provider_key")), ("settled by", found["settled_by"])]
    for name, value in lines:
        if value is not None:
            click.echo(f"  {name:<14} {text(value, 1000)}")
    failures = (
        f", the last {found['poll_failures']} in vain: {text(found['poll_error'])}" if found["poll_error"] else ""
    )
    again = f", next at {found['next_poll_at']}" if found["next_poll_at"] else ""
    click.echo(f"  {'polls':<14} {found['polls']}{failures}{again}")
    for one in found["generations"]:
        click.echo(f"  {'generation':<14} {one['generation']}  {one['state']}  {one['id']}")
    for one in found["entries"]:
        click.echo(f"  {one['kind']:<14} {one['amount']} {one['currency']}  {one['at']}  {text(one['reason'])}")
    for one in found["events"]:
        click.echo(f"  {'event':<14} {one['state']}: {one['says']}  {one['received_at']}  {one['id']}")
    for one in found["evidence"]:
        click.echo(f"  {'evidence':<14} {one['at']}  {text(one['detail'], 300)}")
    if found["review"] is not None:
        click.echo(f"  {'asked':<14} did the provider take it? everstep provider link {found['id']} PROVIDER-ID")
        click.echo(f"  {'':<14} or, if not: everstep review reject {found['review']}")


def _event_line(event: StoredEvent, *, admin: bool = False) -> str:
    state = click.style(f"{event.state:<8}", fg=COLOURS.get(event.state))
    where = f"task {event.task}" if event.task else "no task"
    ids = f"  {text(event.provider_task_id or event.provider_key or event.event_id)}" if admin else ""
    received = rfc3339(event.received_at)
    return f"{state}  {event.public_id}  {text(event.provider)}  {event.status.state}  {where}  {received}{ids}"
