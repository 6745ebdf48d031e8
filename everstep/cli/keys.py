"""`everstep keys`: API keys of the server: make one, list them, revoke one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from everstep.cli.options import json_option, opened, store_option
from everstep.cli.views import print_json, text
from everstep.clock import rfc3339

if TYPE_CHECKING:
    from everstep.checkpoints.api_keys import ApiKey

DAY_MS = 86_400_000
COLOURS = {"valid": "green", "expired": "yellow", "revoked": "red"}


@click.group()
def keys() -> None:
    """Make, list and revoke API keys of the server.

    Once a key was made, whoever calls the server needs one. A key is shown once; the record holds only its hash.
    """


@keys.command()
@click.argument("name")
@click.option("--owner", default="default", show_default=True, help="Whose jobs it sees and makes; *: everybody's.")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice(("read", "run", "review", "admin")),
    help="What it may do; more than once for several. Without one: read, run and review.",
)
@click.option(
    "--days",
    type=click.FloatRange(min=0, min_open=True, max=36_500),
    help="Days until it expires; it does not when omitted.",
)
@store_option
@json_option
def create(name: str, owner: str, scopes: tuple[str, ...], days: float | None, store_url: str, as_json: bool) -> None:
    """Make a key and show it, once.

    Such as: everstep keys create ci --owner build --scope run --days 90
    """
    from everstep.checkpoints import api_keys

    with opened(store_url, create=True) as store:
        now = store.clock.now_ms()
        expires_at = None if days is None else now + int(days * DAY_MS)
        wanted = scopes or ("read", "run", "review")
        made, key = store.write(
            lambda connection: api_keys.create(
                connection, name=name, owner=owner, scopes=wanted, now=now, expires_at=expires_at
            )
        ).result()
    if as_json:
        print_json({**_view(made, now), "key": key})
        return
    click.echo(key)
    click.echo(f"{made.public_id}: {', '.join(made.scopes)} for {text(made.owner)}; it is not shown again", err=True)


@keys.command(name="list")
@store_option
@json_option
def list_keys(store_url: str, as_json: bool) -> None:
    """List the keys, newest first; never the keys themselves."""
    from everstep.checkpoints import api_keys

    with opened(store_url) as store:
        views = [_view(key, store.clock.now_ms()) for key in store.read(api_keys.every)]
    if as_json:
        print_json(views)
        return
    if not views:
        click.echo("no keys; make one with: everstep keys create NAME", err=True)
    for view in views:
        state = click.style(f"{view['state']:<8}", fg=COLOURS[view["state"]])
        used = f"used {view['last_used_at']}" if view["last_used_at"] else "never used"
        until = f", until {view['expires_at']}" if view["expires_at"] else ""
        whose = f"{text(view['name'])}  {text(view['owner'])}  {','.join(view['scopes'])}"
        click.echo(f"{state} {view['id']}  {whose}  {used}{until}")


@keys.command()
@click.argument("key_id", metavar="ID")
@store_option
@json_option
def revoke(key_id: str, store_url: str, as_json: bool) -> None:
    """Revoke a key by its id, or the beginning of it: servers refuse it within a second or two."""
    from everstep.checkpoints import api_keys

    with opened(store_url) as store:
        now = store.clock.now_ms()
        revoked = store.write(lambda connection: api_keys.revoke(connection, key_id, now=now)).result()
        view = _view(revoked, now)
    if as_json:
        print_json(view)
    else:
        click.echo(f"{view['id']} ({text(view['name'])}) is revoked")


def _view(key: ApiKey, now: int) -> dict[str, Any]:
    return {
        "id": key.public_id,
        "name": key.name,
        "owner": key.owner,
        "scopes": list(key.scopes),
        "state": key.state(now),
        "created_at": rfc3339(key.created_at),
        "expires_at": rfc3339(key.expires_at),
        "revoked_at": rfc3339(key.revoked_at),
        "last_used_at": rfc3339(key.last_used_at),
    }
