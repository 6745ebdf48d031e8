"""`everstep backup`: a consistent copy of a record that is in use."""

from __future__ import annotations

import time
from pathlib import Path

import click

from everstep.cli.options import json_option, opened, store_option
from everstep.cli.views import print_json


@click.command()
@click.argument("target", metavar="FILE", type=click.Path(path_type=Path, readable=False))
@store_option
@json_option
def backup(target: Path, store_url: str, as_json: bool) -> None:
    """Copy the record into FILE, as it is at one moment, while workers go on.

    FILE must not exist. It is complete and checked when it appears; use it as a record of its own with
    --store sqlite:///FILE. Jobs that ran at that moment are taken up again there when their leases end: do not work on
    both, or what they do outside is done twice.
    """
    began = time.monotonic()
    with opened(store_url) as store:
        store.backup(target)
    size = target.stat().st_size
    if as_json:
        print_json({"file": str(target.absolute()), "bytes": size})
    else:
        took = time.monotonic() - began
        click.echo(f"{target}: {size / 1e6:.1f} MB in {took:.1f} s, checked", err=True)
