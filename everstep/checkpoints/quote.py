"""A price that was worked out, as it is shown, charged and kept; `everstep.nodes.pricing` works it out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any


@dataclass(frozen=True)
class QuoteLine:
    """One of the numbers a price is the product of.

    Attributes:
        what: What it is for: `5 seconds`, `resolution 1080p`, `2 outputs`.
        factor: The number, as decimal text; of the first line the price list's own price times what it is for.
        subtotal: The product up to here, in the currency's main unit, exact, as decimal text.
    """

    what: str
    factor: str
    subtotal: str


@dataclass(frozen=True)
class Quote:
    """A price.

    Attributes:
        amount: In the currency's smallest unit (cents), never below 0.
        currency: Such as `EUR`.
        decimals: How many decimals the main unit has: 2 where 100 cents are one euro.
        version: The version of the price list it comes from.
        lines: What it is made of, in order; the last subtotal, rounded half up, is the amount.
    """

    amount: int
    currency: str
    decimals: int
    version: str
    lines: tuple[QuoteLine, ...] = ()

    @property
    def text(self) -> str:
        """The amount for people: `1.25 EUR`."""
        return f"{money(self.amount, self.decimals)} {self.currency}"

    def as_dict(self) -> dict[str, Any]:
        """The price as JSON data."""
        return {**asdict(self), "lines": [asdict(line) for line in self.lines]}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Quote:
        """The price that `as_dict` gave."""
        given: dict[str, Any] = {**data, "lines": tuple(QuoteLine(**line) for line in data["lines"])}
        return cls(**given)


def money(amount: int, decimals: int) -> str:
    """An amount of the smallest unit in the main unit, as decimal text: `money(125, 2)` is `1.25`."""
    return f"{Decimal(amount).scaleb(-decimals):f}"
