"""Prices of known models, from the table that comes with the library genai-prices: versioned with it, never fetched.

It is loaded with the first call that needs it. A model is looked up under the provider that LangChain names for the
call (`ls_provider`); a provider the table does not know has no prices in it, because the same model costs something
else, or nothing, elsewhere. Without a provider the name of the model tells it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from everstep.observability.usage import Usage

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice, Provider

LIBRARY: Final = "genai-prices"
_PER_MILLION: Final = {
    "input": "input_mtok",
    "output": "output_mtok",
    "cache_read": "cache_read_mtok",
    "cache_write": "cache_write_mtok",
    "cache_write_1h": "cache_write_1h_mtok",
    "input_audio": "input_audio_mtok",
    "output_audio": "output_audio_mtok",
}


@dataclass(frozen=True)
class Listed:
    """A model of the table, as it costs today.

    Attributes:
        provider: The table's name of the provider.
        model: The table's name of the model.
        prices: US dollars for a million tokens, by kind: `input`, `output`, `cache_read`, ….
        tiers: For kinds that cost more with a long prompt: from how many tokens of it, and what.
    """

    provider: str
    model: str
    prices: dict[str, Decimal]
    tiers: dict[str, list[tuple[int, Decimal]]]


def table_version() -> str:
    """Which table it is."""
    return version(LIBRARY)


def look_up(model: str, provider: str | None = None) -> Listed | None:
    """What a model costs; None if the table does not say.

    Args:
        model: Its name, as a provider uses it.
        provider: Who is asked for it, as LangChain names them.
    """
    found = _find(model, provider)
    return None if found is None else _listed(*found)


def every() -> Iterator[Listed]:
    """All models with prices."""
    from genai_prices import data_snapshot

    for provider in data_snapshot.get_snapshot().providers:
        for model in provider.models:
            listed = _listed(provider, model)
            if listed is not None:
                yield listed


def table_dollars(usage: Usage, model: str, provider: str | None, tier: str | None) -> Decimal | None:
    """What the tokens of a call cost, US dollars; None if the table does not say.

    Args:
        usage: The tokens.
        model: The name of the model.
        provider: Who was asked for it, as LangChain names them.
        tier: The service tier the provider says it used.
    """
    from genai_prices import types

    found = _find(model, provider)
    if found is None:
        return None
    service, known = found
    told = {
        "input_tokens": usage.input_tokens or 0,
        "output_tokens": usage.output_tokens or 0,
        "cache_read_tokens": usage.cache_read,
        "cache_write_tokens": usage.cache_creation,
        "cache_write_1h_tokens": usage.cache_creation_1h,
        "input_audio_tokens": usage.input_audio,
        "output_audio_tokens": usage.output_audio,
        "output_reasoning_tokens": usage.reasoning,
    }
    context = {"service_tier": tier} if tier else None
    try:
        answer = known.calc_price(types.Usage(**told), service, price_context=context)
    except ValueError:  # numbers that contradict each other: the price of half of them would be none
        return None
    return answer.total_price if _covers(answer.model_price, usage) else None


def _find(model: str, provider: str | None) -> tuple[Provider, ModelInfo] | None:
    from genai_prices import data_snapshot

    try:
        return data_snapshot.get_snapshot().find_provider_model(model, None, provider, None)
    except LookupError:
        return None


def _covers(price: ModelPrice, usage: Usage) -> bool:
    """Some models of the table have no prices, or none for one direction: that is unknown, not free."""
    return not (usage.input_tokens and price.input_mtok is None) and not (
        usage.output_tokens and price.output_mtok is None
    )


def _listed(provider: Provider, model: ModelInfo) -> Listed | None:
    from datetime import UTC, datetime

    from genai_prices.types import TieredPrices

    now = model.get_prices(datetime.now(UTC))
    prices: dict[str, Decimal] = {}
    tiers: dict[str, list[tuple[int, Decimal]]] = {}
    for kind, name in _PER_MILLION.items():
        price: Any = getattr(now, name)
        if isinstance(price, TieredPrices):
            tiers[kind] = [(tier.start, tier.price) for tier in price.tiers]
            price = price.base
        if price is not None:
            prices[kind] = price
    return Listed(provider.id, model.id, prices, tiers) if "input" in prices or "output" in prices else None
