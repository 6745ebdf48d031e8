"""The auth hook's filters hold for the streams of a thread's events, as for everything else of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from everstep.checkpoints.store import Store
from everstep.graphs.loader import GraphCatalogue
from tests.support.live import live
from tests.support.waiting import PATIENCE

HOOK = """
from langgraph_sdk import Auth

auth = Auth()


@auth.authenticate
async def authenticate(headers):
    return {"identity": "anna", "team": headers.get(b"x-team", b"").decode()}


@auth.on.threads.read
async def read(ctx, value):
    return {"team": ctx.user["team"]}
"""
AGENT = """
from tests.support.jobs import chain

graph = chain(lambda state: {"log": ["told"]})
"""


@pytest.fixture
def client(shared: Store, tmp_path: Path) -> Iterator[httpx.Client]:
    """A client of a server with the hook, and a worker beside it."""
    (tmp_path / "hook_of_streams.py").write_text(HOOK)
    (tmp_path / "agent_of_streams.py").write_text(AGENT)
    graphs = {"agent": "./agent_of_streams.py:graph"}
    written = {"graphs": graphs, "auth": {"path": "./hook_of_streams.py:auth"}}
    (tmp_path / "langgraph.json").write_text(json.dumps(written))
    catalogue = GraphCatalogue.from_config(tmp_path / "langgraph.json")
    with live(shared, catalogue) as url, httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False) as client:
        yield client


def test_a_thread_that_the_filter_hides_tells_nothing(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may not read a thread hears that the server is there and no more; whoever may hears all, also afterwards."""
    monkeypatch.setattr("everstep.server.langgraph.protocol.streaming.LOOK_FOR_THREAD_S", 0.05)
    thread = client.post("/threads", json={"metadata": {"team": "blue"}}).json()["thread_id"]
    run = {"assistant_id": "agent", "input": {"log": []}, "stream_mode": ["values", "updates"]}
    assert client.post(f"/threads/{thread}/runs/wait", json=run).json() == {"log": ["told"]}
    wanted = {"channels": ["values", "updates", "lifecycle"], "since": 0}
    path = f"/threads/{thread}/stream/events"
    with client.stream("POST", path, json=wanted, headers={"x-team": "red"}) as answer:
        lines = (line for line in answer.iter_lines() if line)
        assert [next(lines).startswith(":") for _ in range(5)] == [True] * 5
        assert client.patch(f"/threads/{thread}", json={"metadata": {"team": "red"}}).status_code == 200
        assert next(line for line in lines if not line.startswith(":")).startswith("id: ")
    with client.stream("POST", path, json=wanted, headers={"x-team": "red"}) as answer:
        told = ""
        for line in answer.iter_lines():
            told += line
            if '"completed"' in line:
                break
    assert "told" in told
