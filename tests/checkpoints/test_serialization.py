"""What LangGraph's serialisation cannot store, or changes quietly, is named by its path."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from pydantic import BaseModel

from everstep.checkpoints.serialization import MAX_REPORTED, changes, is_exact, refuse

SERDE = JsonPlusSerializer()


@dataclasses.dataclass
class Order:
    kind: Any
    number: int = 0


class Item(BaseModel):
    name: str
    extra: Any = None


class Outer:
    class Inner(Enum):
        """An enumeration inside a class, which LangGraph does not find again."""

        A = "a"


EXACT: list[Any] = [
    None, True, 0, -5, 1.5, float("inf"), "", "text", "é漢🎉", [], {}, [1, [2, {"a": None}]], {"a": {"b": [1]}},
]  # fmt: skip
KEPT: list[Any] = [
    Order("a"), Item(name="x"), AIMessage("hello"), datetime(2027, 1, 2, tzinfo=UTC), UUID(int=5), Decimal("1.5"),
    b"bytes", {1, 2}, Path("a/b"),
]  # fmt: skip
CHANGED: list[tuple[Any, str, str]] = [
    ((1, 2), "$.x", "tuple comes back as list"),
    ([{"a": (1,)}], "$.x[0].a", "tuple comes back as list"),
    ({"a b": Outer.Inner.A}, "$.x['a b']", "comes back as str"),
    ("\ud800", "$.x", "surrogate"),
    (Order(kind=Outer.Inner.A), "$.x.kind", "comes back as str"),
]


@pytest.mark.parametrize("value", EXACT, ids=repr)
def test_plain_data_needs_no_look(value: Any) -> None:
    """Plain JSON is known to come back as it is, and does."""
    assert is_exact(value)
    assert changes(SERDE, "x", value) == []
    assert SERDE.loads_typed(SERDE.dumps_typed(value)) == value


@pytest.mark.parametrize("value", KEPT, ids=repr)
def test_what_comes_back_as_it_is_is_not_reported(value: Any) -> None:
    """Types that LangGraph keeps are looked at and found unchanged."""
    assert not is_exact(value)
    assert changes(SERDE, "x", value) == []


@pytest.mark.parametrize(("value", "path", "what"), CHANGED, ids=lambda given: ascii(given)[:30])
def test_what_would_come_back_changed_is_named(value: Any, path: str, what: str) -> None:
    """A value that comes back as another type or text is reported with its place in the state."""
    assert not is_exact(value)
    (line,) = changes(SERDE, "x", value)
    assert line.startswith(f"{path}: ")
    assert what in line


def test_a_report_is_bounded() -> None:
    """A list of thousands of tuples gives a few lines, not thousands."""
    assert len(changes(SERDE, "x", [(n,) for n in range(5000)])) == MAX_REPORTED


def deep(levels: int) -> Any:
    """A list in a list in a list."""
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


def test_depth_is_bounded() -> None:
    """A value nested without end is neither called exact nor looked into for ever."""
    assert not is_exact(deep(500))
    own: list[Any] = []
    own.append(own)
    assert not is_exact(own)


@pytest.mark.parametrize(
    ("value", "path", "what"),
    [
        (object(), "$.x", "is a object"),
        ({"a": [1, {"b c": object()}]}, "$.x.a[1]['b c']", "is a object"),
        (Order(kind=[object()]), "$.x.kind[0]", "is a object"),
        (Item(name="x", extra={"deep": object()}), "$.x.extra.deep", "is a object"),
        ([2**64], "$.x[0]", "beyond 64 bits"),
        ([-(2**63) - 1], "$.x[0]", "beyond 64 bits"),
        ({"good": 1, "bad": lambda: 1}, "$.x.bad", "is a function"),
    ],
)
def test_what_cannot_be_stored_is_blamed_at_its_innermost_place(value: Any, path: str, what: str) -> None:
    """The error names the innermost part that cannot be stored, its type, and what to do instead."""
    with pytest.raises(Exception) as cause:
        SERDE.dumps_typed(value)
    error = refuse(SERDE, "x", value, cause.value if isinstance(cause.value, Exception) else Exception())
    assert error.message.startswith(f"{path} ")
    assert what in error.message
    assert error.ids["path"] == path
    assert error.next_step
