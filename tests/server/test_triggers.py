"""Events and webhooks over real HTTP: who may send what, what is answered, what is stored, what is told at the end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from everstep.checkpoints import api_keys, trigger_events
from everstep.checkpoints.store import Store
from everstep.graphs.loader import GraphCatalogue
from tests.support.events import (
    GITHUB_SECRET,
    HOOK_SECRET,
    by_standard_webhooks,
    from_github,
    policies,
    pull_request,
)
from tests.support.jobs import chain
from tests.support.live import live
from tests.support.receiver import Receiver
from tests.support.record import fresh
from tests.support.waiting import until

GIVEN = policies(
    pull_requests={
        "source": "github",
        "secret_env": "TEST_GITHUB_SECRET",
        "key": ["/body/repository/full_name", "/body/pull_request/head/sha"],
        "input": {"log": [{"path": "/body/pull_request/title"}]},
    },
    signed={"source": "http", "signature": {"kind": "standard-webhooks", "secret_env": "TEST_HOOK_SECRET"}},
    plain={"source": "http", "max_bytes": 1000},
    adas={"source": "http", "owner": "ada"},
    clouds={"source": "cloudevents", "input": {"log": [{"path": "/headers/ce-type"}]}},
    unset={"source": "github", "secret_env": "TEST_NOT_SET"},
    off={"source": "http", "enabled": False},
    files={"source": "folder", "folder": "in"},
)


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """The record behind the server, with the machine's clock; the triggers' secrets are set."""
    monkeypatch.setenv("TEST_GITHUB_SECRET", GITHUB_SECRET)
    monkeypatch.setenv("TEST_HOOK_SECRET", HOOK_SECRET)
    with fresh(tmp_path) as store:
        yield store


@pytest.fixture
def client(record: Store) -> Iterator[httpx.Client]:
    """A client of a server with a worker beside it."""
    catalogue = GraphCatalogue.from_graphs({"graph": chain(lambda _s: {"log": ["done"]})})
    with live(record, catalogue, policies=GIVEN) as url, httpx.Client(base_url=url, timeout=60) as client:
        yield client


def send(client: httpx.Client, name: str, body: bytes, headers: dict[str, str] | None = None) -> httpx.Response:
    """POST an event."""
    return client.post(f"/everstep/triggers/{name}", content=body, headers=headers or {})


def stored(store: Store) -> int:
    """How many events are in the record."""
    return len(store.read(trigger_events.every))


def test_a_pull_request_starts_a_job(client: httpx.Client, record: Store) -> None:
    """GitHub's webhook is answered with the job; sent again, with the same; for the same commit it is one job."""
    body, headers = from_github(pull_request())
    first = send(client, "pull-requests", body, headers)
    assert first.status_code == 200, first.text
    told = first.json()
    assert (told["state"], told["duplicate"], told["error"]) == ("started", False, None)
    again = send(client, "pull-requests", body, headers).json()
    assert again == {**told, "duplicate": True}
    other, headers = from_github(pull_request(), delivery="another")
    assert send(client, "pull-requests", other, headers).json()["job"] == told["job"]
    closed, headers = from_github(pull_request("closed"), delivery="third")
    assert send(client, "pull-requests", closed, headers).json()["state"] == "filtered"
    until(lambda: record.job(told["job"]).status == "done", "the job's end")
    (job,) = record.jobs()
    assert job.payload == {"log": ["Fix the carry"]}


@pytest.mark.parametrize("change", ["body", "signature", "none"])
def test_what_is_not_genuine_is_not_stored(client: httpx.Client, record: Store, change: str) -> None:
    """A changed body, a wrong signature or none is 401, and nothing of it is in the record."""
    body, headers = from_github(pull_request())
    if change == "body":
        body += b" "
    elif change == "signature":
        _, headers = from_github(pull_request(), secret="another")
    else:
        del headers["x-hub-signature-256"]
    refused = send(client, "pull-requests", body, headers)
    assert (refused.status_code, refused.json()["code"], stored(record)) == (401, "event_refused", 0)


def test_what_is_too_old_is_not_stored(client: httpx.Client, record: Store) -> None:
    """A signature of an hour ago is 401; one of now is taken."""
    now = record.clock.now_ms()
    old = send(client, "signed", b"{}", by_standard_webhooks(b"{}", at_ms=now - 3_600_000))
    assert (old.status_code, stored(record)) == (401, 0)
    assert send(client, "signed", b"{}", by_standard_webhooks(b"{}", at_ms=now)).status_code == 200
    assert stored(record) == 1


def test_what_is_not_there_or_too_much(client: httpx.Client, record: Store) -> None:
    """No such trigger, one that is off, and one of files are 404; a body too large is 413, what is no event 422."""
    for name in ("missing", "off", "files"):
        assert send(client, name, b"{}").status_code == 404
    large = send(client, "plain", b'"' + b"x" * 1000 + b'"')
    assert (large.status_code, large.json()["code"]) == (413, "event_too_large")
    assert send(client, "plain", b"{").status_code == 422
    assert send(client, "clouds", b"{}", {"content-type": "application/json"}).status_code == 422
    assert stored(record) == 0


def test_an_unset_secret_is_not_told(client: httpx.Client, caplog: Any) -> None:
    """A trigger whose secret is missing is 503; which variable it is, the log tells and the answer does not."""
    body, headers = from_github(pull_request())
    answer = send(client, "unset", body, headers)
    assert (answer.status_code, answer.json()["code"]) == (503, "trigger_unusable")
    assert "TEST_NOT_SET" not in answer.text
    assert "TEST_NOT_SET" in caplog.text


def test_cloud_events_over_http(client: httpx.Client, record: Store) -> None:
    """Binary and structured mode of one event are one event and one job."""
    attributes = {"id": "1", "source": "/orders", "type": "order.paid", "specversion": "1.0"}
    binary = {**{f"ce-{name}": value for name, value in attributes.items()}, "content-type": "application/json"}
    first = send(client, "clouds", b'{"order": 17}', binary)
    whole = json.dumps({**attributes, "data": {"order": 17}}).encode()
    second = send(client, "clouds", whole, {"content-type": "application/cloudevents+json"})
    assert (first.status_code, second.status_code) == (200, 200)
    assert second.json() == {**first.json(), "duplicate": True}
    assert [job.payload for job in record.jobs()] == [{"log": ["order.paid"]}]


def test_without_a_signature_it_takes_a_key(client: httpx.Client, record: Store) -> None:
    """Once keys are made, a trigger without a signature takes events by a key that may run, and of its owner alone."""
    assert send(client, "plain", b'{"log": []}').status_code == 200

    def key(owner: str, *scopes: str) -> dict[str, str]:
        made = record.write(
            lambda c: api_keys.create(c, name="k", owner=owner, scopes=scopes, now=record.clock.now_ms())
        ).result()
        return {"x-api-key": made[1]}

    ada, bob, reader = key("ada", "run"), key("bob", "run"), key("ada", "read")

    def status(headers: dict[str, str] | None = None) -> int:
        return send(client, "adas", b'{"log": [1]}', headers).status_code

    until(lambda: status() == 401, "that keys count")
    assert (status(reader), status(bob), status(ada)) == (403, 404, 200)
    body, headers = from_github(pull_request())
    assert send(client, "pull-requests", body, headers).status_code == 200, "a signature is enough"
    assert client.get("/everstep/triggers").status_code == 401
    assert {one["name"] for one in client.get("/everstep/triggers", headers=ada).json()} == {"adas"}
    assert client.get("/everstep/triggers/plain/events", headers=ada).status_code == 404
    (event,) = client.get("/everstep/triggers/adas/events", headers=ada).json()
    path = f"/everstep/triggers/adas/events/{event['id']}"
    assert client.get(path, headers=bob).status_code == 404
    assert client.post(f"{path}/replay", headers=bob).status_code == 404
    assert client.post(f"{path}/replay", headers=reader).status_code == 403


def test_events_are_looked_at_and_replayed(client: httpx.Client, record: Store) -> None:
    """The list tells states and no bodies, one event its body; a replay makes no second job unless asked."""
    told = send(client, "plain", b'{"log": [1]}', {"authorization": "Bearer hunter2hunter2hunter2"}).json()
    view = {one["name"]: one for one in client.get("/everstep/triggers").json()}
    assert view["plain"]["events"] == {"stored": 0, "started": 1, "filtered": 0, "failed": 0}
    assert (view["plain"]["signed"], view["pull-requests"]["signed"]) == (False, True)
    assert (view["files"]["path"], view["files"]["folder"]) == (None, "in")
    (event,) = client.get("/everstep/triggers/plain/events", params={"state": "started"}).json()
    assert event["job"] == told["job"]
    whole = client.get(f"/everstep/triggers/plain/events/{event['id']}")
    assert whole.json()["body"] == {"log": [1]}
    assert "hunter2" not in whole.text
    path = f"/everstep/triggers/plain/events/{event['id']}/replay"
    assert client.post(path).json()["job"] == told["job"]
    assert client.post(path, json={"again": True}).json()["job"] != told["job"]
    assert client.post(path, json={"twice": True}).status_code == 422
    assert client.get("/everstep/triggers/clouds/events/" + event["id"]).status_code == 404
    assert len(record.jobs()) == 2


# ---- webhooks of what is started over HTTP


def test_a_runs_webhook_is_told(client: httpx.Client) -> None:
    """A LangGraph run's webhook gets the run with its values, its times, and when it was sent."""
    with Receiver().open() as receiver:
        thread = client.post("/threads", json={}).json()["thread_id"]
        asked = {"assistant_id": "graph", "input": {"log": ["a"]}, "webhook": receiver.hook}
        run = client.post(f"/threads/{thread}/runs", json=asked).json()
        until(lambda: receiver.messages, "the webhook")
        (message,) = receiver.messages
    value = message.value
    assert (value["run_id"], value["thread_id"], value["status"]) == (run["run_id"], thread, "success")
    assert value["values"] == {"log": ["a", "done"]}
    assert value["error"] is None
    for time in ("run_started_at", "run_ended_at", "webhook_sent_at"):
        assert value[time] is not None


def test_a_jobs_webhook_is_told(client: httpx.Client) -> None:
    """A job that was submitted over HTTP tells its webhook as one of the command line does."""
    with Receiver().open() as receiver:
        asked = {"graph": "graph", "input": {"log": ["a"]}, "webhook": receiver.hook}
        job = client.post("/everstep/jobs", json=asked).json()
        until(lambda: receiver.messages, "the webhook")
    assert [(message.value["id"], message.value["status"]) for message in receiver.messages] == [(job["id"], "done")]


@pytest.mark.parametrize("url", ["http://169.254.169.254/latest", "https://10.0.0.1/", "http://[::1]/", "file:///x"])
def test_a_callers_webhook_does_not_lead_into_the_network(client: httpx.Client, record: Store, url: str) -> None:
    """An address that nothing may be sent to is 422 where it is given, and starts nothing."""
    asked = {"graph": "graph", "input": {"log": []}, "webhook": url}
    assert client.post("/everstep/jobs", json=asked).status_code == 422
    thread = client.post("/threads", json={}).json()["thread_id"]
    run = {"assistant_id": "graph", "input": {"log": []}, "webhook": url}
    assert client.post(f"/threads/{thread}/runs", json=run).status_code == 422
    assert record.jobs() == []
