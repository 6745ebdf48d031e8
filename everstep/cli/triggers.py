"""`everstep triggers`: what starts jobs from outside: look at it, try it, run it, and handle events once more."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from everstep.cli.options import config_option, json_option, log_options, opened, store_option
from everstep.cli.views import print_json, text
from everstep.errors import EventInvalid, PayloadInvalid

if TYPE_CHECKING:
    from everstep.checkpoints.trigger_events import Event
    from everstep.graphs.event_sections import Trigger
    from everstep.graphs.policies import Policies
    from everstep.runtime.triggers.incoming import Incoming

COLOURS = {"stored": "cyan", "started": "green", "filtered": "white", "failed": "red"}


@click.group(invoke_without_command=True)
@config_option
@store_option
@json_option
@click.pass_context
def triggers(context: click.Context, config_path: Path, store_url: str, as_json: bool) -> None:
    """List the triggers of everstep.toml, and how many events each has had."""
    if context.invoked_subcommand is None:
        context.invoke(list_triggers, config_path=config_path, store_url=store_url, as_json=as_json)


@triggers.command(name="list")
@config_option
@store_option
@json_option
def list_triggers(config_path: Path, store_url: str, as_json: bool) -> None:
    """List the triggers of everstep.toml, and how many events each has had."""
    from everstep.checkpoints import trigger_events
    from everstep.errors import StoreNotFound

    sections = _policies(config_path).triggers
    try:
        with opened(store_url) as store:
            counts = store.read(trigger_events.counts)
    except StoreNotFound:  # no event came yet
        counts = {}
    views = [_trigger_view(name, section, counts.get(name, {})) for name, section in sections.items()]
    if as_json:
        print_json(views)
        return
    if not views:
        click.echo("everstep.toml has no triggers", err=True)
    for view in views:
        where = view["path"] or view["folder"]
        events = ", ".join(f"{number} {state}" for state, number in view["events"].items() if number) or "no events"
        off = "" if view["enabled"] else "  (off)"
        click.echo(f"{view['name']}{off}  {view['source']} {text(where)} → {text(view['graph'])}  {events}")


@triggers.command(name="events")
@click.argument("name", required=False)
@click.option("--state", type=click.Choice(tuple(COLOURS)), help="Only those in this state.")
@click.option(
    "--limit", type=click.IntRange(1), default=100, show_default=True, help="At most this many, newest first."
)
@store_option
@json_option
def list_events(name: str | None, state: str | None, limit: int, store_url: str, as_json: bool) -> None:
    """List events, newest first; of one trigger if NAME is given."""
    from everstep.checkpoints import trigger_events

    with opened(store_url) as store:
        found = store.read(partial(trigger_events.every, trigger=name, state=state, limit=limit))
    if as_json:
        print_json([event.view() for event in found])
        return
    if not found:
        click.echo("no events", err=True)
    for event in found:
        click.echo(_event_line(event))


@triggers.command(name="show")
@click.argument("event_id", metavar="EVENT")
@store_option
@json_option
def show_event(event_id: str, store_url: str, as_json: bool) -> None:
    """Show an event: its body, what is kept of its headers, and what came of it."""
    from everstep.checkpoints import trigger_events

    with opened(store_url) as store:
        event = store.read(partial(trigger_events.find, public_id=event_id))
    document = event.document()
    view = {**event.view(), "headers": document["headers"], "body": document["body"]}
    if as_json:
        print_json(view)
        return
    click.echo(_event_line(event))
    if view["error"]:
        click.echo(f"  error    {text(view['error'].get('message', ''), 500)}")
    click.echo(f"  headers  {text(view['headers'], 1000)}")
    click.echo(f"  body     {text(view['body'], 2000)}")


@triggers.command(name="replay")
@click.argument("event_ids", metavar="EVENT…", nargs=-1, required=True)
@click.option("--again", is_flag=True, help="Start another job of an event that started one.")
@config_option
@store_option
@json_option
def replay_events(event_ids: tuple[str, ...], again: bool, config_path: Path, store_url: str, as_json: bool) -> None:
    """Handle events once more, with what everstep.toml says now; no second job is made unless --again says so."""
    from everstep.checkpoints import trigger_events
    from everstep.runtime.triggers.registry import Triggers

    policies = _policies(config_path)
    with opened(store_url) as store:
        chosen = [store.read(partial(trigger_events.find, public_id=one)) for one in event_ids]
        registry = Triggers(store, policies)

        async def replay() -> list[Event]:
            return [await registry.replay(event, again=again) for event in chosen]

        done = asyncio.run(replay())
    if as_json:
        print_json([event.view() for event in done])
        return
    for event in done:
        click.echo(_event_line(event))


@triggers.command(name="test")
@click.argument("name")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--header", "headers", multiple=True, metavar="'NAME: VALUE'", help="A header of the request.")
@config_option
@json_option
def test_trigger(name: str, file: Path, headers: tuple[str, ...], config_path: Path, as_json: bool) -> None:
    """Tell what would come of an event, with nothing stored and nothing started; signatures are not checked.

    FILE is the body of a request, a message (.eml), or for a watched folder any file.
    """
    import time

    from everstep.runtime.triggers.registry import dry_run

    section = _section(_policies(config_path), name)
    event = _event_of(section, file, _headers(headers))
    would = dry_run(name, section, event, now=time.time_ns() // 1_000_000)
    if as_json:
        print_json(would)
        return
    if not would["wanted"]:
        click.echo("filtered: it would be stored, and start nothing")
        return
    click.echo(f"it would start a job of {text(would['graph'])}")
    click.echo(f"key    {text(would['key'])}")
    click.echo(f"input  {json.dumps(would['input'], ensure_ascii=False)}")


@triggers.command(name="run")
@config_option
@store_option
@log_options
def run_triggers(config_path: Path, store_url: str, log_format: str | None, log_level: str | None) -> None:
    """Watch the folders of triggers until stopped, and handle events that were left stored.

    `everstep up` does the same; this is for a setup of its own. Events over HTTP need `everstep up` or
    `everstep server`.
    """
    import os

    from everstep.observability import logs
    from everstep.runtime.triggers.watching import Watching

    for variable, given in ((logs.FORMAT_VARIABLE, log_format), (logs.LEVEL_VARIABLE, log_level)):
        if given is not None:
            os.environ[variable] = given
    logs.configure(default_level="info")
    policies, stopped = _policies(config_path), threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stopped.set())
    with opened(store_url, create=True) as store:
        watching = Watching(store, policies, config_path)
        watching.start()
        click.echo(f"watching: {', '.join(policies.triggers) or 'no triggers'}", err=True)
        stopped.wait()
        watching.stop()


def _policies(config_path: Path) -> Policies:
    from everstep.graphs.configuration import read_configuration
    from everstep.graphs.policies import read_policies

    return read_policies(config_path, read_configuration(config_path).graphs)


def _section(policies: Policies, name: str) -> Trigger:
    from everstep.errors import TriggerNotFound

    if name not in policies.triggers:
        known = ", ".join(policies.triggers) or "none"
        raise TriggerNotFound(f"there is no trigger {name!r}", next_step=f"everstep.toml has: {known}", trigger=name)
    return policies.triggers[name]


def _event_of(section: Trigger, file: Path, headers: dict[str, str]) -> Incoming:
    """The event that a file stands for."""
    from everstep.graphs.event_sections import FolderTrigger, GithubTrigger, MailTrigger
    from everstep.runtime.triggers import folders, incoming, mail

    if isinstance(section, FolderTrigger):
        found = file.stat()
        version = folders.Version(found.st_size, found.st_mtime_ns)
        return folders.event_of(file.absolute().parent, file.name, version)
    content = file.read_bytes()
    if isinstance(section, MailTrigger):
        return mail.event_of(content, name=file.name, file=str(file.absolute()))
    if isinstance(section, GithubTrigger):
        headers = {"x-github-event": section.events[0], "x-github-delivery": "test", **headers}
    if section.source == "cloudevents" and "content-type" not in headers and "ce-id" not in headers:
        headers = {**headers, "content-type": "application/cloudevents+json"}
    if len(content) > section.max_bytes:
        raise EventInvalid(f"{file} has {len(content)} bytes; max_bytes of the trigger is {section.max_bytes}")
    return incoming.read(section, headers, content)


def _headers(given: tuple[str, ...]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for one in given:
        name, colon, value = one.partition(":")
        if not colon or not name.strip():
            raise PayloadInvalid(f"--header {one[:80]!r} is none", next_step="write it as 'Name: value'")
        headers[name.strip().lower()] = value.strip()
    return headers


def _trigger_view(name: str, section: Trigger, events: dict[str, int]) -> dict[str, Any]:
    from everstep.runtime.triggers.registry import view

    return view(name, section, events)


def _event_line(event: Event) -> str:
    state = click.style(f"{event.state:<8}", fg=COLOURS[event.state])
    view = event.view()
    what = f"job {event.job}" if event.job else text((view["error"] or {}).get("message", ""), 100)
    return f"{state}  {event.public_id}  {view['received_at']}  {event.trigger}  {text(event.event_key, 60)}  {what}"
