"""What `langgraph.json` says about the server is honoured, told of, or refused; never dropped in silence."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.responses import RedirectResponse
from starlette.testclient import TestClient

from everstep.checkpoints.store import Store
from everstep.errors import ConfigInvalid
from everstep.graphs.http_configuration import Cors, HeaderPatterns, read_http
from everstep.graphs.loader import GraphCatalogue
from everstep.server.app import create_app
from everstep.server.wire import Prefixed

Make = Callable[..., FastAPI]


@pytest.fixture
def app_of(store: Store, tmp_path: Path) -> Make:
    """Makes an application of a configuration."""

    def make(**content: Any) -> FastAPI:
        (tmp_path / "agent.py").write_text("graph = None\n")
        content = {"graphs": {"agent": "./agent.py:graph"}, **content}
        (tmp_path / "langgraph.json").write_text(json.dumps(content))
        return create_app(store, GraphCatalogue.from_config(tmp_path / "langgraph.json"))

    return make


def test_nothing_said_is_nothing_asked(app_of: Make) -> None:
    """Without `http` and `auth` there is one interface, whole, for no web page."""
    app = app_of()
    assert app.state.served.http == read_http({})
    assert TestClient(app).get("/info").status_code == 200


@pytest.mark.parametrize(
    ("group", "gone", "kept"),
    [
        ("assistants", ["/assistants/search"], ["/threads", "/info"]),
        ("threads", ["/threads", "/threads/{thread_id}/state"], ["/threads/{thread_id}/runs"]),
        ("runs", ["/threads/{thread_id}/runs", "/runs"], ["/threads", "/threads/{thread_id}"]),
    ],
)
def test_groups_of_paths_can_be_shut(app_of: Make, group: str, gone: list[str], kept: list[str]) -> None:
    """`http.disable_…` takes the group's paths away, and no other."""
    before = _paths(app_of())
    paths = _paths(app_of(http={f"disable_{group}": True}))
    assert set(gone) <= before
    assert not set(gone) & paths
    assert set(kept) <= paths
    assert {path for path in before if path.startswith("/everstep")} <= paths


def _paths(app: FastAPI) -> set[str]:
    return set(TestClient(app).get("/openapi.json").json()["paths"])


def test_a_path_that_is_shut_is_not_there(app_of: Make) -> None:
    """It is answered with 404; those beside it are as they were."""
    client = TestClient(app_of(http={"disable_meta": True, "disable_threads": True}))
    for path in ("/info", "/ok", "/docs", "/openapi.json", "/threads/t", "/threads/t/state/c"):
        assert client.get(path).json() == client.get("/nowhere").json()
    assert client.get("/threads/t/runs").json() != client.get("/nowhere").json()


def test_cors_is_as_it_says(app_of: Make) -> None:
    """`http.cors` in all its fields, with the headers that clients need besides."""
    rules = {
        "allow_origins": ["https://a.example"],
        "allow_origin_regex": "https://.*[.]b[.]example",
        "allow_methods": ["GET"],
        "allow_headers": ["x-a"],
        "allow_credentials": True,
        "expose_headers": ["x-b"],
        "max_age": 7,
    }
    client = TestClient(app_of(http={"cors": rules}))
    for origin in ("https://a.example", "https://x.b.example"):
        answer = client.get("/info", headers={"origin": origin})
        assert answer.headers["access-control-allow-origin"] == origin
        assert answer.headers["access-control-allow-credentials"] == "true"
        assert {"x-b", "Content-Location"} <= set(answer.headers["access-control-expose-headers"].split(", "))
    asks = {"origin": "https://a.example", "access-control-request-method": "GET"}
    preflight = client.options("/info", headers=asks)
    assert preflight.headers["access-control-max-age"] == "7"
    assert client.get("/info", headers={"origin": "https://c.example"}).status_code == 403
    everyone = TestClient(app_of(http={"cors": {"allow_origins": ["*"]}}))
    assert everyone.get("/info", headers={"origin": "https://c.example"}).status_code == 200


def test_it_is_served_under_its_prefix(app_of: Make) -> None:
    """`http.mount_prefix`: everything is there, nothing beside it, and addresses in answers lead back there."""
    app = app_of(http={"mount_prefix": "/agents/"})

    @app.get("/elsewhere")
    async def elsewhere() -> RedirectResponse:
        return RedirectResponse("/threads/t/runs/r/stream", headers={"Content-Location": "/threads/t/runs/r"})

    client = TestClient(Prefixed(app, app.state.served.http.mount_prefix), follow_redirects=False)
    assert client.get("/agents/info").status_code == 200
    assert client.get("/info").status_code == client.get("/agentsinfo").status_code == 404
    answer = client.get("/agents/elsewhere")
    assert answer.headers["location"] == "/agents/threads/t/runs/r/stream"
    assert answer.headers["content-location"] == "/agents/threads/t/runs/r"


def test_it_can_be_mounted_in_another_application(app_of: Make) -> None:
    """Under a prefix of that one; what paths need, and addresses, are as without."""
    outside = FastAPI()
    outside.mount("/lg", app_of())
    client = TestClient(outside)
    made = client.post("/lg/everstep/jobs", json={"graph": "agent", "input": {}})
    assert made.headers["content-location"] == f"/lg/everstep/jobs/{made.json()['id']}"
    assert client.get(made.headers["content-location"]).status_code == 200


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ({"http": {"app": "./app.py:app"}}, "http.app"),
        ({"http": {"logging_headers": {"includes": ["x"]}}}, "http.logging_headers"),
        ({"http": {"middleware_order": "auth_first"}}, "http.middleware_order"),
        ({"http": {"disable_mcp": True}}, "http.disable_mcp"),
        ({"http": {"surprise": 1}}, "http.surprise"),
        ({"auth": {"path": "./a.py:a", "cache": {"ttl_seconds": 3}}}, "auth.cache"),
        ({"auth": {"path": "./a.py:a", "disable_studio_auth": False}}, "auth.disable_studio_auth"),
        ({"auth": {"path": "./a.py:a", "surprise": 1}}, "auth.surprise"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_is_not_honoured_is_told(content: dict[str, Any], named: str) -> None:
    """A sentence names each field that has no effect."""
    (sentence,) = read_http(content).unsupported
    assert sentence.startswith(f"{named}: ")


def test_it_is_told_in_the_log(app_of: Make, caplog: pytest.LogCaptureFixture) -> None:
    """As a warning, when the application is made."""
    app_of(http={"app": "./app.py:app"})
    (warning,) = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert "http.app" in warning.getMessage()


@pytest.mark.parametrize(
    "content",
    [
        {"encryption": {"path": "./e.py:e"}},
        {"http": []},
        {"http": {"cors": {"allow_origin": ["https://a.example"]}}},
        {"http": {"cors": {"allow_origins": "https://a.example"}}},
        {"http": {"cors": {"allow_origin_regex": "("}}},
        {"http": {"cors": {"max_age": "long"}}},
        {"http": {"mount_prefix": "agents"}},
        {"http": {"mount_prefix": "/a/../b?"}},
        {"http": {"disable_runs": "yes"}},
        {"http": {"configurable_headers": {"only": ["x"]}}},
        {"http": {"configurable_headers": {"includes": ["Authorization"]}}},
        {"auth": {"disable_studio_auth": True}},
        {"auth": {"path": 7}},
    ],
    ids=json.dumps,
)
def test_what_cannot_be_meant_is_refused(content: dict[str, Any]) -> None:
    """A value that is none of the format's, or that would be unsafe to leave out, makes no server."""
    with pytest.raises(ConfigInvalid):
        read_http(content)


def test_headers_are_chosen_by_patterns() -> None:
    """Excluded ones go before included ones, and credentials are never told."""
    patterns = read_http(
        {"http": {"configurable_headers": {"includes": ["X-*"], "excludes": ["x-b*"]}}}
    ).header_patterns
    assert patterns == HeaderPatterns(("x-*",), ("x-b*",))
    names = ("x-a", "x-bad", "x-api-key", "authorization", "host")
    assert [name for name in names if patterns.fit(name)] == ["x-a"]
    assert not any(HeaderPatterns(("*",)).fit(name) for name in ("cookie", "authorization", "x-api-key"))


def test_cors_of_a_file_is_what_it_says() -> None:
    """An empty object allows nothing, which is not the same as to say nothing."""
    assert read_http({"http": {"cors": {}}}).cors == Cors()
    assert read_http({"http": {}}).cors is None
