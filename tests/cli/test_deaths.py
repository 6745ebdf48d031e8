"""What is said of a job whose process died while its worker lived on: once, of the process, with where to look."""

from __future__ import annotations

import json

import pytest

from everstep.counts import counted
from tests.cli.folder import Folder, Ran

GRAPH = """
import ctypes
import os
import signal

from langgraph.graph import START, StateGraph


def work(state):
    if state["how"] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if state["how"] == "fault":
        ctypes.string_at(0)
    if state["how"] == "exit":
        os._exit(9)
    return state


graph = StateGraph(dict).add_node("begin", lambda state: state).add_node("work", work)
graph.add_edge(START, "begin").add_edge("begin", "work")
"""
ENDED = {
    "kill": ("was killed by SIGKILL", "find who sent SIGKILL"),
    "fault": ("was killed by SIGSEGV", "find the native code that ends in SIGSEGV: the worker's stderr has the places"),
    "exit": ("exited with code 9", "find what ends the process (os._exit"),
}


@pytest.fixture(scope="module", params=["isolated", "suspect"])
def ended(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Folder, dict[str, str], Ran]:
    """A job for each way to die, and what the worker said that lived: of all jobs apart, or of suspects."""
    folder = Folder(tmp_path_factory.mktemp("deaths")).write(agent=GRAPH).configure(graph="./agent.py:graph")
    submitted = {how: folder.submit("graph", "--max-attempts", "1", given=json.dumps({"how": how})) for how in ENDED}
    if request.param == "suspect":
        assert folder.run("worker", "--until-idle").code not in (0, 1)
    ran = folder.run("worker", "--until-idle", *(["--isolate"] if request.param == "isolated" else []))
    assert ran.code == 0, ran
    return folder, submitted, ran


@pytest.mark.parametrize("how", ENDED)
def test_a_death_is_told_once(how: str, ended: tuple[Folder, dict[str, str], Ran]) -> None:
    """`show`, `dlq show` and `trace` say that its process died, how, and what is next; and not that its worker did."""
    folder, jobs, ran = ended
    died, advice = ENDED[how]
    told = f"its process {died} at step 1, node work (death 1 of 1 in a row without progress)"
    shown, letter, drawn = (folder.run(*command, jobs[how]) for command in (("show",), ("dlq", "show"), ("trace",)))
    assert f"\nerror      worker_died: {told}\n" in shown.out
    assert f"next       {advice}" in shown.out
    assert f"everstep retry {jobs[how]}" in shown.out
    assert f"  worker_died: {told}\n" in letter.out
    assert f"\n  {advice}" in letter.out
    assert "1 attempt\n" in letter.out or "2 attempts\n" in letter.out
    assert f"its process {died} at step 1, node work, " in letter.out
    assert drawn.out.count(died) == 1
    assert f"  {told}\n" in drawn.out
    assert ": its process died\n" in drawn.out
    worker = ran.err.split()[1]
    assert f"worker {worker} gone" not in drawn.out
    error = folder.json("show", jobs[how])["error"]
    assert (error["message"], error["how"]) == (told, died)
    lines = [line for line in ran.err.splitlines() if jobs[how] in line and died in line]
    assert len(lines) == 2, lines  # the event, and the dead letter
    assert lines[0].startswith("failed ")


def test_a_fault_is_told_with_its_place(ended: tuple[Folder, dict[str, str], Ran]) -> None:
    """What native code does wrong is on the worker's stderr with the places in Python, of the thread it happened in."""
    _, _, ran = ended
    assert 'agent.py", line 13 in work' in ran.err
    assert "heartbeat.py" not in ran.err


@pytest.mark.parametrize(("number", "said"), [(0, "0 jobs"), (1, "1 job"), (2, "2 jobs"), (1000, "1,000 jobs")])
def test_one_is_one(number: int, said: str) -> None:
    """Only one is told in the singular; some words have a plural of their own."""
    assert counted(number, "job") == said
    assert counted(number, "entry", "entries") == said.replace("jobs", "entries").replace("job", "entry")
