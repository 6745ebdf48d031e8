"""The tokens of one model call, read from what LangChain hands to `on_llm_end`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, Generation, LLMResult


@dataclass(frozen=True)
class Usage:
    """Tokens of one call; None where the provider did not say.

    Attributes:
        input_tokens: Tokens of the prompt, cached ones included.
        output_tokens: Tokens of the answer, reasoning included.
        cache_read: Of the input, read from the provider's cache.
        cache_creation: Of the input, written to the provider's cache.
        reasoning: Of the output, spent on reasoning.
        cache_creation_1h: Of what is written to the cache, to be kept for an hour.
        input_audio: Of the input, sound.
        output_audio: Of the output, sound.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read: int | None = None
    cache_creation: int | None = None
    reasoning: int | None = None
    cache_creation_1h: int | None = None
    input_audio: int | None = None
    output_audio: int | None = None


def first_generation(response: LLMResult) -> Generation | None:
    """The first candidate of the answer; usage belongs to the call, and every candidate repeats it."""
    for candidates in response.generations:
        for candidate in candidates:
            return cast(Generation, candidate)
    return None


def answer(response: LLMResult) -> AIMessage | None:
    """The answering message of a chat model; None for a text completion."""
    generation = first_generation(response)
    message = generation.message if isinstance(generation, ChatGeneration) else None
    return message if isinstance(message, AIMessage) else None


def usage_of(response: LLMResult) -> Usage:
    """The tokens of a finished call: standard `usage_metadata` first, then the older `llm_output["token_usage"]`."""
    message = answer(response)
    if message is not None and message.usage_metadata is not None:
        told = message.usage_metadata
        received: Mapping[str, Any] = told.get("input_token_details") or {}
        produced: Mapping[str, Any] = told.get("output_token_details") or {}
        return Usage(
            input_tokens=_count(told.get("input_tokens")),
            output_tokens=_count(told.get("output_tokens")),
            cache_read=_detail(received, "cache_read"),
            cache_creation=_written(received),
            reasoning=_detail(produced, "reasoning"),
            cache_creation_1h=_count(received.get("ephemeral_1h_input_tokens")),
            input_audio=_detail(received, "audio"),
            output_audio=_detail(produced, "audio"),
        )
    older: Mapping[str, Any] = (response.llm_output or {}).get("token_usage") or {}
    return Usage(input_tokens=_count(older.get("prompt_tokens")), output_tokens=_count(older.get("completion_tokens")))


def _detail(details: Mapping[str, Any], name: str) -> int | None:
    """A part of the tokens; langchain-openai puts the service tier before its name (`flex_cache_read`)."""
    counts = (_count(details.get(key)) for key in (name, f"flex_{name}", f"priority_{name}"))
    return next((count for count in counts if count is not None), None)


def _written(received: Mapping[str, Any]) -> int | None:
    """Tokens written to the cache; langchain-anthropic tells them by how long they are kept, and then 0 in all."""
    kept = [_count(received.get(f"ephemeral_{time}_input_tokens")) or 0 for time in ("5m", "1h")]
    return max(sum(kept), _count(received.get("cache_creation")) or 0) or _count(received.get("cache_creation"))


def _count(value: object) -> int | None:
    return value if isinstance(value, int) else None
