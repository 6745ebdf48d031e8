"""Graphs for workers in processes of their own, as files: each node notes where it ran, some end their process."""

from __future__ import annotations

import json
from pathlib import Path

SOURCE = """
import ctypes
import operator
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Annotated, TypedDict

from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

from everstep import effect

FOLDER = Path(__file__).parent


class State(TypedDict, total=False):
    name: str
    log: Annotated[list[str], operator.add]


def note(state: State, text: str) -> None:
    with (FOLDER / f"{state['name']}.log").open("a") as file:
        file.write(f"{text} {os.getpid()}\\n")


def wait_for(name: str, text: str = "") -> None:
    end = time.monotonic() + 60
    while not (FOLDER / name).exists() or text not in (FOLDER / name).read_text():
        assert time.monotonic() < end, f"{name} did not come"
        time.sleep(0.01)


@effect("world.act")
def act(name: str) -> str:
    with (FOLDER / "world").open("a") as file:
        file.write(f"{name}\\n")
    return name


def first(state: State) -> State:
    note(state, "first")
    return {"log": [act(state["name"])]}


def second(state: State) -> State:
    note(state, "second")
    name = state["name"]
    if name.startswith("long"):
        wait_for("go")
    bystanders = FOLDER / "bystanders"
    if name in ("exit", "segfault", "kill") and bystanders.exists():
        for other in bystanders.read_text().split():
            wait_for(f"{other}.log", "second")
    if name == "exit":
        os._exit(9)
    if name == "segfault":
        ctypes.string_at(0)
    if name == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "ask":
        return {"log": [str(interrupt("go on?"))]}
    return {"log": ["second"]}


async def third(state: State) -> State:
    note(state, "third")
    if state["name"] == "leave":
        sys.exit(3)
    if state["name"] == "block":
        threading.Event().wait()
    return {"log": ["third"]}


graph = StateGraph(State)
for node in (first, second, third):
    graph.add_node(node.__name__, node)
graph.add_edge(START, "first").add_edge("first", "second").add_edge("second", "third")
"""


def write(folder: Path) -> Path:
    """Write the graph `steps` into the folder; returns the configuration file."""
    (folder / "isolated_steps.py").write_text(SOURCE)
    configuration = folder / "langgraph.json"
    configuration.write_text(json.dumps({"graphs": {"steps": "./isolated_steps.py:graph"}, "dependencies": ["."]}))
    return configuration


def noted(folder: Path, name: str) -> list[tuple[str, int]]:
    """The nodes of a job that ran, with their processes."""
    file = folder / f"{name}.log"
    lines = file.read_text().splitlines() if file.exists() else []
    return [(line.split()[0], int(line.split()[1])) for line in lines]


def acted(folder: Path) -> list[str]:
    """The effects that reached the world."""
    file = folder / "world"
    return file.read_text().splitlines() if file.exists() else []
