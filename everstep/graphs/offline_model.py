"""A chat model that is no language model: it picks the next tool call by rule, so no key and no network is needed.

It is a real `BaseChatModel` (tools, sync, async, streaming, usage), and it says what it is in its name and its first
words. The rule knows the tools of `everstep.graphs.repository_tools` and nothing else: list, edit each listed file,
verify, commit, push, stop.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LangSmithParams, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import tool_call, tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from everstep.graphs import conversation
from everstep.graphs.codemods import OPERATIONS

NAME = "everstep-rule-policy"
INTRODUCTION = (
    "I am Everstep's offline policy: a fixed rule, not a language model. I list the files that need the operation, "
    "edit them one by one, verify, commit and push."
)


@dataclass(frozen=True)
class Move:
    """What to do next: say something, and call a tool unless it is time to stop."""

    words: str
    tool: str | None = None
    arguments: dict[str, Any] | None = None


class RulePolicyModel(BaseChatModel):
    """Everstep's offline policy: decides by rule from the conversation; no language model, it understands no text."""

    model_name: str = NAME

    @property
    def _llm_type(self) -> str:
        return NAME

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model_name": self.model_name}

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        return LangSmithParams(ls_provider="everstep", ls_model_name=self.model_name, ls_model_type="chat")

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Tell the model which tools it may call; `tool_choice` is ignored, since the rule chooses."""
        return self.bind(tools=[convert_to_openai_tool(each) for each in tools], **kwargs)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=_message(messages, kwargs.get("tools", [])))])

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return self._generate(messages, stop, **kwargs)

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        for chunk in _chunks(_message(messages, kwargs.get("tools", []))):
            if run_manager:
                run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        for chunk in _chunks(_message(messages, kwargs.get("tools", []))):
            if run_manager:
                await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk


def decide(messages: Sequence[BaseMessage]) -> Move:
    """The rule: what to do next, given only the conversation."""
    calls = conversation.answered(messages)
    if not calls:
        return Move(INTRODUCTION, "list_files", {})
    last, files = calls[-1], conversation.listed(calls)
    settled = {*conversation.edited(calls), *conversation.refused(calls)}
    left = [path for path in files if path not in settled]
    if last.error is not None and last.name != "edit_file":
        return Move(f"I stop: {last.name} said: {last.error} My rule has no answer to that.")
    if not files:
        return Move("No file needs the operation; there is nothing to do.")
    if left:
        return Move(f"File {len(files) - len(left) + 1} of {len(files)}.", "edit_file", {"path": left[0]})
    if not conversation.edited(calls):
        return Move(f"I stop: each of the {len(files)} edits was refused.")
    match last.name:
        case "verify_changes":
            return Move("The checks passed; I commit.", "commit_changes", {"message": _commit_message(calls)})
        case "commit_changes" if "commit" in last.answer:
            return Move("Committed; I push.", "push_commit", {})
        case "push_commit":
            return Move(f"Done: {len(conversation.edited(calls))} files edited, verified, committed and pushed.")
        case _:
            return Move("I verify.", "verify_changes", {})


def _commit_message(calls: Sequence[conversation.Call]) -> str:
    operation = next((call.answer.get("operation", "") for call in calls if call.name == "list_files"), "")
    return OPERATIONS[operation].subject if operation in OPERATIONS else "Carry out an operation"


def _message(messages: Sequence[BaseMessage], tools: Sequence[dict[str, Any]]) -> AIMessage:
    move = decide(messages)
    if move.tool is not None and move.tool not in {each["function"]["name"] for each in tools}:
        move = Move(f"{INTRODUCTION} But I was not given the tool {move.tool}, so I can do nothing.")
    digest = hashlib.sha256(_account(messages).encode()).hexdigest()
    calls = [tool_call(name=move.tool, args=move.arguments or {}, id=f"call_{digest[:24]}")] if move.tool else []
    sent, said = (
        _tokens(_account(messages)),
        _tokens(move.words + json.dumps([[each["name"], each["args"]] for each in calls])),
    )
    return AIMessage(
        move.words,
        id=f"policy-{digest[:32]}",
        tool_calls=calls,
        usage_metadata=UsageMetadata(input_tokens=sent, output_tokens=said, total_tokens=sent + said),
        response_metadata={
            "model_name": NAME,
            "model_provider": "everstep",
            "finish_reason": "tool_calls" if calls else "stop",
            "usage_is": "estimated",
        },
    )


def _account(messages: Sequence[BaseMessage]) -> str:
    """The conversation as one text: who said what and called which tool; no ids that differ between runs."""
    return json.dumps(
        [
            [each.type, each.content, [[call["name"], call["args"]] for call in getattr(each, "tool_calls", [])]]
            for each in messages
        ]
    )


def _tokens(text: str) -> int:
    """An estimate, since there is no tokenizer: one token for every four characters, rounded up."""
    return -(-len(text) // 4)


def _chunks(message: AIMessage) -> Iterator[ChatGenerationChunk]:
    for number, word in enumerate(str(message.content).split(" ")):
        yield ChatGenerationChunk(message=AIMessageChunk(content=f" {word}" if number else word, id=message.id))
    calls = [
        tool_call_chunk(name=call["name"], args=json.dumps(call["args"]), id=call["id"], index=index)
        for index, call in enumerate(message.tool_calls)
    ]
    last = AIMessageChunk(
        content="",
        id=message.id,
        tool_call_chunks=calls,
        usage_metadata=message.usage_metadata,
        response_metadata=message.response_metadata,
        chunk_position="last",
    )
    yield ChatGenerationChunk(message=last)
