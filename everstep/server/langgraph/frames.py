"""Events as server-sent events, in the form LangGraph's clients read (version 2 of its stream).

An event's id is its place in the event log, so a client that lost its connection names the last one it saw, to any
server of the record, and goes on behind it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, cast

from langchain_core.messages import AIMessageChunk, BaseMessageChunk

from everstep.checkpoints import events
from everstep.checkpoints.events import Event

ALWAYS = frozenset({events.METADATA, events.ERROR, events.END})
FROM_THE_START = frozenset({"", "-", "-1"})
"""What clients send as their last event's id to see a run from its first."""


class Frames:
    """Turns a run's events into the frames of one client.

    Args:
        modes: What the client asked for.
    """

    def __init__(self, modes: tuple[str, ...]) -> None:
        self._modes = frozenset(modes)
        self._whole: dict[tuple[str, str], BaseMessageChunk] = {}

    def of(self, event: Event) -> Iterator[bytes]:
        """The frames of one event."""
        if event.method == "messages":
            yield from self._message(event)
        elif event.method in ALWAYS or event.method in self._modes:
            told = "null" if event.method == events.END else event.data_json
            yield frame(_named(event.method, event), told, event.id)

    def pass_over(self, event: Event) -> None:
        """The client has seen this one already; what is told of later ones may build on it."""
        for _ in self.of(event):
            pass

    def _message(self, event: Event) -> Iterator[bytes]:
        if "messages-tuple" in self._modes:
            yield frame(_named("messages", event), event.data_json, event.id)
        if "messages" not in self._modes:
            return
        message, metadata = cast("tuple[dict[str, Any], dict[str, Any]]", event.data)
        key = (event.namespace, str(message.get("id")))
        is_chunk = str(message.get("type", "")).endswith("Chunk")
        if key not in self._whole:
            told = json.dumps({key[1]: {"metadata": metadata}})
            yield frame(_named("messages/metadata", event), told, event.id)
        if not is_chunk:
            yield frame(_named("messages/complete", event), json.dumps([message]), event.id)
            return
        chunk = AIMessageChunk(**{name: value for name, value in message.items() if name != "type"})
        known = self._whole.get(key)
        self._whole[key] = whole = chunk if known is None else known + chunk
        yield frame(_named("messages/partial", event), json.dumps([whole.model_dump(mode="json")]), event.id)


def frame(name: str, data_json: str, number: int | None) -> bytes:
    """One frame; JSON has no line breaks of its own, so its data is one line."""
    place = "" if number is None else f"id: {number}\n"
    return f"event: {name}\ndata: {data_json}\n{place}\n".encode()


def after(last_event_id: str | None) -> int:
    """The event behind which a client goes on; 0 for the first. An id that is none of ours begins anew."""
    given = (last_event_id or "").strip()
    return 0 if given in FROM_THE_START or not is_place(given) else int(given)


def is_place(given: str) -> bool:
    """Whether a text may be the id of an event: no integer of a database has more than 18 digits for certain."""
    return given.isascii() and given.isdigit() and len(given) <= 18


def _named(name: str, event: Event) -> str:
    return f"{name}{events.SEPARATOR}{event.namespace}" if event.namespace else name
