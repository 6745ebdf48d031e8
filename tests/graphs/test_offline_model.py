"""The offline policy: a chat model by its interface, a fixed rule by its decisions, and honest about it."""

import json
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from everstep.graphs.offline_model import INTRODUCTION, NAME, RulePolicyModel
from everstep.graphs.repository_tools import TOOLS

START: list[BaseMessage] = [SystemMessage("Do it."), HumanMessage("Tidy the repository.")]
MODEL = RulePolicyModel().bind_tools(TOOLS)


def answer(message: BaseMessage, result: dict[str, Any] | str) -> ToolMessage:
    """The result of a message's tool call; a text is an error."""
    assert isinstance(message, AIMessage)
    failed = isinstance(result, str)
    content = result if isinstance(result, str) else json.dumps(result)
    return ToolMessage(content, tool_call_id=message.tool_calls[0]["id"] or "", status="error" if failed else "success")


def play(results: dict[str, list[dict[str, Any] | str]]) -> list[BaseMessage]:
    """Run the policy against fixed results of its tools until it stops."""
    messages = list(START)
    for _ in range(30):
        said = MODEL.invoke(messages)
        messages.append(said)
        if not said.tool_calls:
            return messages
        queue = results[said.tool_calls[0]["name"]]
        messages.append(answer(said, queue.pop(0) if len(queue) > 1 else queue[0]))
    raise AssertionError("the policy does not stop")


def tools_called(messages: list[BaseMessage]) -> list[str]:
    """The names of the tools a conversation called, with the path where there is one."""
    made = [call for message in messages if isinstance(message, AIMessage) for call in message.tool_calls]
    return [" ".join([call["name"], *map(str, call["args"].values())]) for call in made]


GOOD: dict[str, list[dict[str, Any] | str]] = {
    "list_files": [{"operation": "tidy-whitespace", "files": ["a.py", "b.py"], "more": False}],
    "edit_file": [{"path": "", "lines_changed": 1}],
    "verify_changes": [{"verified_files": 2}],
    "commit_changes": [{"commit": "c0ffee", "files": 2}],
    "push_commit": [{"pushed": "c0ffee"}],
}


def test_the_rule_lists_edits_verifies_commits_and_pushes() -> None:
    """The policy lists the files, edits each in turn, verifies, commits, pushes, and stops."""
    assert tools_called(play(GOOD)) == [
        "list_files",
        "edit_file a.py",
        "edit_file b.py",
        "verify_changes",
        "commit_changes Tidy white space",
        "push_commit",
    ]


def test_it_says_what_it_is() -> None:
    """Name, provider, metadata and first words say that it is a rule and no language model."""
    said = MODEL.invoke(START)
    assert said.content == INTRODUCTION
    assert "not a language model" in INTRODUCTION
    assert said.response_metadata["model_name"] == RulePolicyModel()._llm_type == NAME
    assert "rule" in NAME
    assert RulePolicyModel()._get_ls_params()["ls_provider"] == "everstep"  # what traces show


def test_a_refused_edit_is_skipped() -> None:
    """A file the tools refuse is left alone, and the rest is done."""
    made = tools_called(play({**GOOD, "edit_file": ["a.py is left alone", {"path": "b.py", "lines_changed": 1}]}))
    assert made[1:4] == ["edit_file a.py", "edit_file b.py", "verify_changes"]
    assert made[-1] == "push_commit"


def test_it_stops_when_every_edit_was_refused() -> None:
    """Nothing edited is nothing to commit, and no success."""
    messages = play({**GOOD, "edit_file": ["left alone"]})
    assert tools_called(messages)[-1] == "edit_file b.py"
    assert "refused" in str(messages[-1].content)


def test_it_stops_when_there_is_nothing_to_do() -> None:
    """An empty list ends the job at once."""
    messages = play({**GOOD, "list_files": [{"operation": "tidy-whitespace", "files": [], "more": False}]})
    assert tools_called(messages) == ["list_files"]
    assert "nothing to do" in str(messages[-1].content)


@pytest.mark.parametrize("tool", ["list_files", "verify_changes", "commit_changes", "push_commit"])
def test_an_error_it_has_no_rule_for_stops_it(tool: str) -> None:
    """The policy does not try again blindly; it stops and repeats what the tool said."""
    messages = play({**GOOD, tool: ["the disk is on fire"]})
    assert tools_called(messages)[-1].split()[0] == tool
    assert "the disk is on fire" in str(messages[-1].content)


def test_files_taken_out_by_a_person_are_verified_again() -> None:
    """When a person took files out of the change, the policy verifies and commits what is left."""
    made = tools_called(play({**GOOD, "commit_changes": [{"verify_again": True}, {"commit": "c0ffee", "files": 1}]}))
    assert made[3:] == [
        "verify_changes",
        "commit_changes Tidy white space",
        "verify_changes",
        "commit_changes Tidy white space",
        "push_commit",
    ]


def test_the_same_conversation_gets_the_same_answer() -> None:
    """Ids of messages and tool calls follow from the conversation, so a replay repeats them; they are never reused."""
    first, second = play(GOOD), play(GOOD)
    assert [(each.id, each.content) for each in first[2:]] == [(each.id, each.content) for each in second[2:]]
    ids = [call["id"] for each in first if isinstance(each, AIMessage) for call in each.tool_calls]
    assert ids == [call["id"] for each in second if isinstance(each, AIMessage) for call in each.tool_calls]
    assert len(set(ids)) == len(ids)
    other = MODEL.invoke([*START[:1], HumanMessage("Another task.")])
    assert other.tool_calls[0]["id"] != ids[0]


async def test_sync_async_and_streams_say_the_same() -> None:
    """Invoke, ainvoke, stream and astream give one message: words, tool call, usage and id."""
    plain = MODEL.invoke(START)
    streamed: AIMessageChunk | None = None
    chunks = list(MODEL.stream(START))
    for chunk in chunks:
        assert isinstance(chunk, AIMessageChunk)
        streamed = chunk if streamed is None else streamed + chunk  # pyright: ignore
    later: AIMessageChunk | None = None
    async for chunk in MODEL.astream(START):
        assert isinstance(chunk, AIMessageChunk)
        later = chunk if later is None else later + chunk  # pyright: ignore
    assert len(chunks) > 10
    for each in (streamed, later, await MODEL.ainvoke(START)):
        assert each is not None
        assert (each.content, each.tool_calls, each.usage_metadata, each.id) == (
            plain.content,
            plain.tool_calls,
            plain.usage_metadata,
            plain.id,
        )


def test_usage_is_counted_and_said_to_be_an_estimate() -> None:
    """Tokens are a quarter of the characters of the conversation; the message says that they are estimated."""
    short, long = MODEL.invoke(START), MODEL.invoke([*START, HumanMessage("x" * 4000)])
    assert short.usage_metadata is not None
    assert long.usage_metadata is not None
    assert 1000 <= long.usage_metadata["input_tokens"] - short.usage_metadata["input_tokens"] <= 1010
    usage = short.usage_metadata
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert usage["output_tokens"] >= len(INTRODUCTION) // 4
    assert short.response_metadata["usage_is"] == "estimated"


def test_without_its_tools_it_says_that_it_can_do_nothing() -> None:
    """Asked like a language model, it does not pretend: it says what it is and calls nothing."""
    said = RulePolicyModel().invoke("What is the capital of France?")
    assert said.tool_calls == []
    assert "not a language model" in str(said.content)
    assert "list_files" in str(said.content)
