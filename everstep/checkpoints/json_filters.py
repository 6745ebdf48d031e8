"""Whether JSON in a column contains other JSON, as PostgreSQL's `@>` has it, on both databases.

An object contains another if it has each of its keys with a value that contains the other's; a list, if each of the
other's items is contained in one of its own; anything else, if it is equal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, cast

from sqlalchemy import Boolean, Column, ColumnElement, String, and_, case, exists, func, literal, literal_column
from sqlalchemy import cast as sql_cast
from sqlalchemy.dialects.postgresql import JSONB

from everstep.errors import RequestInvalid

MOST_PARTS, MOST_LEVELS = 100, 20
"""How large a filter may be: values and keys in all, and levels of nesting. Each is a look-up for each row."""
LARGEST_INTEGER = 2**63 - 1


def contains(column: ColumnElement[str], wanted: Mapping[str, Any], dialect: str) -> ColumnElement[bool]:
    """A condition: the object in a column of JSON text contains this one.

    Args:
        column: JSON objects as text.
        wanted: What must be in them.
        dialect: `sqlite` or `postgresql`.

    Raises:
        RequestInvalid: The filter is too large, or holds what no database can look for.
    """
    _check(wanted, MOST_LEVELS)
    if dialect == "postgresql":
        return sql_cast(column, JSONB).op("@>", return_type=Boolean())(sql_cast(literal(json.dumps(wanted)), JSONB))
    return _within(column, literal("object"), wanted, count())


def check_storable(value: Any, what: str) -> None:
    """Refuse JSON that PostgreSQL cannot look into, so that one such row does not spoil every search.

    Args:
        value: The value.
        what: Its name in messages.

    Raises:
        RequestInvalid: A text in it holds a NUL character or a lone surrogate, or a number is not finite.
    """
    text = check_json(value, what)
    if "\\u0000" in text.replace("\\\\", ""):
        raise RequestInvalid(f"{what} has a text with a NUL character", next_step="leave it out", field=what)


def check_json(value: Any, what: str) -> str:
    """Refuse what is no JSON on every database alike, or would come back as something else; its text otherwise.

    Args:
        value: The value.
        what: Its name in messages.

    Raises:
        RequestInvalid: A text in it holds a lone surrogate, or a number is not finite.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (ValueError, RecursionError) as error:
        raise RequestInvalid(f"{what} is no JSON that can be stored: {error}", field=what) from error
    return text


def storable(value: Any) -> Any:
    """JSON with what PostgreSQL cannot look into replaced in its texts: for values of graphs, which nobody refuses."""
    if isinstance(value, str):
        return value.replace("\0", "\ufffd").encode(errors="replace").decode()
    if isinstance(value, Mapping):
        items = cast("Mapping[str, Any]", value).items()
        return {storable(key): storable(item) for key, item in items}
    if isinstance(value, (list, tuple)):
        return [storable(item) for item in cast("Sequence[Any]", value)]
    return value


def storable_text(text: str) -> str:
    """As `storable`, for JSON text; most has nothing of the kind, and stays as it is."""
    return json.dumps(storable(json.loads(text))) if "\\u0000" in text or "\\ud" in text else text


def _check(wanted: Any, levels: int) -> int:
    """How many parts a filter has; refuses what is too much."""
    if isinstance(wanted, Mapping):
        inside: list[Any] = list(cast("Mapping[str, Any]", wanted).values())
    elif isinstance(wanted, list):
        inside = cast("list[Any]", wanted)
    else:
        if isinstance(wanted, int) and abs(wanted) > LARGEST_INTEGER:
            raise RequestInvalid(f"the filter holds a number that is too large: {wanted}")
        check_storable(wanted, "the filter")
        return 1
    if not levels:
        raise RequestInvalid(f"the filter is nested deeper than {MOST_LEVELS} levels")
    check_storable(list(cast("Mapping[str, Any]", wanted)) if isinstance(wanted, Mapping) else [], "the filter")
    parts = 1 + sum(_check(one, levels - 1) for one in inside)
    if parts > MOST_PARTS:
        raise RequestInvalid(f"the filter has more than {MOST_PARTS} parts")
    return parts


def _within(value: Any, kind: Any, wanted: Any, numbers: count[int]) -> ColumnElement[bool]:
    if isinstance(wanted, Mapping):
        members = cast("Mapping[str, Any]", wanted).items()
        inside = case((kind == "object", value), else_="{}")
        return and_(kind == "object", *(_member(inside, item, numbers, key) for key, item in members))
    if isinstance(wanted, list):
        items = cast("list[Any]", wanted)
        inside = case((kind == "array", value), else_="[]")
        return and_(kind == "array", *(_member(inside, item, numbers, None) for item in items))
    if wanted is None or isinstance(wanted, bool):
        return kind == {None: "null", True: "true", False: "false"}[wanted]
    if isinstance(wanted, str):
        return and_(kind == "text", value == literal(wanted))
    return and_(kind.in_(("integer", "real")), value == literal_column(repr(wanted)))


def _member(value: Any, wanted: Any, numbers: count[int], key: str | None) -> ColumnElement[bool]:
    """Some member of a list, or the one of an object with this key, contains what is wanted."""
    each = func.json_each(value).table_valued(
        Column("key", String), Column("value", String), Column("type", String), name=f"part{next(numbers)}"
    )
    found = _within(each.c.value, each.c.type, wanted, numbers)
    return exists().where(found if key is None else and_(each.c.key == literal(key), found)).correlate_except(each)
