"""Filters on JSON columns mean the same on both databases: PostgreSQL's containment."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from sqlalchemy import Connection, column, literal, select
from sqlalchemy.sql import Select

from everstep.checkpoints.json_filters import MOST_PARTS, check_storable, contains, storable, storable_text
from everstep.checkpoints.store import Store
from everstep.errors import RequestInvalid

TEXTS = some.text(some.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=3) | some.sampled_from(
    ["a", "b", 'q"', "$.a", "%", "'", "{}", "[1]", "null"]
)
LEAVES = some.none() | some.booleans() | some.integers(-3, 3) | some.sampled_from([0.5, -1.0, 1e300, 2**53]) | TEXTS


def nested(leaves: some.SearchStrategy[Any]) -> some.SearchStrategy[Any]:
    """JSON of few levels."""
    return some.recursive(
        leaves, lambda below: some.lists(below, max_size=3) | some.dictionaries(TEXTS, below, max_size=3), max_leaves=6
    )


OBJECTS = some.dictionaries(TEXTS, nested(LEAVES), max_size=3)


def holds(value: Any, wanted: Any) -> bool:
    """What containment means, by itself."""
    if isinstance(wanted, dict):
        return isinstance(value, dict) and all(key in value and holds(value[key], one) for key, one in wanted.items())
    if isinstance(wanted, list):
        return isinstance(value, list) and all(any(holds(item, one) for item in value) for one in wanted)
    return (type(value) is type(wanted) and value == wanted) or (_number(value) and _number(wanted) and value == wanted)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def found(connection: Connection, value: Any, wanted: dict[str, Any]) -> bool:
    """Whether the database finds the value by the filter."""
    row: Select[Any] = select(literal(json.dumps(value)).label("document"))
    rows = row.subquery()
    query = select(rows.c.document).where(contains(rows.c.document, wanted, connection.dialect.name))
    return connection.execute(query).first() is not None


@some.composite
def part_of(draw: some.DrawFn, value: Any) -> Any:
    """Something that a value contains, most of the time."""
    if isinstance(value, dict) and value:
        return {
            key: draw(part_of(value[key])) for key in draw(some.lists(some.sampled_from(sorted(value)), unique=True))
        }
    if isinstance(value, list) and value:
        return [draw(part_of(one)) for one in draw(some.lists(some.sampled_from(value), max_size=3))]
    return value


@pytest.mark.both_databases
@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=some.data(), value=OBJECTS, other=OBJECTS)
def test_a_filter_finds_what_contains_it(store: Store, data: some.DataObject, value: Any, other: Any) -> None:
    """Whatever the value and whatever is looked for, the database answers as the definition does."""
    wanted = data.draw(part_of(value))
    assert holds(value, wanted)
    for one in (wanted, other):
        assert store.read(lambda connection, one=one: found(connection, value, one)) is holds(value, one)


@pytest.mark.parametrize(
    "wanted",
    [
        {"a": list(range(MOST_PARTS))},
        {"a": 2**70},
        {"a": float("nan")},
        {"a\0": 1},
        {"a": ["\ud800"]},
        json.loads('{"a":' * 30 + "1" + "}" * 30),
    ],
)
def test_filters_that_cost_too_much_or_mean_nothing_are_refused(wanted: Any) -> None:
    """Too many parts or levels, numbers no database has, texts no database can look into."""
    with pytest.raises(RequestInvalid):
        contains(column("document"), wanted, "sqlite")


def test_what_graphs_leave_is_made_storable() -> None:
    """A NUL character or lone surrogate of a graph's value is replaced; text with none is left as it is."""
    assert storable({"a\0": ["x\ud800y", 1]}) == {"a\ufffd": ["x?y", 1]}
    text = json.dumps({"a": "ok \\u0000"})
    assert json.loads(storable_text(text)) == {"a": "ok \\u0000"}
    check_storable(json.loads(storable_text(json.dumps({"a": "\0"}))), "it")
    assert storable_text('{"a":  1}') == '{"a":  1}'
