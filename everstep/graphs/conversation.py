"""What a conversation with the repository tools has come to, read from its messages.

The messages are the one account of the job: the offline policy decides from it, and the tools mend a lost working
copy from it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from langchain_core.messages import AIMessage, BaseMessage, ToolCall, ToolMessage


@dataclass(frozen=True)
class Call:
    """A tool call that was answered.

    Attributes:
        name: The tool.
        arguments: What it was called with.
        answer: Its result as JSON data, {} for an error.
        error: What the tool complained about, None when it did its work.
    """

    name: str
    arguments: dict[str, Any]
    answer: dict[str, Any]
    error: str | None


def answered(messages: Sequence[BaseMessage]) -> list[Call]:
    """The tool calls that have a result, in the order they were made."""
    results = {message.tool_call_id: message for message in messages if isinstance(message, ToolMessage)}
    return [_call(call, results[call["id"] or ""]) for call in _made(messages) if (call["id"] or "") in results]


def waiting(messages: Sequence[BaseMessage]) -> list[ToolCall]:
    """The tool calls of the last answer of the model that have no result yet, in order."""
    last = next((message for message in reversed(messages) if isinstance(message, AIMessage)), None)
    done = {message.tool_call_id for message in messages if isinstance(message, ToolMessage)}
    return [call for call in last.tool_calls if call["id"] not in done] if last else []


def listed(calls: Sequence[Call]) -> list[str]:
    """The files the job is about: what the tool that lists them named last."""
    for call in reversed(calls):
        if call.name == "list_files" and call.error is None:
            return list(call.answer.get("files", ()))
    return []


def edited(calls: Sequence[Call]) -> list[str]:
    """The files that were edited, in order."""
    return [str(call.arguments["path"]) for call in calls if call.name == "edit_file" and call.error is None]


def refused(calls: Sequence[Call]) -> list[str]:
    """The files whose edit was refused, in order."""
    return [str(call.arguments.get("path")) for call in calls if call.name == "edit_file" and call.error is not None]


def failures(calls: Sequence[Call], name: str) -> list[str]:
    """What a tool complained about since it last worked."""
    complaints: list[str] = []
    for call in calls:
        if call.name == name:
            complaints = [*complaints, call.error] if call.error is not None else []
    return complaints


def _made(messages: Sequence[BaseMessage]) -> list[ToolCall]:
    return [call for message in messages if isinstance(message, AIMessage) for call in message.tool_calls]


def _call(call: ToolCall, result: ToolMessage) -> Call:
    text = str(cast("Any", result).text)
    if result.status == "error":
        return Call(call["name"], call["args"], {}, text)
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    return Call(call["name"], call["args"], cast("dict[str, Any]", answer) if isinstance(answer, dict) else {}, None)
