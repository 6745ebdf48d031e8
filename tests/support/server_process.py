"""A folder with graphs, and real servers on it: `everstep up` and `everstep server` as processes of their own."""

from __future__ import annotations

import json
import signal
import threading
from collections import deque
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx

from tests.cli import forked
from tests.cli.folder import environment
from tests.support.waiting import PATIENCE

GRAPHS = '''
import time
from pathlib import Path
from typing import TypedDict

from langgraph.graph import StateGraph
from langgraph_sdk import get_client


class State(TypedDict, total=False):
    n: int
    folder: str
    owner: str


def one(node):
    builder = StateGraph(State)
    builder.add_node("node", node)
    builder.set_entry_point("node")
    builder.set_finish_point("node")
    return builder.compile()


async def add(state):
    return {"n": state["n"] + 1}


async def stand(state):
    """Blocks its event loop until the test lets it go on."""
    Path(state["folder"], "stands").touch()
    while not Path(state["folder"], "go").exists():
        time.sleep(0.01)
    return {"n": 1}


async def call(state):
    """Asks its own server."""
    made = await get_client().http.post("/everstep/jobs", json={"graph": "agent", "input": {"n": 41}})
    return {"owner": made["owner"]}


agent, blocking, calling = one(add), one(stand), one(call)
'''


@dataclass
class Process:
    """A server's process.

    Attributes:
        ready: The line it wrote when it answered requests.
        running: The process.
    """

    ready: dict[str, Any]
    running: forked.Started

    @property
    def url(self) -> str:
        """Where it listens."""
        return self.ready["url"]

    def client(self, **more: Any) -> httpx.Client:
        """A client of it."""
        return httpx.Client(base_url=self.url, timeout=PATIENCE, trust_env=False, **more)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send it a signal; returns its exit code."""
        self.running.send_signal(number)
        return self.running.wait(PATIENCE)


class Start(Protocol):
    """Starts a server of the folder and waits until it is ready."""

    def __call__(self, *arguments: str, command: str = "up") -> Process: ...


def make_graphs(folder: Path) -> None:
    """Write graphs and their configuration."""
    (folder / "graphs_of_server.py").write_text(GRAPHS)
    graphs = {name: f"./graphs_of_server.py:{name}" for name in ("agent", "blocking", "calling")}
    (folder / "langgraph.json").write_text(json.dumps({"graphs": graphs}))


@contextmanager
def starting(folder: Path) -> Generator[Start]:
    """Start servers in the folder; those that still run at the end are killed."""
    with ExitStack() as stack:

        def begin(*arguments: str, command: str = "up") -> Process:
            given = [command, "--port", "0", "--json", *arguments]
            running = forked.Started(given, folder=folder, environment=environment())
            stack.callback(running.kill)
            stack.enter_context(running.stdout)
            line = running.stdout.readline()
            assert line, f"the server did not start: {running.wait(PATIENCE)}"
            reader = threading.Thread(target=deque, args=(running.stdout, 0), daemon=True)
            reader.start()  # a worker whose lines nobody reads stands still when the pipe is full
            stack.callback(reader.join)
            stack.callback(running.wait)
            stack.callback(running.kill)
            return Process(json.loads(line), running)

        yield begin
