"""`everstep credits`: what owners may spend on paid tasks: granting it, and what became of it."""

from __future__ import annotations

import getpass
import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from everstep.cli.options import json_option, opened, store_option
from everstep.cli.views import print_json, text
from everstep.clock import rfc3339
from everstep.errors import CreditInvalid

if TYPE_CHECKING:
    from everstep.checkpoints.ledger import Entry

SHOWN = 100
MOST_DECIMALS = 8
LONGEST = 30
_NEGATIVE = re.compile(r"-[0-9][0-9.,_]*")
_AMOUNT = re.compile(r"([0-9]+)(?:\.([0-9]+))?")

decimals_option: Callable[..., Any] = click.option(
    "--decimals",
    type=click.IntRange(0, MOST_DECIMALS),
    default=2,
    show_default=True,
    help="How many decimals the currency's main unit has.",
)


class _Grant(click.Command):
    """A command that tells a number below zero from an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        before = ""
        for one in args:
            if _NEGATIVE.fullmatch(one) and not before.startswith("--"):
                raise CreditInvalid(
                    f"{one[:LONGEST]} is no amount to grant: it is below zero",
                    next_step="give one such as 25 or 25.00; what was granted is not taken back",
                )
            before = one
        return super().parse_args(ctx, args)


@click.group()
def credits() -> None:
    """Credit of owners, which pays for tasks at providers: grant it, and see what became of it.

    Amounts are those of the main unit, such as 12.50; the record keeps whole numbers of the smallest one.
    """


@credits.command(cls=_Grant)
@click.argument("owner")
@click.argument("amount")
@click.argument("currency")
@click.option("--reason", required=True, help="Why, for people.")
@click.option("--key", required=True, help="What makes it happen once: the same key again gives nothing more.")
@decimals_option
@store_option
@json_option
def grant(
    owner: str, amount: str, currency: str, reason: str, key: str, decimals: int, store_url: str, as_json: bool
) -> None:
    r"""Give OWNER credit: AMOUNT in CURRENCY. Make the record where there is none.

    Repeat it with the same key as often as an answer is lost: the credit is given once.

    \b
    Example:
      everstep credits grant default 25.00 EUR --reason "first top-up" --key invoice-1042
    """
    from everstep.checkpoints import ledger

    smallest = _smallest(amount, decimals)
    ledger.require_grant(owner, currency, smallest, reason=reason, key=key)  # before there is a record
    with opened(store_url, create=True) as store:
        now, actor = store.clock.now_ms(), getpass.getuser()
        given = partial(ledger.grant, reason=reason, key=key, actor=actor, now=now)
        entry, is_new = store.write(lambda c: given(c, owner, currency, smallest)).result()
        has = store.read(lambda c: ledger.balance(c, owner, currency))
    if as_json:
        print_json({"granted": is_new, "entry": _shown(entry, decimals), "balance": _money(has, decimals)})
        return
    before = "" if is_new else f"nothing more is granted: the key was used at {rfc3339(entry.at)}; "
    click.echo(f"{before}{text(owner)} has {_money(has, decimals)} {currency}")


@credits.command()
@click.argument("owner", required=False)
@decimals_option
@store_option
@json_option
def balance(owner: str | None, decimals: int, store_url: str, as_json: bool) -> None:
    """Show what OWNER has, in each currency; everybody when omitted."""
    from everstep.checkpoints import ledger

    with opened(store_url) as store:
        found = store.read(lambda c: ledger.balances(c, owner))
    if as_json:
        names = ("owner", "currency", "balance")
        print_json([dict(zip(names, (one, unit, _money(has, decimals)), strict=True)) for one, unit, has in found])
        return
    if not found:
        click.echo("no credit was granted" if owner is None else f"{text(owner)} was never granted credit", err=True)
    for one, unit, has in found:
        click.echo(f"{text(one)}  {_money(has, decimals)} {unit}")


@credits.command()
@click.argument("owner", required=False)
@click.option("--currency", help="Only in this currency.")
@click.option("--task", metavar="TASK", help="Only for this provider task, by its whole id.")
@click.option("--limit", type=click.IntRange(1), default=SHOWN, show_default=True, help="At most so many.")
@decimals_option
@store_option
@json_option
def entries(
    owner: str | None,
    currency: str | None,
    task: str | None,
    limit: int,
    decimals: int,
    store_url: str,
    as_json: bool,
) -> None:
    """List what OWNER was granted, charged and given back, newest first; everybody when omitted."""
    from everstep.checkpoints import ledger

    asked = partial(ledger.entries, owner=owner, currency=currency, task=task, limit=limit)
    with opened(store_url) as store:
        found = store.read(asked)
    if as_json:
        print_json([_shown(entry, decimals) for entry in found])
        return
    if not found:
        click.echo("no entries", err=True)
    for entry in found:
        amount = f"{_money(entry.amount, decimals)} {entry.currency}"
        click.echo(f"{rfc3339(entry.at)}  {text(entry.owner)}  {entry.kind:<6}  {amount:>14}  {text(entry.reason)}")


def _smallest(amount: str, decimals: int) -> int:
    """A written amount in the smallest unit, exactly.

    Raises:
        CreditInvalid: It is no number, or has more decimals than the currency.
    """
    parts = _AMOUNT.fullmatch(amount)
    if parts is None or len(amount) > LONGEST:
        raise CreditInvalid(f"{amount[:LONGEST]!r} is no amount", next_step="give one such as 25 or 25.00")
    whole, fraction = parts[1], parts[2] or ""
    if len(fraction.rstrip("0")) > decimals:
        raise CreditInvalid(
            f"{amount} has more than {decimals} decimals",
            next_step="round it, or say with --decimals how many the currency has",
        )
    return int(whole + fraction[:decimals].ljust(decimals, "0"))


def _money(amount: int, decimals: int) -> str:
    from everstep.checkpoints.quote import money

    return money(amount, decimals)


def _shown(entry: Entry, decimals: int) -> dict[str, Any]:
    return {**entry.view(), "amount": _money(entry.amount, decimals)}
