"""What a model call cost: told by the provider in any of its places, else from prices; never taken for nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, Generation, LLMResult

from everstep.observability.cost import priced_micros, told_micros
from everstep.observability.tokens import TokenCounter, Tokens
from everstep.observability.usage import Usage
from tests.support.models import MeteredModel


@dataclass(frozen=True)
class Dollars:
    """A price for a million tokens."""

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None


def answered(metadata: dict[str, Any] | None = None, output: dict[str, Any] | None = None) -> LLMResult:
    """The result of a call whose provider told this."""
    message = AIMessage("yes", response_metadata=metadata or {})
    return LLMResult(generations=[[ChatGeneration(message=message)]], llm_output=output)


@pytest.mark.parametrize(
    ("result", "micros"),
    [
        (answered({"token_usage": {"prompt_tokens": 7, "cost": 0.000123}}), 123),
        (answered({"usage": {"cost": 0.95}}), 950_000),
        (answered({"cost": 1}), 1_000_000),
        (answered({"response_cost": 0.0000004}), 1),
        (answered(output={"token_usage": {"cost": 0.5}}), 500_000),
        (answered({"cost": 0}), 0),
        (answered({"usage": {"cost": {"total_cost": 3}}}), None),
        (answered({"cost": "0.5"}), None),
        (answered({"cost": True}), None),
        (answered({"cost": -1}), None),
        (answered({"cost": float("nan")}), None),
        (answered({"cost": float("inf")}), None),
        (answered(), None),
        (LLMResult(generations=[]), None),
    ],
)
def test_the_providers_own_number(result: LLMResult, micros: int | None) -> None:
    """It is read where gateways put it, rounded up to a millionth; what is no amount of money is no number."""
    assert told_micros(result) == micros


@pytest.mark.parametrize(
    ("usage", "micros"),
    [
        (Usage(1_000_000, 0), 3_000_000),
        (Usage(0, 1_000_000), 15_000_000),
        (Usage(1000, 1000), 18_000),
        (Usage(1, None), 3),
        (Usage(None, None), 0),
    ],
)
def test_tokens_times_price(usage: Usage, micros: int) -> None:
    """A price is for a million tokens, so a token costs that many millionths."""
    assert priced_micros(usage, ["m"], {"m": Dollars(3.0, 15.0)}) == micros


def test_a_fraction_is_rounded_up() -> None:
    """A call that costs less than a millionth does not cost nothing; a model that is free does."""
    assert priced_micros(Usage(3, 0), ["m"], {"m": Dollars(0.05, 0.4)}) == 1
    assert priced_micros(Usage(3, 3), ["m"], {"m": Dollars(0, 0)}) == 0
    assert priced_micros(Usage(100, 0), ["m"], {"m": Dollars(0.07, 0)}) == 7, "exact, not in binary fractions"


def test_the_first_name_with_a_price_counts() -> None:
    """The model that answered goes before the one that was asked for; without a price for either there is none."""
    prices = {"auto": Dollars(1, 1), "small-2026": Dollars(2, 2)}
    assert priced_micros(Usage(10, 0), ["small-2026", "auto"], prices) == 20
    assert priced_micros(Usage(10, 0), ["large-2026", "auto"], prices) == 10
    assert priced_micros(Usage(10, 0), [None, "large"], prices) is None


def test_a_counter_prices_by_the_name_that_was_asked_for() -> None:
    """A provider that answers under another name, or none, is priced by the model of the call."""
    counted: list[int] = []
    counter = TokenCounter({"metered-1": Dollars(1, 10)}, counted=lambda: counted.append(1))
    for told in ({}, {"model_name": "metered-1-20260101"}, {"cost": 0.001}):
        MeteredModel(told=told).invoke("x", {"callbacks": [counter]})
    assert counter.snapshot() == Tokens(240, 60, 3, 280 + 280 + 1000)
    assert (counter.without_price(), counter.without_usage()) == ({}, set())
    assert len(counted) == 3


def test_a_counter_keeps_apart_what_it_cannot_price() -> None:
    """Calls without a price are kept by model with their tokens; so are models that tell no usage, unless a cost."""
    counter = TokenCounter({"priced": Dollars(1, 1)})
    for model in (
        MeteredModel(name_told="a"),
        MeteredModel(name_told="a"),
        MeteredModel(name_told="priced"),
        MeteredModel(name_told="b", tokens=None),
    ):
        model.invoke("x", {"callbacks": [counter]})
    assert counter.without_price() == {"a": Tokens(160, 40, 2)}
    assert counter.without_usage() == {"b"}
    assert counter.snapshot() == Tokens(240, 60, 4, 100)


def test_a_stream_that_broke_off_counts_what_it_told() -> None:
    """Usage that came before an error counts; an error without any is not a call."""
    counter = TokenCounter()
    message = AIMessage("y", usage_metadata={"input_tokens": 9, "output_tokens": 1, "total_tokens": 10})
    broken = LLMResult(generations=[[ChatGeneration(message=message)]])
    counter.on_llm_error(ConnectionError("gone"), run_id=uuid4(), response=broken)
    counter.on_llm_error(ConnectionError("gone"), run_id=uuid4(), response=LLMResult(generations=[[]]))
    counter.on_llm_error(ConnectionError("gone"), run_id=uuid4())
    assert counter.snapshot() == Tokens(9, 1, 0)
    assert counter.without_usage() == set()


def test_a_text_completion_is_counted_too() -> None:
    """A model that is no chat model is known by the name it was started with."""
    counter = TokenCounter({"old": Dollars(1, 1)})
    run = uuid4()
    counter.on_llm_start({}, ["x"], run_id=run, invocation_params={"model_name": "old"})
    told = {"token_usage": {"prompt_tokens": 7, "completion_tokens": 2}}
    counter.on_llm_end(LLMResult(generations=[[Generation(text="a")]], llm_output=told), run_id=run)
    assert counter.snapshot() == Tokens(7, 2, 1, 9)
