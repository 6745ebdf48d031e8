"""A callback that measures model calls: how long they took, when the first chunk came, tokens. Only for those who ask.

What a call cost is measured where it is counted for the budget.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from langchain_core.messages import BaseMessage
from langchain_core.outputs import LLMResult

from everstep.observability import metric_names, names
from everstep.observability.measures import Measures
from everstep.observability.model_call import request_attributes, response_model
from everstep.observability.model_calls_only import ModelCallsOnly
from everstep.observability.usage import usage_of

UNKNOWN = "unknown"


@dataclass(slots=True)
class _Call:
    began: float
    operation: str
    provider: str
    model: str | None
    streams: bool = False


class MeasuredCalls(ModelCallsOnly):
    """Measures every model call below it: sync, async and streaming.

    Args:
        measures: Where observations go.
    """

    def __init__(self, measures: Measures) -> None:
        self._measures = measures
        self._calls: dict[UUID, _Call] = {}

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self._begin(run_id, names.CHAT, metadata, kwargs)

    def on_llm_start(
        self,
        serialized: dict[str, Any],
        prompts: list[str],
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self._begin(run_id, names.TEXT_COMPLETION, metadata, kwargs)

    def _begin(self, run_id: UUID, operation: str, metadata: dict[str, Any] | None, told: dict[str, Any]) -> None:
        asked = request_attributes(operation, metadata or {}, told.get("invocation_params") or {})
        provider, model = asked[names.PROVIDER], asked[names.REQUEST_MODEL]
        self._calls[run_id] = _Call(
            time.monotonic(), operation, str(provider or UNKNOWN), None if model is None else str(model)
        )

    def on_llm_new_token(self, token: str | list[str | dict[str, Any]], *, run_id: UUID, **kwargs: Any) -> None:
        self._first_chunk(run_id)

    def on_stream_event(self, event: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._first_chunk(run_id)

    def _first_chunk(self, run_id: UUID) -> None:
        call = self._calls.get(run_id)
        if call is None or call.streams:
            return
        call.streams = True
        where = (call.operation, call.provider, call.model or UNKNOWN)
        self._measures.add(metric_names.TIME_TO_FIRST_CHUNK, time.monotonic() - call.began, *where)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        self._end(run_id, response, "")

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        partial = kwargs.get("response")
        self._end(run_id, partial if isinstance(partial, LLMResult) else None, type(error).__qualname__)

    def _end(self, run_id: UUID, response: LLMResult | None, error_type: str) -> None:
        call = self._calls.pop(run_id, None)
        if call is None:
            return
        model = call.model or (response_model(response) if response is not None else None) or UNKNOWN
        where = (call.operation, call.provider, model)
        self._measures.add(metric_names.MODEL_DURATION, time.monotonic() - call.began, *where, error_type)
        if response is None:
            return
        usage = usage_of(response)
        for kind, number in (("input", usage.input_tokens), ("output", usage.output_tokens)):
            if number is not None:
                self._measures.add(metric_names.TOKENS, number, *where, kind)
