"""The thread protocol with LangGraph's own clients: the SDK's thread streams, and `RemoteGraph`'s newer path."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from langgraph.pregel.remote import RemoteGraph
from langgraph.types import Command
from langgraph_sdk import get_client, get_sync_client

from everstep.checkpoints.store import Store
from everstep.server.langgraph.protocol import streaming
from tests.support.chat_graphs import catalogue
from tests.support.javascript import scenarios
from tests.support.live import live
from tests.support.protocol import Thread
from tests.support.record import fresh
from tests.support.waiting import PATIENCE

SAID = {"messages": [{"role": "user", "content": "hello there"}]}
APPROVED = {"decisions": [{"type": "approve"}]}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients on a busy machine take longer from one connection to the next."""
    monkeypatch.setattr(streaming, "BEHIND_S", 2.0)
    monkeypatch.setattr(streaming, "MOMENT_S", 5.0)


def _within_bounds(work: Any) -> Any:
    return asyncio.run(asyncio.wait_for(work, PATIENCE))


def test_messages_and_the_output(url: str) -> None:
    """The SDK's thread stream: a run on a thread it made up, each message as a stream, the output at the end."""

    async def work() -> None:
        async with get_client(url=url).threads.stream(assistant_id="chat") as thread:
            await thread.run.start(input=SAID)
            messages = [message async for message in thread.messages]
            assert [(await message.text).split() for message in messages] == [["You", "said:", "hello", "there"]]
            output = await thread.output
            assert [message["content"].split() for message in output["messages"]][-1][-1] == "there"

    _within_bounds(work())


def test_a_question_is_answered(url: str) -> None:
    """The run pauses, its question is there, `run.respond` answers it, and the output is that of the whole."""

    async def work() -> None:
        async with get_client(url=url).threads.stream(assistant_id="approval") as thread:
            await thread.run.start(input=SAID)
            values = [snapshot async for snapshot in thread.values]
            assert thread.interrupted
            assert len(values[-1]["messages"]) == 2
            (asked,) = thread.interrupts
            assert asked["value"]["action_requests"][0]["name"] == "send_mail"
            await thread.run.respond(APPROVED)
            assert (await thread.output)["messages"][-1]["content"] == "decided: approve"

    _within_bounds(work())


def test_a_failure_is_raised(url: str) -> None:
    """The output of a run that fails is its error."""

    async def work() -> None:
        async with get_client(url=url).threads.stream(assistant_id="failing") as thread:
            await thread.run.start(input={"log": []})
            with pytest.raises(RuntimeError, match="Run errored: no such thing"):
                await thread.output

    _within_bounds(work())


def test_a_refused_command_is_raised(url: str) -> None:
    """The protocol's error is the client's error."""

    async def work() -> None:
        async with get_client(url=url).threads.stream(assistant_id="nobody") as thread:
            with pytest.raises(RuntimeError, match=r"Protocol error \[invalid_argument\]: .*nobody"):
                await thread.run.start(input={})

    _within_bounds(work())


def test_a_stream_that_breaks_goes_on_at_another_server(tmp_path: Path) -> None:
    """The client opens a broken stream again, at another server of the record; each event comes once, none is lost."""

    async def work(here: str, there: str) -> list[Any]:
        seen: list[Any] = []
        async with _Way(here) as way, get_client(url=way.url).threads.stream(assistant_id="endless") as thread:
            run = await thread.run.start(input={"log": ["in"]})
            async for event in thread.subscribe(["updates", "tasks", "lifecycle"]):
                seen.append(event)
                if event["method"] == "updates":
                    way.lead_to(there)
                    await get_client(url=there).runs.cancel(thread.thread_id, run["run_id"])
                if event["params"]["data"].get("event") == "failed":
                    break
            with httpx.Client(base_url=there, timeout=PATIENCE, trust_env=False) as client:
                whole = Thread(client, thread.thread_id).to_end("updates", "tasks", "lifecycle", since=0)
        assert way.connections > 2
        assert seen == whole
        return seen

    with (
        fresh(tmp_path) as store,
        Store.open(store.url) as other,
        live(store, catalogue()) as here,
        live(other, catalogue(), work=False) as there,
    ):
        events = _within_bounds(work(here, there))
    assert [event["params"]["data"] for event in events if event["method"] == "updates"] == [{"a": {"log": ["a"]}}]


class _Way:
    """What stands between a client and servers: it leads to one, and breaks what is open when it is to lead elsewhere.

    Args:
        target: The address it leads to.
    """

    def __init__(self, target: str) -> None:
        self.connections = 0
        self._target = target
        self._open: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> _Way:
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.lead_to(self._target)
        self._server.close()

    def lead_to(self, target: str) -> None:
        self._target = target
        for writer in self._open:
            writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        host, port = self._target.removeprefix("http://").split(":")
        there = await asyncio.open_connection(host, int(port))
        self._open |= {writer, there[1]}
        with suppress(OSError):
            await asyncio.gather(_copy(reader, there[1]), _copy(there[0], writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while part := await reader.read(65536):
        writer.write(part)
        await writer.drain()
    writer.close()


def test_the_synchronous_client(url: str) -> None:
    """The SDK's synchronous thread stream: custom events by their channel, and the output."""
    with get_sync_client(url=url).threads.stream(assistant_id="steps") as thread:
        thread.run.start(input={"log": ["in"]})
        assert [event["params"]["data"] for event in thread.subscribe(["custom"])] == [{"at": name} for name in "abc"]
        assert thread.output == {"log": ["in", "a", "b", "c"]}


def test_remote_graph_goes_on_with_a_thread(url: str) -> None:
    """`RemoteGraph` streams by the protocol; a second run on the thread waits for its own end, not the first's."""
    config: Any = {"configurable": {"thread_id": str(uuid.uuid4())}}
    remote = RemoteGraph("steps", url=url)
    for turn in (1, 2, 3):
        with remote.stream_events({"log": [str(turn)]}, config, version="v3") as run:
            assert run.output["log"].count("c") == turn


def test_remote_graph_resumes(url: str) -> None:
    """A paused thread is resumed by `Command(resume=…)` in another session."""

    async def work() -> None:
        remote = RemoteGraph("approval", url=url)
        config: Any = {"configurable": {"thread_id": str(uuid.uuid4())}}
        async with await remote.astream_events(SAID, config, version="v3") as run:
            async for _ in run.values:
                pass
            assert await run.interrupted()
        async with await remote.astream_events(Command(resume=APPROVED), config, version="v3") as run:
            assert (await run.output())["messages"][-1]["content"] == "decided: approve"
            assert not await run.interrupted()

    _within_bounds(work())


def test_the_javascript_client(url: str) -> None:
    """The SDK's thread streams from JavaScript: messages, values, a question and its answer, the output."""
    scenarios("thread_protocol.mjs", url)
