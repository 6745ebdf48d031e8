"""What the server refuses at its door, and what it tells whoever asked to do instead."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

import everstep
from everstep.checkpoints import payload
from everstep.checkpoints.store import Store
from everstep.graphs.loader import GraphCatalogue
from everstep.graphs.policies import Policies
from everstep.server.app import create_app
from everstep.server.bodies import LARGE_BYTES, JsonRoute
from everstep.server.next_steps import over_http
from tests.support.native import app_on, asking
from tests.support.thread_graphs import catalogue

TWICE = b'{"graph": "agent", "input": {"log": [{"a": 1, "b": 2, "a": 3}]}}'


@pytest.fixture
def app(store: Store) -> FastAPI:
    """An application with one graph."""
    return app_on(store)[0]


# ---- a command to a node


@pytest.mark.parametrize(
    "goto", ["nowhere", ["nowhere"], {"node": "nowhere", "input": {}}, ["__end__", {"node": "nowhere"}]]
)
async def test_a_command_to_a_node_that_is_not_there_is_refused(store: Store, goto: Any) -> None:
    """422 names the node and those there are, and no run was made."""
    async with asking(create_app(store, catalogue())) as client:
        thread = (await client.post("/threads", json={})).json()["thread_id"]
        body = {"assistant_id": "faulty", "command": {"goto": goto}}
        answered = await client.post(f"/threads/{thread}/runs", json=body)
        assert answered.status_code == 422, answered.text
        assert "'nowhere', which is no node of graph faulty" in answered.json()["detail"]
        assert answered.json()["next_step"] == "its nodes: fail"
        assert (await client.get(f"/threads/{thread}/runs")).json() == []
        taken = await client.post(
            f"/threads/{thread}/runs", json={"assistant_id": "faulty", "command": {"goto": "fail"}}
        )
        assert taken.status_code == 200, taken.text


@pytest.mark.parametrize("goto", [7, {"input": {}}, [None], [["fail"]]])
async def test_a_command_that_names_no_node_is_refused(store: Store, goto: Any) -> None:
    """What is neither a name nor a node with its input is refused before a job stumbles over it."""
    async with asking(create_app(store, catalogue())) as client:
        thread = (await client.post("/threads", json={})).json()["thread_id"]
        body = {"assistant_id": "faulty", "command": {"goto": goto}}
        answered = await client.post(f"/threads/{thread}/runs", json=body)
        assert (answered.status_code, answered.json()["code"]) == (422, "payload_invalid")


async def test_a_graph_that_cannot_be_opened_is_left_to_its_job(store: Store) -> None:
    """Where the graph is not known here, the run is taken: the worker may have it."""

    def broken() -> Any:
        raise ImportError("not here")

    app = create_app(store, GraphCatalogue.from_graphs({"agent": broken}))
    async with asking(app) as client:
        thread = (await client.post("/threads", json={})).json()["thread_id"]
        body = {"assistant_id": "agent", "command": {"goto": "anywhere"}}
        assert (await client.post(f"/threads/{thread}/runs", json=body)).status_code == 200


# ---- next steps


async def test_errors_tell_the_path_to_ask(app: FastAPI) -> None:
    """Over HTTP the next step is a path, not a command of a shell that the client has not."""
    async with asking(app) as client:
        answered = await client.get("/everstep/jobs/01a22d50")
        assert answered.json()["next_step"] == "list them with: GET /everstep/jobs"
        answered = await client.get("/everstep/reviews/01a22d50")
        assert answered.json()["next_step"] == "list the open ones with: GET /everstep/reviews"
        body = {"graph": "agent", "input": {"log": []}, "key": "one"}
        job = (await client.post("/everstep/jobs", json=body)).json()["id"]
        answered = await client.post("/everstep/jobs", json={**body, "input": {"log": [1]}})
        expected = f"look at it with: GET /everstep/jobs/{job}; give this input another key"
        assert (answered.status_code, answered.json()["next_step"]) == (409, expected)


ONLY_COMMANDS = ("keys", "up", "submit", "worker", "provider", "credits", "emit")
"""Commands that have no path, or are for whoever runs the server."""


def test_every_command_that_an_error_names_has_a_path() -> None:
    """Whatever the record's and the server's errors name as next step can be asked over HTTP, with few exceptions."""
    folder = Path(everstep.__file__).parent
    named = re.compile(r'next_step=f?"([^"]*everstep [^"]*)"')
    found = {
        step
        for part in ("checkpoints", "server", "runtime/trace")
        for file in (folder / part).rglob("*.py")
        for step in named.findall(file.read_text(encoding="utf-8"))
    }
    assert found
    left = re.compile(rf"everstep (?!{'|'.join(ONLY_COMMANDS)})[a-z]")
    assert [over_http(step) for step in found if left.search(over_http(step))] == []


def test_what_is_no_command_stays_as_it_is() -> None:
    """Names that only look like a command are left alone."""
    for step in ("mend everstep.toml", "see docs/everstep jobs-list", "pass --key", "its nodes: retry, jobs"):
        assert over_http(step) == step


# ---- bodies


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/everstep/jobs"), ("POST", "/threads"), ("POST", "/runs"), ("PUT", "/store/items")],
)
async def test_a_name_that_comes_twice_is_refused(app: FastAPI, method: str, path: str) -> None:
    """An object with two values for one name is refused by that name, wherever in the body it is."""
    async with asking(app) as client:
        answered = await client.request(method, path, content=TWICE)
        assert (answered.status_code, answered.json()["code"]) == (400, "request_invalid")
        assert "'a' comes twice in one object" in answered.json()["detail"]


@pytest.mark.parametrize("kind", ["application/json", "application/cloudevents+json"])
async def test_an_event_with_a_name_twice_is_refused(store: Store, kind: str) -> None:
    """Events of triggers are read as strictly, whatever library reads them."""
    source = "cloudevents" if "cloudevents" in kind else "http"
    trigger = {"source": source, "graph": "agent", "input": {"log": "/body"}}
    app, _ = app_on(store, policies=Policies.model_validate({"triggers": {"t": trigger}}))
    body = b'{"specversion": "1.0", "id": "1", "id": "2", "source": "s", "type": "t", "data": []}'
    async with asking(app) as client:
        answered = await client.post("/everstep/triggers/t", content=body, headers={"content-type": kind})
        assert (answered.status_code, answered.json()["code"]) == (422, "event_invalid")
        assert "'id' comes twice" in answered.json()["detail"]


def test_every_path_that_takes_a_body_reads_it_so(app: FastAPI) -> None:
    """A path with a body has `route_class=JsonRoute` of `server.bodies`: no name twice, large ones beside the loop."""
    routes = [route for route in app.routes if isinstance(route, APIRoute) and route.body_field is not None]
    assert [route.path for route in routes if not isinstance(route, JsonRoute)] == []


async def test_a_large_input_is_looked_through_beside_the_event_loop(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above some size the search for credentials runs in a thread; a small body is not worth one."""
    at: list[threading.Thread] = []
    look = payload.find_secrets

    def noting(value: object) -> list[str]:
        at.append(threading.current_thread())
        return look(value)

    monkeypatch.setattr(payload, "find_secrets", noting)
    async with asking(app) as client:
        for text in ("x", "x" * LARGE_BYTES):
            body = {"graph": "agent", "input": {"log": [text]}}
            assert (await client.post("/everstep/jobs", json=body)).status_code == 200
            run = {"assistant_id": "agent", "input": {"log": [text]}}
            assert (await client.post("/runs", json=run)).status_code == 200
    here = threading.current_thread()
    small, large = at[: len(at) // 2], at[len(at) // 2 :]
    assert all(thread is here for thread in small)
    assert not any(thread is here for thread in large)
