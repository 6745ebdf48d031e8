"""Statements that are built once: the constants they are built with."""

from __future__ import annotations

import pytest
from sqlalchemy import literal, select

from everstep.checkpoints.statements import Statement
from everstep.checkpoints.store import Store


@pytest.mark.both_databases
@pytest.mark.parametrize("text", ["plain", "it's", "50%", "50%%", "%s", ":name", "\\", "grüße"])
def test_a_constant_is_what_it_was_built_with(shared: Store, text: str) -> None:
    """Whatever sign is in it, as the text of a statement or as its parameter."""
    constant = Statement(select(literal(text), literal(7)))
    assert shared.write(lambda connection: constant.run(connection).fetchall()).result() == [(text, 7)]
