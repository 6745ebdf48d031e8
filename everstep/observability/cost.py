"""What a model call cost: the provider's own number, else the user's price, else the table's.

A price of the user's is for a million tokens, by the name that answered or the name that was asked for. `price_table`
has the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from typing import Any, Literal, Protocol, cast

from langchain_core.outputs import LLMResult

from everstep.observability.model_call import response_metadata, response_model
from everstep.observability.price_table import table_dollars
from everstep.observability.usage import Usage, usage_of


class Price(Protocol):
    """US dollars for a million tokens, which is millionths of a dollar for one."""

    @property
    def input(self) -> float:
        """Of a prompt."""
        ...

    @property
    def output(self) -> float:
        """Of an answer."""
        ...

    @property
    def cache_read(self) -> float | None:
        """Of what is read from the provider's cache; as `input` if None."""
        ...

    @property
    def cache_write(self) -> float | None:
        """Of what is written to it; as `input` if None."""
        ...


NO_PRICES: Mapping[str, Price] = {}


@dataclass(frozen=True)
class Cost:
    """What a call cost.

    Attributes:
        micros: Millionths of a US dollar, rounded up.
        source: Who says so: the provider, the configuration, or the table.
    """

    micros: int
    source: Literal["provider", "configured", "table"]


def cost_of(
    response: LLMResult, *, asked: str | None = None, provider: str | None = None, prices: Mapping[str, Price]
) -> Cost | None:
    """What a call cost; None if nobody knows.

    Args:
        response: Its answer.
        asked: The model that was asked for.
        provider: Who was asked, as LangChain names them.
        prices: The user's prices by model name.
    """
    told = told_micros(response)
    if told is not None:
        return Cost(told, "provider")
    usage = usage_of(response)
    if usage.input_tokens is None and usage.output_tokens is None:
        return None
    models = [name for name in (response_model(response), asked) if name is not None]
    micros = priced_micros(usage, models, prices)
    if micros is not None:
        return Cost(micros, "configured")
    for model in models:
        dollars = table_dollars(usage, model, provider, _tier(response))
        if dollars is not None:
            return Cost(_whole(dollars * 1_000_000), "table")
    return None


def told_micros(response: LLMResult) -> int | None:
    """What the provider says the call cost, millionths of a US dollar; None if it does not say.

    Gateways say it in different places: OpenRouter as `cost` in the usage (which counts in credits, US dollars),
    LiteLLM as `response_cost` beside it.
    """
    for place in _places(response):
        for name in ("cost", "total_cost", "response_cost"):
            cost: Any = place.get(name)
            if isinstance(cost, int | float) and not isinstance(cost, bool) and 0 <= cost < float("inf"):
                return _whole(Decimal(str(cost)) * 1_000_000)
    return None


def priced_micros(usage: Usage, models: Iterable[str | None], prices: Mapping[str, Price]) -> int | None:
    """What the tokens cost by the user's prices, millionths of a US dollar, rounded up; None if there is none.

    Args:
        usage: The tokens.
        models: Names the model goes by, the best first.
        prices: By model name.
    """
    price = next((prices[name] for name in models if name is not None and name in prices), None)
    if price is None:
        return None
    received, read, written = usage.input_tokens or 0, usage.cache_read or 0, usage.cache_creation or 0
    tokens = (
        (max(received - read - written, 0), price.input),
        (read, price.input if price.cache_read is None else price.cache_read),
        (written, price.input if price.cache_write is None else price.cache_write),
        (usage.output_tokens or 0, price.output),
    )
    return _whole(sum((count * Decimal(str(each)) for count, each in tokens), Decimal(0)))


def _tier(response: LLMResult) -> str | None:
    """The service tier that the provider says it used."""
    tiers = (place.get("service_tier") for place in _places(response))
    return next((tier for tier in tiers if isinstance(tier, str)), None)


def _places(response: LLMResult) -> list[Mapping[str, Any]]:
    """Where integrations put what a provider tells beside the answer."""
    told = response_metadata(response)
    places: list[Any] = [told, *(told.get(name) for name in ("token_usage", "usage", "usage_metadata"))]
    return [cast("Mapping[str, Any]", place) for place in places if isinstance(place, Mapping)]


def _whole(micros: Decimal) -> int:
    return int(micros.to_integral_value(ROUND_CEILING))
