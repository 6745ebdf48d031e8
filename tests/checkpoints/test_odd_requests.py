"""Requests that only look like Agent Inbox's or the middleware's are answered like any other value."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from everstep.checkpoints.answers import choices, resume_value
from everstep.checkpoints.store import Store
from everstep.errors import StoreCorrupt

pytestmark = pytest.mark.both_databases


@pytest.mark.parametrize(
    "value",
    [
        {"action_requests": None},
        {"action_requests": []},
        {"action_requests": ["x"]},
        {"action_requests": [{"name": "a"}], "review_configs": "x"},
        {"action_requests": [{"name": "a"}], "review_configs": [{"action_name": ["a"]}]},
        {"action_requests": [{"name": "a"}], "review_configs": [{"allowed_decisions": [1]}]},
        {"action_request": 5, "config": "x"},
        [{"action_request": {}, "config": "x"}],
        ["x"],
        None,
    ],
)
def test_an_odd_request_is_answered_as_a_plain_value(value: Any) -> None:
    """Its choices are told, and the given value is what the graph gets."""
    assert set(choices("interrupt", value)) == {"approve", "edit", "respond", "reject"}
    assert resume_value(value, "respond", {"anything": 1}, None) == {"anything": 1}


def test_decisions_nobody_knows_leave_all_open() -> None:
    """A configuration that allows only unknown types of decision does not leave a review without an answer."""
    request = {
        "action_requests": [{"name": "a", "args": {}}],
        "review_configs": [{"action_name": "a", "allowed_decisions": ["maybe"]}],
    }
    assert "approve" in choices("interrupt", request)


@pytest.mark.parametrize("table", ["reviews", "agent_jobs"])
def test_a_database_of_another_program_is_left_as_it_is(tmp_path: Path, table: str) -> None:
    """A file with tables of our names that we did not make is refused, and nothing is added to it."""
    file = tmp_path / "other.db"
    with sqlite3.connect(file) as connection:
        connection.execute(f"CREATE TABLE {table} (id INTEGER)")
    with pytest.raises(StoreCorrupt, match=table):
        Store.open(f"sqlite:///{file}")
    with sqlite3.connect(file) as connection:
        assert [row[0] for row in connection.execute("SELECT name FROM sqlite_schema")] == [table]
