"""An effect that a person must approve, the answer, and what it was used for."""

from __future__ import annotations

from typing import Any

from everstep import effect
from everstep.checkpoints import approvals
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.store import Store
from tests.support.questions import asked


def paying(world: list[Any], **options: Any) -> Any:
    """An effect that needs an approval."""

    @effect("payment.send", approval=lambda to, amount: f"Pay {amount} to {to}?", **options)
    def pay(to: str, amount: int) -> str:
        world.append((to, amount))
        return f"paid {amount} to {to}"

    return pay


def say(store: Store, decision: str, **more: Any) -> None:
    """Answer the one open question."""
    store.answer(asked(store).public_id, decision, **more)


def uses(store: Store, job: Job) -> list[tuple[str, str]]:
    """What the job's approvals are used for: the effect and the state, oldest first."""
    rows = [row.id for row in store.reviews(job)]
    found = store.read(lambda connection: approvals.uses(connection, rows))
    return [(found[row].action, found[row].state) for row in rows if row in found]
