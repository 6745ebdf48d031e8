"""`everstep traces`: what waits and why, and sending it now."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.cli.folder import Folder, is_refused
from tests.support.serving import serving

GRAPH = """
from typing import TypedDict
from langgraph.graph import START, StateGraph

class State(TypedDict):
    n: int

graph = StateGraph(State).add_node("one", lambda state: {"n": 1}).add_edge(START, "one").compile()
"""


@pytest.fixture
def port() -> int:
    """A port where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


@pytest.fixture
def away(port: int) -> dict[str, str]:
    """An environment whose collector is away."""
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://name:password@127.0.0.1:{port}", "OTEL_METRICS_EXPORTER": "none"}


@pytest.fixture
def folder(tmp_path: Path, away: dict[str, str]) -> Folder:
    """A record with a job that was done while its collector was away."""
    folder = Folder(tmp_path).write(graphs=GRAPH).configure(agent="./graphs.py:graph")
    folder.submit("agent", given='{"n": 0}')
    assert folder.run("worker", "--until-idle", **away).code == 0
    return folder


@contextmanager
def collector(port: int) -> Iterator[list[int]]:
    """One that takes everything; gives the sizes of what it got."""
    sizes: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sizes.append(len(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    with serving(server):
        yield sizes


def test_status_says_what_waits_and_why_and_flush_sends_it(folder, port, away):
    """Away: status and flush say so, flush exits 1; back: flush sends all, and status says that, too."""
    name = f"http://127.0.0.1:{port}"
    (waits,) = folder.run("traces", "status", "--json", **away).value
    assert (waits["name"], waits["waiting"], waits["delivered"], waits["configured_here"]) == (name, 2, 0, True)
    assert waits["last_error"] == "ConnectionError: Connection refused"
    assert waits["failing_since"].endswith("Z")
    told = folder.run("traces", "status", **away).out
    assert f"failing  {name}  2 wait" in told
    assert "Connection refused" in told
    failed = folder.run("traces", "flush", "--timeout", "30", **away)
    assert failed.code == 1
    assert f"{name}: 2 still wait: ConnectionError: Connection refused" in failed.out
    with collector(port) as sizes:
        flushed = folder.run("traces", "flush", **away)
    assert (flushed.code, flushed.out.strip()) == (0, f"{name}: nothing waits any more")
    assert len(sizes) == 1
    (back,) = folder.run("traces", "status", "--json", **away).value
    assert (back["waiting"], back["delivered"], back["dropped"], back["failing_since"]) == (0, 2, 0, None)
    assert "password" not in told + failed.out + failed.err + json.dumps(waits)


def test_a_destination_that_this_environment_does_not_name_is_told_as_such(folder):
    """Status shows what the record knows; flush says what to set."""
    (one,) = folder.run("traces", "status", "--json").value
    assert (one["configured_here"], one["waiting"]) == (False, 2)
    assert "not configured here" in folder.run("traces", "status").out
    refused = folder.run("traces", "flush", "--json")
    assert (refused.code, refused.error["code"]) == (78, "config_invalid")
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in refused.error["next_step"]


def test_a_destination_can_be_forgotten(folder, port):
    """Asked first: then nothing waits for it and nothing tells of it; its spans stay in the record."""
    name = f"http://127.0.0.1:{port}"
    unasked = folder.run("traces", "forget", name)
    assert (unasked.code, "--yes" in unasked.err) == (64, True)
    assert folder.json("traces", "status")[0]["waiting"] == 2
    assert folder.json("traces", "forget", name, "--yes") == {"name": name, "forgotten": 2}
    assert folder.json("traces", "status") == []
    (job,) = folder.json("jobs")
    assert "step 1 one" in folder.run("trace", job["id"]).out
    is_refused(folder.run("traces", "forget", name, "--yes"), 66, "destination_not_found")
