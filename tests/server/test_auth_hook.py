"""LangGraph's `auth` hook: the user's `Auth` object decides who asks, what they may do, and what they see."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request
from starlette.testclient import TestClient

from everstep.checkpoints import api_keys
from everstep.checkpoints.store import Store
from everstep.errors import ConfigInvalid
from everstep.graphs.loader import GraphCatalogue
from everstep.server import access, configurable
from everstep.server.app import create_app
from everstep.server.context import CalledBy

HOOK = """
from langgraph_sdk import Auth

auth = Auth()


@auth.authenticate
async def authenticate(headers, path_params, body, method, path, query_params, authorization=None, surprise=None):
    name = headers.get(b"x-name", b"").decode()
    if name == "broken":
        raise RuntimeError("the database of users is at 10.0.0.7")
    if not name:
        raise Auth.exceptions.HTTPException(status_code=401, detail="who are you?", headers={"X-Why": "no name"})
    asked = {"params": path_params, "body": body, "method": method, "path": path, "query": query_params}
    permissions = ["everstep:admin"] if name == "root" else ["threads:read"]
    return {"identity": name, "permissions": permissions, "team": "blue", "asked": asked, "api_key": "hunter2hunter2"}


@auth.on
async def deny(ctx, value):
    return False


@auth.on.threads
async def threads(ctx, value):
    return {"owner": ctx.user.identity}


@auth.on.threads.create
async def create_thread(ctx, value):
    value.setdefault("metadata", {})["owner"] = ctx.user["identity"]
    value["metadata"]["team"] = ctx.user.team
    return True


@auth.on.threads.delete
async def delete_thread(ctx, value):
    assert "threads:delete" in ctx.permissions, "deleting is not for you"


@auth.on(resources=["assistants", "crons"], actions=["read", "search"])
async def look(ctx, value):
    return {"members": {"$contains": ctx.user.identity}, "kind": {"$eq": "open"}}


@auth.on.store
async def store(ctx, value):
    value["namespace"] = (ctx.user.identity, *value["namespace"])


@auth.on.crons.delete
async def odd(ctx, value):
    return {"owner": {"$regex": ".*"}}
"""


@pytest.fixture
def app_of(store: Store, tmp_path: Path) -> Callable[..., FastAPI]:
    """Makes an application with the hook, and a path that asks it."""

    def make(hook: str = HOOK, **auth: Any) -> FastAPI:
        (tmp_path / "hook_of_test.py").write_text(hook)
        (tmp_path / "agent.py").write_text("graph = None\n")
        configuration = {
            "graphs": {"agent": "./agent.py:graph"},
            "auth": {"path": "./hook_of_test.py:auth", **auth},
            "http": {"configurable_headers": {"includes": ["x-*", "*key*"], "excludes": ["x-private-*"]}},
        }
        (tmp_path / "langgraph.json").write_text(json.dumps(configuration))
        app = create_app(store, GraphCatalogue.from_config(tmp_path / "langgraph.json"))

        @app.post("/asks/{resource}/{action}")
        async def asks(resource: str, action: str, value: dict[str, Any], request: Request) -> dict[str, Any]:
            filters = await access.allow(request, resource, action, value)
            return {"filters": filters, "value": value}

        @app.get("/asked/{thing}")
        async def asked(thing: str, request: Request, caller: CalledBy) -> dict[str, Any]:
            return {"owner": caller.owner, "identity": caller.identity, "asked": request.state.user["asked"]}

        @app.post("/told")
        async def told(request: Request) -> dict[str, Any]:
            return configurable.of_request(request)

        return app

    return make


@pytest.fixture
def client(app_of: Callable[..., FastAPI]) -> TestClient:
    """A client of an application with the hook."""
    return TestClient(app_of(), raise_server_exceptions=False)


ANNA = {"x-name": "anna"}


def test_the_hook_says_who_asks(client: TestClient) -> None:
    """It gets what it asks for by name; whoever it names is the owner of what is made."""
    found = client.get("/asked/this?deep=1", headers=ANNA).json()
    assert (found["owner"], found["identity"]) == ("anna", "anna")
    asked = {"params": {"thing": "this"}, "body": None, "method": "GET", "path": "/asked/this", "query": {"deep": "1"}}
    assert found["asked"] == asked
    made = client.post("/everstep/jobs", json={"graph": "agent", "input": {}}, headers=ANNA).json()
    assert made["owner"] == "anna"
    assert client.get(f"/everstep/jobs/{made['id']}", headers={"x-name": "bert"}).status_code == 404


def test_a_header_that_is_named_like_a_credential_is_told_to_no_run(client: TestClient) -> None:
    """What a pattern includes is kept, but not what is a credential by its name, whatever it looks like."""
    told = client.post("/told", headers={**ANNA, "x-access-token": "abc123", "x-tenant": "t"}).json()
    assert (told["x-tenant"], told.get("x-access-token")) == ("t", None)


def test_it_reads_the_body_and_leaves_it(client: TestClient) -> None:
    """A hook that asks for the body gets it, and so does the path function after it."""
    answer = client.post("/asks/threads/create", json={"thread_id": "t"}, headers=ANNA)
    assert answer.json()["value"]["thread_id"] == "t"


def test_it_refuses_in_its_own_words(client: TestClient) -> None:
    """Status, words and headers of its exception are the answer, and nothing is reached; /ok answers everybody."""
    answer = client.get("/info")
    assert (answer.status_code, answer.headers["x-why"]) == (401, "no name")
    assert answer.json() == {"detail": "who are you?", "code": "unauthenticated"}
    assert client.get("/ok").status_code == 200


def test_a_hook_that_fails_lets_nobody_in(client: TestClient) -> None:
    """What it raises otherwise is a 500 that tells nothing."""
    answer = client.get("/info", headers={"x-name": "broken"})
    assert answer.status_code == 500
    assert "10.0.0.7" not in answer.text


@pytest.mark.parametrize(
    ("resource", "action", "filters"),
    [
        ("threads", "create", {}),
        ("threads", "read", {"owner": "anna"}),
        ("threads", "create_run", {"owner": "anna"}),
        ("assistants", "search", {"members": {"$contains": "anna"}, "kind": {"$eq": "open"}}),
        ("store", "put", {}),
    ],
)
def test_the_most_specific_handler_decides(
    client: TestClient, resource: str, action: str, filters: dict[str, Any]
) -> None:
    """The action's, else the resource's, else the one for everything."""
    answer = client.post(f"/asks/{resource}/{action}", json={"namespace": ["a"]}, headers=ANNA)
    assert answer.json()["filters"] == filters


def test_a_handler_changes_what_is_asked(client: TestClient) -> None:
    """What it writes into the value is what is done."""
    made = client.post("/asks/threads/create", json={}, headers=ANNA).json()["value"]
    assert made["metadata"] == {"owner": "anna", "team": "blue"}
    put = client.post("/asks/store/put", json={"namespace": ["a"]}, headers=ANNA).json()["value"]
    assert put["namespace"] == ["anna", "a"]


@pytest.mark.parametrize(("resource", "action"), [("assistants", "create"), ("threads", "delete")])
def test_a_handler_refuses(client: TestClient, resource: str, action: str) -> None:
    """False, or an assertion that fails, is 403."""
    assert client.post(f"/asks/{resource}/{action}", json={}, headers=ANNA).status_code == 403


def test_a_filter_that_is_not_understood_lets_nothing_through(client: TestClient) -> None:
    """It is an error, and not passed over."""
    assert client.post("/asks/crons/delete", json={}, headers=ANNA).status_code == 500


@pytest.mark.parametrize(
    ("filters", "metadata", "fits"),
    [
        ({}, {}, True),
        ({"owner": "anna"}, {"owner": "anna", "more": 1}, True),
        ({"owner": "anna"}, {"owner": "bert"}, False),
        ({"owner": "anna"}, {}, False),
        ({"owner": {"$eq": "anna"}}, {"owner": "anna"}, True),
        ({"team": {"$contains": "anna"}}, {"team": ["anna", "bert"]}, True),
        ({"team": {"$contains": ["anna", "carl"]}}, {"team": ["anna", "bert"]}, False),
        ({"team": {"$contains": ["bert", "anna"]}}, {"team": ["anna", "bert"]}, True),
        ({"team": {"$contains": "an"}}, {"team": "anna"}, False),
        ({"owner": "anna", "kind": "open"}, {"owner": "anna", "kind": "shut"}, False),
    ],
)
def test_filters_hold_of_metadata(filters: dict[str, Any], metadata: dict[str, Any], fits: bool) -> None:
    """All of a filter has to hold: equal, or contained in a list."""
    assert access.matches(filters, metadata) is fits


def test_users_do_not_do_what_concerns_everybody(client: TestClient) -> None:
    """Unless the hook gives them the permission `everstep:admin`."""
    path = "/everstep/services/api.openai.com/open"
    assert client.post(path, headers=ANNA).status_code == 403
    assert client.post(path, headers={"x-name": "root"}).status_code == 404


def test_a_key_goes_past_the_hook(client: TestClient, store: Store) -> None:
    """Whoever made it has the record anyway."""
    make = partial(api_keys.create, name="ci", owner="build", scopes=["read"], now=store.clock.now_ms())
    _, key = store.write(make).result()
    assert client.get("/info", headers={"x-api-key": key}).status_code == 200
    assert client.get("/info", headers={"x-api-key": "esk_" + "0" * 64}).status_code == 401


def test_a_run_is_told_of_headers_and_user_and_of_no_credential(client: TestClient) -> None:
    """`configurable` holds the headers that the configuration includes, and the user; never a key or a token."""
    headers = {**ANNA, "x-tenant": "7", "x-private-note": "no", "x-api-key": "lsv2", "x-copy": "esk_" + "0" * 64}
    told = client.post("/told", headers=headers).json()
    assert (told["x-tenant"], told["x-name"]) == ("7", "anna")
    assert not {"x-private-note", "x-api-key", "x-copy"} & told.keys()
    assert (told["langgraph_auth_user_id"], told["langgraph_auth_user"]["team"]) == ("anna", "blue")
    assert "hunter2" not in json.dumps(told)


@pytest.mark.parametrize(
    "hook",
    [
        "auth = 1\n",
        "from langgraph_sdk import Auth\nauth = Auth()\n",
        "raise RuntimeError('no')\n",
        "from langgraph_sdk import Auth\nauth = Auth()\n\n@auth.authenticate\nasync def who(tenant): ...\n",
    ],
    ids=["no Auth", "no authenticate", "fails", "asks for what is not there"],
)
def test_a_hook_that_cannot_work_makes_no_server(
    app_of: Callable[..., FastAPI], hook: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused at the start, never left out."""
    with pytest.raises(ConfigInvalid, match="auth"):
        app_of(hook)


def test_its_security_schemes_are_described(app_of: Callable[..., FastAPI]) -> None:
    """`auth.openapi` stands in the description of the interface."""
    schemes = {
        "securitySchemes": {"name": {"type": "apiKey", "in": "header", "name": "X-Name"}},
        "security": [{"name": []}],
    }
    app = app_of(openapi=schemes)
    described = TestClient(app).get("/openapi.json", headers=ANNA).json()
    assert described["components"]["securitySchemes"] == schemes["securitySchemes"]
    assert described["security"] == schemes["security"]
