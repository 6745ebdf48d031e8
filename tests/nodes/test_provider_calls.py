"""Providers over HTTP: what they are sent, what is read of their answers, and what goes wrong on the way."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from everstep.checkpoints.provider_status import ProviderStatus
from everstep.errors import (
    CancelUnsupported,
    ConfigInvalid,
    EventInvalid,
    ProviderAnswerInvalid,
    ProviderConflict,
    ProviderRefused,
    ProviderTaskMissing,
    ProviderUnusable,
    QueryUnsupported,
)
from everstep.graphs.event_sections import StandardWebhooks
from everstep.graphs.provider_sections import ProviderSection, providers_of
from everstep.nodes.providers.calls import Caller
from everstep.nodes.providers.http_description import read_description
from everstep.nodes.providers.interface import Provider, Submitted
from everstep.nodes.providers.openai import KEY
from everstep.runtime.classify import classify
from examples.provider_simulator.server import Simulator, simulating
from tests.support.events import by_standard_webhooks
from tests.support.serving import serving
from tests.support.simulated import FOLDER, simulated

SECRET = "key-4711-of-the-provider"
IDEMPOTENCY = '{ Idempotency-Key = { path = "/key" } }'


@pytest.fixture
def simulator(monkeypatch: pytest.MonkeyPatch) -> Iterator[Simulator]:
    """A provider that wants a key, which the environment has."""
    monkeypatch.setenv("SIM_KEY", SECRET)
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    with simulating(api_key=SECRET) as simulator:
        yield simulator


@pytest.fixture
def provider(simulator: Simulator) -> Provider:
    """It in its own style."""
    return simulated(simulator.url, api_key_env="SIM_KEY").get("sim")


def openai(simulator: Simulator, work: str, **settings: Any) -> Provider:
    """It in OpenAI's style."""
    section = ProviderSection(use="openai", work=work, base_url=f"{simulator.url}/v1", **settings)  # type: ignore[arg-type]
    return providers_of({"ai": section}, FOLDER).get("ai")


@contextmanager
def answering(status: int, content: bytes, **headers: str) -> Generator[str]:
    """A server that always answers the same; its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            self.send_response(status)
            for name, value in {"content-length": str(len(content)), **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(content)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with serving(server):
        yield f"http://127.0.0.1:{server.server_address[1]}"


# ---- in a style that a file describes


async def test_the_life_of_a_task(provider: Provider) -> None:
    """Submitted, found by our key, asked for until it has succeeded; its id is the provider's."""
    submitted = await provider.submit({"prompt": "a film", "simulate": {"polls": 1}}, key="k/1?x=y&z")
    assert submitted.status == ProviderStatus("pending", submitted.provider_task_id, progress=0)
    found = await provider.find("k/1?x=y&z")
    assert found is not None
    assert found.provider_task_id == submitted.provider_task_id
    assert await provider.find("k/2") is None
    first = await provider.query(submitted.provider_task_id)
    assert (first.state, first.progress, first.result) == ("pending", 10, None)
    last = await provider.query(submitted.provider_task_id)
    assert (last.state, last.progress) == ("succeeded", 100)
    assert last.result["url"].startswith("http://127.0.0.1:")


async def test_a_task_that_failed_says_why(provider: Provider) -> None:
    """The provider's own words are the task's error."""
    submitted = await provider.submit({"prompt": "x", "simulate": {"end": "failed"}}, key="k")
    told = await provider.query(submitted.provider_task_id)
    assert (told.state, told.error["code"], told.result) == ("failed", "content_refused", None)


async def test_cancelling(provider: Provider, simulator: Simulator) -> None:
    """A task that is cancelled has failed; one that has ended is left alone."""
    submitted = await provider.submit({"prompt": "x", "simulate": {"end": "never"}}, key="k")
    await provider.cancel(submitted.provider_task_id)
    assert (await provider.query(submitted.provider_task_id)).state == "failed"
    await provider.cancel(submitted.provider_task_id)
    assert simulator.book.cancelled == ["k", "k"]


async def test_a_task_the_provider_does_not_have(provider: Provider) -> None:
    """404 for a task is said as what it is, whatever the id looks like."""
    for odd in ("gen_no", "../generations", "a b?c#d"):
        with pytest.raises(ProviderTaskMissing, match="no such task"):
            await provider.query(odd)


async def test_a_description_may_leave_out_find_and_cancel(tmp_path: Path) -> None:
    """What the description does not say the provider cannot do."""
    text = (FOLDER / "provider.toml").read_text()
    before, _, rest = text.partition("[find]")
    (tmp_path / "few.toml").write_text(before + "[task]" + rest.partition("[task]")[2])
    section = ProviderSection(use="http", file="few.toml", base_url="http://127.0.0.1:9")
    few = providers_of({"few": section}, tmp_path).get("few")
    assert not few.findable
    with pytest.raises(QueryUnsupported):
        await few.find("k")
    with pytest.raises(CancelUnsupported):
        await few.cancel("id")


async def test_a_request_without_what_the_description_wants_is_refused(
    provider: Provider, simulator: Simulator
) -> None:
    """Nothing is sent of a request that lacks a part."""
    with pytest.raises(ProviderRefused, match="nothing at /request/prompt"):
        await provider.submit({}, key="k")
    assert not simulator.book.received


# ---- what goes wrong on the way


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"<html>", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[]", "told no id"),
        (b'{"id": ""}', "told no id"),
        (b'{"id": true}', "told no id"),
        (b"x" * 2_000_000, "more than 1000000 bytes"),
    ],
)
async def test_an_answer_that_cannot_be_understood(content: bytes, said: str) -> None:
    """Such an answer is no proof that nothing happened: it is told what is wrong with it, and no more of it is read."""
    with answering(200, content) as url:
        odd = simulated(url, max_bytes=1_000_000).get("sim")
        with pytest.raises(ProviderAnswerInvalid, match=said) as caught:
            await odd.submit({"prompt": "x"}, key="k")
    assert not classify(caught.value).surely_not_sent


async def test_a_state_nobody_knows_is_no_state() -> None:
    """A word that is in none of the lists fails the query, and never the task."""
    with answering(200, b'{"id": "1", "status": "exploded"}') as url:
        with pytest.raises(ProviderAnswerInvalid, match="exploded"):
            await simulated(url).get("sim").query("1")
        submitted = await simulated(url).get("sim").submit({"prompt": "x"}, key="k")
        assert submitted.status is None


@pytest.mark.parametrize(
    ("told", "percent"),
    [
        ("1e308", 100),
        ("-1e308", 0),
        ("9" * 400, 100),
        ("-" + "9" * 400, 0),
        ("29", 29),
        ("99.9", 99),
        ("1e400", None),
        ("NaN", None),
        ("true", None),
        ('"7"', None),
    ],
)
async def test_any_number_may_be_told_as_progress(told: str, percent: int | None) -> None:
    """A number beyond all percent is the nearest one, what is no number is none, and the task's id is kept."""
    with answering(200, f'{{"id": "1", "status": "running", "progress": {told}}}'.encode()) as url:
        provider = simulated(url).get("sim")
        submitted = await provider.submit({"prompt": "x"}, key="k")
        assert submitted == Submitted("1", ProviderStatus("pending", "1", progress=percent))
        message = f'{{"id": "e", "data": {{"id": "1", "status": "running", "progress": {told}}}}}'.encode()
        assert provider.parse_webhook({}, message).status.progress == percent


async def test_a_redirect_is_not_followed() -> None:
    """A key is not carried to where somebody else points."""
    with (
        answering(200, b'{"id": "1"}') as there,
        answering(307, b"", location=there) as url,
        pytest.raises(ProviderAnswerInvalid, match="redirects are not followed"),
    ):
        await simulated(url).get("sim").submit({"prompt": "x"}, key="k")


@pytest.mark.parametrize(
    ("status", "surely_not_sent", "kind"),
    [
        *((status, True, "retry") for status in (425, 429, 503)),
        *((status, False, "retry") for status in (408, 500, 502, 504, 529)),
    ],
)
async def test_what_a_status_proves(status: int, surely_not_sent: bool, kind: str) -> None:
    """What did not surely go wrong before the provider acted is no proof; its host, and how long to wait, are known."""
    with answering(status, b"{}", retry_after="7") as url, pytest.raises(httpx.HTTPStatusError) as caught:
        await simulated(url).get("sim").submit({"prompt": "x"}, key="k")
    verdict = classify(caught.value)
    assert (verdict.surely_not_sent, verdict.kind) == (surely_not_sent, kind)
    assert verdict.service == url.removeprefix("http://")
    assert verdict.retry_after_ms == (7000 if kind == "retry" else None)


async def test_a_conflict_proves_nothing() -> None:
    """HTTP 409 may say that the request was taken before; the provider's own words are told."""
    with answering(409, b'{"message": "key in use"}') as url, pytest.raises(ProviderConflict, match="in use") as caught:
        await simulated(url).get("sim").submit({"prompt": "x"}, key="k")
    verdict = classify(caught.value)
    assert (verdict.surely_not_sent, verdict.kind) == (False, "retry")


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 413, 422])
async def test_a_refusal(status: int) -> None:
    """The provider's own words are in it, cut off where they are long."""
    body = json.dumps({"error": {"message": "too dark " * 1000}}).encode()
    with answering(status, body) as url, pytest.raises(ProviderRefused, match=rf"\({status}\): too dark") as caught:
        await simulated(url).get("sim").submit({"prompt": "x"}, key="k")
    assert len(caught.value.message) < 1000


async def test_the_time_a_request_may_take_is_all_of_it() -> None:
    """A provider that sends a byte now and then is given up as well."""
    from threading import Event

    let_go = Event()

    class Slow(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.send_header("content-length", "1000")
            self.end_headers()
            while not let_go.wait(0.05):
                self.wfile.write(b" ")
                self.wfile.flush()

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    server.daemon_threads = True
    with serving(server):
        slow = simulated(f"http://127.0.0.1:{server.server_address[1]}", timeout=0.5).get("sim")
        with pytest.raises(httpx.ReadTimeout, match=r"no answer in 0\.5 s") as caught:
            await slow.submit({"prompt": "x"}, key="k")
        let_go.set()
    assert not classify(caught.value).surely_not_sent


# ---- the key


async def test_the_key_is_read_when_it_is_needed(monkeypatch: pytest.MonkeyPatch, provider: Provider) -> None:
    """Without the variable nothing is sent; with another value it is that one; a broken one is not told."""
    monkeypatch.delenv("SIM_KEY")
    with pytest.raises(ProviderUnusable, match="SIM_KEY is not set") as missing:
        await provider.submit({"prompt": "x"}, key="k")
    assert classify(missing.value).surely_not_sent
    monkeypatch.setenv("SIM_KEY", "another")
    with pytest.raises(ProviderRefused, match="401"):
        await provider.submit({"prompt": "x"}, key="k")
    monkeypatch.setenv("SIM_KEY", f"{SECRET}\nX-Other: 1")
    with pytest.raises(ProviderUnusable, match="cannot stand in a header") as broken:
        await provider.submit({"prompt": "x"}, key="k")
    assert SECRET not in str(broken.value)


@pytest.mark.parametrize("fault", ["refused connection", "hung up", "503"])
async def test_no_error_holds_the_key(simulator: Simulator, fault: str) -> None:
    """Whatever goes wrong, the key is in no part of the error that a log or a tracker may show."""
    url = "http://127.0.0.1:9" if fault == "refused connection" else simulator.url
    plan = {"drop": "before"} if fault == "hung up" else {"status": 503}
    with pytest.raises(httpx.HTTPError) as caught:
        await simulated(url, api_key_env="SIM_KEY").get("sim").submit({"prompt": "x", "simulate": plan}, key="k")
    error = caught.value
    assert SECRET not in repr(error) + str(error.__dict__) + str(error.request.headers.raw)
    if isinstance(error, httpx.HTTPStatusError):
        assert SECRET not in str(error.response.request.headers.raw) + str(error.response.headers.raw)


async def test_a_header_that_a_library_refuses_is_not_printed_with_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """No text of the error, or of one it came from, holds the key; that nothing was sent is known all the same."""
    monkeypatch.setenv("SIM_KEY", SECRET)
    with answering(200, b"{}") as url, pytest.raises(httpx.LocalProtocolError) as caught:
        await Caller("sim", url, "SIM_KEY", prefix="Bear\ner ").call("GET", "/")
    error: BaseException | None = caught.value
    assert "***" in str(error)
    while error is not None:
        assert SECRET not in f"{error!r} {error}"
        error = error.__cause__ or error.__context__


HOOK = "whsec_aG9vay1zZWNyZXQtb2YtdGVzdHM="


@pytest.mark.parametrize("secret", [SECRET, HOOK])
async def test_what_a_provider_echoes_of_our_secrets_is_blacked_out(
    monkeypatch: pytest.MonkeyPatch, secret: str
) -> None:
    """In refusals, results, errors, unknown words and messages, in names as well as in values; ids are kept."""
    monkeypatch.setenv("SIM_KEY", SECRET)
    monkeypatch.setenv("SIM_HOOK", HOOK)
    hook = {"kind": "standard-webhooks", "secret_env": "SIM_HOOK"}
    settings = {"api_key_env": "SIM_KEY", "webhook": StandardWebhooks.model_validate(hook)}
    with answering(422, json.dumps({"error": {"message": f"KEY is {secret}"}}).encode()) as url:
        with pytest.raises(ProviderRefused) as refused:
            await simulated(url, **settings).get("sim").submit({"prompt": "x"}, key="k")
        assert refused.value.ids["said"] == "KEY is ***"
        assert secret not in str(refused.value)
    for state, part in (("succeeded", "output"), ("failed", "error")):
        told = {"id": secret, "status": state, part: {"deep": [f"a {secret}"], secret: 1}}
        with answering(200, json.dumps(told).encode()) as url:
            providers = simulated(url, **settings)
            status = await providers.get("sim").query("1")
            assert (status.result or status.error) == {"deep": ["a ***"], "***": 1}
            assert status.provider_task_id == secret
            submitted = await providers.get("sim").submit({"prompt": "x"}, key="k")
            assert submitted.status == status
        body = json.dumps({"id": "e", "data": told}).encode()
        event = providers.webhook("sim", by_standard_webhooks(body, at_ms=0, secret=HOOK), body, now_ms=0)
        assert (event.status.result or event.status.error) == {"deep": ["a ***"], "***": 1}
    with answering(200, json.dumps({"id": "1", "status": f"is {secret}"}).encode()) as url:
        with pytest.raises(ProviderAnswerInvalid) as odd:
            await simulated(url, **settings).get("sim").query("1")
        assert secret not in str(odd.value)


# ---- in OpenAI's style


async def test_a_response_in_the_background(simulator: Simulator) -> None:
    """It is asked for in the background, with our key in its metadata; its text and use are the result, without ids."""
    ai = openai(simulator, "responses")
    submitted = await ai.submit({"model": "m", "input": "a story", "simulate": {"polls": 1}, "stream": True}, key="k")
    (there,) = simulator.book.tasks.values()
    assert (there.request["background"], there.request["store"], there.request["stream"]) == (True, True, False)
    assert there.request["metadata"] == {KEY: "k"}
    assert (await ai.query(submitted.provider_task_id)).state == "pending"
    told = await ai.query(submitted.provider_task_id)
    assert (told.state, told.result["text"]) == ("succeeded", "made of a story")
    assert told.result["usage"]["total_tokens"] == 12
    assert "msg_" not in str(told.result)
    assert there.id not in str(told.result)


async def test_a_video(simulator: Simulator) -> None:
    """It tells how far it is; it cannot be cancelled, and says so."""
    ai = openai(simulator, "videos")
    submitted = await ai.submit({"prompt": "a film", "simulate": {"polls": 1}}, key="k")
    assert (await ai.query(submitted.provider_task_id)).progress == 10
    told = await ai.query(submitted.provider_task_id)
    assert (told.state, told.progress, told.result["seconds"]) == ("succeeded", 100, "4")
    with pytest.raises(CancelUnsupported, match="video"):
        await ai.cancel(submitted.provider_task_id)


async def test_a_response_that_is_cancelled_has_failed(simulator: Simulator) -> None:
    """Cancelled, and once more: that it has ended is no error."""
    ai = openai(simulator, "responses")
    submitted = await ai.submit({"input": "x", "simulate": {"end": "never"}}, key="k")
    await ai.cancel(submitted.provider_task_id)
    await ai.cancel(submitted.provider_task_id)
    told = await ai.query(submitted.provider_task_id)
    assert (told.state, told.error["code"]) == ("failed", "cancelled")


async def test_openai_is_not_asked_by_a_key(simulator: Simulator) -> None:
    """Its API has no such question, and no idempotency key unless another server's configuration says so."""
    ai = openai(simulator, "responses")
    assert (ai.findable, ai.idempotent) == (False, False)
    with pytest.raises(QueryUnsupported):
        await ai.find("k")
    other = openai(simulator, "videos", idempotent=True)
    first = await other.submit({"prompt": "x", "simulate": {"end": "never"}}, key="k")
    assert (await other.submit({"prompt": "x"}, key="k")).provider_task_id == first.provider_task_id


async def test_an_incomplete_response_has_failed_and_says_why() -> None:
    """What was cut off is not what was ordered."""
    body = {"id": "resp_1", "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    with answering(200, json.dumps(body).encode()) as url:
        section = ProviderSection(use="openai", work="responses", base_url=f"{url}/v1", api_key_env="PATH")
        told = await providers_of({"ai": section}, FOLDER).get("ai").query("resp_1")
    assert (told.state, told.error["code"]) == ("failed", "incomplete")
    assert "max_output_tokens" in told.error["message"]


def test_an_event_of_openai_says_ask_now(simulator: Simulator) -> None:
    """Its events tell that something ended, not what came of it."""
    body = {"id": "evt_1", "type": "response.completed", "created_at": 1750287018, "data": {"id": "resp_1"}}
    event = openai(simulator, "responses").parse_webhook({}, json.dumps(body).encode())
    assert (event.event_id, event.provider_task_id, event.occurred_at) == ("evt_1", "resp_1", 1750287018000)
    assert event.status == ProviderStatus("pending", "resp_1", retry_after_ms=0)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"id": "e", "type": "batch.completed", "data": {"id": "b"}}',
        b'{"id": "e", "type": "response.failed"}',
        b'{"id": 1, "type": "response.failed", "data": {"id": "r"}}',
    ],
)
def test_what_is_no_event_of_openai(simulator: Simulator, body: bytes) -> None:
    """Other messages are refused, and it is said which to subscribe to."""
    with pytest.raises(EventInvalid):
        openai(simulator, "responses").parse_webhook({}, body)


# ---- messages that a file describes


def test_a_message(provider: Provider) -> None:
    """Read at the places that the description names."""
    data = {"id": "gen_1", "status": "succeeded", "reference": "k", "output": {"url": "u"}, "progress": 100}
    event = provider.parse_webhook({}, json.dumps({"id": "evt_1", "data": data}).encode())
    assert (event.event_id, event.provider_task_id, event.provider_key) == ("evt_1", "gen_1", "k")
    assert event.status == ProviderStatus("succeeded", "gen_1", result={"url": "u"}, progress=100)


@pytest.mark.parametrize(
    "body", [b"no", b"{}", b'{"id": "e", "data": {}}', b'{"data": {"id": "g", "status": "failed"}}']
)
def test_what_is_no_message(provider: Provider, body: bytes) -> None:
    """A message without an id, a task or a known state is refused, and the places are named."""
    with pytest.raises(EventInvalid):
        provider.parse_webhook({}, body)


# ---- descriptions


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('path = "/v1/generations/{id}"\n\n[find]', 'path = "/v1/generations"\n\n[find]', "query asks for no task"),
        ('query = { reference = { path = "/key" } }', "", "find asks for no key"),
        ('{ path = "/request/prompt" }', '{ path = "/id" }', "submit asks for /id"),
        ('result = "/output"', 'result = "output"', "task.result: a place is written as a JSON Pointer"),
        ('result = "/output"', "", "task.result: it is missing"),
        ('pending = ["running"]', 'pending = ["running", "failed"]', "task.words: 'failed' stands there twice"),
        ('pending = ["running"]', "pending = []", "task.words.pending: it is empty"),
        ('event_id = "/body/id"', 'event_id = "/id"', "webhook.event_id: a place in a message begins with /body"),
        ('progress = "/progress"', 'progres = "/progress"', "task.progres: "),
        ("[submit]", "[submit", "at line"),
        ('{ path = "/request/prompt" }', '{ path = "request/prompt" }', "'request/prompt' is no place"),
        ('{ path = "/request/prompt" }', '{ path = "/request/prompt", defualt = 1 }', "has defualt"),
        ('{ path = "/request/prompt" }', '{ path = "/request/prompt", value = 1 }', "has value"),
        ('{ reference = { path = "/key" } }', '{ reference = { path = "key" } }', "find.query: at reference: 'key'"),
        ('path = "/v1/generations/{id}"', 'path = "v1/{id}"', "query.path: a path begins with /"),
        ("[submit]", '[auth]\nprefix = "Bear\\ner "\n[submit]', "auth.prefix: a header takes printable ASCII alone"),
        ("[submit]", '[auth]\nheader = "X Key"\n[submit]', "auth.header: a header's name is letters"),
        (IDEMPOTENCY, '{ x = "a\\nb" }', "submit.headers: x: a header takes"),
        (IDEMPOTENCY, '{ x = {value = "a\\u0000"} }', "submit.headers: x: a header takes"),
        (IDEMPOTENCY, '{ x = {path = "/key", default = " a"} }', "submit.headers: x: a header"),
        ('task = "/body/data"\nkey = "/body/data/reference"\n', "", "webhook: say where the task stands"),
    ],
)
def test_a_mistake_in_a_description_is_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    """Where it is, and what could be there."""
    text = (FOLDER / "provider.toml").read_text()
    assert old in text
    path = tmp_path / "bad.toml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ConfigInvalid) as caught:
        read_description(path)
    assert said in caught.value.message
    assert str(path) in caught.value.message


def test_a_description_may_be_json(tmp_path: Path) -> None:
    """JSON is read by its name's ending."""
    import tomllib

    path = tmp_path / "good.json"
    path.write_text(json.dumps(tomllib.loads((FOLDER / "provider.toml").read_text())))
    assert read_description(path) == read_description(FOLDER / "provider.toml")
    with pytest.raises(ConfigInvalid, match="no such file"):
        read_description(tmp_path / "missing.toml")


def test_what_is_shown_of_a_caller() -> None:
    """It holds the name of the key's variable, never the key."""
    assert "SIM_KEY" in repr(Caller("sim", "https://example.org", "SIM_KEY"))
