"""The thread protocol as plain HTTP: commands, and the events of a stream."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import httpx

from tests.support.waiting import PATIENCE

ALL = ["values", "updates", "messages", "tools", "lifecycle", "input", "checkpoints", "tasks", "custom"]
Event = dict[str, Any]


class Thread:
    """One thread of a server.

    Args:
        client: Asks the server.
        thread_id: Its id; a new one when omitted.
    """

    def __init__(self, client: httpx.Client, thread_id: str | None = None) -> None:
        self.client = client
        self.id = thread_id or str(uuid.uuid4())
        self._commands = 0

    def command(self, method: str, **params: Any) -> dict[str, Any]:
        """The answer to a command."""
        self._commands += 1
        body = {"id": self._commands, "method": method, "params": params}
        answer = self.client.post(f"/threads/{self.id}/commands", json=body)
        assert answer.status_code == 200, answer.text
        told = answer.json()
        assert told["id"] == self._commands
        return told

    def start(self, graph: str, **params: Any) -> dict[str, Any]:
        """Start a run; the answer to that."""
        told = self.command("run.start", assistant_id=graph, **params)
        assert told["type"] == "success", told
        return told

    def events(self, *channels: str, **wanted: Any) -> Iterator[Event]:
        """Events as they come; all channels when none is named."""
        body = {"channels": list(channels) or ALL, **wanted}
        with self.client.stream("POST", f"/threads/{self.id}/stream/events", json=body, timeout=PATIENCE) as answer:
            assert answer.status_code == 200, answer.read()
            frame: dict[str, str] = {}
            end = time.monotonic() + PATIENCE
            for line in answer.iter_lines():
                assert time.monotonic() < end, "nothing but heartbeats"
                if line and not line.startswith(":"):
                    name, _, value = line.partition(": ")
                    frame[name] = value
                elif not line and frame:
                    event = json.loads(frame["data"])
                    assert (frame["id"], frame["event"]) == (event["event_id"], event["method"])
                    frame = {}
                    yield event
                    end = time.monotonic() + PATIENCE

    def until(self, over: Callable[[Event], bool], *channels: str, **wanted: Any) -> list[Event]:
        """The events up to the first for which something holds."""
        seen: list[Event] = []
        for event in self.events(*channels, **wanted):
            seen.append(event)
            if over(event):
                return seen
        raise AssertionError(f"the stream ended before; it told {seen}")

    def to_end(self, *channels: str, ends: int = 1, **wanted: Any) -> list[Event]:
        """The events up to the end of so many runs."""
        left = [ends]

        def over(event: Event) -> bool:
            left[0] -= is_end(event)
            return not left[0]

        return self.until(over, *channels, **wanted)


def is_end(event: Event) -> bool:
    """Whether a run came to its end, or paused."""
    told = event["params"]["data"]
    return (
        event["method"] == "lifecycle"
        and not event["params"]["namespace"]
        and told["event"] in ("completed", "failed", "interrupted")
    )


def told(events: list[Event], method: str) -> list[Any]:
    """What events of one kind tell."""
    return [event["params"]["data"] for event in events if event["method"] == method]


def phases(events: list[Event]) -> list[str]:
    """What became of the thread's runs, in order."""
    roots = [event for event in events if not event["params"]["namespace"]]
    return [data["event"] for data in told(roots, "lifecycle")]
