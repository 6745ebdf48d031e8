"""Effects that a person must approve: asked with their exact arguments, called once for each yes."""

from __future__ import annotations

import asyncio
import json
from decimal import Decimal
from typing import Any

import pytest

from everstep import ApprovalRejected, EffectRejected, effect
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.reviews import Review
from everstep.checkpoints.store import Store
from tests.support.jobs import Log, beside, chain, result, run, work

pytestmark = pytest.mark.both_databases


def paying(world: list[Any], **options: Any) -> Any:
    """An effect that needs an approval."""

    @effect("payment.send", approval=lambda to, amount: f"Pay {amount} to {to}?", **options)
    def pay(to: str, amount: int) -> str:
        world.append((to, amount))
        return f"paid {amount} to {to}"

    return pay


def asked(store: Store) -> Review:
    """The one open question."""
    (review,) = store.reviews()
    return review


def test_nothing_is_called_before_the_yes_and_it_is_called_once_after_it(store: Store, world: list[Any]) -> None:
    """The question holds the exact arguments; the yes lets the effect happen once, also when the node runs again."""
    pay = paying(world)
    graph = chain(lambda _s: {"log": [pay("ann", 7), pay("bob", 8)]})
    job = run(store, graph)
    assert (job.status, world) == ("review", [])
    value = asked(store).value
    assert value["action_requests"] == [
        {"name": "payment.send", "args": {"to": "ann", "amount": 7}, "description": "Pay 7 to ann?"}
    ]
    store.answer(asked(store).public_id, "approve")
    work(store, graph)
    assert world == [("ann", 7)]
    assert "note" not in asked(store).value
    store.answer(asked(store).public_id, "approve")
    work(store, graph)
    assert world == [("ann", 7), ("bob", 8)]
    assert result(store, job) == ["paid 7 to ann", "paid 8 to bob"]
