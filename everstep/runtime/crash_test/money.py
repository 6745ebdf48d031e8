"""Money in a crash test: each run's record begins with plenty of credit, and what was paid is compared at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

from everstep.checkpoints import ledger, provider_task
from everstep.checkpoints.store import Store

PLENTY = 10**12
"""Of the smallest unit."""
OWNER = "default"

Paid = dict[str, int]
"""What was paid in each currency, and how many tasks there are at each provider, by state."""


def give(store: Store, currencies: Sequence[str]) -> None:
    """Give the job's owner plenty.

    Raises:
        CreditInvalid: One is no currency.
    """
    for currency in currencies:
        grant = partial(ledger.grant, owner=OWNER, currency=currency, amount=PLENTY, reason="crash test", key=currency)
        store.write(partial(grant, actor="crash-test", now=store.clock.now_ms())).result()


def paid(store: Store, currencies: Sequence[str]) -> Paid:
    """What was paid, and what for."""
    left = {one: store.read(partial(ledger.balance, owner=OWNER, currency=one)) for one in currencies}
    tasks = Counter(f"{task.state} tasks at {task.provider}" for task in store.read(provider_task.listed))
    return {**{f"{currency} (smallest units)": PLENTY - has for currency, has in left.items()}, **tasks}


def differences(before: Paid, now: Paid) -> list[str]:
    """What was paid otherwise than in the uninterrupted run, in words."""
    names = sorted(before.keys() | now.keys())
    return [
        f"paid: {now.get(name, 0)} {name} instead of {before.get(name, 0)}"
        for name in names
        if before.get(name, 0) != now.get(name, 0)
    ]
