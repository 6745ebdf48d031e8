"""Credit: given once for each key, never below zero, and always the sum of its entries."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import update

from everstep.checkpoints import ledger
from everstep.checkpoints.schema import credit_accounts
from everstep.checkpoints.schema import ledger as table
from everstep.checkpoints.store import Store
from everstep.errors import CreditInvalid, GrantConflict
from tests.support.paid import CURRENCY, FAILED, OWNER, balance, create, give, submitted, tell

pytestmark = pytest.mark.both_databases


def grant(store: Store, **different: Any) -> tuple[ledger.Entry, bool]:
    """Grant credit."""
    given: dict[str, Any] = {"reason": "a gift", "key": "start", "actor": "test", "now": 1, **different}
    owner, currency = given.pop("owner", OWNER), given.pop("currency", CURRENCY)
    return store.write(lambda c: ledger.grant(c, owner, currency, given.pop("amount", 100), **given)).result()


def test_a_grant_is_made_once_for_each_key(store: Store) -> None:
    """Whoever repeats it, after an answer was lost, gives nothing more; other owners have keys of their own."""
    first, made = give(store, 300)
    assert made
    assert (first.kind, first.amount, first.key, first.reason) == ("grant", 300, "start", "a gift")
    assert give(store, 300) == (first, False)
    assert balance(store) == 300
    assert give(store, 300, "another")[1]
    assert give(store, 300, owner="bob")[1]
    assert store.read(lambda c: ledger.balances(c)) == [(OWNER, "EUR", 600), ("bob", "EUR", 300)]
    assert store.read(lambda c: ledger.balances(c, "bob")) == [("bob", "EUR", 300)]


@pytest.mark.parametrize("other", [{"amount": 301}, {"currency": "USD"}])
def test_a_key_gives_one_amount(store: Store, other: dict[str, Any]) -> None:
    """The same key with another amount or currency is a mistake, and gives nothing."""
    give(store, 300)
    with pytest.raises(GrantConflict):
        grant(store, **{"amount": 300, **other})
    assert store.read(ledger.balances) == [(OWNER, "EUR", 300)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"amount": 0},
        {"amount": -5},
        {"amount": 2**53},
        {"currency": "eur"},
        {"currency": ""},
        {"currency": "E R"},
        {"owner": ""},
        {"key": ""},
    ],
)
def test_what_is_no_grant_is_refused(store: Store, wrong: dict[str, Any]) -> None:
    """Nothing is stored of it."""
    with pytest.raises(CreditInvalid):
        grant(store, **wrong)
    assert store.read(ledger.entries) == []


def test_a_balance_that_would_be_too_large_to_be_exact_is_refused(store: Store) -> None:
    """2^53 - 1 of the smallest unit are the most."""
    give(store, ledger.MOST)
    with pytest.raises(CreditInvalid):
        give(store, 1, "more")
    assert balance(store) == ledger.MOST
    assert store.read(ledger.mismatches) == []


def test_each_currency_is_an_account_of_its_own(store: Store) -> None:
    """Credit in one pays nothing in another."""
    grant(store, currency="USD", key="dollars")
    give(store, 300)
    assert store.read(lambda c: ledger.balance(c, OWNER, "USD")) == 100
    create(store, 200)
    assert store.read(lambda c: ledger.balances(c)) == [(OWNER, "EUR", 100), (OWNER, "USD", 100)]
    assert [entry.kind for entry in store.read(lambda c: ledger.entries(c, OWNER, currency="USD"))] == ["grant"]


def test_entries_tell_what_they_are_for(store: Store) -> None:
    """Newest first, page by page, each with its task, reason and actor."""
    give(store, 500)
    task = tell(store, submitted(store), FAILED).task
    refund, charge, grant = store.read(lambda c: ledger.entries(c, OWNER))
    assert [entry.kind for entry in (refund, charge, grant)] == ["refund", "charge", "grant"]
    assert (refund.task, charge.task, grant.task) == (task.public_id, task.public_id, None)
    assert refund.refund_of == charge.id
    assert store.read(lambda c: ledger.entries(c, OWNER, limit=1)) == [refund]
    assert store.read(lambda c: ledger.entries(c, OWNER, before=charge.id)) == [grant]
    assert store.read(lambda c: ledger.entries(c, "bob")) == []
    assert charge.view() == {
        "id": charge.public_id,
        "owner": OWNER,
        "kind": "charge",
        "amount": -200,
        "currency": "EUR",
        "task": task.public_id,
        "key": None,
        "reason": charge.reason,
        "actor": "test",
        "at": "2027-01-15T08:00:00.000Z",
    }


def test_what_does_not_add_up_is_found(store: Store) -> None:
    """A balance that somebody changed by hand."""
    give(store, 500)
    create(store, 200)
    assert store.read(ledger.mismatches) == []
    store.write(lambda c: c.execute(update(credit_accounts).values(balance=301))).result()
    assert store.read(ledger.mismatches) == [ledger.Mismatch(OWNER, "EUR", 301, 300)]


def test_the_database_itself_refuses_a_second_charge_or_refund(store: Store) -> None:
    """Whatever code would write it."""
    give(store, 500)
    task = tell(store, submitted(store), FAILED).task
    refund, charge, _ = store.read(lambda c: ledger.entries(c, OWNER))
    row = {"owner": OWNER, "currency": "EUR", "task_id": task.id, "reason": "x", "actor": "x", "at": 1}
    for public_id, wrong in (
        ("a", {"kind": "charge", "amount": -1}),
        ("b", {"kind": "refund", "amount": 1, "refund_of": charge.id}),
        ("c", {"kind": "refund", "amount": 1}),
        ("d", {"kind": "charge", "amount": 1}),
        ("e", {"kind": "grant", "amount": 1}),
    ):
        values = {**row, **wrong, "public_id": public_id}
        with pytest.raises(Exception, match=r"(?i)unique|check"):
            store.write(lambda c, values=values: c.execute(table.insert().values(**values))).result()
    assert [entry.id for entry in store.read(lambda c: ledger.entries(c, OWNER))][:2] == [refund.id, charge.id]
