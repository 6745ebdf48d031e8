"""What goes wrong between us and a provider, and what nobody is shown of its key."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from everstep.checkpoints.provider_status import ProviderStatus
from everstep.errors import (
    ProviderAnswerInvalid,
    ProviderConflict,
    ProviderRefused,
    ProviderUnusable,
)
from everstep.graphs.event_sections import StandardWebhooks
from everstep.nodes.providers.calls import Caller
from everstep.nodes.providers.interface import Provider, Submitted
from everstep.runtime.classify import classify
from examples.provider_simulator.server import Simulator
from tests.support.events import by_standard_webhooks
from tests.support.serving import answering, serving
from tests.support.simulated import API_KEY, simulated

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
    monkeypatch.setenv("SIM_KEY", f"{API_KEY}\nX-Other: 1")
    with pytest.raises(ProviderUnusable, match="cannot stand in a header") as broken:
        await provider.submit({"prompt": "x"}, key="k")
    assert API_KEY not in str(broken.value)


@pytest.mark.parametrize("fault", ["refused connection", "hung up", "503"])
async def test_no_error_holds_the_key(simulator: Simulator, fault: str) -> None:
    """Whatever goes wrong, the key is in no part of the error that a log or a tracker may show."""
    url = "http://127.0.0.1:9" if fault == "refused connection" else simulator.url
    plan = {"drop": "before"} if fault == "hung up" else {"status": 503}
    with pytest.raises(httpx.HTTPError) as caught:
        await simulated(url, api_key_env="SIM_KEY").get("sim").submit({"prompt": "x", "simulate": plan}, key="k")
    error = caught.value
    assert API_KEY not in repr(error) + str(error.__dict__) + str(error.request.headers.raw)
    if isinstance(error, httpx.HTTPStatusError):
        assert API_KEY not in str(error.response.request.headers.raw) + str(error.response.headers.raw)


async def test_a_header_that_a_library_refuses_is_not_printed_with_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """No text of the error, or of one it came from, holds the key; that nothing was sent is known all the same."""
    monkeypatch.setenv("SIM_KEY", API_KEY)
    with answering(200, b"{}") as url, pytest.raises(httpx.LocalProtocolError) as caught:
        await Caller("sim", url, "SIM_KEY", prefix="Bear\ner ").call("GET", "/")
    error: BaseException | None = caught.value
    assert "***" in str(error)
    while error is not None:
        assert API_KEY not in f"{error!r} {error}"
        error = error.__cause__ or error.__context__


HOOK = "whsec_aG9vay1zZWNyZXQtb2YtdGVzdHM="


@pytest.mark.parametrize("secret", [API_KEY, HOOK])
async def test_what_a_provider_echoes_of_our_secrets_is_blacked_out(
    monkeypatch: pytest.MonkeyPatch, secret: str
) -> None:
    """In refusals, results, errors, unknown words and messages, in names as well as in values; ids are kept."""
    monkeypatch.setenv("SIM_KEY", API_KEY)
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
