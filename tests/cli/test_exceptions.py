"""Where a job's error was raised, as each command and each line of the log tells it: in the user's own code first."""

from __future__ import annotations

import json
import re

import pytest

from tests.cli.folder import Folder, Ran

GRAPHS = """
import asyncio
import sys

from langgraph.graph import START, StateGraph


def deep(how):
    if how == "exit":
        sys.exit("enough")
    if how == "interrupt":
        raise KeyboardInterrupt("stop")
    raise asyncio.CancelledError("mine")


def lookup(key):
    return {}[key]


def part(key):
    try:
        lookup(key)
    except KeyError as error:
        raise ValueError(f"bad {key}") from error


async def tasks():
    async def one(key):
        part(key)

    async with asyncio.TaskGroup() as group:
        for key in ("left", "right"):
            group.create_task(one(key))


def sync(state):
    deep(state["how"])


async def nosync(state):
    if state["how"] == "tasks":
        await tasks()
    deep(state["how"])


graph = StateGraph(dict).add_node("work", sync).add_edge(START, "work")
agraph = StateGraph(dict).add_node("work", nosync).add_edge(START, "work")
"""
ENDS = {"exit": "graph", "interrupt": "graph", "cancelled": "graph", "acancelled": "agraph", "tasks": "agraph"}
RAISED = {
    "exit": ("NodeExited", "caused by SystemExit: enough"),
    "interrupt": ("NodeExited", "caused by KeyboardInterrupt: stop"),
    "cancelled": ("NodeCancelledError", "caused by asyncio.exceptions.CancelledError: mine"),
    "acancelled": ("NodeCancelledError", "caused by asyncio.exceptions.CancelledError: mine"),
}


@pytest.fixture(scope="module", params=["", "record"], ids=["untraced", "traced"])
def ended(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Folder, dict[str, str], Ran]:
    """A job for each way to end, and what their worker said, with and without spans in the record."""
    folder = Folder(tmp_path_factory.mktemp("ended")).write(agent=GRAPHS)
    folder.configure(graph="./agent.py:graph", agraph="./agent.py:agraph")
    jobs = {how: folder.submit(graph, given=json.dumps({"how": how})) for how, graph in ENDS.items()}
    ran = folder.run("worker", "--until-idle", "--log-format", "json", EVERSTEP_TRACES=request.param)
    assert ran.code == 0, ran
    return folder, jobs, ran


def places(said: str) -> list[str]:
    """The functions of the places that a text shows, in order."""
    return re.findall(r"at \S+:\d+ (\S+)$", said, re.MULTILINE)


@pytest.mark.parametrize("how", RAISED)
def test_what_raised_comes_before_what_wrapped_it(how: str, ended: tuple[Folder, dict[str, str], Ran]) -> None:
    """`show`, `trace`, `review show` and the log tell who called `sys.exit()` or cancelled, not who noticed."""
    folder, jobs, ran = ended
    wrapper, cause = RAISED[how]
    for command in (("show",), ("trace",), ("trace", "--errors")):
        said = folder.run(command[0], jobs[how], *command[1:]).out
        assert wrapper in said
        assert cause in said
        assert places(said)[:2] == ["deep", "nosync" if ENDS[how] == "agraph" else "sync"]
        assert all("agent.py" in line for line in re.findall(r"at \S+:\d+ ", said))
    (line,) = [one for one in map(json.loads, filter(is_json, ran.err.splitlines())) if one.get("job") == jobs[how]
               and one["message"].startswith("review")]  # fmt: skip
    assert re.search(r", at \S+agent.py:\d+ deep$", line["message"]), line
    assert wrapper in folder.run("trace", jobs[how], "--errors", "--verbose").out


def test_sub_exceptions_are_named(ended: tuple[Folder, dict[str, str], Ran]) -> None:
    """Of a group each sub-exception is told with what caused it and where, in text, in JSON and on the page."""
    folder, jobs, _ = ended
    job = jobs["tasks"]
    view = folder.json("show", job)["error"]["chain"]
    assert [(link["type"], link.get("relation"), link.get("depth")) for link in view] == [
        ("ExceptionGroup", None, None),
        ("ValueError", "member", 1),
        ("KeyError", "cause", 1),
        ("ValueError", "member", 1),
        ("KeyError", "cause", 1),
    ]
    for command in ("show", "trace"):
        said = folder.run(command, job).out
        for key in ("left", "right"):
            assert f"sub-exception ValueError: bad {key}" in said
            assert f"caused by KeyError: '{key}'" in said
        assert places(said)[:3] == ["tasks", "nosync", "part"]
    (step,) = folder.json("trace", job, "--errors")["nodes"][0]["children"]
    assert "sub-exception ValueError: bad left" in step["stack"]
    assert "sub-exception ValueError: bad left" in folder.run("trace", job, "--html", "-").out


def is_json(line: str) -> bool:
    """Whether a line is one of the log's."""
    return line.startswith("{")
