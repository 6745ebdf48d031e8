"""An agent that adds one message of 1 KB a step, and the savers it can be run with, in a process of its own.

The stock savers are those of the version that Everstep's own environment has, so that both run on one LangGraph.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, TypedDict

import aiosqlite
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

from bench.child import Control
from everstep.checkpoints.saver import StepSaver
from everstep.checkpoints.store import Store
from everstep.runtime.worker import Worker

NONE, MEMORY, SYNC, ASYNC, STEP, WORKER = (
    "none",
    "InMemorySaver",
    "SqliteSaver",
    "AsyncSqliteSaver",
    "StepSaver",
    "worker",
)


def _texts(count: int) -> Iterator[str]:
    """Texts of 1,000 characters that deflate to 54 % by themselves, as pages of `docs/` do; after so many, again."""
    chance = random.Random(1)
    letters = "etaoinshrdlu" * 2 + "cmwfgypbvk"
    words = ["".join(chance.choices(letters, k=chance.randint(2, 9))) for _ in range(3000)]
    texts = [" ".join(words[int(3000 * chance.random() ** 3.9)] for _ in range(400))[:1000] for _ in range(count)]
    return itertools.cycle(texts)


TEXTS = _texts(500)


class State(TypedDict):
    """What the graph holds."""

    messages: Annotated[list[Any], add_messages]
    steps: int
    limit: int


def graph() -> Any:
    """The agent, not compiled; its one node is asynchronous, or not, as it is run."""

    def message(state: State) -> dict[str, Any]:
        return {"messages": [AIMessage(next(TEXTS), id=str(uuid.uuid4()))], "steps": state["steps"] + 1}

    async def later(state: State) -> dict[str, Any]:
        return message(state)

    from langgraph._internal._runnable import RunnableCallable

    made = StateGraph(State)
    made.add_node("step", RunnableCallable(message, later))
    made.add_edge(START, "step")
    made.add_conditional_edges("step", lambda state: "step" if state["steps"] < state["limit"] else END)
    return made


def beginning(steps: int) -> dict[str, Any]:
    """What it starts with."""
    return {"messages": [HumanMessage("go", id="0")], "steps": 0, "limit": steps}


def config_of(agent: int, steps: int) -> dict[str, Any]:
    """The configuration of an agent's run."""
    return {"configurable": {"thread_id": str(agent)}, "recursion_limit": steps + 5}


def size_of(folder: Path) -> int:
    """Bytes of all files in it."""
    return sum(file.stat().st_size for file in folder.iterdir())


def run(control: Control, saver: str, folder: str, agents: int, steps: int) -> dict[str, float]:
    """Run agents at once, in one process; what it took.

    Args:
        control: The harness.
        saver: One of the names above; the synchronous one runs one agent after the other.
        folder: Where its file goes.
        agents: How many agents.
        steps: Steps of each; with 0 everything is made that there is before the first step, and no more.
    """
    runs = {NONE: _without, MEMORY: _memory, SYNC: _sync, ASYNC: _async, STEP: _step_saver, WORKER: _worker}
    run = runs[saver]
    seconds, commits = run(Path(folder), agents, steps, control.ready)
    return {"seconds": seconds, "commits": commits, "bytes": size_of(Path(folder))}


Ready = Callable[[], float]


def _without(_folder: Path, agents: int, steps: int, ready: Ready) -> tuple[float, int]:
    return asyncio.run(_at_once(graph().compile(), agents, steps, ready, lambda: 0))


def _memory(_folder: Path, agents: int, steps: int, ready: Ready) -> tuple[float, int]:
    return asyncio.run(_at_once(graph().compile(checkpointer=InMemorySaver()), agents, steps, ready, lambda: 0))


async def _at_once(
    compiled: Any, agents: int, steps: int, ready: Ready, commits: Callable[[], int]
) -> tuple[float, int]:
    durably: dict[str, Any] = {"durability": "sync"} if compiled.checkpointer else {}
    await compiled.ainvoke(beginning(2), config_of(-1, 2), **durably)
    before, begin = commits(), ready()
    agents = agents if steps else 0
    runs = [compiled.ainvoke(beginning(steps), config_of(agent, steps), **durably) for agent in range(agents)]
    for values in await asyncio.gather(*runs):
        _check(values, steps)
    return time.monotonic() - begin, commits() - before


def _check(values: dict[str, Any], steps: int) -> None:
    if values["steps"] != steps or len(values["messages"]) != steps + 1:
        raise AssertionError(f"{values['steps']} of {steps} steps, {len(values['messages'])} messages")


class _Commits:
    """Counts transactions by the statements SQLite runs."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, statement: str) -> None:
        self.count += statement.lstrip().upper().startswith("COMMIT")


def _sync(folder: Path, agents: int, steps: int, ready: Ready) -> tuple[float, int]:
    with closing(sqlite3.connect(folder / "stock.db", check_same_thread=False)) as connection:
        connection.execute("PRAGMA synchronous=FULL")
        saver = SqliteSaver(connection)
        saver.setup()
        compiled = graph().compile(checkpointer=saver)
        compiled.invoke(beginning(2), config_of(-1, 2), durability="sync")
        commits = _Commits()
        connection.set_trace_callback(commits)
        begin = ready()
        for agent in range(agents if steps else 0):
            _check(compiled.invoke(beginning(steps), config_of(agent, steps), durability="sync"), steps)
        return time.monotonic() - begin, commits.count


def _async(folder: Path, agents: int, steps: int, ready: Ready) -> tuple[float, int]:
    async def main() -> tuple[float, int]:
        async with aiosqlite.connect(folder / "stock.db") as connection:
            await connection.execute("PRAGMA synchronous=FULL")
            saver = AsyncSqliteSaver(connection)
            await saver.setup()
            compiled = graph().compile(checkpointer=saver)
            commits = _Commits()
            await connection.set_trace_callback(commits)
            return await _at_once(compiled, agents, steps, ready, lambda: commits.count)

    return asyncio.run(main())


def _step_saver(folder: Path, agents: int, steps: int, ready: Ready) -> tuple[float, int]:
    with Store.open(f"sqlite:///{folder / 'everstep.db'}") as store:
        compiled = graph().compile(checkpointer=StepSaver(store))
        return asyncio.run(_at_once(compiled, agents, steps, ready, lambda: store.commits))


def _worker(folder: Path, agents: int, steps: int, ready: Ready) -> tuple[float, int]:
    with Store.open(f"sqlite:///{folder / 'everstep.db'}") as store:
        for number in range(agents):
            store.enqueue("agent", {**beginning(steps), "messages": []}, key=f"agent {number}")
        begin, enqueued = ready(), store.commits
        if steps == 0:
            return 0.0, 0
        Worker(store, {"agent": graph().compile()}, concurrency=max(agents, 1)).run(until_idle=True)
        seconds = time.monotonic() - begin
        done = store.jobs(status="done", limit=agents + 1)
        if len(done) != agents:
            raise AssertionError(f"{len(done)} of {agents} jobs are done")
        return seconds, store.commits - enqueued
