"""`everstep metrics`: the health of the record as numbers, for a monitor."""

from __future__ import annotations

import click

from everstep.cli.options import json_option, opened, store_option
from everstep.cli.views import print_json


@click.command()
@store_option
@json_option
def metrics(store_url: str, as_json: bool) -> None:
    """Print the health of the record in the text format of Prometheus.

    It only reads. For the textfile collector of node_exporter: everstep metrics > FILE.prom. What is counted, and from
    which values on `everstep doctor` gives advice, stands in docs/health.md.
    """
    from dataclasses import asdict

    from everstep.checkpoints import health
    from everstep.checkpoints.metrics import exposition

    with opened(store_url) as store:
        found = health.examine(store)
    if as_json:
        print_json(asdict(found))
    else:
        click.echo(exposition(found), nl=False)
