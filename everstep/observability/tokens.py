"""Tokens and cost of a job while it runs, for progress and budgets; needs no OpenTelemetry and no configuration."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from langchain_core.messages import BaseMessage
from langchain_core.outputs import LLMResult

from everstep.observability.cost import NO_PRICES, Price, cost_of
from everstep.observability.model_call import provider_name, request_model, response_model
from everstep.observability.model_calls_only import ModelCallsOnly
from everstep.observability.usage import Usage, usage_of

NAMELESS = "a model without a name"


@dataclass(frozen=True)
class Tokens:
    """What the models of a job have used so far.

    Attributes:
        input_tokens: Tokens of all prompts.
        output_tokens: Tokens of all answers.
        model_calls: Finished model calls, also those whose provider told no usage.
        cost_micros: What the calls cost, as far as it is known, millionths of a US dollar.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    model_calls: int = 0
    cost_micros: int = 0

    def plus(self, usage: Usage, *, calls: int = 1, cost_micros: int = 0) -> Tokens:
        """With one more call."""
        return Tokens(
            self.input_tokens + (usage.input_tokens or 0),
            self.output_tokens + (usage.output_tokens or 0),
            self.model_calls + calls,
            self.cost_micros + cost_micros,
        )


class TokenCounter(ModelCallsOnly):
    """A callback that adds up the tokens of every model call below it: sync, async and streaming.

    One counter serves one job: put it into `config["callbacks"]` of each of its runs.

    Args:
        prices: US dollars for a million tokens, by model name; they go before those of the table.
        counted: Called after each call that was added, on the thread it ended on.

    Attributes:
        priced: Called with the model and what a call to it cost, if that is known, millionths of a US dollar.
    """

    def __init__(self, prices: Mapping[str, Price] = NO_PRICES, counted: Callable[[], None] = lambda: None) -> None:
        self._lock = threading.Lock()
        self._tokens = Tokens()
        self._prices = prices
        self._counted = counted
        self.priced: Callable[[str, int], None] = lambda _model, _micros: None
        self._asked: dict[UUID, tuple[str | None, str | None]] = {}
        self._without_price: dict[str, Tokens] = {}
        self._without_usage: set[str] = set()

    def snapshot(self) -> Tokens:
        """The sums so far; may be called from any thread at any time."""
        with self._lock:
            return self._tokens

    def without_price(self) -> dict[str, Tokens]:
        """Calls whose cost nobody knows, by model; their tokens are in the sums, their cost is not."""
        with self._lock:
            return {**self._without_price}

    def without_usage(self) -> set[str]:
        """Models of which a call did not tell what it used; it counts nothing."""
        with self._lock:
            return {*self._without_usage}

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self._ask(run_id, metadata or {}, kwargs)

    def on_llm_start(
        self,
        serialized: dict[str, Any],
        prompts: list[str],
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self._ask(run_id, metadata or {}, kwargs)

    def _ask(self, run_id: UUID, metadata: dict[str, Any], told: dict[str, Any]) -> None:
        model = request_model(metadata, told.get("invocation_params") or {})
        self._asked[run_id] = (model, provider_name(metadata))

    def on_llm_end(self, response: LLMResult, *, run_id: UUID | None = None, **_: Any) -> None:
        self._add(response, run_id)

    def on_llm_error(self, error: BaseException, *, run_id: UUID | None = None, **kwargs: Any) -> None:
        """A stream that broke off may have told what it used until then."""
        response = kwargs.get("response")
        told = usage_of(response) if isinstance(response, LLMResult) else Usage()
        if isinstance(response, LLMResult) and (told.input_tokens or told.output_tokens):
            self._add(response, run_id, calls=0)
        elif run_id is not None:
            self._asked.pop(run_id, None)

    def _add(self, response: LLMResult, run_id: UUID | None, *, calls: int = 1) -> None:
        nobody = (None, None)
        asked, provider = nobody if run_id is None else self._asked.pop(run_id, nobody)
        usage, known = usage_of(response), cost_of(response, asked=asked, provider=provider, prices=self._prices)
        is_told = usage.input_tokens is not None or usage.output_tokens is not None
        cost = None if known is None else known.micros
        name = asked or response_model(response) or NAMELESS
        with self._lock:
            self._tokens = self._tokens.plus(usage, calls=calls, cost_micros=cost or 0)
            if not is_told:
                self._without_usage.add(name)
            elif cost is None:
                before = self._without_price.get(name, Tokens())
                self._without_price[name] = before.plus(usage, calls=calls)
        if cost:
            self.priced(name, cost)
        self._counted()
