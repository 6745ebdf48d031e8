"""Graphs as users write them, right and wrong, for the tests of `everstep crash-test`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import operator
import os
import platform
import random
import socket
import sqlite3
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage
from langchain_core.runnables import run_in_executor
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import interrupt

from everstep import effect, review, verify


class State(TypedDict, total=False):
    place: str
    paid: str
    thanked: str
    number: Any
    log: Annotated[list[Any], operator.add]
    messages: Annotated[list[Any], add_messages]


def write(place: str, line: str) -> str:
    """Do something that cannot be undone: append a line to the run's ledger."""
    with open(f"{place}/ledger", "a") as ledger:
        ledger.write(line + "\n")
    return line


def written(place: str, line: str) -> str | None:
    """A probe that sees what `write` did."""
    ledger = Path(place, "ledger")
    return line if ledger.exists() and line in ledger.read_text().splitlines() else None


record = effect("ledger.write", probe=written)(write)
record_blindly = effect("ledger.write_blindly")(write)
record_misjudged = effect("ledger.write_misjudged", probe=lambda place, line: None)(write)
record_credulous = effect("ledger.write_credulous", probe=lambda place, line: line)(write)


def write_twice(place: str, line: str) -> str:
    """Do two things: a line in the ledger, and a copy of it for the accountant."""
    write(place, line)
    with open(f"{place}/copies", "a") as copies:
        copies.write(line + "\n")
    return line


def write_often(place: str, line: str) -> str:
    """Do the same thing many times, at one line."""
    for _ in range(20):
        write(place, line)
    return line


record_both = effect("ledger.write_both", probe=written)(write_twice)  # a probe that looks at the first half only
record_often = effect("ledger.write_often", idempotent=True)(write_often)


@effect("database.add", probe=lambda place: _rows(place) or None)
def _add_row(place: str) -> int:
    """Do something in a database: half of it is taken back by a crash."""
    connection = sqlite3.connect(f"{place}/data.db")
    connection.execute("CREATE TABLE IF NOT EXISTS sales (item TEXT)")
    connection.execute("INSERT INTO sales VALUES ('A17')")
    connection.commit()
    connection.close()
    return 1


def _rows(place: str) -> int:
    with contextlib.closing(sqlite3.connect(f"{place}/data.db")) as connection:
        found = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        return connection.execute("SELECT count(*) FROM sales").fetchone()[0] if found else 0


@effect("shop.tell", idempotent=True)
def _tell(place: str) -> str:
    """Do something by other means: a file that is renamed, a process, a socket."""
    Path(place, "order.new").write_text("A17")
    os.replace(f"{place}/order.new", f"{place}/order")
    subprocess.run(["touch", f"{place}/told"], check=True)
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_connection(listening.getsockname()) as line:
        line.sendall(b"A17")
    return "told"


@effect("file.write_by_threads", idempotent=True)
async def _write_by_threads(place: str) -> int:
    await asyncio.to_thread(Path(place, "in-thread").write_text, "1")
    await asyncio.sleep(0)
    Path(place, "on-loop").write_text("1")
    process = await asyncio.create_subprocess_exec("touch", f"{place}/by-process")
    await process.wait()
    return 1


@effect("file.refuse", idempotent=True)
def _refuse(place: str) -> int:
    Path(place, "asked").touch()
    raise ConnectionRefusedError("nobody listens there")


async def _do_node(state: State) -> Any:
    with contextlib.suppress(ConnectionRefusedError):
        _refuse(state["place"])
    return {"log": [_add_row(state["place"]), _tell(state["place"]), await _write_by_threads(state["place"])]}


def shop(thank: Callable[[str, str], str]) -> Any:
    """Two nodes: the first pays as it should, the second thanks by the given means."""

    def pay_node(state: State) -> Any:
        return {"paid": record(state["place"], "paid")}

    def thank_node(state: State) -> Any:
        return {"thanked": thank(state["place"], "thanked")}

    graph = StateGraph(State).add_node("pay", pay_node).add_node("thank", thank_node)
    return graph.add_edge(START, "pay").add_edge("pay", "thank").add_edge("thank", END)


def one(node: Any) -> Any:
    """A graph of one node, `work`."""
    return StateGraph(State).add_node("work", node).add_edge(START, "work").add_edge("work", END)


def _ask(state: State) -> Any:
    number = interrupt({"question": "How many?"})
    decision = review("Send them?", action="send", args={"to": "Ada"})
    return {"log": [number, decision.type, decision.args]}


def _differ(state: State) -> Any:
    return {"number": random.random(), "paid": "always", "messages": [AIMessage("hello")]}


_calls = 0


def _remember(state: State) -> Any:
    global _calls
    _calls += 1
    return {"log": [_calls]}


def _early_or_late(state: State) -> Any:
    """The first two runs in a place agree, the others do not agree with them."""
    runs = Path(state["place"])
    with runs.open("a") as file:
        file.write(".")
    return {"number": "early" if runs.stat().st_size <= 2 else "late"}


def _again(state: State) -> bool:
    """Whether this body ran before in this run."""
    mark = Path(state["place"], "mark")
    if mark.exists():
        return True
    mark.touch()
    return False


def _hang_when_again(state: State) -> Any:
    if _again(state):
        threading.Event().wait()
    return {"number": 1}


def _exit_when_again(state: State) -> Any:
    if _again(state):
        print("no way", flush=True)
        os._exit(3)
    return {"number": 1}


def _behave(state: State) -> Any:
    """Everything that looks like a touch of the world and is none."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "a").write_text("1")
        os.rename(f"{folder}/a", f"{folder}/b")
    with tempfile.NamedTemporaryFile("w") as named, tempfile.TemporaryFile("w") as unnamed:
        named.write("1")
        unnamed.write("1")
    import wave  # noqa: F401

    handler = logging.FileHandler(f"{state['place']}/log", delay=False)
    handler.close()
    with open("/dev/null", "w"):
        pass
    sqlite3.connect(":memory:").close()
    Path(__file__).read_text()
    Path(state["place"], "folder").mkdir(exist_ok=True)
    platform.platform()
    verify(["true"])
    print("and whatever it prints")
    return {"number": 1}


async def _look_with_process(place: str) -> None:
    await asyncio.to_thread(subprocess.run, ["true"], check=True)


@effect("file.write_in_thread", probe=_look_with_process)
async def _write_in_thread(place: str) -> int:
    await asyncio.to_thread(Path(place, "in-thread").write_text, "1")
    await run_in_executor(None, Path(place, "in-executor").write_text, "1")  # as LangChain runs a sync tool
    return 1


async def _behave_in_effects(state: State) -> Any:
    return {"number": await _write_in_thread(state["place"])}


def _start(state: State) -> Any:
    subprocess.run(["git", "--version"], check=False, capture_output=True)
    os.system("true")
    return {"number": 1}


def _connect(state: State) -> Any:
    with socket.socket() as connection:
        connection.connect_ex(("127.0.0.1", 9))
    sqlite3.connect(f"{state['place']}/data.db").close()
    return {"number": 1}


def _replace(state: State) -> Any:
    handle, name = tempfile.mkstemp(dir=state["place"])
    os.close(handle)
    os.replace(name, f"{state['place']}/file")
    os.remove(f"{state['place']}/file")
    return {"number": 1}


def _write_in_own_thread(state: State) -> Any:
    thread = threading.Thread(target=lambda: Path(state["place"], "own").write_text("1"))
    thread.start()
    thread.join()
    return {"number": 1}


async def _write_in_executor(state: State) -> Any:
    await asyncio.to_thread(lambda: Path(state["place"], "a").write_text("1"))
    loop = asyncio.get_running_loop()
    (await loop.run_in_executor(None, open, f"{state['place']}/b", "w")).close()
    return {"number": 1}


def _refused_at_first(state: State) -> Any:
    if not _again(state):
        raise ConnectionRefusedError("nobody listens there yet")
    return {"number": 1}


def _raise(state: State) -> Any:
    raise ValueError("there is no such branch")


right, wrong, blind, misjudged = shop(record), shop(write), shop(record_blindly), shop(record_misjudged)
asking, differing, early_or_late = one(_ask), one(_differ), one(_early_or_late)
remembering = StateGraph(State).add_node("work", _remember).add_edge(START, "work")
remembering.add_conditional_edges("work", lambda state: "work" if len(state["log"]) < 3 else END)
refused = one(_refused_at_first)
hanging, exiting, failing = one(_hang_when_again), one(_exit_when_again), one(_raise)
behaving, behaving_in_effects = one(_behave), one(_behave_in_effects)
starting, connecting, replacing = one(_start), one(_connect), one(_replace)
credulous, half_seen, often = shop(record_credulous), shop(record_both), shop(record_often)
doing = one(_do_node)
own_thread, executor = one(_write_in_own_thread), one(_write_in_executor)
NAMES = [
    *("right", "wrong", "blind", "misjudged", "asking", "differing", "early_or_late", "remembering", "hanging"),
    *("exiting", "failing", "behaving", "behaving_in_effects", "starting", "connecting", "replacing", "own_thread"),
    *("executor", "refused", "credulous", "half_seen", "often", "doing"),
]
