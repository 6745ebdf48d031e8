"""`Idempotency-Key` over HTTP: one creation, and the answer it had."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from starlette.testclient import TestClient

from everstep.checkpoints import api_keys
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock
from everstep.graphs.loader import GraphCatalogue
from everstep.server.app import create_app

pytestmark = pytest.mark.both_databases


@pytest.fixture
def client(store: Store) -> TestClient:
    """A client of an application on the record."""
    app = create_app(store, GraphCatalogue.from_graphs({"agent": object()}))
    return TestClient(app, raise_server_exceptions=False)


def post(client: TestClient, key: str | None = "k", number: int = 1, **more: Any) -> Any:
    """Submit a job."""
    headers = {**more.pop("headers", {}), **({} if key is None else {"Idempotency-Key": key})}
    return client.post("/everstep/jobs", json={"graph": "agent", "input": {"n": number}, **more}, headers=headers)


def test_the_same_request_is_answered_the_same(client: TestClient, store: Store) -> None:
    """Byte for byte, with its headers, marked as an earlier answer, whatever became of the job since."""
    first = post(client)
    store.cancel(first.json()["id"])
    second = post(client)
    assert second.content == first.content
    assert second.headers["content-location"] == first.headers["content-location"]
    assert ("idempotency-replayed" in first.headers, second.headers["idempotency-replayed"]) == (False, "true")


def test_the_order_of_members_does_not_matter(client: TestClient) -> None:
    """The same JSON is the same request."""
    bodies = ('{"graph": "agent", "input": {"a": 1, "b": 2}}', '{"input": {"b": 2, "a": 1},\n "graph": "agent"}')
    answers = [client.post("/everstep/jobs", content=body, headers={"Idempotency-Key": "k"}) for body in bodies]
    assert answers[0].content == answers[1].content


def test_another_request_is_refused(client: TestClient, store: Store) -> None:
    """409, and nothing is created."""
    post(client)
    refused = post(client, number=2)
    assert (refused.status_code, refused.json()["code"]) == (409, "idempotency_conflict")
    assert len(store.jobs()) == 1


def test_fifty_at_once_are_one(client: TestClient, store: Store) -> None:
    """One is created, one answer is not marked, and all are the same."""
    with ThreadPoolExecutor(50) as threads:
        answers = list(threads.map(lambda _: post(client), range(50)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == len(store.jobs()) == 1
    assert sum("idempotency-replayed" not in answer.headers for answer in answers) == 1


def test_errors_are_not_remembered(client: TestClient, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that failed is tried again under the same key, whether it was wrong or the server was."""
    assert post(client, graph="none").status_code == 404
    assert post(client).status_code == 200
    from everstep.checkpoints import submission

    real = submission.enqueue
    with monkeypatch.context() as broken:

        def fails(*arguments: Any, **named: Any) -> Any:
            real(*arguments, **named)
            raise OSError("the disk")

        broken.setattr(submission, "enqueue", fails)
        assert post(client, "other", 2).status_code == 500
    assert len(store.jobs()) == 1
    after = post(client, "other", 2)
    assert (after.status_code, "idempotency-replayed" in after.headers) == (200, False)


def test_a_key_is_an_owners(client: TestClient, store: Store) -> None:
    """Two owners may use the same key."""
    for owner in ("anna", "bert"):
        given = {"name": owner, "owner": owner, "scopes": ["run"], "now": store.clock.now_ms()}
        _, key = store.write(lambda connection, given=given: api_keys.create(connection, **given)).result()
        answer = post(client, headers={"x-api-key": key})
        assert (answer.json()["owner"], "idempotency-replayed" in answer.headers) == (owner, False)


def test_a_key_is_free_after_a_day(client: TestClient, clock: ManualClock) -> None:
    """Then the same request is a new one; this one has a job already, whose own key is kept for long."""
    post(client)
    clock.advance(86_400_000)
    again = post(client)
    assert "idempotency-replayed" not in again.headers
    assert again.json()["created"] is False


@pytest.mark.parametrize("key", ["", "x" * 256, "t\tab"], ids=["empty", "long", "tab"])
def test_what_is_no_key_is_refused(client: TestClient, key: str) -> None:
    """422 says what a key is."""
    refused = post(client, key)
    assert (refused.status_code, refused.json()["code"]) == (422, "idempotency_key_invalid")


def test_without_a_key_nothing_is_remembered(client: TestClient, store: Store) -> None:
    """A plain request leaves no reply behind."""
    from everstep.checkpoints.schema import replies

    assert post(client, None).status_code == 200
    assert store.read(lambda connection: connection.execute(replies.select()).all()) == []
