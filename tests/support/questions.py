"""A node that asks, and the question that is open."""

from __future__ import annotations

from typing import Any

from langgraph.types import interrupt

from everstep.checkpoints.reviews import Review
from everstep.checkpoints.store import Store
from tests.support.jobs import Log


def ask(*questions: Any) -> Any:
    """A node that asks one thing after another."""

    def node(_state: Log) -> Log:
        return {"log": [interrupt(question) for question in questions]}

    return node


def asked(store: Store) -> Review:
    """The one open review."""
    (review,) = store.reviews()
    return review
