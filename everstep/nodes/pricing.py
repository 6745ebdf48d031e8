"""What a generation costs: one function for what is shown beforehand and for what is charged.

Everything is checked against the price list first, so that nothing unpriced is asked of a provider. The arithmetic is
exact, and the price is rounded half up once, at its end.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Context, Decimal, Inexact, InvalidOperation, localcontext
from difflib import get_close_matches
from typing import Any, cast

from everstep.checkpoints.canonical import MAX_INTEGER
from everstep.checkpoints.quote import Quote, QuoteLine
from everstep.errors import OptionsInvalid, PriceListInvalid
from everstep.nodes.price_list import MOST_DIGITS, MOST_OPTIONS, Model, PriceList, read_price_list
from everstep.nodes.providers.registry import Providers

__all__ = ["Asked", "PriceList", "complete", "of_provider", "preview", "quote", "read_price_list"]

_EXACT = Context(prec=(MOST_OPTIONS + 10) * MOST_DIGITS, traps=[Inexact, InvalidOperation])
"""Digits for any product that a price list allows; what would be rounded raises."""
MOST_MISTAKES = 20
"""How many are told."""


@dataclass(frozen=True)
class Asked:
    """What is asked of a model.

    Attributes:
        model: Its name in the price list.
        duration: Seconds, where the model takes a duration.
        resolution: One of the list's; the first when None.
        outputs: How many.
        options: By name; the first value of each priced option when it is left out.
    """

    model: str
    duration: int | float | Decimal | None = None
    resolution: str | None = None
    outputs: int = 1
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Asked:
        """What is asked for in JSON data that has these fields, and perhaps others."""
        given: dict[str, Any] = {"model": ""}
        given |= {name: data[name] for name in cls.__dataclass_fields__ if data.get(name) is not None}
        return cls(**given)


@dataclass(frozen=True)
class _Mistake:
    """Something that the price list does not allow: what it is about, what was said, and what is allowed."""

    option: str
    what: str
    allowed: str


def of_provider(providers: Providers, name: str) -> PriceList:
    """The price list of a provider, as it stands now.

    Args:
        providers: The providers there are.
        name: Which one.

    Raises:
        ProviderNotFound: There is none of this name.
        PriceListInvalid: It has no price list, or one that cannot be read.
    """
    path = providers.entry(name).prices
    if path is None:
        raise PriceListInvalid(
            f"the provider {name} has no price list",
            next_step=f'name one in everstep.toml: [providers.{name}] prices = "./prices.toml"',
            provider=name,
        )
    return read_price_list(path)


def complete(prices: PriceList, asked: Asked) -> Asked:
    """The same with what is meant where nothing was said, as the provider is told it.

    Args:
        prices: The price list.
        asked: What is asked for.

    Raises:
        OptionsInvalid: It is not in the list, or out of what that allows; the error names all that is wrong, and what
            is allowed.
    """
    model = _model(prices, asked.model)
    mistakes = list[_Mistake]()
    outputs: Any = asked.outputs
    if type(outputs) is not int or not 1 <= outputs <= model.outputs:
        mistakes.append(_Mistake("outputs", f"outputs is {_shown(outputs)}", _span(1, model.outputs)))
    mistakes += _duration_mistakes(model, asked)
    resolution: Any = asked.resolution
    if model.resolutions is None and resolution is not None:
        what = f"resolution is {_shown(resolution)}"
        mistakes.append(_Mistake("resolution", what, "leave it out: the model has none"))
    if model.resolutions is not None:
        resolution = next(iter(model.resolutions)) if resolution is None else resolution
        if not isinstance(resolution, str) or resolution not in model.resolutions:
            what = f"resolution is {_shown(resolution)}"
            mistakes.append(_Mistake("resolution", what, _one_of(model.resolutions)))
    options, wrong = _options(model, asked)
    if mistakes := mistakes + wrong:
        raise _refused(mistakes, asked.model)
    return Asked(asked.model, _plain(asked.duration), resolution, outputs, options)


def quote(prices: PriceList, asked: Asked) -> Quote:
    """What it costs.

    Args:
        prices: The price list.
        asked: What is asked for.

    Raises:
        OptionsInvalid: As of `complete`; or the price has no exact JSON form, being above 2^53−1 of the smallest unit.
    """
    whole = complete(prices, asked)
    model = prices.models[whole.model]
    with localcontext(_EXACT):
        total, lines = Decimal(1), list[QuoteLine]()
        for what, factor in _factors(model, whole):
            total *= factor
            lines.append(QuoteLine(what, _text(factor), _text(total)))
        exact = total.scaleb(prices.decimals)
    amount = int(exact.to_integral_value(ROUND_HALF_UP))
    if amount > MAX_INTEGER:
        raise _refused([_Mistake("amount", "the price is out of range", f"up to {MAX_INTEGER}")], asked.model)
    return Quote(amount, prices.currency, prices.decimals, prices.version, tuple(lines))


def preview(prices: PriceList, asked: Asked) -> dict[str, Any]:
    """What it costs, and what is meant by what was asked, as it is shown beforehand.

    Args:
        prices: The price list.
        asked: What is asked for.

    Raises:
        OptionsInvalid: As of `quote`.
    """
    whole, price = complete(prices, asked), quote(prices, asked)
    return {
        "model": whole.model,
        "duration": whole.duration,
        "resolution": whole.resolution,
        "outputs": whole.outputs,
        "options": dict(whole.options),
        "price": price.text,
        **price.as_dict(),
    }


def _factors(model: Model, asked: Asked) -> Iterable[tuple[str, Decimal]]:
    if model.per_second is not None:
        seconds = _decimal(asked.duration)
        yield f"{_text(seconds)} seconds at {_text(model.per_second)}", seconds * model.per_second
    else:
        yield "one output", model.per_call or Decimal(0)
    if asked.resolution is not None and model.resolutions is not None:
        yield f"resolution {asked.resolution}", model.resolutions[asked.resolution]
    if asked.outputs > 1:
        yield f"{asked.outputs} outputs", 1 + (asked.outputs - 1) * model.further_output
    for name, factors in model.options.items():
        word = _word(asked.options[name])
        if factors[word] != 1:
            yield f"{name} {word}", factors[word]


def _model(prices: PriceList, name: Any) -> Model:
    if isinstance(name, str) and name in prices.models:
        return prices.models[name]
    close = get_close_matches(name[:100], prices.models, 3) if isinstance(name, str) else []
    guess = f"did you mean {' or '.join(close)}? " if close else ""
    raise OptionsInvalid(
        f"the price list {prices.version} has no model {_shown(name)}",
        next_step=f"{guess}It has: {', '.join(prices.models)}",
        option="model",
        allowed=list(prices.models),
    )


def _duration_mistakes(model: Model, asked: Asked) -> list[_Mistake]:
    allowed, given = model.duration, asked.duration
    if allowed is None:
        return [] if given is None else [_Mistake("duration", _is(given), "leave it out: the model takes none")]
    if given is None:
        return [_Mistake("duration", f"duration is missing: give {allowed}", str(allowed))]
    seconds = _decimal(given)
    with localcontext(_EXACT):
        if allowed.least <= seconds <= allowed.most and not (seconds - allowed.least) % allowed.step:
            return []
    return [_Mistake("duration", _is(given), str(allowed))]


def _options(model: Model, asked: Asked) -> tuple[dict[str, Any], list[_Mistake]]:
    """The options with what is meant by those that are left out, and what is wrong with them."""
    given: Any = asked.options
    if not isinstance(given, Mapping):
        return {}, [_Mistake("options", f"options is {_shown(given)}", "an object of values by name")]
    options = dict(cast("Mapping[str, Any]", given))
    known = [*model.options, *model.free]
    allowed = _one_of(known) if known else "none"
    wrong = [_Mistake(name, f"there is no option {_shown(name)}", allowed) for name in options if name not in known]
    for name, factors in model.options.items():
        if options.get(name) is None:
            options[name] = _value(next(iter(factors)))
        if _word(options[name]) not in factors:
            wrong.append(_Mistake(name, f"the option {name} is {_shown(options[name])}", _one_of(factors)))
    return options, wrong


def _value(word: str) -> Any:
    """What a word of the price list stands for: the JSON value it is, or itself."""
    try:
        value = json.loads(word)
    except ValueError:
        return word
    return value if isinstance(value, bool | int) else word


def _word(value: Any) -> str:
    """How a value stands in a price list."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _decimal(given: Any) -> Decimal:
    """Seconds as a decimal, a float as it is written; -1, which no list allows, for what is no number."""
    if isinstance(given, bool) or not isinstance(given, int | float | Decimal):
        return Decimal(-1)
    number = Decimal(repr(given)) if isinstance(given, float) else Decimal(given)
    return number if number.is_finite() else Decimal(-1)


def _plain(seconds: int | float | Decimal | None) -> int | float | None:
    """Seconds as JSON has them, a whole number without a point."""
    if seconds is None:
        return None
    return int(seconds) if seconds == int(seconds) else float(seconds)


def _text(number: Decimal) -> str:
    """Decimal text without an exponent, and without zeros at its end."""
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _one_of(names: Iterable[str]) -> str:
    return f"one of {', '.join(names)}"


def _span(least: int, most: int) -> str:
    return f"{least} to {most}"


def _shown(given: Any) -> str:
    """What was given, as JSON has it, short enough for a message."""
    try:
        text = repr(given) if isinstance(given, str) else json.dumps(given, ensure_ascii=False, default=str)
    except (ValueError, TypeError, RecursionError):  # an integer of more digits than Python writes
        return "out of range"
    return text if len(text) <= 60 else f"{text[:59]}…"


def _is(duration: Any) -> str:
    return f"duration is {_shown(duration)}"


def _refused(mistakes: Sequence[_Mistake], model: str) -> OptionsInvalid:
    """All that is wrong at once, each with what is allowed; `option` and `allowed` are those of the first."""
    several = len(mistakes) > 1
    first = mistakes[0]
    told = [f"{one.option}: {one.allowed}" if several else one.allowed for one in mistakes[:MOST_MISTAKES]]
    more = (
        {"mistakes": [{"option": one.option, "allowed": one.allowed} for one in mistakes[:MOST_MISTAKES]]}
        if several
        else {}
    )
    what = "; ".join(one.what for one in mistakes[:MOST_MISTAKES])
    return OptionsInvalid(
        f"{model} cannot be asked so: {what}",
        next_step=f"allowed: {'; '.join(told)}",
        option=first.option,
        allowed=first.allowed,
        **more,
    )
