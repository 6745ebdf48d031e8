"""Providers over HTTP: what they are sent, and what is read of their answers, in each style."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from everstep.checkpoints.provider_status import ProviderStatus
from everstep.errors import (
    CancelUnsupported,
    ConfigInvalid,
    EventInvalid,
    ProviderRefused,
    ProviderTaskMissing,
    QueryUnsupported,
)
from everstep.graphs.provider_sections import ProviderSection, providers_of
from everstep.nodes.providers.calls import Caller
from everstep.nodes.providers.http_description import read_description
from everstep.nodes.providers.interface import Provider
from everstep.nodes.providers.openai import KEY
from examples.provider_simulator.server import Simulator
from tests.support.serving import answering
from tests.support.simulated import FOLDER

IDEMPOTENCY = '{ Idempotency-Key = { path = "/key" } }'


def openai(simulator: Simulator, work: str, **settings: Any) -> Provider:
    """It in OpenAI's style."""
    section = ProviderSection(use="openai", work=work, base_url=f"{simulator.url}/v1", **settings)  # type: ignore[arg-type]
    return providers_of({"ai": section}, FOLDER).get("ai")


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
