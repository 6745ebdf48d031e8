"""Where metrics are served, as it is given on the command line: `PORT`, `HOST:PORT`, `[IPV6]:PORT`."""

from __future__ import annotations

import re
from typing import Any, Final

import click

METRICS_VARIABLE: Final = "EVERSTEP_METRICS"
LOOPBACK: Final = "127.0.0.1"
_FORM = re.compile(r"(?:(?P<host>[^\s:\[\]]*|\[[0-9a-fA-F:.%]+\]):)?(?P<port>[0-9]{1,5})")


class Address(click.ParamType[tuple[str, int]]):
    """A host and a port; without a host this machine alone."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value  # pyright: ignore[reportUnknownVariableType]
        found = _FORM.fullmatch(str(value).strip())
        if found is None or int(found["port"]) > 65535:
            self.fail(f"{value!r} is no address; give PORT or HOST:PORT, such as 9464 or 0.0.0.0:9464", param, ctx)
        return (found["host"] or LOOPBACK).strip("[]"), int(found["port"])
