"""The GenAI attributes of a model call, read from what LangChain tells at its start and its end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from langchain_core.outputs import LLMResult

from everstep.observability import names
from everstep.observability.usage import answer, first_generation, usage_of


def request_model(metadata: Mapping[str, Any], parameters: Mapping[str, Any]) -> str | None:
    """The model asked for, or None when the chat model does not name one."""
    named = (metadata.get("ls_model_name"), parameters.get("model"), parameters.get("model_name"))
    return next(filter(None, map(_text, named)), None)


def provider_name(metadata: Mapping[str, Any]) -> str | None:
    """Who is asked, as LangChain names them."""
    return _text(metadata.get("ls_provider"))


def request_attributes(operation: str, metadata: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, object]:
    """What is known when the call starts.

    Args:
        operation: `chat` or `text_completion`.
        metadata: The run's metadata; LangChain puts provider and model there under `ls_` keys.
        parameters: The call's invocation parameters.
    """
    provider = provider_name(metadata)
    return {
        names.OPERATION: operation,
        names.PROVIDER: names.PROVIDERS.get(provider, provider) if provider else None,
        names.REQUEST_MODEL: request_model(metadata, parameters),
        names.REQUEST_TEMPERATURE: _number(metadata.get("ls_temperature")),
        names.REQUEST_MAX_TOKENS: _number(metadata.get("ls_max_tokens")),
    }


def response_attributes(response: LLMResult) -> dict[str, object]:
    """What is known when the call has ended: tokens, the model that answered, why it stopped."""
    usage = usage_of(response)
    told = response_metadata(response)
    reason = finish_reason(response)
    return {
        names.RESPONSE_MODEL: response_model(response),
        names.RESPONSE_ID: _text(told.get("id")),
        names.FINISH_REASONS: [reason] if reason else None,
        names.INPUT_TOKENS: usage.input_tokens,
        names.OUTPUT_TOKENS: usage.output_tokens,
        names.CACHE_READ_TOKENS: usage.cache_read,
        names.CACHE_CREATION_TOKENS: usage.cache_creation,
        names.REASONING_TOKENS: usage.reasoning,
    }


def cost_attributes(micros: int, source: str) -> dict[str, object]:
    """What the call cost, US dollars, and who says so.

    Args:
        micros: Millionths of a US dollar.
        source: As `Cost.source`.
    """
    dollars = micros / 1_000_000
    return {names.COST: dollars, names.COST_SOURCE: source, names.COST_DETAILS: json.dumps({"total": dollars})}


def first_chunk_attributes(started_ns: int, now_ns: int) -> dict[str, object]:
    """That the answer streams, and when its first chunk came: seconds since the start, and the time, for Langfuse."""
    moment = datetime.fromtimestamp(now_ns / 1e9, UTC).isoformat().replace("+00:00", "Z")
    return {
        names.REQUEST_STREAM: True,
        names.TIME_TO_FIRST_CHUNK: max(now_ns - started_ns, 0) / 1e9,
        names.COMPLETION_START_TIME: moment,
    }


def finish_reason(response: LLMResult) -> str | None:
    """Why the model stopped, in the provider's words."""
    told = response_metadata(response)
    return _text(told.get("finish_reason")) or _text(told.get("stop_reason"))


def response_model(response: LLMResult) -> str | None:
    """The model that answered, or None when the answer does not name one."""
    told = response_metadata(response)
    return _text(told.get("model_name")) or _text(told.get("model"))


def response_metadata(response: LLMResult) -> Mapping[str, Any]:
    """What the provider told beside the answer, wherever its integration puts it."""
    generation = first_generation(response)
    message = answer(response)
    return {
        **(response.llm_output or {}),
        **(generation.generation_info or {} if generation is not None else {}),
        **(message.response_metadata if message is not None else {}),
    }


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _number(value: object) -> int | float | None:
    return value if isinstance(value, int | float) else None
