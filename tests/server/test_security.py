"""The server's rules of safety, each stated as a test; docs/security.md says them in words."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from everstep.checkpoints import api_keys
from everstep.checkpoints.schema import api_keys as table
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock
from everstep.errors import AddressUnavailable, ConfigInvalid, ServerUnguarded
from everstep.graphs.http_configuration import Cors, HttpConfiguration
from everstep.graphs.loader import GraphCatalogue
from everstep.server import exposure
from everstep.server.app import create_app
from everstep.server.context import CalledBy, Settings
from everstep.server.serving import is_loopback, listen

JOB = {"graph": "agent", "input": {"n": 1}}
Ask = Callable[..., TestClient]


@pytest.fixture
def app_of(store: Store) -> Callable[..., FastAPI]:
    """Makes an application on the record."""

    def make(**settings: Any) -> FastAPI:
        graphs = GraphCatalogue.from_graphs({"agent": object()})
        return create_app(store, graphs, settings=Settings(**{"key_memory_s": 0.0, **settings}))

    return make


@pytest.fixture
def ask(app_of: Callable[..., FastAPI]) -> Ask:
    """Makes clients of applications with these settings."""

    def client(**settings: Any) -> TestClient:
        return TestClient(app_of(**settings), base_url="http://127.0.0.1:2024", raise_server_exceptions=False)

    return client


def key_of(store: Store, owner: str = "anna", *scopes: str, **more: Any) -> dict[str, str]:
    """The header with a new key."""
    given = {"name": f"{owner}'s", "owner": owner, "scopes": scopes or ("read", "run", "review"), **more}
    _, key = store.write(partial(api_keys.create, now=store.clock.now_ms(), **given)).result()
    return {"x-api-key": key}


# ---- where it listens


def test_it_listens_on_this_machine_alone(store: Store) -> None:
    """127.0.0.1 and localhost are this machine's; there nobody has to say who they are, as long as no key is made."""
    with listen("127.0.0.1", 0) as here, listen("localhost", 0) as too, listen("0.0.0.0", 0) as everywhere:
        assert [is_loopback(each) for each in (here, too, everywhere)] == [True, True, False]
    exposure.bounded(Settings(), store, HttpConfiguration(), host="127.0.0.1", is_local=True)


def test_it_listens_nowhere_else_without_a_guard(store: Store, clock: ManualClock) -> None:
    """Where others can reach it, it needs a key that counts or an auth hook; the error says how to make one."""
    beyond = partial(exposure.bounded, Settings(), store, host="0.0.0.0", is_local=False)
    with pytest.raises(ServerUnguarded) as refused:
        beyond(HttpConfiguration())
    assert "everstep keys create" in refused.value.next_step
    key_of(store, expires_at=clock.now_ms() + 10)
    assert beyond(HttpConfiguration()).hosts is None
    clock.advance(10)
    with pytest.raises(ServerUnguarded):
        beyond(HttpConfiguration())
    beyond(HttpConfiguration(auth_path="./auth.py:auth"))


# ---- who asks


def test_once_there_is_a_key_everybody_needs_one(ask: Ask, store: Store) -> None:
    """Also on this machine, and also after the last key was revoked; only /ok answers everybody."""
    client = ask()
    assert client.get("/info").status_code == 200
    key_of(store)
    store.write(lambda connection: connection.execute(table.update().values(revoked_at=1))).result()
    answer = client.get("/info")
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert client.post("/everstep/jobs", json=JOB).status_code == 401
    assert client.get("/nowhere").status_code == client.get("/openapi.json").status_code == 401
    assert client.get("/ok").status_code == 200


def test_a_key_comes_in_either_header(ask: Ask, store: Store) -> None:
    """`x-api-key` or `Authorization: Bearer`; a key of another system beside ours does no harm, alone it is none."""
    key = key_of(store)["x-api-key"]
    client = ask()
    assert client.get("/info", headers={"x-api-key": key}).status_code == 200
    assert client.get("/info", headers={"authorization": f"bearer {key}"}).status_code == 200
    both = {"x-api-key": "lsv2_other", "authorization": f"Bearer {key}"}
    assert client.get("/info", headers=both).status_code == 200
    assert client.get("/info", headers={"x-api-key": "lsv2_other"}).status_code == 401


def test_a_wrong_expired_or_revoked_key_is_refused(ask: Ask, store: Store, clock: ManualClock) -> None:
    """Alike, with 401; a key is looked up by its hash, so nothing is compared that could be guessed piece by piece."""
    expiring, revoked = key_of(store, expires_at=clock.now_ms() + 5), key_of(store, "bert")
    client = ask()
    assert [client.get("/info", headers=key).status_code for key in (expiring, revoked)] == [200, 200]
    clock.advance(5)
    (last, *_) = store.read(api_keys.every)
    store.write(partial(api_keys.revoke, public_id=last.public_id, now=1)).result()
    wrong = {"x-api-key": "esk_" + "0" * 64}
    answers = [client.get("/info", headers=key) for key in (expiring, revoked, wrong)]
    assert [answer.status_code for answer in answers] == [401, 401, 401]
    assert len({answer.text for answer in answers}) == 1


def test_a_revoked_key_counts_for_a_moment_at_most(ask: Ask, store: Store) -> None:
    """What was looked up is remembered for the time the settings say; expiry is looked at each time."""
    key = key_of(store)
    patient = ask(key_memory_s=3600.0)
    assert patient.get("/info", headers=key).status_code == 200
    store.write(lambda connection: connection.execute(table.update().values(revoked_at=1))).result()
    assert patient.get("/info", headers=key).status_code == 200
    assert ask(key_memory_s=0.0).get("/info", headers=key).status_code == 401


def test_a_key_may_do_what_its_scopes_say(ask: Ask, store: Store) -> None:
    """Looking needs any scope, submitting `run`, answering reviews `review`, what concerns everybody `admin`."""
    client = ask()
    scopes = ("read", "run", "review", "admin")
    keys = {scope: key_of(store, "anna", scope) for scope in scopes}

    def may(method: str, path: str) -> list[str]:
        asked = {scope: client.request(method, path, headers=key).status_code for scope, key in keys.items()}
        return [scope for scope in scopes if asked[scope] != 403]

    assert may("GET", "/everstep/jobs/none") == list(scopes)
    assert may("POST", "/threads/search") == list(scopes)
    assert may("POST", "/everstep/jobs") == ["run", "admin"]
    assert may("DELETE", "/threads/none") == ["run", "admin"]
    assert may("POST", "/everstep/reviews/none/answer") == ["review", "admin"]
    assert may("POST", "/everstep/services/api.openai.com/open") == ["admin"]
    assert may("POST", "/threads/search/runs") == ["run", "admin"]
    for path in ("/everstep/jobs/none?wait=1", "/threads/t/runs/none/join?", "/runs/none/join?", "/runs/none/stream?"):
        assert may("GET", path) == list(scopes)
        assert may("GET", f"{path}&cancel_on_disconnect=true") == ["run", "admin"]
    refused = client.post("/everstep/jobs", json=JOB, headers=keys["read"]).json()
    assert "--scope run" in refused["next_step"]


def test_owners_see_their_own(ask: Ask, store: Store) -> None:
    """What another owner made is as if it were not there; a key of `*` sees everybody's."""
    anna, bert = key_of(store), key_of(store, "bert")
    operator = key_of(store, api_keys.EVERYBODY, "read")
    client = ask()
    made = client.post("/everstep/jobs", json=JOB, headers=anna).json()
    assert made["owner"] == "anna"
    where = f"/everstep/jobs/{made['id']}"
    assert [client.get(where, headers=key).status_code for key in (anna, bert, operator)] == [200, 404, 200]
    missing = client.get("/everstep/jobs/01890000-0000-7000-8000-000000000000", headers=bert)
    assert client.get(where, headers=bert).json()["code"] == missing.json()["code"]


def test_owners_share_no_keys_of_jobs(ask: Ask, store: Store) -> None:
    """The same input, or the same key, of another owner is another job: nobody learns that it was submitted before."""
    client = ask()
    for job in (JOB, {**JOB, "key": "monday"}, {**JOB, "input": {"n": 2}, "key": "monday-2"}):
        answers = [client.post("/everstep/jobs", json=job, headers=key_of(store, owner)) for owner in ("anna", "bert")]
        assert [answer.json()["created"] for answer in answers] == [True, True]
    again = client.post("/everstep/jobs", json=JOB, headers=key_of(store))
    assert again.json()["created"] is False


# ---- web pages


def test_a_foreign_page_can_do_nothing(ask: Ask, store: Store) -> None:
    """It is refused before anything is done, whatever it sends: a form's request needs no leave of CORS."""
    client = ask()
    page = {"origin": "https://evil.example"}
    for content_type in ("text/plain", "application/json", "application/x-www-form-urlencoded"):
        headers = {**page, "content-type": content_type}
        assert client.post("/everstep/jobs", content=json.dumps(JOB), headers=headers).status_code == 403
    assert client.get("/info", headers={"origin": "null"}).status_code == 403
    preflight = client.options("/everstep/jobs", headers={**page, "access-control-request-method": "POST"})
    assert "access-control-allow-origin" not in preflight.headers
    assert store.jobs() == []


def test_a_listed_page_may_call(ask: Ask) -> None:
    """Its browser lets it read the headers that LangGraph's clients need, also of refusals."""
    page = {"origin": "https://app.example.com"}
    client = ask(cors=Cors(allow_origins=("https://app.example.com",)))
    preflight = client.options(
        "/everstep/jobs",
        headers={
            **page,
            "access-control-request-method": "POST",
            "access-control-request-headers": "content-type,x-api-key",
            "access-control-request-private-network": "true",
        },
    )
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-private-network"] == "true"
    assert client.post("/everstep/jobs", json=JOB, headers=page).status_code == 200
    missing = client.get("/everstep/jobs/none", headers=page)
    assert (missing.status_code, missing.headers["access-control-allow-origin"]) == (404, "https://app.example.com")
    exposed = missing.headers["access-control-expose-headers"].split(", ")
    wanted = {"Content-Location", "Location", "X-Pagination-Next", "X-Pagination-Total", "Idempotency-Replayed"}
    assert wanted <= set(exposed)
    assert client.get("/info", headers={"origin": "https://app.example.com.evil.example"}).status_code == 403


def test_pages_of_this_machine_may_call_on_it(store: Store, ask: Ask) -> None:
    """A chat page under development works without configuration; a page with a similar name does not."""
    settings = exposure.bounded(Settings(), store, HttpConfiguration(), host="127.0.0.1", is_local=True)
    client = ask(cors=settings.cors, hosts=settings.hosts)
    for origin, status in (
        ("http://localhost:3000", 200),
        ("http://127.0.0.1:5173", 200),
        ("http://localhost.evil.example", 403),
        ("http://evil.example#http://localhost:3000", 403),
    ):
        assert client.get("/info", headers={"origin": origin}).status_code == status, origin


def test_it_answers_to_this_machines_names_only(store: Store, ask: Ask) -> None:
    """A page that had its own name lead here (DNS rebinding) is refused, where nobody has to say who they are."""
    bounds = partial(exposure.bounded, Settings(), store, HttpConfiguration(), host="127.0.0.1", is_local=True)
    client = ask(hosts=bounds().hosts)
    for host, status in (
        ("127.0.0.1:2024", 200),
        ("localhost", 200),
        ("[::1]:2024", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example:2024", 403),
        ("localhost@evil.example", 403),
        ("", 403),
    ):
        assert client.get("/ok", headers={"host": host, "origin": f"http://{host}"}).status_code == status, host
    key_of(store)
    assert bounds().hosts is None


# ---- what it reads and tells


@pytest.mark.parametrize("chunked", [False, True], ids=["with a length", "without one"])
def test_a_large_body_is_not_read(ask: Ask, chunked: bool) -> None:
    """Beyond the limit it is refused with 413, whether its length is told or not; up to it, it is read."""
    client = ask(most_body_bytes=2000)

    def post(size: int) -> Any:
        text = json.dumps({**JOB, "input": {"text": "x" * size}}).encode()
        content = iter([text[:1000], text[1000:]]) if chunked else text
        return client.post("/everstep/jobs", content=content)

    assert post(1000).status_code == 200
    refused = post(2000)
    assert refused.status_code == 413
    assert "detail" in refused.json()


@pytest.mark.parametrize("content_type", ["application/json", "text/plain;charset=UTF-8", "", "text/csv"])
def test_json_is_read_whatever_its_content_type(ask: Ask, content_type: str) -> None:
    """LangGraph Studio sends `text/plain`; what is no JSON is refused, without a word of it being repeated."""
    client = ask()
    headers = {"content-type": content_type} if content_type else {}
    assert client.post("/everstep/jobs", content=json.dumps(JOB).encode(), headers=headers).status_code == 200
    refused = client.post("/everstep/jobs", content=b'{"graph": hunter2', headers=headers)
    assert refused.status_code == 422
    assert "hunter2" not in refused.text


def test_no_answer_shows_the_insides(app_of: Callable[..., FastAPI], caplog: pytest.LogCaptureFixture) -> None:
    """What fails unforeseen is answered with 500 and no word of why; the log has the trace, without credentials."""
    app = app_of()

    @app.get("/boom")
    async def boom() -> None:
        raise RuntimeError("cannot open /srv/private/file")

    answer = TestClient(app, raise_server_exceptions=False).get("/boom")
    assert answer.status_code == 500
    assert answer.json() == {"detail": "the server failed; its log tells why", "code": "internal_error"}
    assert any(record.exc_info for record in caplog.records if record.name == "everstep.server")


def test_no_answer_shows_what_a_graph_said(store: Store, tmp_path: Path) -> None:
    """A graph that cannot be loaded is answered with its name: what its code raised is for the log alone."""
    (tmp_path / "bad.py").write_text("raise RuntimeError('password=hunter2 at /srv/private')")
    (tmp_path / "langgraph.json").write_text('{"graphs": {"bad": "./bad.py:graph"}}')
    app = create_app(store, GraphCatalogue.from_config(tmp_path / "langgraph.json"))
    answer = TestClient(app, base_url="http://127.0.0.1:2024").get("/assistants/bad/schemas")
    assert (answer.status_code, answer.json()["code"]) == (500, "graph_load_failed")
    assert "'bad'" in answer.json()["detail"]
    assert not [told for told in ("hunter2", "private", str(tmp_path)) if told in answer.text]


def test_every_error_has_a_code(ask: Ask) -> None:
    """Also those that no path function gave: an unknown path or method, a body that is no JSON, or too large."""
    client = ask(most_body_bytes=1024)
    answers = [
        client.get("/nowhere"),
        client.put("/ok"),
        client.post("/threads", content=b'{"metadata": '),
        client.post("/threads", content=b"[" * 1000),
        client.post("/threads", content=b"x" * 2000),
    ]
    assert [answer.status_code for answer in answers] == [404, 405, 422, 400, 413]
    codes = [answer.json()["code"] for answer in answers]
    assert codes == ["path_not_found", "method_not_allowed", "request_invalid", "request_invalid", "body_too_large"]
    assert answers[2].json()["detail"] == "the body is no JSON: Expecting value, at character 13"


def test_keys_are_in_no_log(ask: Ask, store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """Neither a key that counts, nor one that does not, nor a body with a credential, whatever level is logged."""
    caplog.set_level(logging.DEBUG)
    key = key_of(store)
    client = ask()
    wrong = {"x-api-key": "esk_" + "5" * 64}
    secret = {**JOB, "input": {"password": "hunter2"}}
    answers = [client.get("/info", headers=key), client.get("/info", headers=wrong)]
    answers.append(client.post("/everstep/jobs", json=secret, headers=key))
    assert [answer.status_code for answer in answers] == [200, 401, 422]
    told = caplog.text + "".join(answer.text for answer in answers)
    for text in (key["x-api-key"], wrong["x-api-key"], "hunter2"):
        assert text not in told


def test_nothing_redirects_to_a_made_up_name(ask: Ask) -> None:
    """A path with a slash too many is not there, rather than a redirect to whatever `Host` said."""
    answer = ask().get("/info/", headers={"host": "evil.example"}, follow_redirects=False)
    assert answer.status_code == 404


def test_nobody_outside_can_say_a_graph_asks(app_of: Callable[..., FastAPI], store: Store) -> None:
    """That a request comes from a graph of the process is told by no header and no path, nor by how it is mounted."""
    key_of(store)
    app = app_of()

    @app.get("/whoami")
    async def whoami(caller: CalledBy) -> str:
        return caller.identity

    outside = FastAPI()
    outside.mount("/noauth", app)
    headers = {"everstep.from_graph": "true", "x-everstep-from-graph": "true"}
    assert TestClient(outside).get("/noauth/whoami", headers=headers).status_code == 401


def test_encryption_is_not_silently_left_out(store: Store, tmp_path: Path) -> None:
    """A configuration that asks for encryption, which there is none of, makes no server."""
    (tmp_path / "agent.py").write_text("graph = None\n")
    configuration = {"graphs": {"agent": "./agent.py:graph"}, "encryption": {"path": "./e.py:e"}}
    (tmp_path / "langgraph.json").write_text(json.dumps(configuration))
    with pytest.raises(ConfigInvalid):
        create_app(store, GraphCatalogue.from_config(tmp_path / "langgraph.json"))


def test_the_port_of_another_is_not_taken() -> None:
    """Where another process listens, the server does not begin."""
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(AddressUnavailable):
        listen("127.0.0.1", other.getsockname()[1])
