"""Messages of models as the protocol tells them: a start, blocks that grow, and a finish.

The event log holds the pieces of a message as version 2 tells them, each joined from 50 milliseconds of tokens.
LangChain's own translation makes the protocol's events of them, one piece after another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Generator, Mapping
from typing import Any, cast

from langchain_core.language_models._compat_bridge import (  # pyright: ignore[reportPrivateUsage]
    achunks_to_events,  # langgraph takes its sibling from the same place; nothing public translates piece by piece
    message_to_events,
)
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk

CHUNK = "AIMessageChunk"
_OF_MODEL = "ls_model_type"
"""What the metadata of a message has that a model gave; one that a node returned is told by the state alone."""
_ABOUT = {"ls_provider": "provider", "ls_model_name": "model", "ls_model_type": "model_type"}


class Told:
    """What is told of one message, and by which node."""

    def __init__(self, node: str | None, data: dict[str, Any]) -> None:
        self.node = node
        self.data = data


class Messages:
    """Translates the messages of one run; `close` it in the end."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], _Message] = {}
        self._said: dict[str, str] = {}

    def of(self, namespace: str, told: tuple[Mapping[str, Any], Mapping[str, Any]]) -> list[Told]:
        """The events of one row of the log.

        Args:
            namespace: The graph it comes from, as in the log.
            told: The message, or a piece of it, and its metadata.
        """
        fields, metadata = told
        if fields.get("type") == CHUNK:
            return self._piece(namespace, fields, metadata)
        if fields.get("type") != "ai" or _OF_MODEL not in metadata:
            return []
        message = AIMessage(**_fields(fields))
        if message.text and self._said.get(_task(metadata)) == message.text:
            return []  # its pieces were told under another id, since a node asked the model for the protocol's events
        begun = _Message(str(fields.get("id")), metadata)
        return begun.dressed([cast("dict[str, Any]", event) for event in message_to_events(message)])

    def close(self, why: str | None = None) -> list[Told]:
        """The run paused, ended, or begins a step anew: no message goes on.

        Args:
            why: What kept them from their ends; None: nothing.
        """
        left, self._open = self._open, {}
        return [told for message in left.values() for told in (message.fail(why) if why else message.finish())]

    def _piece(self, namespace: str, fields: Mapping[str, Any], metadata: Mapping[str, Any]) -> list[Told]:
        key = (namespace, str(fields.get("id")))
        message = self._open.get(key)
        if message is None:
            message = self._open[key] = _Message(key[1], metadata)
        piece = AIMessageChunk(**_fields(fields))
        told = message.push(piece)
        if piece.chunk_position == "last":
            del self._open[key]
            self._said[_task(metadata)] = message.text
            told += message.finish()
        return told


class _Message:
    def __init__(self, message_id: str, metadata: Mapping[str, Any]) -> None:
        self.text = ""
        self._id = message_id
        self._metadata = metadata
        self._pieces = _Pieces()
        self._events = achunks_to_events(self._pieces)
        self._asked: Any = None

    def push(self, piece: AIMessageChunk) -> list[Told]:
        self.text += piece.text
        self._pieces.waiting.append(ChatGenerationChunk(message=piece))
        return self.dressed(self._made())

    def finish(self) -> list[Told]:
        self._pieces.over = True
        return self.dressed(self._made())

    def fail(self, why: str) -> list[Told]:
        self.finish()
        return self.dressed([{"event": "error", "message": why}])

    def dressed(self, events: list[dict[str, Any]]) -> list[Told]:
        """The events with the message's id, so that those of several messages can be told apart."""
        node = self._metadata.get("langgraph_node")
        for event in events:
            event["id"] = self._id
            if event["event"] == "message-start":
                event["metadata"] = {**self._about(), **event.get("metadata", {})}
        return [Told(node, event) for event in events]

    def _about(self) -> dict[str, Any]:
        about = {ours: self._metadata[name] for name, ours in _ABOUT.items() if self._metadata.get(name)}
        return {**about, "langgraph_node": self._metadata.get("langgraph_node")}

    def _made(self) -> list[dict[str, Any]]:
        """What the translation makes of the pieces that wait; it stops where it asks for the next one."""
        made: list[dict[str, Any]] = []
        while True:
            self._asked = self._asked or self._events.__anext__()
            try:
                self._asked.send(None)
            except StopIteration as event:
                made.append(cast("dict[str, Any]", event.value))
                self._asked = None
            except StopAsyncIteration:
                return made
            else:
                return made


class _Pieces(AsyncIterator[ChatGenerationChunk]):
    """Pieces as they are pushed; whoever asks for one that is not there yet stops there."""

    def __init__(self) -> None:
        self.waiting: deque[ChatGenerationChunk] = deque()
        self.over = False

    async def __anext__(self) -> ChatGenerationChunk:
        while not self.waiting:
            if self.over:
                raise StopAsyncIteration
            await _Stop()
        return self.waiting.popleft()


class _Stop:
    def __await__(self) -> Generator[None]:
        yield


def _fields(message: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name != "type"}


def _task(metadata: Mapping[str, Any]) -> str:
    return str(metadata.get("langgraph_checkpoint_ns"))
