"""`everstep emit` and `everstep signals`: jobs that wait are seen, and woken from a shell."""

from __future__ import annotations

from pathlib import Path

from tests.cli.folder import Folder, is_refused

GRAPH = """
import operator
from datetime import timedelta
from typing import Annotated, TypedDict

from langgraph.graph import START, StateGraph

from everstep import wait_for


class State(TypedDict, total=False):
    order: str
    log: Annotated[list, operator.add]


def pay(state):
    arrived = wait_for(f"paid:{state['order']}", until=timedelta(days=30))
    return {"log": [arrived.payload if arrived else "never paid"]}


builder = StateGraph(State)
builder.add_node("pay", pay)
builder.add_edge(START, "pay")
graph = builder.compile()
"""


def test_a_job_waits_and_is_woken(tmp_path: Path) -> None:
    """`show` says what is waited for and how to wake it; `emit` does; a second `emit` says that the first stands."""
    folder = Folder(tmp_path).write(agent=GRAPH).configure(agent="./agent.py:graph")
    job = folder.run("submit", "agent", "--input", '{"order": "17"}', "--json").value["id"]
    with folder.worker() as worker:
        assert worker.until_settled(job) == {job: "pending"}
        shown = folder.run("show", job, "--json").value
        assert (shown["status"], shown["attempts"], shown["leased_by"]) == ("pending", 0, None)
        (wait,) = shown["waits"]
        assert (wait["signal"], wait["state"], wait["node"]) == ("paid:17", "open", "pay")
        assert "everstep emit paid:17" in shown["next_action"]
        assert "paid:17" in folder.run("show", job).out
        (waiting,) = folder.run("signals", "--json").value["waiting"]
        assert (waiting["job"], waiting["signal"]) == (job, "paid:17")
        assert "paid:17" in folder.run("signals").out
        assert folder.run("emit", "paid:17", "--payload", '{"amount": 5}', "--json").value["emitted"] is True
        worker.until(lambda events: any(event["event"] == "done" for event in events))
    assert folder.run("show", job, "--json").value["result"]["log"] == [{"amount": 5}]
    again = folder.run("emit", "paid:17", "--payload", "6")
    assert (again.code, "the first emission stands" in again.out) == (0, True)
    assert folder.run("emit", "paid:17", "--json").value["signal"]["payload"] == {"amount": 5}
    assert folder.run("signals", "--json").value["waiting"] == []


def test_what_cannot_be_emitted(tmp_path: Path) -> None:
    """Names that are kept or unusable, and payloads that are no JSON, are refused by name."""
    folder = Folder(tmp_path).write(agent=GRAPH).configure(agent="./agent.py:graph")
    folder.run("submit", "agent", "--input", '{"order": "17"}')
    is_refused(folder.run("emit", "everstep.provider-task:1"), 64, "signal_invalid")
    is_refused(folder.run("emit", " "), 64, "signal_invalid")
    is_refused(
        folder.run("emit", "x", "--payload", '{"api_key": "sk-123456789012345678901234"}'), 64, "secret_in_payload"
    )
    for payload in ('{"a": 1, "a": 2}', "NaN", "no-such-file", '{"a": '):
        ran = folder.run("emit", "x", "--payload", payload)
        is_refused(ran, 64, "payload_invalid")
        assert "--payload" in ran.err
        assert "--input" not in ran.err


def test_an_owner_has_a_name(tmp_path: Path) -> None:
    """An empty one is refused before anything is made."""
    folder = Folder(tmp_path).write(agent=GRAPH).configure(agent="./agent.py:graph")
    is_refused(folder.run("submit", "agent", "--input", "{}", "--owner", ""), 64, "payload_invalid")
    assert not (tmp_path / "everstep.db").exists()
    folder.run("submit", "agent", "--input", '{"order": "17"}')
    is_refused(folder.run("emit", "x", "--owner", ""), 64, "payload_invalid")
    assert folder.run("signals", "--json").value["emitted"] == []
