"""Costs of known models: whose number counts, what of the tokens is priced how, and what stays unknown."""

from __future__ import annotations

import json
import subprocess
import sys
from decimal import Decimal
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, LLMResult

from everstep.observability import cost, names, price_table
from everstep.observability.cost import Cost, cost_of
from everstep.observability.tokens import TokenCounter
from everstep.observability.usage import usage_of
from tests.observability.conftest import Recording
from tests.observability.test_cost import Dollars
from tests.support.jobs import chain
from tests.support.models import MeteredModel


def answered(received: int, produced: int, told: dict[str, Any] | None = None, **details: dict[str, int]) -> LLMResult:
    """The answer of a model, with the tokens it used."""
    usage: Any = {
        "input_tokens": received,
        "output_tokens": produced,
        "total_tokens": received + produced,
        **{f"{name}_token_details": counts for name, counts in details.items()},
    }
    message = AIMessage("yes", usage_metadata=usage, response_metadata=told or {})
    return LLMResult(generations=[[ChatGeneration(message=message)]])


def micros(response: LLMResult, model: str = "gpt-4o", provider: str | None = None) -> int | None:
    """What a call cost by the table."""
    known = cost_of(response, asked=model, provider=provider, prices=cost.NO_PRICES)
    assert known is None or known.source == "table"
    return None if known is None else known.micros


def price(kind: str, model: str = "gpt-4o") -> Decimal:
    """What the table says."""
    listed = price_table.look_up(model)
    assert listed is not None
    return listed.prices[kind]


def test_the_provider_goes_first_then_the_user_then_the_table() -> None:
    """Each answers only what the one before it does not know."""
    prices = {"gpt-4o": Dollars(100, 100)}
    told = cost_of(answered(10, 10, {"cost": 0.5}), asked="gpt-4o", provider="openai", prices=prices)
    assert told == Cost(500_000, "provider")
    configured = cost_of(answered(10, 10), asked="gpt-4o", provider="openai", prices=prices)
    assert configured == Cost(2000, "configured")
    table = cost_of(answered(10, 10), asked="gpt-4o", provider="openai", prices={})
    assert table == Cost(int(10 * price("input") + 10 * price("output")), "table")


def test_the_name_that_answered_goes_before_the_one_asked_for() -> None:
    """A dated name is known as well; only when the table has none of it, the name of the request counts."""
    dated = micros(answered(1000, 0, {"model_name": "gpt-4o-2024-08-06"}), model="gpt-4")
    assert dated == 1000 * price("input")
    assert micros(answered(1000, 0, {"model_name": "nobody-knows-1"})) == 1000 * price("input")


def test_cached_tokens_cost_what_they_cost() -> None:
    """What is read from the cache is cheaper, what is written to it dearer, for an hour dearer still."""
    assert micros(answered(1000, 0, input={"cache_read": 400})) == 600 * price("input") + 400 * price("cache_read")
    model = "claude-sonnet-4-20250514"
    kinds = {kind: price(kind, model) for kind in ("input", "cache_read", "cache_write", "cache_write_1h")}
    assert kinds["cache_read"] < kinds["input"] < kinds["cache_write"] < kinds["cache_write_1h"]
    by_length = {"cache_creation": 0, "ephemeral_5m_input_tokens": 200, "ephemeral_1h_input_tokens": 100}
    expected = 600 * kinds["input"] + 100 * kinds["cache_read"]
    expected += 200 * kinds["cache_write"] + 100 * kinds["cache_write_1h"]
    assert micros(answered(1000, 0, input={"cache_read": 100, **by_length}), model) == expected


def test_reasoning_is_output_and_counted_once() -> None:
    """Tokens of reasoning are among the output's."""
    assert micros(answered(0, 100, output={"reasoning": 90})) == 100 * price("output")


def test_a_long_prompt_costs_its_tier() -> None:
    """A model that is dearer from a length on is priced so, output too."""
    model = "gemini-2.5-pro"
    listed = price_table.look_up(model)
    assert listed is not None
    (start, dear), (_, dear_output) = listed.tiers["input"][0], listed.tiers["output"][0]
    assert micros(answered(1000, 10), model) == 1000 * price("input", model) + 10 * price("output", model)
    assert micros(answered(start + 1000, 10), model) == (start + 1000) * dear + 10 * dear_output


def test_a_service_tier_costs_what_it_costs() -> None:
    """The tier that the provider says it used has prices of its own, and its own names for parts of the tokens."""
    flex = answered(1000, 0, {"service_tier": "flex"}, input={"flex_cache_read": 1000})
    assert usage_of(flex).cache_read == 1000
    assert micros(flex, "gpt-5") == 1000 * price("cache_read", "gpt-5") / 2 + Decimal("0.5")  # rounded up
    assert micros(answered(1000, 0, {"service_tier": "flex"}), "gpt-5") == 1000 * price("input", "gpt-5") / 2


@pytest.mark.parametrize(
    ("model", "provider"),
    [
        ("nobody-knows-1", None),
        ("gpt-99", "openai"),
        ("gpt-4o", "ollama"),
        ("mistral-small", "a_local_server"),
        ("text-embedding-of-ours", None),
    ],
)
def test_what_nobody_knows_has_no_price(model: str, provider: str | None) -> None:
    """An unknown model has no price, and neither has a known name at a provider that is none of the table's."""
    assert micros(answered(10, 10), model, provider) is None


@pytest.mark.parametrize(
    ("provider", "model"),
    [
        ("openai", "gpt-4o"),
        ("azure", "gpt-4o"),
        ("anthropic", "claude-sonnet-4-20250514"),
        ("amazon_bedrock", "anthropic.claude-sonnet-4-20250514-v1:0"),
        ("google_genai", "gemini-2.5-pro"),
        ("google_vertexai", "gemini-2.5-pro"),
        ("mistralai", "mistral-large-latest"),
        ("groq", "llama-3.3-70b-versatile"),
        ("xai", "grok-4"),
        ("litellm", "openai/gpt-4o"),
    ],
)
def test_langchains_names_of_providers_are_known(provider: str, model: str) -> None:
    """The table is looked up under the provider that LangChain's integration names."""
    assert micros(answered(1000, 1000), model, provider)


def test_numbers_that_contradict_each_other_have_no_price() -> None:
    """More tokens from the cache than there were: nobody can say what that cost, and it does not count as nothing."""
    assert micros(answered(10, 10, input={"cache_read": 11})) is None


def test_a_model_without_prices_in_the_table_is_not_free() -> None:
    """The table lists some models without a price for their tokens; that says nothing."""
    assert micros(answered(1000, 1000), "whisper-1", "openai") is None


def test_the_users_price_may_tell_of_the_cache() -> None:
    """Tokens of the cache cost as any input unless the user's price says more."""
    response = answered(1000, 0, input={"cache_read": 300, "cache_creation": 200})
    for told, expected in ((Dollars(10, 0), 10_000), (Dollars(10, 0, 1, 20), 5000 + 300 + 4000)):
        known = cost_of(response, asked="gpt-4o", prices={"gpt-4o": told})
        assert known == Cost(expected, "configured")


def test_the_counter_asks_the_table_under_the_provider() -> None:
    """A known model needs no configuration; the same name at a provider nobody knows is kept apart as unpriced."""
    counter = TokenCounter()

    class OfOpenAI(MeteredModel):
        def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> Any:
            return {**super()._get_ls_params(stop, **kwargs), "ls_provider": "openai"}

    OfOpenAI(name_told="gpt-4o").invoke("x", {"callbacks": [counter]})
    assert counter.snapshot().cost_micros == 80 * price("input") + 20 * price("output")
    assert counter.without_price() == {}
    MeteredModel(name_told="gpt-4o").invoke("x", {"callbacks": [counter]})
    assert set(counter.without_price()) == {"gpt-4o"}


def test_spans_tell_the_cost_where_it_is_known(recording: Recording) -> None:
    """A model's span carries the cost as Langfuse reads it, and who says so; one nobody knows carries none."""
    leg = recording.leg()
    leg.price_by({"priced": Dollars(1, 10)})
    with leg:
        for model in (MeteredModel(name_told="priced"), MeteredModel(name_told="unknown")):
            chain(lambda _state, model=model: {"log": [model.invoke("x").text]}).invoke(
                {"log": []}, {"callbacks": leg.callbacks}
            )
    priced = recording.named("chat priced").attributes or {}
    assert json.loads(str(priced[names.COST_DETAILS])) == {"total": 0.00028}
    assert (priced[names.COST], priced[names.COST_SOURCE]) == (0.00028, "configured")
    assert not {names.COST, names.COST_DETAILS, names.COST_SOURCE} & set(
        recording.named("chat unknown").attributes or {}
    )


def test_nothing_is_fetched() -> None:
    """Looking up a price opens no connection and starts no thread."""
    code = (
        "import sys, threading\n"
        "def refuse(event, _):\n"
        "    assert not event.startswith('socket.connect') and event != 'socket.getaddrinfo', event\n"
        "sys.addaudithook(refuse)\n"
        "from everstep.observability import price_table\n"
        "assert price_table.look_up('gpt-4o') and sum(1 for _ in price_table.every()) > 500\n"
        "assert threading.active_count() == 1\n"
    )
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)
