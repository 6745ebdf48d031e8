"""Graphs that the clients of LangGraph's API talk to: a chat, questions to people in both forms, a subgraph."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, TypedDict

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt

from everstep.graphs.loader import GraphCatalogue


class EchoModel(BaseChatModel):
    """Says what it was told, word by word."""

    @property
    def _llm_type(self) -> str:
        return "echo"

    def _generate(self, messages: list[BaseMessage], *given: Any, **named: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage(_reply(messages)))])

    def _stream(self, messages: list[BaseMessage], *given: Any, **named: Any) -> Iterator[ChatGenerationChunk]:
        for word in _reply(messages).split(" "):
            yield ChatGenerationChunk(message=AIMessageChunk(f"{word} "))

    async def _astream(
        self, messages: list[BaseMessage], *given: Any, **named: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        for part in self._stream(messages):
            yield part


def _reply(messages: list[BaseMessage]) -> str:
    said = next(message.text for message in reversed(messages) if isinstance(message, HumanMessage))
    return f"You said: {said}"


async def _answer(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await EchoModel().ainvoke(state["messages"])]}


def chat() -> Any:
    """Answers every message with an echo, token by token."""
    builder = StateGraph(MessagesState)
    builder.add_node("answer", _answer)
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    return builder.compile()


REQUEST = {
    "action_requests": [{"name": "send_mail", "args": {"to": "anna"}, "description": "Send a mail to Anna"}],
    "review_configs": [{"action_name": "send_mail", "allowed_decisions": ["approve", "edit", "reject"]}],
}
"""What a graph asks before it acts, in the form of today's agents."""
OLDER_REQUEST = {
    "action_request": {"action": "send_mail", "args": {"to": "anna"}},
    "config": {"allow_ignore": True, "allow_respond": True, "allow_edit": True, "allow_accept": True},
    "description": "Send a mail to Anna",
}
"""The same in the form that Agent Inbox began with."""


def approval() -> Any:
    """Chats, then asks whether to send a mail, and says what was decided."""

    def ask(state: MessagesState) -> dict[str, Any]:
        answer = interrupt(REQUEST)
        decision = answer["decisions"][0]["type"]
        return {"messages": [AIMessage(f"decided: {decision}")]}

    builder = StateGraph(MessagesState)
    builder.add_node("answer", _answer)
    builder.add_node("ask", ask)
    builder.add_edge(START, "answer")
    builder.add_edge("answer", "ask")
    builder.add_edge("ask", END)
    return builder.compile()


def inbox() -> Any:
    """Asks whether to send a mail, in the older form, and says what was decided."""

    def ask(state: MessagesState) -> dict[str, Any]:
        answer = interrupt([OLDER_REQUEST])[0]
        return {"messages": [AIMessage(f"decided: {answer['type']}")]}

    builder = StateGraph(MessagesState)
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")
    builder.add_edge("ask", END)
    return builder.compile()


class Steps(TypedDict, total=False):
    """What `steps` and its kin have done."""

    log: Annotated[list[str], operator.add]
    answer: Any


def _named(name: str) -> Any:
    def node(state: Steps) -> Steps:
        get_stream_writer()({"at": name})
        return {"log": [name]}

    return node


def _chain(*names: str) -> StateGraph[Steps]:
    builder = StateGraph(Steps)
    for before, name in zip([START, *names], names, strict=False):
        builder.add_node(name, _named(name))
        builder.add_edge(before, name)
    builder.add_edge(names[-1], END)
    return builder


def steps() -> Any:
    """Three steps, each of which tells of itself."""
    return _chain("a", "b", "c").compile()


def nested() -> Any:
    """A step, a subgraph that asks a question between two steps of its own, and a step."""

    def ask(state: Steps) -> Steps:
        return {"log": ["asked"], "answer": interrupt({"question": "go on?"})}

    inner = StateGraph(Steps)
    inner.add_node("first", lambda state: {"log": ["first"]})
    inner.add_node("ask", ask)
    inner.add_edge(START, "first")
    inner.add_edge("first", "ask")
    inner.add_edge("ask", END)

    def within(state: Steps) -> Steps:
        return {"log": [f"answered {state.get('answer')}"]}

    builder = StateGraph(Steps)
    builder.add_node("before", lambda state: {"log": ["before"]})
    builder.add_node("inner", lambda state: compiled.invoke({"log": []}))
    builder.add_node("after", within)
    builder.add_edge(START, "before")
    builder.add_edge("before", "inner")
    builder.add_edge("inner", "after")
    builder.add_edge("after", END)
    compiled = inner.compile()
    return builder.compile()


def endless() -> Any:
    """A step, then one that never ends by itself."""

    async def wait(state: Steps) -> Steps:
        await asyncio.Event().wait()
        return {"log": ["never"]}

    builder = StateGraph(Steps)
    builder.add_node("a", _named("a"))
    builder.add_node("wait", wait)
    builder.add_edge(START, "a")
    builder.add_edge("a", "wait")
    builder.add_edge("wait", END)
    return builder.compile()


def failing() -> Any:
    """A step, then one that fails for good."""

    def fail(state: Steps) -> Steps:
        raise ValueError("no such thing")

    builder = StateGraph(Steps)
    builder.add_node("a", _named("a"))
    builder.add_node("fail", fail)
    builder.add_edge(START, "a")
    builder.add_edge("a", "fail")
    builder.add_edge("fail", END)
    return builder.compile()


def catalogue() -> GraphCatalogue:
    """All of them, by name."""
    made = (chat, approval, inbox, steps, nested, endless, failing)
    return GraphCatalogue.from_graphs({make.__name__: make() for make in made})
