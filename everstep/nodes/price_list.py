"""Reading a price list: which models there are, what may be asked of each, and what it costs.

    version = "2026-11"
    currency = "EUR"

    [models."clip-1"]
    per_second = 0.10
    duration = { least = 2, most = 10, step = 2 }
    outputs = 4
    resolutions = { 720p = 1, 1080p = 1.5 }
    options.audio = { false = 1, true = 1.25 }

Numbers are exact decimals, whether they are written as numbers or as text. A field the list does not know is refused,
since a factor that is misspelled would cost nothing.
"""

from __future__ import annotations

import tomllib
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from everstep.errors import PriceListInvalid
from everstep.nodes.mistakes import spelled, told, unreadable

MOST_DIGITS = 15
"""Digits of a number in a price list, before and behind its point together."""
MOST_OPTIONS = 20


def _exact(given: Any) -> Any:
    """A TOML number, or a text of one, as a decimal."""
    if isinstance(given, bool) or not isinstance(given, int | str | Decimal):
        return given
    try:
        return Decimal(given)
    except ArithmeticError:
        raise ValueError("it is no number, such as 0.10") from None


def _bounded(number: Decimal) -> Decimal:
    if not number.is_finite() or number < 0:
        raise ValueError("it is no number of 0 or more")
    digits, exponent = len(number.as_tuple().digits), int(number.as_tuple().exponent)
    if max(digits, digits + exponent, -exponent) > MOST_DIGITS:
        raise ValueError(f"it has more than {MOST_DIGITS} digits")
    return number


def _above_zero(number: Decimal) -> Decimal:
    if number == 0:
        raise ValueError("it is no number above 0")
    return number


Number = Annotated[Decimal, BeforeValidator(_exact), AfterValidator(_bounded)]
"""An exact decimal of 0 or more."""
Seconds = Annotated[Number, AfterValidator(_above_zero)]
Name = Annotated[str, Field(min_length=1, max_length=100)]
Factors = Annotated[dict[Name, Number], Field(min_length=1, max_length=100)]
"""By what may be asked for: what it multiplies the price by. The first is what is meant when nothing is asked for."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Durations(_Strict):
    """`duration`: how long what a model makes may be.

    Attributes:
        least: Seconds.
        most: Seconds.
        step: From `least` in steps of so many seconds.
    """

    least: Seconds
    most: Seconds
    step: Seconds = Decimal(1)

    @model_validator(mode="after")
    def _in_order(self) -> Durations:
        if self.most < self.least:
            raise ValueError("most is less than least")
        return self

    def __str__(self) -> str:
        return f"{self.least} to {self.most} seconds in steps of {self.step}"


class Model(_Strict):
    """`[models.NAME]`: what may be asked of a model, and what it costs.

    Attributes:
        per_second: Price of a second of one output, in the main unit.
        per_call: Price of one output, in the main unit; one of the two is given.
        duration: How long an output may be; none where a model takes no duration.
        outputs: Most outputs of one call.
        further_output: What each output after the first costs, of the first one's price.
        resolutions: Factors by resolution.
        options: Factors by option and value; a value that is no text stands there as its JSON: `true`, `24`.
        free: Options with any value that cost nothing, such as `seed`.
    """

    per_second: Number | None = None
    per_call: Number | None = None
    duration: Durations | None = None
    outputs: int = Field(default=1, ge=1, le=10_000)
    further_output: Number = Decimal(1)
    resolutions: Factors | None = None
    options: Annotated[dict[Name, Factors], Field(max_length=MOST_OPTIONS)] = {}
    free: list[Name] = []

    @model_validator(mode="after")
    def _one_price(self) -> Model:
        if (self.per_second is None) == (self.per_call is None):
            raise ValueError("give one of per_second and per_call")
        if self.per_second is not None and self.duration is None:
            raise ValueError("per_second needs duration = { least = …, most = … }")
        if twice := sorted(self.options.keys() & set(self.free)):
            raise ValueError(f"{twice[0]} is both in options and in free")
        return self


class PriceList(_Strict):
    """What a provider's models cost.

    Attributes:
        version: What a price is told with, so that it can be found later which list it came from.
        currency: Capital letters: `EUR`, or a unit of one's own such as `CREDITS`.
        decimals: Decimals of the currency's main unit.
        models: The models by name.
    """

    version: Name
    currency: Annotated[str, AfterValidator(spelled(r"[A-Z][A-Z0-9_]{0,15}", "a currency is written EUR, or CREDITS"))]
    decimals: int = Field(default=2, ge=0, le=6)
    models: Annotated[dict[Name, Model], Field(min_length=1)]


def read_price_list(path: Path | str) -> PriceList:
    """Read a price list.

    Args:
        path: The TOML file.

    Raises:
        PriceListInvalid: It cannot be read, or entries are not what they can be; each is named by its place.
    """
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"), parse_float=Decimal)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise _invalid(path, unreadable(error)) from error
    try:
        return PriceList.model_validate(content)
    except ValidationError as error:
        mistakes = [f"{_place(one['loc'])}: {told(one)}" for one in error.errors()]
        raise _invalid(path, "; ".join(mistakes), mistakes=mistakes) from error


def _place(parts: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in parts if part != "[key]") or "the list"


def _invalid(path: Path | str, what: str, **ids: Any) -> PriceListInvalid:
    advice = "correct it there; docs/paid-jobs.md has an example"
    return PriceListInvalid(f"{path}: {what}", next_step=advice, path=str(path), **ids)
