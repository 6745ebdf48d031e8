"""`everstep metrics`: the health of the record as numbers, for a monitor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import click

from everstep.cli.address import Address
from everstep.cli.options import json_option, opened, store_option
from everstep.cli.views import print_json

if TYPE_CHECKING:
    from everstep.checkpoints.store import Store


@click.command()
@click.option(
    "--serve",
    "serve_at",
    type=Address(),
    metavar="[HOST:]PORT",
    help="Serve them over HTTP until stopped; on this machine alone without a host.",
)
@click.option("--dashboard", "what", flag_value="dashboard.json", help="Print the dashboard for Grafana.")
@click.option("--rules", "what", flag_value="rules.yml", help="Print the alerting rules for Prometheus.")
@store_option
@json_option
def metrics(serve_at: tuple[str, int] | None, what: str | None, store_url: str, as_json: bool) -> None:
    """Print the health of the record in the text format of Prometheus.

    It only reads. For the textfile collector of node_exporter: everstep metrics > FILE.prom. What a worker measures
    besides, it serves itself: everstep worker --metrics 9464. What is counted stands in docs/metrics.md, and from which
    values on `everstep doctor` gives advice in docs/health.md.
    """
    if what is not None:
        from importlib.resources import files

        click.echo((files("everstep.observability") / "dashboards" / what).read_text(), nl=False)
        return
    from dataclasses import asdict

    from everstep.checkpoints import health
    from everstep.checkpoints.metrics import exposition

    with opened(store_url) as store:
        if serve_at is not None:
            _serve(store, serve_at)
            return
        found = health.examine(store)
    if as_json:
        print_json(_plain(asdict(found)))
    else:
        click.echo(exposition(found), nl=False)


def _plain(value: Any) -> Any:
    """As JSON has it: what two names tell apart is a table of tables."""
    if not isinstance(value, dict):
        return value
    plain: dict[str, Any] = {}
    for name, member in cast("dict[Any, Any]", value).items():
        if isinstance(name, tuple):
            outer, inner = cast("tuple[str, str]", name)
            plain.setdefault(outer, {})[inner] = member
        else:
            plain[name] = _plain(member)
    return plain


def _serve(store: Store, serve_at: tuple[str, int]) -> None:
    """Until SIGTERM or Ctrl-C."""
    import signal
    from threading import Event

    from everstep.observability import logs
    from everstep.runtime import measuring

    logs.configure(default_level="info")
    over = Event()

    def end(_number: int, _frame: object) -> None:
        over.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    measures = measuring.begin(store, serve=serve_at, measures=False)
    try:
        over.wait()
    finally:
        measures.close()
