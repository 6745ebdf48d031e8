"""What a model call cost: the provider's own number if the answer has one, else tokens times configured prices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import ROUND_CEILING, Decimal
from typing import Any, Protocol, cast

from langchain_core.outputs import LLMResult

from everstep.observability.model_call import response_metadata
from everstep.observability.usage import Usage


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


def told_micros(response: LLMResult) -> int | None:
    """What the provider says the call cost, millionths of a US dollar; None if it does not say.

    Gateways say it in different places: OpenRouter as `cost` in the usage (which counts in credits, US dollars),
    LiteLLM as `response_cost` beside it.
    """
    told = response_metadata(response)
    places = [told, *(told.get(name) for name in ("token_usage", "usage", "usage_metadata"))]
    for place in places:
        if isinstance(place, Mapping):
            for name in ("cost", "total_cost", "response_cost"):
                cost: Any = cast("Mapping[str, Any]", place).get(name)
                if isinstance(cost, int | float) and not isinstance(cost, bool) and 0 <= cost < float("inf"):
                    return _whole(Decimal(str(cost)) * 1_000_000)
    return None


def priced_micros(usage: Usage, models: Iterable[str | None], prices: Mapping[str, Price]) -> int | None:
    """What the tokens cost, millionths of a US dollar, rounded up; None if no price is known.

    Args:
        usage: The tokens; those from the provider's cache count as any other input.
        models: Names the model goes by, the best first.
        prices: By model name.
    """
    price = next((prices[name] for name in models if name is not None and name in prices), None)
    if price is None:
        return None
    tokens = ((usage.input_tokens or 0, price.input), (usage.output_tokens or 0, price.output))
    return _whole(sum((count * Decimal(str(each)) for count, each in tokens), Decimal(0)))


def _whole(micros: Decimal) -> int:
    return int(micros.to_integral_value(ROUND_CEILING))
