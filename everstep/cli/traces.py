"""`everstep traces`: what waits for the backends of traces, how they fare, sending it now, and giving it up."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from everstep.cli.confirm import require_consent, yes_option
from everstep.cli.options import json_option, opened, store_option
from everstep.cli.views import harmless, print_json
from everstep.clock import rfc3339
from everstep.counts import counted

if TYPE_CHECKING:
    from everstep.checkpoints.span_outbox import Destination
    from everstep.observability.tracing import Tracing

FORGOTTEN_AT_ONCE: Final = 1_000


@click.group()
def traces() -> None:
    """See what waits for the backends of traces, send it, or give it up.

    Workers export spans by themselves, where the environment names a backend (docs/tracing.md). To look at the trace of
    a job without any backend: everstep trace JOB.
    """


@traces.command()
@store_option
@json_option
def status(store_url: str, as_json: bool) -> None:
    """Tell for each destination what waits, what arrived, what was given up, and since when and why it fails.

    \b
      everstep traces status
      everstep traces status --json | jq '.[] | select(.failing_since)'
    """  # noqa: D301
    from everstep.checkpoints import span_outbox

    here = {destination.name for destination in _tracing().destinations}
    with opened(store_url) as store:
        found = store.read(lambda connection: span_outbox.every(connection, sorted(here)))
        label = store.database.label
    if as_json:
        print_json([_view(one, here) for one in found])
        return
    if not found:
        click.echo(f"no span in {label} waits or was sent, and this environment names no destination", err=True)
    for one in found:
        _print(one, here)


@traces.command()
@click.option("--timeout", type=click.FloatRange(min=0), default=30.0, show_default=True, help="Seconds at most.")
@store_option
@json_option
@click.pass_context
def flush(context: click.Context, timeout: float, store_url: str, as_json: bool) -> None:
    """Send what waits now, from this process, to the destinations its environment names.

    Exit code 1 if something still waits afterwards; the reason is told.

    \b
      everstep traces flush                  before a machine is shut down for good
      everstep traces flush --timeout 5
    """  # noqa: D301
    from everstep.errors import ConfigInvalid

    tracing = _tracing()
    if not tracing.destinations:
        raise ConfigInvalid(
            "this environment names no destination of traces",
            next_step="set OTEL_EXPORTER_OTLP_ENDPOINT, or LANGFUSE_PUBLIC_KEY, LANGFUSE_SECRET_KEY and LANGFUSE_HOST",
        )
    from everstep.checkpoints import span_outbox
    from everstep.runtime.identity import worker_id
    from everstep.runtime.span_exporter import flush as send

    with opened(store_url) as store:
        reasons = send(store, tracing, holder=worker_id(), seconds=timeout)
        found = store.read(lambda connection: span_outbox.every(connection, sorted(reasons)))
    left = [one for one in found if one.name in reasons and one.waiting]
    if as_json:
        here = set(reasons)
        print_json([{**_view(one, here), "reason": reasons[one.name]} for one in found if one.name in reasons])
    else:
        for one in found:
            if one.name in reasons:
                waits = f"{one.waiting} still wait: {reasons[one.name]}" if one.waiting else "nothing waits any more"
                click.echo(f"{one.name}: {waits}")
    if left:
        context.exit(1)


@traces.command()
@click.argument("destination")
@yes_option
@store_option
@json_option
def forget(destination: str, yes: bool, store_url: str, as_json: bool) -> None:
    """Let spans wait no more for a destination that is gone for good; they stay in the record.

    DESTINATION is its name, as `everstep traces status` tells it. Where a worker's environment still names it, the
    spans of later steps wait for it again.

    \b
      everstep traces forget http://collector.old:4318
      everstep traces forget http://collector.old:4318 --yes --json
    """  # noqa: D301
    from everstep.checkpoints import span_outbox
    from everstep.errors import DestinationNotFound

    with opened(store_url) as store:
        known = {one.name: one for one in store.read(span_outbox.every)}
        if destination not in known:
            raise DestinationNotFound(
                f"no span waits for {harmless(destination)} or was sent there",
                next_step="everstep traces status tells the names of those that the record knows",
            )
        waiting = known[destination].waiting
        if waiting:
            require_consent(f"Let {counted(waiting, 'span')} wait no more for {harmless(destination)}?", yes=yes)
        forgotten = 0
        while part := store.write(partial(span_outbox.forget, name=destination, limit=FORGOTTEN_AT_ONCE)).result():
            forgotten += part
    if as_json:
        print_json({"name": destination, "forgotten": forgotten})
    else:
        click.echo(
            f"{harmless(destination)} is forgotten: {counted(forgotten, 'span waits', 'spans wait')} for it no more"
        )


def _tracing() -> Tracing:
    from everstep.observability import tracing
    from everstep.runtime.leg import service_version

    return tracing.from_environment(service_version=service_version())


def _view(one: Destination, here: set[str]) -> dict[str, Any]:
    return {
        "name": one.name,
        "configured_here": one.name in here,
        "waiting": one.waiting,
        "oldest_at": rfc3339(one.oldest_at),
        "delivered": one.delivered,
        "dropped": one.dropped,
        "failing_since": rfc3339(one.failing_since),
        "last_error": one.last_error,
        "next_try_at": rfc3339(one.next_try_at),
        "sent_by": one.leased_by,
    }


def _print(one: Destination, here: set[str]) -> None:
    state = click.style("failing", fg="red") if one.failing_since else click.style("ok     ", fg="green")
    oldest = f", the oldest since {rfc3339(one.oldest_at)}" if one.oldest_at else ""
    click.echo(f"{state}  {one.name}  {one.waiting} wait{oldest}; {one.delivered} delivered, {one.dropped} dropped")
    if one.failing_since:
        what = harmless(one.last_error or "")
        click.echo(f"         since {rfc3339(one.failing_since)}: {what}; next try {rfc3339(one.next_try_at)}")
    elif one.last_error:
        click.echo(f"         the last refusal: {harmless(one.last_error)}")
    if one.name not in here:
        click.echo("         not configured here: a worker whose environment names it sends them")
