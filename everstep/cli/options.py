"""Options that many commands share, and how a command opens the record."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from everstep.errors import PayloadInvalid
from everstep.observability import logs

if TYPE_CHECKING:
    from everstep.checkpoints.store import Store

DEFAULT_STORE = "sqlite:///everstep.db"
DEFAULT_CONFIG = "langgraph.json"
MAX_DIGITS = 1000  # Python refuses to read integers of more than 4300 digits
_BARE_VALUE = re.compile(r"-?[0-9][0-9.eE+-]*|null|true|false|NaN|-?Infinity")

store_option = click.option(
    "--store",
    "store_url",
    metavar="URL",
    envvar="EVERSTEP_STORE",
    default=DEFAULT_STORE,
    show_default=True,
    show_envvar=True,
    help="The record: sqlite:///FILE or postgresql://USER@HOST/DATABASE.",
)
config_option = click.option(
    "--config",
    "config_path",
    metavar="FILE",
    envvar="EVERSTEP_CONFIG",
    type=click.Path(path_type=Path, readable=False),
    default=DEFAULT_CONFIG,
    show_default=True,
    show_envvar=True,
    help="Where the graphs are named.",
)


def owner_option(told: str) -> Callable[..., Any]:
    """`--owner`, checked before anything is made.

    Args:
        told: What it says in the help.
    """

    def checked(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
        from everstep.checkpoints.owner import require_owner

        return require_owner(value)

    return click.option("--owner", default="default", show_default=True, callback=checked, help=told)


json_option = click.option("--json", "as_json", is_flag=True, help="Write JSON to stdout.")


def log_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--log-format` and `--log-level`, of a command that runs long."""
    style = click.option(
        "--log-format",
        type=click.Choice(logs.FORMATS),
        envvar=logs.FORMAT_VARIABLE,
        show_envvar=True,
        help="How the log on stderr looks: lines for people (the default), or one JSON object a line.",
    )
    level = click.option(
        "--log-level",
        type=click.Choice(logs.LEVELS),
        envvar=logs.LEVEL_VARIABLE,
        show_envvar=True,
        help="The least level that is logged; info when omitted.",
    )
    return style(level(command))


@contextmanager
def opened(store_url: str, *, create: bool = False) -> Generator[Store]:
    """The record, opened for one command. What the database says while it is used is an error of the catalogue.

    Args:
        store_url: Where it is.
        create: Whether to make one where there is none; what only looks or answers must not, or a misspelled `--store`
            would look like an empty record.
    """
    from everstep.checkpoints.store import Store

    with Store.open(store_url, create=create) as store:
        try:
            yield store
        except store.database.own_errors() as error:
            raise store.database.translate(error) from error


def parse_json(text: str, what: str) -> Any:
    """Strict JSON (RFC 8259, no duplicate names, nothing without an exact form: one text has one meaning).

    Raises:
        PayloadInvalid: It is not; the error names the place.
    """
    from everstep.checkpoints.canonical import canonical_json
    from everstep.checkpoints.strict_json import DuplicateName, object_of

    def constant(name: str) -> Any:
        raise PayloadInvalid(f"{what} holds {name}, which JSON does not have", next_step="use null or a string")

    def integer(digits: str) -> int:
        if len(digits) > MAX_DIGITS:
            raise PayloadInvalid(f"{what} holds a number of {len(digits)} digits", next_step="write it as a string")
        return int(digits)

    if not text.strip():
        raise PayloadInvalid(f"{what} is empty", next_step="give a JSON value, such as {}")
    try:
        value = json.loads(text, object_pairs_hook=object_of, parse_constant=constant, parse_int=integer)
    except DuplicateName as twice:
        problem = f"{what} names {twice.name!r} twice in one object"
        raise PayloadInvalid(problem, next_step="keep one of them") from twice
    except json.JSONDecodeError as error:
        raise PayloadInvalid(
            f"{what} is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}: {_near(error)!r}",
            next_step="strings and names need double quotes; in a shell put single quotes around the whole",
        ) from error
    except RecursionError as error:
        raise PayloadInvalid(f"{what} is nested too deeply", next_step="flatten it") from error
    canonical_json(value)
    return value


def _near(error: json.JSONDecodeError) -> str:
    """The part of the line in which a mistake was found, up to a little behind it."""
    lines = error.doc.split("\n")
    start = max(error.colno - 60, 0)
    return lines[error.lineno - 1][start : error.colno + 20]


def read_input(given: str, option: str = "--input") -> Any:
    """The value of an option: JSON text, a file of it, or `-` for standard input.

    Args:
        given: The value.
        option: The option, as errors call it.

    Raises:
        PayloadInvalid: It is none of these.
    """
    if given == "-":
        return parse_json(_decoded(sys.stdin.buffer.read(), "standard input"), "standard input")
    if not given.strip() or given.lstrip()[0] in '{["':
        return parse_json(given, option)
    try:
        content = Path(given).read_bytes()
    except (OSError, ValueError) as error:
        if _BARE_VALUE.fullmatch(given.strip()):
            return parse_json(given, option)
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise PayloadInvalid(
            f"{option} is neither JSON nor a file that can be read: {given[:80]!r} ({reason})",
            next_step="give JSON text in single quotes, the name of a file, or - for standard input",
        ) from error
    return parse_json(_decoded(content, f"the file {given}"), f"the file {given}")


def _decoded(content: bytes, what: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PayloadInvalid(f"{what} is not UTF-8 text", next_step="save it as UTF-8") from error
