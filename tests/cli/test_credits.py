"""`everstep credits`: granting, and what became of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from everstep.checkpoints.store import Store
from tests.cli.folder import Folder, is_refused
from tests.support.paid import FAILED, create, submitted, tell

GRANT = ("credits", "grant", "ada", "25.00", "EUR", "--reason", "top-up", "--key", "invoice-1")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A folder without a record."""
    return Folder(tmp_path)


def test_credit_is_granted_once_for_each_key(folder: Folder) -> None:
    """The command may be repeated when its answer was lost; it makes the record."""
    first, again = (folder.run(*GRANT, "--json").value for _ in range(2))
    assert (first["granted"], again["granted"]) == (True, False)
    assert first["entry"] == again["entry"]
    assert first["entry"]["amount"] == "25.00"
    assert again["balance"] == "25.00"
    assert folder.run(*GRANT).out.endswith("ada has 25.00 EUR\n")
    assert folder.run("credits", "balance", "--json").value == [
        {"owner": "ada", "currency": "EUR", "balance": "25.00"},
    ]


def test_what_became_of_credit_is_listed(folder: Folder) -> None:
    """Newest first, each with what it was for; also for one task, or in another number of decimals."""
    folder.run(*GRANT)
    with Store.open(f"sqlite:///{folder.path}/everstep.db") as store:
        task = tell(store, submitted(store), FAILED).task
        create(store, submission_key="dog")
    listed = folder.run("credits", "entries", "ada", "--json").value
    assert [(one["kind"], one["amount"]) for one in listed] == [
        ("charge", "-2.00"),
        ("refund", "2.00"),
        ("charge", "-2.00"),
        ("grant", "25.00"),
    ]
    of_task = folder.run("credits", "entries", "--task", task.public_id, "--decimals", "0", "--json").value
    assert [one["amount"] for one in of_task] == ["200", "-200"]
    shown = folder.run("credits", "entries", "--limit", "1").out
    assert "charge" in shown
    assert "-2.00 EUR" in shown
    assert len(shown.splitlines()) == 1
    assert folder.run("credits", "balance", "ada").out == "ada  23.00 EUR\n"


@pytest.mark.parametrize(
    ("amount", "decimals", "told"),
    [("25", "2", "25.00"), ("0.5", "3", "0.500"), ("1.10", "1", "1.1"), ("7", "0", "7"), ("0.00000001", "8", None)],
)
def test_amounts_are_exact(folder: Folder, amount: str, decimals: str, told: str | None) -> None:
    """No float comes near them."""
    given = ("ada", amount, "COINS", "--reason", "x", "--key", "k", "--decimals", decimals)
    entry = folder.run("credits", "grant", *given, "--json").value["entry"]
    assert entry["amount"] == (told or amount)


@pytest.mark.parametrize("amount", ["0", "0.001", "1e3", "nan", "1,5", "½", "٣", "", "9" * 16, "9" * 40])
def test_what_is_no_amount_is_refused(folder: Folder, amount: str) -> None:
    """With exit code 64, and nothing is granted."""
    ran = folder.run("credits", "grant", "ada", amount, "EUR", "--reason", "x", "--key", "k")
    is_refused(ran, 64, "credit_invalid")


NO_GRANTS = [
    ({"reason": ""}, "credit_invalid", "reason"),
    ({"reason": " "}, "credit_invalid", "reason"),
    ({"reason": f"paid with sk-proj-{'a1B2' * 12}"}, "secret_in_payload", "reason"),
    ({"key": f"sk-proj-{'a1B2' * 12}"}, "secret_in_payload", "key"),
    ({"owner": "a\tb"}, "credit_invalid", "cannot be printed"),
    ({"owner": "\x1b[31m"}, "credit_invalid", "cannot be printed"),
    ({"owner": "a" * 201}, "credit_invalid", "200 are the most"),
    ({"owner": " "}, "credit_invalid", "is empty"),
    ({"amount": "-5"}, "credit_invalid", "-5 is no amount to grant: it is below zero"),
    ({"amount": "-0.50"}, "credit_invalid", "below zero"),
]


@pytest.mark.parametrize(("change", "code", "told"), NO_GRANTS, ids=range(len(NO_GRANTS)))
def test_what_is_no_grant_is_refused(folder: Folder, change: dict[str, str], code: str, told: str) -> None:
    """The error says which part is none; no record is made, and no credential is repeated."""
    grant = {"owner": "ada", "amount": "5", "reason": "x", "key": "k", **change}
    given = (grant["owner"], grant["amount"], "EUR", "--reason", grant["reason"], "--key", grant["key"])
    ran = folder.run("credits", "grant", *given)
    is_refused(ran, 64, code)
    assert told in ran.err
    assert "sk-proj-a1B2" not in ran.err
    assert not (folder.path / "everstep.db").exists()


def test_a_key_may_begin_with_a_dash(folder: Folder) -> None:
    """Only an amount below zero is none."""
    assert folder.run("credits", "grant", "ada", "5", "EUR", "--reason", "-5", "--key", "-1").code == 0


def test_a_key_of_another_grant_is_refused(folder: Folder) -> None:
    """With exit code 65."""
    folder.run(*GRANT)
    ran = folder.run("credits", "grant", "ada", "26", "EUR", "--reason", "x", "--key", "invoice-1")
    is_refused(ran, 65, "grant_conflict")


def test_looking_makes_no_record(folder: Folder) -> None:
    """An empty list would hide a misspelled --store."""
    for command in ("balance", "entries"):
        is_refused(folder.run("credits", command), 66, "store_not_found")


def test_an_owner_without_credit_has_none(folder: Folder) -> None:
    """Both forms say so, and exit 0."""
    folder.run(*GRANT)
    assert folder.run("credits", "balance", "bob", "--json").value == []
    ran = folder.run("credits", "balance", "bob")
    assert (ran.code, ran.out) == (0, "")
    assert "bob was never granted credit" in ran.err
