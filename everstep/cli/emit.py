"""`everstep emit` and `everstep signals`: wake the jobs that wait for something, and see what is waited for."""

from __future__ import annotations

from typing import Any

import click

from everstep.cli.options import json_option, opened, owner_option, read_input, store_option
from everstep.cli.views import print_json, text

SHOWN = 100


@click.command()
@click.argument("signal")
@click.option(
    "--payload", "given", metavar="FILE|JSON", help="What it carries: JSON, a file of it, or -; null when omitted."
)
@owner_option("Whose jobs hear it.")
@click.option("--allow-secret-keys", is_flag=True, help="Accept keys that look like credentials.")
@store_option
@json_option
def emit(signal: str, given: str | None, owner: str, allow_secret_keys: bool, store_url: str, as_json: bool) -> None:
    """Emit SIGNAL: jobs whose nodes wait for it (`wait_for`) go on, now or when they come to it.

    A signal is emitted once: the first emission of a name wins, a later one changes nothing and shows the first.

    Example: everstep emit payment-received:order-17 --payload '{"amount": 500}'
    """
    payload = None if given is None else read_input(given, "--payload")
    with opened(store_url) as store:
        emitted, is_new = store.emit(signal, payload, owner=owner, allow_secret_keys=allow_secret_keys)
    view = emitted.view()
    if as_json:
        print_json({"emitted": is_new, "signal": view})
    elif is_new:
        click.echo(f"{text(signal)} is emitted; jobs that wait for it go on")
    else:
        click.echo(
            f"{text(signal)} was emitted before, at {view['emitted_at']} by {text(view['emitted_by'])}"
            f" with {text(view['payload'])}; the first emission stands"
        )


@click.command()
@click.option(
    "--limit", type=click.IntRange(1), default=SHOWN, show_default=True, help="At most so many, newest first."
)
@store_option
@json_option
def signals(limit: int, store_url: str, as_json: bool) -> None:
    """List what jobs wait for, and the signals that were emitted."""
    from everstep.checkpoints import signals as table
    from everstep.checkpoints import waits

    with opened(store_url) as store:
        open_ = store.read(lambda connection: waits.awaited(connection, owner=None, limit=limit))
        emitted = store.read(lambda connection: table.listed(connection, owner=None, limit=limit))
        label = store.database.label
    waiting = [{"job": job, "owner": wait.owner, **wait.view()} for wait, job in open_]
    if as_json:
        print_json({"waiting": waiting, "emitted": [{"owner": each.owner, **each.view()} for each in emitted]})
        return
    if not waiting and not emitted:
        click.echo(f"no job in {label} waits, and no signal was emitted", err=True)
    for wait, job in open_:
        click.echo(f"{click.style('waiting', fg='yellow')}  {job}  {text(wait.told())}")
    for each in emitted:
        view: dict[str, Any] = each.view()
        click.echo(
            f"{click.style('emitted', fg='green')}  {view['emitted_at']}  {text(each.name)} by"
            f" {text(each.emitted_by)}: {text(view['payload'])}"
        )
