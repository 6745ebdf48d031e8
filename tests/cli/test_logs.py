"""The log of real worker processes: every line parses and says which job it is about, whatever runs beside it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from everstep.observability.identity import root_span_id, trace_id
from tests.cli.folder import Folder, is_refused

WHERE = {
    "sync node": "sync",
    "effect": "sync",
    "thread": "sync",
    "async node": "fork",
    "async effect": "fork",
    "to thread": "fork",
    "line of Everstep": "fork",
    "tool": "tools",
    "subgraph": "inside",
    "last node": "fails",
}
"""What the graph writes, and in which node."""


@pytest.fixture
def logging_folder(tmp_path: Path) -> Folder:
    """A folder with a graph that writes to the log."""
    shutil.copy(Path(__file__).with_name("logging_graph.py"), tmp_path / "logging_graph.py")
    return Folder(tmp_path).configure(talk="./logging_graph.py:graph")


def submitted(folder: Folder, *people: str, meet: bool) -> dict[str, str]:
    """The ids of new jobs, by whom they are about."""
    return {who: folder.submit("talk", given=json.dumps({"who": who, "meet": meet})) for who in people}


@pytest.mark.parametrize("options", [(), ("--isolate",)], ids=["together", "isolated"])
def test_every_line_is_about_its_own_job(logging_folder: Folder, options: tuple[str, ...]) -> None:
    """Of two jobs at once in one process, or in a process each, every line of whatever runs carries its own ids."""
    jobs = submitted(logging_folder, "anna", "otto", meet=not options)
    ran = logging_folder.run("worker", "--until-idle", "--log-format", "json", *options)
    assert ran.code == 0, ran.err
    entries: list[dict[str, Any]] = [json.loads(line) for line in ran.err.splitlines()]
    for who, job in jobs.items():
        spoken = [entry for entry in entries if entry["logger"] in ("mine", "everstep.state")]
        mine = [entry for entry in spoken if entry["message"].startswith(who)]
        assert {entry["message"].removeprefix(f"{who} ") for entry in mine} == set(WHERE)
        for entry in mine:
            assert entry["node"] == WHERE[entry["message"].removeprefix(f"{who} ")]
        about = [entry for entry in entries if entry.get("job") == job]
        assert all(entry in about for entry in mine)
        expected = {"leg": 1, "attempt": 1, "graph": "talk", "trace_id": trace_id(job, 1)}
        for entry in about:
            assert {name: entry[name] for name in expected} == expected
            assert entry["span_id"] == root_span_id(job, 1)
        events = [entry["message"].partition(":")[0] for entry in about if entry["logger"] == "everstep.worker"]
        assert [event for event in events if event in ("claimed", "failed")] == ["claimed", "failed"]
    steps = {entry["node"]: entry["step"] for entry in entries if "step" in entry}
    assert steps == {"sync": 1, "fork": 2, "tools": 3, "inside": 1, "fails": 5}
    assert all("worker" in entry for entry in entries if "job" in entry and entry["logger"] != "everstep.dead_letters")
    assert all(entry["message"].startswith("worker ") for entry in entries if "job" not in entry)


def test_the_console_is_for_people(logging_folder: Folder) -> None:
    """By default lines are short, and the environment, or a variable in `langgraph.json`, can ask for JSON instead."""
    job = submitted(logging_folder, "anna", meet=False)["anna"]
    ran = logging_folder.run("worker", "--until-idle")
    line = next(line for line in ran.err.splitlines() if "anna sync node" in line)
    assert re.fullmatch(rf"\S+Z \[info\] anna sync node \[mine\] job={job} leg=1 graph=talk step=1 node=sync", line), (
        line
    )
    assert re.search(rf"^claimed +{job} talk", ran.err, re.MULTILINE)
    submitted(logging_folder, "otto", meet=False)
    (logging_folder.path / "langgraph.json").write_text(
        json.dumps({"graphs": {"talk": "./logging_graph.py:graph"}, "env": {"EVERSTEP_LOG_FORMAT": "json"}})
    )
    ran = logging_folder.run("worker", "--until-idle", "--json", EVERSTEP_LOG_LEVEL="warning")
    assert [json.loads(line)["logger"] for line in ran.err.splitlines()] == ["everstep.dead_letters"]
    assert [json.loads(line)["event"] for line in ran.out.splitlines()] == ["claimed", "failed"]


def test_fields_are_allowed_in_everstep_toml(logging_folder: Folder) -> None:
    """`[logs] fields` names what `extra=` may write, for isolated jobs too; a name that cannot be one is refused."""
    logging_folder.write(
        fielded="import logging\n"
        "from langgraph.graph import START, StateGraph\n"
        "def node(state):\n"
        "    logging.getLogger('mine').info('told', extra={'order': 'A7', 'customer': 'Zoe'})\n"
        "    return {}\n"
        "graph = StateGraph(dict).add_node('node', node).add_edge(START, 'node').compile()\n"
    ).configure(talk="./fielded.py:graph")
    (logging_folder.path / "everstep.toml").write_text('[logs]\nfields = ["order"]\n')
    for number, options in enumerate(((), ("--isolate",))):
        logging_folder.submit("talk", given=json.dumps({"n": number}))
        ran = logging_folder.run("worker", "--until-idle", "--log-format", "json", *options)
        entries = [json.loads(line) for line in ran.err.splitlines()]
        (told,) = [entry for entry in entries if entry["message"] == "told"]
        assert (told["order"], told["customer"]) == ("A7", "<str>")
    (logging_folder.path / "everstep.toml").write_text('[logs]\nfields = ["a b"]\n')
    is_refused(logging_folder.run("worker", "--until-idle"), 78, "config_invalid")


def test_a_format_nobody_knows_is_refused(logging_folder: Folder) -> None:
    """A mistaken variable is told by every command, before it does anything."""
    is_refused(logging_folder.run("jobs", EVERSTEP_LOG_LEVEL="loud"), 78, "config_invalid")
    is_refused(logging_folder.run("worker", "--log-format", "xml"), 64, "usage")
