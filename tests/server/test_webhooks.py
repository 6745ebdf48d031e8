"""What providers tell of paid tasks over real HTTP: who is believed, what becomes of it, and what it is answered."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from everstep.checkpoints import api_keys, provider_events, provider_tasks
from everstep.checkpoints.store import Store
from everstep.errors import StoreUnavailable
from everstep.graphs.loader import GraphCatalogue
from everstep.nodes.providers import signatures
from everstep.nodes.providers.registry import Check, Entry, Providers
from everstep.nodes.providers.signatures import HmacScheme, Scheme, StandardScheme
from everstep.runtime.observation import Observation
from everstep.server import webhooks
from tests.support.events import HOOK_SECRET, by_standard_webhooks
from tests.support.jobs import chain
from tests.support.live import live
from tests.support.paid import DONE, PRICE, Scripted, again, entries, task_of
from tests.support.record import fresh
from tests.support.waiting import until

WEEK_MS = 7 * 86_400_000


def check(name: str, scheme: Scheme, variable: str) -> Check:
    """What tells whether a message of a provider is genuine."""
    return lambda headers, body, now: signatures.require(name, scheme, variable, headers, body, now_ms=now)


@pytest.fixture
def films() -> Scripted:
    """A provider whose messages are signed after Standard Webhooks."""
    return Scripted("films")


@pytest.fixture
def providers(films: Scripted, monkeypatch: pytest.MonkeyPatch) -> Providers:
    """That one, one that signs otherwise, one without its secret, one that sends nothing."""
    monkeypatch.setenv("FILMS_SECRET", HOOK_SECRET)
    monkeypatch.setenv("SOUNDS_SECRET", "between us")
    hmac = HmacScheme(header="x-signature", timestamp_header="x-time", signs="{timestamp}.{body}")
    made = {name: Scripted(name) for name in ("sounds", "unset", "silent")} | {"films": films}
    checks = {
        "films": check("films", StandardScheme(), "FILMS_SECRET"),
        "sounds": check("sounds", hmac, "SOUNDS_SECRET"),
        "unset": check("unset", StandardScheme(), "TEST_NOT_SET"),
    }
    return Providers({name: Entry(partial(made.get, name), check=checks.get(name)) for name in made})  # type: ignore[arg-type]


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Store]:
    """The record behind the server, with the machine's clock."""
    with fresh(tmp_path) as store:
        yield store


@pytest.fixture
def client(record: Store, providers: Providers) -> Iterator[httpx.Client]:
    """A client of a server without a worker."""
    catalogue = GraphCatalogue.from_graphs({"graph": chain(lambda _s: {"log": ["done"]})})
    with (
        live(record, catalogue, work=False, providers=providers) as url,
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        yield client


class Sender:
    """Sends what a provider would."""

    def __init__(self, client: httpx.Client, store: Store) -> None:
        self._client = client
        self._store = store

    def send(self, event: dict[str, Any] | bytes, *, age_ms: int = 0, **headers: str) -> httpx.Response:
        """An event of `films`, signed when it happened so long ago."""
        body = event if isinstance(event, bytes) else json.dumps(event).encode()
        signed = by_standard_webhooks(body, at_ms=self._store.clock.now_ms() - age_ms)
        return self._client.post("/webhooks/films", content=body, headers={**signed, **headers})


@pytest.fixture
def sender(client: httpx.Client, record: Store) -> Sender:
    """The provider, as it sends."""
    return Sender(client, record)


def stored(store: Store) -> list[tuple[str, str]]:
    """The events that are kept: what they say and their state, oldest first."""
    found = store.read(provider_events.listed)
    return [(event.status.state, event.state) for event in found[::-1]]


def test_an_event_settles_its_task(sender: Sender, record: Store) -> None:
    """A signed event ends the task with what it says; again it is a duplicate, and answered as well."""
    task = task_of(record, to="pending")
    event = {"id": "1", "task": "at-film", "state": "succeeded", "result": DONE.result}
    first, second = sender.send(event), sender.send(event)
    assert (first.status_code, first.json()) == (200, {"state": "applied", "duplicate": False})
    assert (second.status_code, second.json()) == (200, {"state": "applied", "duplicate": True})
    ended = again(record, task)
    assert (ended.state, ended.result, ended.settled_by) == ("succeeded", DONE.result, "webhook")
    assert entries(record, task) == [("charge", -PRICE)]
    assert len(stored(record)) == 1


def test_events_out_of_order(sender: Sender, record: Store) -> None:
    """What comes after the end changes nothing: progress, another end; each is kept as ignored."""
    task = task_of(record, to="pending")
    failed = {"id": "3", "task": "at-film", "state": "failed", "error": {"message": "too dark"}}
    assert sender.send(failed).json()["state"] == "applied"
    assert sender.send({"id": "1", "task": "at-film", "state": "pending"}).json()["state"] == "ignored"
    assert sender.send({"id": "2", "task": "at-film", "state": "succeeded", "result": 1}).json()["state"] == "ignored"
    ended = again(record, task)
    assert (ended.state, ended.error) == ("failed", {"message": "too dark"})
    assert entries(record, task) == [("charge", -PRICE), ("refund", PRICE)]


def test_an_event_before_the_submits_answer(sender: Sender, record: Store) -> None:
    """It is parked under an id nobody knows, applied when the answer brings the id; our key in it needs no waiting."""
    task = task_of(record, to="submitting")
    event = {"id": "1", "task": "provider-7", "state": "succeeded", "result": 7}
    assert sender.send(event).json() == {"state": "parked", "duplicate": False}
    assert again(record, task).state == "submitting"
    accept = partial(provider_tasks.accepted, now=record.clock.now_ms(), next_poll_at=record.clock.now_ms())
    record.write(lambda connection: accept(connection, task, "provider-7")).result()
    ended = again(record, task)
    assert (ended.state, ended.result, stored(record)) == ("succeeded", 7, [("succeeded", "applied")])
    other = task_of(record, "other", to="submitting")
    keyed = {"id": "2", "task": "provider-8", "key": other.provider_key, "state": "succeeded", "result": 8}
    assert sender.send(keyed).json()["state"] == "applied"
    assert again(record, other).result == 8


def test_an_event_a_week_late(sender: Sender, record: Store) -> None:
    """Signed a week ago it is refused and nothing is stored; signed anew it is taken however old it is."""
    task = task_of(record, to="pending")
    event = {"id": "1", "task": "at-film", "state": "succeeded", "result": 1}
    old = sender.send(event, age_ms=WEEK_MS)
    assert (old.status_code, old.json()["code"], stored(record)) == (401, "event_refused", [])
    assert sender.send(event, age_ms=-WEEK_MS).status_code == 401
    assert sender.send(event).json()["state"] == "applied"
    assert again(record, task).state == "succeeded"


@pytest.mark.parametrize("fault", ["body", "signature", "missing", "secret", "id"])
def test_what_is_not_genuine_is_refused(
    client: httpx.Client,
    record: Store,
    fault: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is 401 without a word of why, and nothing of it is stored; the log says why, once for many."""
    task = task_of(record, to="pending")
    body = json.dumps({"id": "1", "task": "at-film", "state": "failed", "error": 1}).encode()
    secret = "whsec_" + "A" * 32 if fault == "secret" else HOOK_SECRET
    headers = by_standard_webhooks(body, at_ms=record.clock.now_ms(), secret=secret)
    if fault == "missing":
        del headers["webhook-signature"]
    headers |= {"signature": {"webhook-signature": "v1,AAAA"}, "id": {"webhook-id": "another"}}.get(fault, {})
    monkeypatch.setattr(webhooks, "refusals", webhooks.Refusals())
    for _ in range(5):
        answer = client.post("/webhooks/films", content=body + b" " * (fault == "body"), headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (401, "event_refused")
        assert "signature" not in answer.text
        assert HOOK_SECRET not in answer.text + caplog.text
    assert (stored(record), again(record, task).state) == ([], "pending")
    assert entries(record, task) == [("charge", -PRICE)]
    assert [line.levelno for line in caplog.records if "webhook of films was refused" in line.message] == [
        logging.WARNING
    ]


def test_another_scheme(client: httpx.Client, record: Store) -> None:
    """An HMAC over time and body in the provider's own headers is taken, and for no other provider."""
    import hashlib
    import hmac

    task = task_of(record, to="pending", provider="sounds")
    body = json.dumps({"id": "1", "task": "at-film", "state": "succeeded", "result": 1}).encode()
    at = str(record.clock.now_ms() // 1000)
    signature = hmac.new(b"between us", f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    headers = {"x-time": at, "x-signature": signature}
    assert client.post("/webhooks/films", content=body, headers=headers).status_code == 401
    assert client.post("/webhooks/sounds", content=body, headers=headers).json()["state"] == "applied"
    assert again(record, task).state == "succeeded"


def test_what_cannot_be_taken(
    sender: Sender, client: httpx.Client, record: Store, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unknown provider and one without a webhook are 404, too much is 413, what is no event 422.

    A secret that is missing or none is 503, and which it is the log tells, without a stack trace.
    """
    for name in ("nobody", "silent", "films%2f..", "FILMS"):
        refused = client.post(f"/webhooks/{name}", content=b"{}")
        assert refused.status_code == 404, name
    large = sender.send(b'{"id": "' + b"x" * webhooks.MOST_BYTES + b'"}')
    assert (large.status_code, large.json()["code"]) == (413, "event_too_large")
    for nonsense in (b"{}", b"[", b"null", b'{"id": 1, "state": "odd"}', b""):
        assert sender.send(nonsense).status_code == 422
    unset = client.post("/webhooks/unset", content=b"{}", headers={"webhook-id": "1"})
    assert (unset.status_code, unset.json()["code"]) == (503, "provider_unusable")
    assert "TEST_NOT_SET" not in unset.text
    assert "Traceback" not in caplog.text
    assert "TEST_NOT_SET" in caplog.text
    monkeypatch.setenv("TEST_NOT_SET", "not base64!!")
    caplog.clear()
    garbage = client.post("/webhooks/unset", content=b"{}", headers=by_standard_webhooks(b"{}", at_ms=0))
    assert (garbage.status_code, garbage.json()["code"]) == (503, "provider_unusable")
    assert "whsec_ and base64: TEST_NOT_SET" in caplog.text
    assert "base64!!" not in caplog.text + garbage.text
    assert "Traceback" not in caplog.text
    assert client.get("/webhooks/films").status_code in (404, 405)
    assert stored(record) == []


def test_no_key_is_needed_and_no_page_may_send(sender: Sender, client: httpx.Client, record: Store) -> None:
    """Where everything else takes a key, a signature is enough; a web page of a foreign origin is refused all the same.

    Who gives no signature is refused however good the key is.
    """
    made = record.write(
        lambda c: api_keys.create(c, name="k", owner="ada", scopes=("admin",), now=record.clock.now_ms())
    ).result()
    until(lambda: client.get("/everstep/jobs").status_code == 401, "that keys count")
    event = {"id": "1", "task": "nowhere", "state": "pending"}
    assert sender.send(event).json()["state"] == "parked"
    foreign = sender.send({**event, "id": "2"}, origin="https://evil.example")
    assert foreign.status_code == 403
    keyed = client.post("/webhooks/films", json=event, headers={"x-api-key": made[1]})
    assert keyed.status_code == 401
    assert len(stored(record)) == 1


def test_a_record_that_cannot_be_written_is_503(sender: Sender, record: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The provider is told to send again, and when it does the event is taken."""
    task = task_of(record, to="pending")
    event = {"id": "1", "task": "at-film", "state": "succeeded", "result": 1}
    with monkeypatch.context() as patched:

        async def awrite(_operation: Any) -> Any:
            raise StoreUnavailable("the disk is full", next_step="make room")

        patched.setattr(record, "awrite", awrite)
        assert sender.send(event).status_code == 503
    assert (stored(record), again(record, task).state) == ([], "pending")
    assert sender.send(event).json() == {"state": "applied", "duplicate": False}


def test_an_end_without_what_came_of_it_is_asked_for_at_once(
    sender: Sender, record: Store, films: Scripted, providers: Providers
) -> None:
    """A message that only says that something happened makes the task due now, not at its next time."""
    task = task_of(record, to="pending")
    now = record.clock.now_ms()
    late = partial(provider_tasks.take_due, holder="x", now=now, lease_ms=3_600_000, limit=1)
    record.write(lambda connection: late(connection, "films")).result()
    films.otherwise = DONE
    poller = Observation(record, providers)
    poller.start()
    try:
        assert sender.send({"id": "1", "task": "at-film", "state": "pending", "retry_after_ms": 0}).status_code == 200
        until(lambda: again(record, task).is_final, "its end")
    finally:
        poller.stop()
    assert again(record, task).settled_by == "poll"


def test_poll_and_webhooks_at_once_settle_once(
    sender: Sender, record: Store, films: Scripted, providers: Providers
) -> None:
    """Whatever comes first of a poll and twenty events that contradict it, there is one end and one refund at most."""
    for turn in range(10):
        task = task_of(record, str(turn), to="pending")
        films.says[f"at-{turn}"] = [DONE]
        poller = Observation(record, providers)
        event = {"task": f"at-{turn}", "state": "failed", "error": {"message": "no"}}
        senders = [threading.Thread(target=sender.send, args=({"id": f"{turn}-{one}", **event},)) for one in range(4)]
        poller.start()
        for thread in senders:
            thread.start()
        for thread in senders:
            thread.join()
        until(lambda task=task: again(record, task).is_final, "its end")
        poller.stop()
        ended = again(record, task)
        refunds = [("refund", PRICE)] if ended.state == "failed" else []
        assert entries(record, task) == [("charge", -PRICE), *refunds]
        assert (ended.result is None) == (ended.state == "failed")


def test_webhooks_are_counted(sender: Sender, client: httpx.Client, record: Store) -> None:
    """The page of metrics tells each event by its provider and what came of it."""
    task_of(record, to="pending")
    done = {"id": "1", "task": "at-film", "state": "succeeded", "result": 1}
    for event in (done, done, {**done, "id": "2"}, {**done, "id": "3", "task": "nowhere"}, b"{}"):
        sender.send(event)
    text = client.get("/everstep/metrics").text
    for outcome in ("applied", "duplicate", "ignored", "parked", "refused"):
        assert f'everstep_provider_webhooks_total{{outcome="{outcome}",provider="films"}} 1.0' in text, text
