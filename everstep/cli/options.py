"""Options that many commands share, and how a command opens the record."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from everstep.errors import PayloadInvalid

if TYPE_CHECKING:
    from everstep.checkpoints.store import Store

DEFAULT_STORE = "sqlite:///everstep.db"
DEFAULT_CONFIG = "langgraph.json"

store_option = click.option(
    "--store",
    "store_url",
    metavar="URL",
    envvar="EVERSTEP_STORE",
    default=DEFAULT_STORE,
    show_default=True,
    show_envvar=True,
    help="The record: sqlite:///FILE.",
)
config_option = click.option(
    "--config",
    "config_path",
    metavar="FILE",
    envvar="EVERSTEP_CONFIG",
    type=click.Path(path_type=Path),
    default=DEFAULT_CONFIG,
    show_default=True,
    show_envvar=True,
    help="Where the graphs are named.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Write JSON to stdout.")


@contextmanager
def opened(store_url: str) -> Generator[Store]:
    """The record, opened for one command."""
    from everstep.checkpoints.store import Store

    with Store.open(store_url) as store:
        yield store


def parse_json(text: str, what: str) -> Any:
    """Strict JSON (RFC 8259, and no duplicate names or NaN: one text has one meaning).

    Raises:
        PayloadInvalid: It is not; the error names the place.
    """

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in items]
        for name in names:
            if names.count(name) > 1:
                raise PayloadInvalid(f"{what} names {name!r} twice in one object", next_step="keep one of them")
        return dict(items)

    def constant(name: str) -> Any:
        raise PayloadInvalid(f"{what} holds {name}, which JSON does not have", next_step="use null or a string")

    try:
        return json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except json.JSONDecodeError as error:
        line = text.splitlines()[error.lineno - 1] if text.strip() else ""
        raise PayloadInvalid(
            f"{what} is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}: {line[:80]!r}",
            next_step="strings and names need double quotes; in a shell put single quotes around the whole",
        ) from error


def read_input(given: str) -> Any:
    """The value of `--input`: JSON text, a file of it, or `-` for standard input.

    Raises:
        PayloadInvalid: It is none of these.
    """
    if given == "-":
        return parse_json(sys.stdin.read(), "standard input")
    looks_like_json = given.lstrip()[:1] in ("{", "[", '"')
    if not looks_like_json and _is_file(given):
        try:
            return parse_json(Path(given).read_text(encoding="utf-8"), f"the file {given}")
        except UnicodeDecodeError as error:
            raise PayloadInvalid(f"the file {given} is not UTF-8 text", next_step="save it as UTF-8") from error
    if not looks_like_json and given.endswith(".json"):
        raise PayloadInvalid(f"no such file: {given}", next_step="give an existing file, or JSON text")
    return parse_json(given, "--input")


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except (OSError, ValueError):
        return False
