"""`everstep deliveries`: the outbox of webhooks: what waits, what was given up, and sending it again."""

from __future__ import annotations

import json
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from everstep.cli.confirm import require_consent, yes_option
from everstep.cli.options import config_option, json_option, opened, store_option
from everstep.cli.views import print_json, text
from everstep.clock import rfc3339
from everstep.errors import EX_FAILED, PayloadInvalid

if TYPE_CHECKING:
    from everstep.checkpoints.deliveries import Delivery

COLOURS = {"pending": "yellow", "delivered": "green", "dead": "red"}


@click.group(invoke_without_command=True)
@store_option
@json_option
@click.pass_context
def deliveries(context: click.Context, store_url: str, as_json: bool) -> None:
    """List the messages to webhooks that wait or were given up: everstep deliveries list shows the others, too.

    A message is sent by any worker or `everstep up`, and again until it is taken: after 15 s, 30 s, … and at last every
    hour, for about three days.
    """
    if context.invoked_subcommand is None:
        context.invoke(
            list_deliveries, state=None, job_id=None, everything=False, limit=100, store_url=store_url, as_json=as_json
        )


@deliveries.command(name="list")
@click.option("--state", type=click.Choice(("pending", "delivered", "dead")), help="Only those in this state.")
@click.option("--job", "job_id", metavar="JOB", help="Only those about this job.")
@click.option("--all", "everything", is_flag=True, help="Those that were delivered, too.")
@click.option(
    "--limit", type=click.IntRange(1), default=100, show_default=True, help="At most this many, newest first."
)
@store_option
@json_option
def list_deliveries(
    state: str | None, job_id: str | None, everything: bool, limit: int, store_url: str, as_json: bool
) -> None:
    """List messages, newest first."""
    from everstep.checkpoints import deliveries as outbox
    from everstep.checkpoints import views

    with opened(store_url) as store:
        job = None if job_id is None else store.job(job_id).public_id
        states = [state] if state else ["pending", "dead", *(["delivered"] if everything or job else [])]
        found = [
            delivery
            for one in states
            for delivery in store.read(partial(outbox.every, state=one, job=job, limit=limit))
        ]
    found = sorted(found, key=lambda delivery: delivery.id, reverse=True)[:limit]
    if as_json:
        print_json([views.delivery(delivery) for delivery in found])
        return
    if not found:
        click.echo("no messages" if everything or state or job else "no message waits or was given up", err=True)
    for delivery in found:
        click.echo(_line(delivery))


@deliveries.command(name="show")
@click.argument("delivery_id", metavar="ID")
@store_option
@json_option
def show_delivery(delivery_id: str, store_url: str, as_json: bool) -> None:
    """Show a message with its body."""
    from everstep.checkpoints import deliveries as outbox
    from everstep.checkpoints import views

    with opened(store_url) as store:
        delivery = store.read(partial(outbox.find, public_id=delivery_id))
    view = {**views.delivery(delivery), "body": delivery.body}
    if as_json:
        print_json(view)
        return
    click.echo(_line(delivery))
    click.echo(f"  to    {text(delivery.url)}")
    click.echo(f"  body  {text(json.dumps(view['body']), 2000)}")


@deliveries.command(name="replay")
@click.argument("delivery_ids", metavar="[ID]…", nargs=-1)
@click.option("--dead", is_flag=True, help="All that were given up.")
@yes_option
@store_option
@json_option
def replay_deliveries(delivery_ids: tuple[str, ...], dead: bool, yes: bool, store_url: str, as_json: bool) -> None:
    """Send messages again, with the same ids, also those that were taken."""
    from everstep.checkpoints import deliveries as outbox
    from everstep.checkpoints import views

    if bool(delivery_ids) == dead:
        raise PayloadInvalid("name messages, or say --dead", next_step="list them with: everstep deliveries")
    with opened(store_url) as store:
        if dead:
            chosen = store.read(partial(outbox.every, state="dead", limit=10_000))
        else:
            chosen = [store.read(partial(outbox.find, public_id=one)) for one in delivery_ids]
        if len(chosen) > 1:
            require_consent(f"Send {len(chosen)} messages again?", yes=yes)
        now = store.clock.now_ms()
        again = [store.write(partial(outbox.replay, delivery=one, now=now)).result() for one in chosen]
    if as_json:
        print_json([views.delivery(delivery) for delivery in again])
        return
    click.echo(f"{len(again)} to be sent again; any worker does, or now: everstep deliveries flush")


@deliveries.command(name="flush")
@config_option
@store_option
@json_option
def flush_deliveries(config_path: Path, store_url: str, as_json: bool) -> int:
    """Send what is due now; exits 1 if something was not taken."""
    from everstep.graphs.policies import read_policies
    from everstep.runtime.deliveries import Deliveries

    failures: dict[str, str] = {}
    sent: list[str] = []
    lock = threading.Lock()

    def tell(delivery: Delivery, reason: str | None) -> None:
        with lock:
            if reason is None:
                sent.append(delivery.public_id)
                failures.pop(delivery.public_id, None)
            else:
                failures[delivery.public_id] = reason

    with opened(store_url) as store:
        Deliveries(store, read_policies(config_path).webhooks).send_due(tell=tell)
    if as_json:
        print_json({"delivered": sent, "not_taken": [{"id": one, "reason": why} for one, why in failures.items()]})
    else:
        click.echo(f"{len(sent)} delivered, {len(failures)} not taken")
        for one, why in failures.items():
            click.echo(f"  {one}  {text(why)}")
    return EX_FAILED if failures else 0


def _line(delivery: Delivery) -> str:
    state = click.style(f"{delivery.state:<9}", fg=COLOURS[delivery.state])
    tries = f"{delivery.tries} {'try' if delivery.tries == 1 else 'tries'}"
    why = f"  {text(delivery.last_error, 100)}" if delivery.last_error else ""
    again = f", next at {rfc3339(delivery.next_try_at)}" if delivery.state == "pending" else ""
    return f"{state}  {delivery.public_id}  job {delivery.job}  {tries}{again}{why}"
