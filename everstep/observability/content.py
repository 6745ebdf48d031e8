"""Prompts, answers, tool arguments and results as span content: off unless asked for; bounded, without credentials."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, LLMResult

from everstep.credentials import REDACTED, names_secret, without_secrets
from everstep.observability.attributes import ATTRIBUTE_LIMIT

CAPTURE_VARIABLE: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_ON_SPANS: Final = {"SPAN_ONLY", "SPAN_AND_EVENT"}
_ROLES: Final = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool", "function": "tool"}
_TEXT_LIMITS: Final = (16_384, 4_096, 1_024, 256, 64)
_DEPTH_LIMIT: Final = 32


def is_captured() -> bool:
    """Whether the environment switches content on for spans (`SPAN_ONLY` or `SPAN_AND_EVENT`)."""
    return os.environ.get(CAPTURE_VARIABLE, "").strip().upper() in _ON_SPANS


def messages(conversation: Sequence[BaseMessage]) -> str:
    """A conversation in the GenAI message form: a JSON array of `{"role", "parts"}`."""
    return bounded_json([_message(message) for message in conversation])


def texts(role: str, prompts: Sequence[str]) -> str:
    """Plain texts in the GenAI message form."""
    return bounded_json([{"role": role, "parts": _parts(prompt)} for prompt in prompts])


def answer(response: LLMResult, finish_reason: str | None) -> str:
    """What a model answered, every candidate, in the GenAI message form."""
    told: list[dict[str, object]] = []
    for candidate in (one for candidates in response.generations for one in candidates):
        message = candidate.message if isinstance(candidate, ChatGeneration) else AIMessage(candidate.text)
        told.append({**_message(message), "finish_reason": finish_reason or "stop"})
    return bounded_json(told)


def bounded_json(value: object, limit: int = ATTRIBUTE_LIMIT) -> str:
    """The value as JSON of at most `limit` bytes that still parses.

    Long texts are shortened, ever more until it fits; of a list that still does not fit the first entries go. Anything
    without a JSON form stands as its class name, since its text could hold what nobody chose to show.
    """
    plain = _plain(value)
    if len(text := _dump(plain)) <= limit:
        return text
    for text_limit in _TEXT_LIMITS:
        if len(text := _dump(_shortened(plain, text_limit))) <= limit:
            return text
    shortest = _shortened(plain, _TEXT_LIMITS[-1])
    if isinstance(shortest, list):
        entries = cast("list[object]", shortest)
        while entries:
            entries = entries[len(entries) // 2 + 1 :]
            if len(text := _dump(["… earlier entries cut …", *entries])) <= limit:
                return text
    return _dump("… too large to show …")


def _message(message: BaseMessage) -> dict[str, object]:
    role = _ROLES.get(message.type, message.type)
    if isinstance(message, ToolMessage):
        result = {"type": "tool_call_response", "id": message.tool_call_id, "response": _content(message)}
        return {"role": role, "parts": [result]}
    parts: list[object] = list(_parts(_content(message)))
    if isinstance(message, AIMessage):
        parts += [
            {"type": "tool_call", "id": call["id"], "name": call["name"], "arguments": call["args"]}
            for call in message.tool_calls
        ]
    return {"role": role, "parts": parts}


def _content(message: BaseMessage) -> object:
    return cast(object, message.content)  # pyright: ignore[reportUnknownMemberType]


def _parts(content: object) -> list[dict[str, object]]:
    if isinstance(content, str):
        return [{"type": "text", "content": content}] if content else []
    parts: list[dict[str, object]] = []
    for block in cast("list[str | dict[str, Any]]", content):
        if isinstance(block, str):
            parts.append({"type": "text", "content": block})
        elif block.get("type") in {"text", "reasoning"}:
            kind = block["type"]
            parts.append({"type": kind, "content": block.get(kind, "")})
        elif block.get("type") != "tool_use":
            parts.append({"type": str(block.get("type")), "content": "(not captured)"})
    return parts


def _plain(value: object, depth: int = 0) -> object:
    if depth > _DEPTH_LIMIT:
        return "… nested too deeply to show …"
    match value:
        case None | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case str():
            return _text(value).encode("utf-8", "replace").decode()
        case BaseMessage():
            return _plain(_message(value), depth)
        case Mapping():
            entries = cast("Mapping[object, object]", value)
            return {_text(str(key)): _named(str(key), entry, depth + 1) for key, entry in entries.items()}
        case list() | tuple() | set() | frozenset():
            return [_plain(entry, depth + 1) for entry in cast("Sequence[object]", value)]
        case _:
            return f"<{type(value).__qualname__}>"


def _text(text: str) -> str:
    """Without credentials; what would be cut away anyway is not searched for them."""
    if len(text) <= ATTRIBUTE_LIMIT:
        return without_secrets(text)
    return f"{without_secrets(text[:ATTRIBUTE_LIMIT])} … {len(text) - ATTRIBUTE_LIMIT} characters cut …"


def _named(name: str, value: object, depth: int) -> object:
    is_secret = isinstance(value, str | bytes) and names_secret(name)
    return REDACTED if is_secret else _plain(value, depth)


def _shortened(value: object, limit: int) -> object:
    match value:
        case str() if len(value) > limit:
            return f"{value[:limit]} … {len(value) - limit} characters cut …"
        case dict():
            entries = cast("dict[str, object]", value)
            return {key: _shortened(entry, limit) for key, entry in entries.items()}
        case list():
            return [_shortened(entry, limit) for entry in cast("list[object]", value)]
        case _:
            return value


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"))
