"""What all tables of the record share."""

from __future__ import annotations

from sqlalchemy import MetaData

metadata = MetaData()


def one_of(column: str, values: tuple[str, ...]) -> str:
    """The condition that a column holds one of some words."""
    return f"{column} IN ({', '.join(repr(value) for value in values)})"
