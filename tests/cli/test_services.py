"""`everstep services`, and the options of submit that go with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.folder import Folder, is_refused

GRAPH = """
import httpx
from typing import TypedDict
from langgraph.graph import START, StateGraph

class State(TypedDict):
    n: int

def ask(state):
    request = httpx.Request("GET", "https://user:secret@api.example.com/v1?key=secret")
    httpx.Response(402, request=request).raise_for_status()

builder = StateGraph(State)
builder.add_node("ask", ask)
builder.add_edge(START, "ask")
graph = builder.compile()
"""
TOML = """
[graphs.agent]
services = ["declared.example.com"]

[services."api.example.com"]
tier = "team"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A graph whose service asks for a payment."""
    (tmp_path / "everstep.toml").write_text(TOML)
    return Folder(tmp_path).write(agent=GRAPH).configure(agent="./agent.py:graph")


def test_a_service_that_is_out_is_listed_shown_and_opened(folder: Folder) -> None:
    """Name, symptom, the plan expected and the job that waits are told; no part of the address but its host is kept."""
    submitted = folder.run("submit", "agent", "--input", '{"n": 1}', "--service", "other.example.com", "--json").value
    with folder.worker() as worker:
        assert worker.until_settled(submitted["id"]) == {submitted["id"]: "retry"}
    listed = {service["name"]: service for service in folder.run("services", "--json").value}
    assert set(listed) == {"api.example.com", "declared.example.com", "other.example.com"}
    out = listed["api.example.com"]
    assert (out["gate"], out["symptom"], out["jobs"]) == ("closed", "subscription_ended", [submitted["id"]])
    shown = folder.run("services", "show", "API.example.com", "--json").value
    (event,) = shown["events"]
    assert (event["account_tier_expected"], event["job_id"]) == ("team", submitted["id"])
    assert b"secret" not in (folder.path / "everstep.db").read_bytes()
    assert "everstep services open api.example.com" in folder.run("services").out
    assert submitted["id"] in folder.run("services", "show", "api.example.com").out
    told = folder.run("show", submitted["id"], "--json").value["next_action"]
    assert "api.example.com (subscription_ended)" in told
    assert "everstep services open api.example.com" in folder.run("retry", submitted["id"]).out
    assert folder.run("services", "open", "api.example.com", "--json").value["jobs"] == 0  # it is due already
    assert {service["gate"] for service in folder.run("services", "--json").value} == {"open"}


def test_bad_names_are_refused(folder: Folder) -> None:
    """An unknown service names the known ones; an address is no name; a key is not empty."""
    assert folder.run("submit", "agent", "--input", '{"n": 1}').code == 0
    is_refused(folder.run("services", "open", "nobody"), 66, "service_not_found")
    assert "declared.example.com" in folder.run("services", "open", "nobody").err
    refused = folder.run("submit", "agent", "--input", '{"n": 2}', "--service", "https://api.example.com/")
    is_refused(refused, 64, "payload_invalid")
    is_refused(folder.run("submit", "agent", "--input", '{"n": 3}', "--concurrency-key", " "), 64, "payload_invalid")
    assert len(folder.run("jobs", "--json").value) == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[graphs.agent]\nconcurency = 2", "concurrency"),
        ("[graphs.agent]\nconcurrency = 0", "graphs.agent.concurrency"),
        ("[graphs.agnet]\nconcurrency = 1", "graphs.agnet: langgraph.json has no such graph"),
        ("[graphs.agent.budget]\nsteps = -1", "steps"),
        ("[graphs", "everstep.toml"),
        ("[services.x]\nprobe = ''", "services.x.probe"),
        ('[services.x]\nprobe = "curl \'x"', "services.x.probe"),
        ("[dead_letters]\nwebhook = 'http://host:99999999/x'", "dead_letters.webhook"),
        ("[dead_letters]\nwebhook = 'http://[::1/x'", "dead_letters.webhook"),
        ("[retention]\ndone_days = 1e9", "retention.done_days"),
        ("[graphs.agent.acceptance]\nverify = ['true']\nreturns = -1", "returns is -1"),
    ],
)
def test_a_mistake_in_everstep_toml_is_refused_by_name(folder: Folder, text: str, told: str) -> None:
    """A limit that is misspelled would limit nothing."""
    (folder.path / "everstep.toml").write_text(text)
    for command in (("worker", "--until-idle"), ("submit", "agent", "--input", "{}")):
        ran = folder.run(*command)
        is_refused(ran, 78, "config_invalid")
        assert told in ran.err
