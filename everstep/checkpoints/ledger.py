"""The ledger of credit: what owners were granted, what each task cost them, and what they were given back.

Entries are only ever added; amounts are integers in the currency's smallest unit, seen from the owner's account. A task
is charged once at most, and its charge refunded once at most: unique keys decide. An account's balance changes in the
transaction that writes the entry, never goes below zero, and is the sum of its entries at every commit.

On PostgreSQL the account's row is locked after the task's, by everyone, so that nobody waits in a circle.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, and_, func, select, update

from everstep.checkpoints.database import insert_or_ignore
from everstep.checkpoints.owner import LONGEST, problem_of
from everstep.checkpoints.payload import holds_secret
from everstep.checkpoints.quote import money
from everstep.checkpoints.schema import credit_accounts as accounts
from everstep.checkpoints.schema import ledger as table
from everstep.checkpoints.schema import provider_tasks
from everstep.clock import rfc3339, uuid7
from everstep.errors import CreditInvalid, GrantConflict, InsufficientCredit, SecretInPayload

if TYPE_CHECKING:
    from everstep.checkpoints.provider_task import ProviderTask

CURRENCY: Final = re.compile(r"[A-Z][A-Z0-9_]{0,15}")
"""`EUR`, or a unit of one's own such as `CREDITS`."""
MOST_CHARACTERS: Final = 1000
"""Of a grant's reason, and of its key."""
MOST: Final = 2**53 - 1
"""The largest balance, and the largest amount: what every reader of JSON keeps exactly."""


@dataclass(frozen=True)
class Entry:
    """A row of the ledger.

    Attributes:
        kind: `grant`, `charge` or `refund`.
        amount: In the currency's smallest unit: below zero what was taken, above zero what was given.
        task: Public id of the task it is for; None for a grant.
        key: What makes a grant happen once.
        at: UTC milliseconds.
    """

    id: int
    public_id: str
    owner: str
    currency: str
    kind: str
    amount: int
    task: str | None
    refund_of: int | None
    key: str | None
    reason: str
    actor: str
    at: int

    def view(self) -> dict[str, Any]:
        """The entry as JSON data."""
        return {
            "id": self.public_id,
            "owner": self.owner,
            "kind": self.kind,
            "amount": self.amount,
            "currency": self.currency,
            "task": self.task,
            "key": self.key,
            "reason": self.reason,
            "actor": self.actor,
            "at": rfc3339(self.at),
        }


_ENTRY = ("id", "public_id", "owner", "currency", "kind", "amount", "refund_of", "key", "reason", "actor", "at")
_WITH_TASK = select(*(table.c[name] for name in _ENTRY), provider_tasks.c.public_id.label("task")).outerjoin(
    provider_tasks, provider_tasks.c.id == table.c.task_id
)


@dataclass(frozen=True)
class Mismatch:
    """An account whose balance is not the sum of its entries, or is below zero."""

    owner: str
    currency: str
    balance: int
    entries: int


# ---- writing


def grant(
    connection: Connection, owner: str, currency: str, amount: int, *, reason: str, key: str, actor: str, now: int
) -> tuple[Entry, bool]:
    """Give an owner credit, once for each key.

    Args:
        connection: The write transaction.
        owner: Whose.
        currency: Such as `EUR`, in capital letters.
        amount: In the currency's smallest unit, above zero.
        reason: Why, for people.
        key: The same key again gives nothing more.
        actor: Who gives it.
        now: UTC milliseconds.

    Returns:
        The entry of this key, and whether it was made now.

    Raises:
        CreditInvalid, SecretInPayload: As of `require_grant`; or the balance would be too large.
        GrantConflict: The key belongs to a grant of another amount or currency.
    """
    require_grant(owner, currency, amount, reason=reason, key=key)
    row = {"owner": owner, "currency": currency, "kind": "grant", "amount": amount, "key": key}
    made = _enter(connection, row, reason=reason, actor=actor, now=now)
    entry = _one(connection, and_(table.c.owner == owner, table.c.key == key))
    if not made and (entry.amount, entry.currency) != (amount, currency):
        raise GrantConflict(
            f"the key {key!r} belongs to a grant of {entry.amount} {entry.currency}, not {amount} {currency}",
            next_step="give another grant a key of its own",
            entry=entry.public_id,
        )
    if made:
        _account(connection, owner, currency, now)
        if not _add(connection, owner, currency, amount, now, accounts.c.balance <= MOST - amount):
            raise CreditInvalid(
                "the balance would be too large to be kept exactly", next_step="grant less", owner=owner
            )
    return entry, made


def require_grant(owner: str, currency: str, amount: int, *, reason: str, key: str) -> None:
    """Refuse a grant that can be none, before there is a record; arguments as of `grant`.

    Raises:
        CreditInvalid: The amount, currency, owner, reason or key is none.
        SecretInPayload: The reason or the key seems to hold a credential; they are kept for ever.
    """
    require_currency(currency)
    if not 0 < amount <= MOST:
        raise CreditInvalid(f"{amount} is no amount to grant", next_step=f"give one from 1 to {MOST} smallest units")
    if (problem := problem_of(owner)) is not None:
        raise CreditInvalid(f"the owner {owner[:LONGEST]!r} {problem}", next_step="give one such as default, or ann")
    for name, text in (("reason", reason), ("key", key)):
        if not text.strip() or len(text) > MOST_CHARACTERS or "\0" in text:
            raise CreditInvalid(
                f"the {name} of a grant is empty, longer than {MOST_CHARACTERS} characters, or no text",
                next_step=f"give a {name}: why it is granted, or what makes it happen once",
            )
        if holds_secret(text):
            raise SecretInPayload(
                f"the {name} of a grant seems to hold a credential, and is kept for ever", next_step="take it out"
            )


def charge(connection: Connection, task: ProviderTask, *, reason: str, actor: str, now: int) -> Entry | None:
    """Take a task's price from its owner, once; a task without a price costs nothing. Lock the task before.

    Returns:
        The charge; None: there is none, as the price is 0.

    Raises:
        InsufficientCredit: The balance does not cover it. Let it end the transaction, with all that was written.
        CreditInvalid: The price is below zero, too large, or in no currency.
    """
    if task.amount == 0 or task.currency is None:
        return None
    require_currency(task.currency)
    if not 0 < task.amount <= MOST:
        raise CreditInvalid(f"{task.amount} is no price", next_step=f"correct the price list: from 0 to {MOST}")
    row = {"owner": task.owner, "currency": task.currency, "kind": "charge", "amount": -task.amount, "task_id": task.id}
    if _enter(connection, row, reason=reason, actor=actor, now=now):
        enough = accounts.c.balance >= task.amount
        if not _add(connection, task.owner, task.currency, -task.amount, now, enough):
            _refuse(connection, task)
    return _one(connection, and_(table.c.task_id == task.id, table.c.kind == "charge"))


def refund(connection: Connection, task: ProviderTask, *, reason: str, actor: str, now: int) -> Entry | None:
    """Give back exactly what a task was charged, once. Lock the task before.

    Returns:
        The refund; None: nothing was charged, or it was given back before.
    """
    query = select(table).where(table.c.task_id == task.id, table.c.kind == "charge")
    charged = connection.execute(query).mappings().one_or_none()
    if charged is None:
        return None
    owner, currency, amount = str(charged["owner"]), str(charged["currency"]), -int(charged["amount"])
    row = {"owner": owner, "currency": currency, "kind": "refund", "amount": amount, "task_id": task.id}
    if not _enter(connection, {**row, "refund_of": charged["id"]}, reason=reason, actor=actor, now=now):
        return None
    _add(connection, owner, currency, amount, now)
    return _one(connection, table.c.refund_of == charged["id"])


def require_currency(currency: str) -> str:
    """The currency, if it is one.

    Raises:
        CreditInvalid: It is none.
    """
    if not CURRENCY.fullmatch(currency):
        raise CreditInvalid(f"{currency!r} is no currency", next_step="give one such as EUR, in capital letters")
    return currency


# ---- reading


def balance(connection: Connection, owner: str, currency: str) -> int:
    """What an owner has, in the currency's smallest unit."""
    query = select(accounts.c.balance).where(accounts.c.owner == owner, accounts.c.currency == currency)
    return connection.execute(query).scalar_one_or_none() or 0


def balances(connection: Connection, owner: str | None = None) -> list[tuple[str, str, int]]:
    """Every account, or an owner's: owner, currency and balance, by name."""
    query = select(accounts.c.owner, accounts.c.currency, accounts.c.balance)
    query = query if owner is None else query.where(accounts.c.owner == owner)
    rows = connection.execute(query.order_by(accounts.c.owner, accounts.c.currency))
    return [(str(row[0]), str(row[1]), int(row[2])) for row in rows]


def entries(
    connection: Connection,
    owner: str | None = None,
    *,
    currency: str | None = None,
    task: str | None = None,
    before: int | None = None,
    limit: int = 100,
) -> list[Entry]:
    """Entries, newest first.

    Args:
        connection: A snapshot.
        owner: Only theirs.
        currency: Only in this currency.
        task: Only for the task with this public id.
        before: Only those with a lower row id.
        limit: Most of them.
    """
    query = _WITH_TASK.order_by(table.c.id.desc()).limit(limit)
    query = query if owner is None else query.where(table.c.owner == owner)
    query = query if currency is None else query.where(table.c.currency == currency)
    query = query if task is None else query.where(provider_tasks.c.public_id == task)
    query = query if before is None else query.where(table.c.id < before)
    return [Entry(**row) for row in connection.execute(query).mappings()]


def mismatches(connection: Connection) -> Sequence[Mismatch]:
    """Accounts whose balance is not the sum of their entries, or is below zero: there must be none."""
    key = (table.c.owner, table.c.currency)
    sums = {
        (str(row[0]), str(row[1])): int(row[2])
        for row in connection.execute(select(*key, func.sum(table.c.amount)).group_by(*key))
    }
    kept = {(owner, currency): amount for owner, currency, amount in balances(connection)}
    both = [(one, kept.get(one, 0), sums.get(one, 0)) for one in sorted({*sums, *kept})]
    return [Mismatch(*one, has, total) for one, has, total in both if has != total or has < 0]


# ---- what both share


def _enter(connection: Connection, row: dict[str, Any], *, reason: str, actor: str, now: int) -> bool:
    """Write an entry, unless its unique key is there."""
    values = {**row, "public_id": uuid7(now), "reason": reason, "actor": actor, "at": now}
    return insert_or_ignore(connection, table, values) is not None


def _account(connection: Connection, owner: str, currency: str, now: int) -> None:
    insert_or_ignore(connection, accounts, {"owner": owner, "currency": currency, "balance": 0, "updated_at": now})


def _add(connection: Connection, owner: str, currency: str, amount: int, now: int, *guards: Any) -> bool:
    mine = and_(accounts.c.owner == owner, accounts.c.currency == currency, *guards)
    changed = {"balance": accounts.c.balance + amount, "updated_at": now}
    return connection.execute(update(accounts).where(mine).values(**changed)).rowcount == 1


def _one(connection: Connection, condition: Any) -> Entry:
    return Entry(**connection.execute(_WITH_TASK.where(condition)).mappings().one())


def _refuse(connection: Connection, task: ProviderTask) -> None:
    currency = task.currency or ""
    has = balance(connection, task.owner, currency)
    grant = f"everstep credits grant {shlex.quote(task.owner)} AMOUNT {currency} --reason WHY --key KEY"
    quote = task.quote
    decimals = 0 if quote is None else quote.decimals
    raise InsufficientCredit(
        f"{task.owner!r} has {money(has, decimals)} {currency}; the price is {money(task.amount, decimals)} {currency}",
        next_step=f"grant credit: {grant}; then: everstep retry {task.job}",
        owner=task.owner,
        balance=has,
        price=task.amount,
        currency=currency,
        decimals=decimals,
    )
