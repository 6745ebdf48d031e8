"""What triggers read: filters and mappings, signatures, and requests as events."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from everstep.errors import ConfigInvalid, EventInvalid, EventRefused, TriggerUnusable
from everstep.graphs.event_sections import OverHttp
from everstep.graphs.policies import Policies, read_policies
from everstep.runtime.triggers import incoming, rules, signatures
from everstep.runtime.triggers.rules import MISSING
from tests.support.events import (
    GITHUB_SECRET,
    HOOK_SECRET,
    by_standard_webhooks,
    from_github,
    policies,
    pull_request,
    trigger,
)

NOW_MS = 1_800_000_000_000
DOCUMENT = {
    "event": {"key": "e1"},
    "headers": {"x-kind": "order"},
    "body": {"a/b": {"~": [10, {"x": None}]}, "n": 1, "yes": True, "list": [1, "1"], "": "empty"},
}


# ---- filter and mapping


@pytest.mark.parametrize(
    ("pointer", "found"),
    [
        ("/body/n", 1),
        ("/body/a~1b/~0/0", 10),
        ("/body/a~1b/~0/1/x", None),
        ("/body/", "empty"),
        ("/headers/x-kind", "order"),
        ("/body/list/1", "1"),
        ("/body/list/2", MISSING),
        ("/body/list/-1", MISSING),
        ("/body/list/01", MISSING),
        ("/body/list/x", MISSING),
        ("/body/n/0", MISSING),
        ("/body/missing", MISSING),
    ],
)
def test_places_are_json_pointers(pointer: str, found: Any) -> None:
    """A place is found as RFC 6901 says; what is not there is told from null."""
    assert rules.at(DOCUMENT, pointer) is found or rules.at(DOCUMENT, pointer) == found
    assert (rules.at(DOCUMENT, pointer) is MISSING) == (found is MISSING)


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ({"path": "/body/n", "equals": 1}, True),
        ({"path": "/body/n", "equals": 1.0}, True),
        ({"path": "/body/n", "equals": True}, False),
        ({"path": "/body/yes", "equals": 1}, False),
        ({"path": "/body/yes", "equals": True}, True),
        ({"path": "/body/n", "equals": "1"}, False),
        ({"path": "/body/list", "equals": [1, "1"]}, True),
        ({"path": "/body/list", "equals": [True, "1"]}, False),
        ({"path": "/body/n", "in": [3, 1]}, True),
        ({"path": "/body/n", "in": []}, False),
        ({"path": "/body/missing", "in": ["x"]}, False),
        ({"path": "/body/a~1b/~0/1/x", "exists": True}, True),
        ({"path": "/body/missing", "exists": True}, False),
        ({"path": "/body/missing", "exists": False}, True),
        ({"path": "/headers/X-Kind", "equals": "order"}, True),
    ],
)
def test_conditions(condition: dict[str, Any], holds: bool) -> None:
    """Equality is that of JSON: a number is a number however written, and neither text nor true."""
    assert rules.wants(trigger(source="http", filter=[condition]), DOCUMENT) is holds


def test_all_conditions_must_hold() -> None:
    """One that does not is enough to filter an event out; without conditions all are wanted."""
    yes, no = {"path": "/body/n", "equals": 1}, {"path": "/body/n", "equals": 2}
    assert not rules.wants(trigger(source="http", filter=[yes, no]), DOCUMENT)
    assert rules.wants(trigger(source="http"), DOCUMENT)


def test_an_input_is_put_together() -> None:
    """Tables with a path give what is there or their default, `value` anything, and all else itself."""
    mapping = {
        "n": {"path": "/body/n"},
        "missing": {"path": "/body/missing", "default": []},
        "literal": {"value": {"path": "/body/n"}},
        "deep": [{"kind": {"path": "/headers/x-kind"}}, "constant", 5],
        "table": {"path": "/body/n", "other": 1},
    }
    assert rules.input_of(trigger(source="http", input=mapping), DOCUMENT) == {
        "n": 1,
        "missing": [],
        "literal": {"path": "/body/n"},
        "deep": [{"kind": "order"}, "constant", 5],
        "table": {"path": "/body/n", "other": 1},
    }
    assert rules.input_of(trigger(source="http"), DOCUMENT) == DOCUMENT["body"]
    with pytest.raises(EventInvalid) as error:
        rules.input_of(trigger(source="http", input={"x": {"path": "/body/gone"}}), DOCUMENT)
    assert error.value.ids["path"] == "/body/gone"


def test_a_key_is_put_together_without_mistaking_parts() -> None:
    """Several places make one key in which their borders are seen; without any it is the event's own."""
    two = trigger(source="http", key=["/body/n", "/headers/x-kind"])
    assert rules.key_of(two, DOCUMENT) == '["1", "order"]'
    assert rules.key_of(trigger(source="http", key="/headers/x-kind"), DOCUMENT) == "order"
    assert rules.key_of(trigger(source="http"), DOCUMENT) == "e1"
    with pytest.raises(EventInvalid):
        rules.key_of(trigger(source="http", key="/body/missing"), DOCUMENT)


# ---- configuration


@pytest.mark.parametrize(
    "section",
    [
        {"source": "http", "filter": [{"path": "body/n", "equals": 1}]},
        {"source": "http", "filter": [{"path": "/other/n", "equals": 1}]},
        {"source": "http", "filter": [{"path": "/body/n"}]},
        {"source": "http", "filter": [{"path": "/body/n", "equals": 1, "exists": True}]},
        {"source": "http", "filter": [{"path": "/body/~2", "exists": True}]},
        {"source": "http", "input": {"x": {"path": "body"}}},
        {"source": "http", "input": {"x": {"path": "/headers/authorization"}}},
        {"source": "http", "key": "/headers/Cookie"},
        {"source": "http", "max_bytes": 0},
        {"source": "http", "priority": 11},
        {"source": "http", "webhook": "https://ada:hunter2hunter2@example.org/"},
        {"source": "http", "signature": {"kind": "hmac-sha256", "secret_env": "S", "header": "x", "signs": "x"}},
        {
            "source": "http",
            "signature": {"kind": "hmac-sha256", "secret_env": "S", "header": "x", "timestamp_header": "t"},
        },
        {"source": "http", "signature": {"kind": "md5", "secret_env": "S"}},
        {"source": "http", "folder": "x"},
        {"source": "github"},
        {"source": "folder"},
        {"source": "carrier-pigeon"},
    ],
)
def test_what_cannot_be_meant_is_refused(section: dict[str, Any]) -> None:
    """A trigger that is misspelled, unsafe or incomplete is refused when the file is read."""
    with pytest.raises(ValidationError):
        policies(one=section)


def test_the_file_is_read_with_its_place_named(tmp_path: Path) -> None:
    """A mistake is told with where it stands, an unknown graph with those there are; what is right outlives JSON."""
    (tmp_path / "everstep.toml").write_text('[triggers.x]\nsource = "http"\ngraph = "a"\nmax_size = 1\n')
    with pytest.raises(ConfigInvalid) as error:
        read_policies(tmp_path / "langgraph.json", ["a"])
    assert "triggers.x.http.max_size" in error.value.message
    assert "max_bytes" in error.value.next_step
    (tmp_path / "everstep.toml").write_text('[triggers.x]\nsource = "http"\ngraph = "b"\n')
    with pytest.raises(ConfigInvalid, match=r"triggers\.x\.graph"):
        read_policies(tmp_path / "langgraph.json", ["a"])
    given = policies(
        one={"source": "http", "filter": [{"path": "/body/n", "in": [1]}, {"path": "/body", "exists": True}]}
    )
    assert Policies.model_validate_json(given.model_dump_json()) == given


# ---- signatures


def verify(section: OverHttp, headers: dict[str, str], body: bytes, **environment: str) -> None:
    """Check a request's signature."""
    signatures.verify("one", section, headers, body, now_ms=NOW_MS, environment=environment)


def over_http(**section: Any) -> Any:
    """A trigger over HTTP."""
    return trigger(**{"source": "http", **section})


def test_githubs_own_example() -> None:
    """The value GitHub's documentation gives to test against is taken, a changed body or secret is not."""
    section = over_http(source="github", secret_env="S")
    signature = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    for secret in (GITHUB_SECRET, f"the old one\n{GITHUB_SECRET}\n"):
        verify(section, {"x-hub-signature-256": signature}, b"Hello, World!", S=secret)
    for headers, body, secret in (
        ({"x-hub-signature-256": signature}, b"Hello, World?", GITHUB_SECRET),
        ({"x-hub-signature-256": signature}, b"Hello, World!", "another"),
        ({"x-hub-signature-256": signature.removeprefix("sha256=")}, b"Hello, World!", GITHUB_SECRET),
        ({"x-hub-signature": signature}, b"Hello, World!", GITHUB_SECRET),
        ({}, b"Hello, World!", GITHUB_SECRET),
    ):
        with pytest.raises(EventRefused):
            verify(section, headers, body, S=secret)


def test_standard_webhooks() -> None:
    """What the library signs is taken, also by the older of two secrets; what is old, changed or malformed is not."""
    section = over_http(signature={"kind": "standard-webhooks", "secret_env": "S"})
    other = "whsec_" + base64.b64encode(b"another secret that is long").decode()
    body = b'{"a": 1}'
    headers = by_standard_webhooks(body, at_ms=NOW_MS)
    verify(section, headers, body, S=f"{other} {HOOK_SECRET}")
    several = {**headers, "webhook-signature": f"v1a,xyz {headers['webhook-signature']}"}
    verify(section, several, body, S=HOOK_SECRET)
    bad: list[dict[str, str]] = [
        {**headers, "webhook-id": "msg_2"},
        {**headers, "webhook-signature": "v1,not base64"},
        {**headers, "webhook-signature": "rubbish"},
        {**headers, "webhook-timestamp": "soon"},
        {**headers, "webhook-timestamp": "9" * 400},
        {name: value for name, value in headers.items() if name != "webhook-id"},
        by_standard_webhooks(body, at_ms=NOW_MS - 301_000),
        by_standard_webhooks(body, at_ms=NOW_MS + 301_000),
        by_standard_webhooks(body, at_ms=NOW_MS, secret=other),
    ]
    for one in bad:
        with pytest.raises(EventRefused):
            verify(section, one, body, S=HOOK_SECRET)
    for changed in (b'{"a": 2}', b"\xff"):
        with pytest.raises(EventRefused):
            verify(section, headers, changed, S=HOOK_SECRET)
    verify(section, by_standard_webhooks(body, at_ms=NOW_MS - 299_000), body, S=HOOK_SECRET)


def test_hmac_with_a_time() -> None:
    """A signature over time and body, as Slack makes it: the time is checked, and cannot be changed."""
    given = {
        "kind": "hmac-sha256",
        "secret_env": "S",
        "header": "X-Slack-Signature",
        "prefix": "v0=",
        "timestamp_header": "X-Slack-Request-Timestamp",
        "signs": "v0:{timestamp}:{body}",
    }
    section, at = over_http(signature=given), NOW_MS // 1000

    def signed(time: int, body: bytes) -> dict[str, str]:
        digest = hmac.new(b"secret", b"v0:%d:%b" % (time, body), hashlib.sha256).hexdigest()
        return {"x-slack-signature": f"v0={digest}", "x-slack-request-timestamp": str(time)}

    verify(section, signed(at, b"{}"), b"{}", S="secret")
    for headers in (
        signed(at - 301, b"{}"),
        {**signed(at - 301, b"{}"), "x-slack-request-timestamp": str(at)},
        {"x-slack-signature": signed(at, b"{}")["x-slack-signature"]},
    ):
        with pytest.raises(EventRefused):
            verify(section, headers, b"{}", S="secret")


def test_hmac_in_base64_and_tokens() -> None:
    """A digest may be written in base64, where letters' sizes differ; a token is compared as it is."""
    body, digest = b"x", hmac.new(b"secret", b"x", hashlib.sha256).digest()
    given = {"kind": "hmac-sha256", "secret_env": "S", "header": "x-sign", "encoding": "base64"}
    section, signature = over_http(signature=given), base64.b64encode(digest).decode()
    verify(section, {"x-sign": signature}, body, S="secret")
    with pytest.raises(EventRefused):
        verify(section, {"x-sign": signature.swapcase()}, body, S="secret")
    token = over_http(signature={"kind": "token", "secret_env": "S", "prefix": "Bearer "})
    verify(token, {"authorization": "Bearer secret"}, body, S="secret")
    for wrong in ("secret", "Bearer secre", "Bearer ", "Bearer sécret"):
        with pytest.raises(EventRefused):
            verify(token, {"authorization": wrong}, body, S="secret")


def test_without_its_secret_nothing_is_taken() -> None:
    """A trigger whose variable is empty, or holds what is no secret, takes nothing, rather than everything."""
    for section in (
        over_http(source="github", secret_env="S"),
        over_http(signature={"kind": "token", "secret_env": "S"}),
        over_http(signature={"kind": "standard-webhooks", "secret_env": "S"}),
    ):
        for environment in ({}, {"S": ""}, {"S": "  "}):
            with pytest.raises(TriggerUnusable):
                verify(section, by_standard_webhooks(b"{}", at_ms=NOW_MS), b"{}", **environment)
    with pytest.raises(TriggerUnusable):
        verify(section, by_standard_webhooks(b"{}", at_ms=NOW_MS), b"{}", S="whsec_€")


# ---- requests as events


def test_a_pull_request() -> None:
    """GitHub's delivery is the event's key, and of its headers only harmless ones are kept; actions are filtered."""
    section = over_http(source="github", secret_env="S")
    body, headers = from_github(pull_request())
    event = incoming.read(section, {**headers, "authorization": "Basic x", "cookie": "y"}, body)
    assert event.key == headers["x-github-delivery"]
    assert set(event.headers) == set(headers) - {"x-hub-signature-256"}
    for action, wanted in (("opened", True), ("closed", False)):
        document = {"event": {}, "headers": event.headers, "body": pull_request(action)}
        assert incoming.is_wanted(section, document) is wanted
    pushed = {"event": {}, "headers": {"x-github-event": "push"}, "body": {"action": "opened"}}
    assert not incoming.is_wanted(section, pushed)
    for broken in ({"x-github-event": ""}, {"x-github-delivery": ""}):
        name = next(iter(broken))
        with pytest.raises(EventInvalid):
            incoming.read(section, {key: value for key, value in headers.items() if key != name}, body)


def test_cloud_events_are_one_in_both_modes() -> None:
    """Binary and structured mode give the same event: key of source and id, attributes as headers, data as body."""
    section = over_http(source="cloudevents")
    attributes = {
        "specversion": "1.0",
        "id": "A234-1234-1234",
        "source": "https://example.org/queue/é",
        "type": "order.paid",
        "time": "2026-11-30T10:00:00Z",
        "comexampleextension": "value",
    }
    data = {"order": 17}
    binary = {f"ce-{name}": value.replace("é", "%C3%A9") for name, value in attributes.items()}
    first = incoming.read(section, {**binary, "content-type": "application/json"}, json.dumps(data).encode())
    whole = {**attributes, "datacontenttype": "application/json", "data": data}
    structured = {"content-type": "application/cloudevents+json; charset=utf-8", "ce-id": "not this"}
    second = incoming.read(section, structured, json.dumps(whole).encode())
    assert (first.key, first.body, first.occurred_at) == (second.key, second.body, second.occurred_at)
    assert first.key == '["https://example.org/queue/é", "A234-1234-1234"]'
    assert first.occurred_at == 1_796_032_800_000
    assert dict(first.headers) == dict(second.headers)
    assert first.headers["ce-type"] == "order.paid"
    assert first.headers["ce-comexampleextension"] == "value"


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"content-type": "application/cloudevents-batch+json"}, b"[]"),
        ({"content-type": "application/cloudevents+json"}, b"{}"),
        ({"content-type": "application/cloudevents+json"}, b"not json"),
        ({"content-type": "application/cloudevents+json"}, b"[1]"),
        ({"content-type": "application/json", "ce-id": "1"}, b"{}"),
        ({"content-type": "application/json"}, b"{}"),
        ({"ce-id": "1", "ce-source": "s", "ce-type": "t", "ce-specversion": "1.0", "ce-time": "soon"}, b"{}"),
    ],
)
def test_what_is_no_cloud_event_is_refused(headers: dict[str, str], body: bytes) -> None:
    """What lacks an attribute, is no JSON, or is a batch is refused by name, and stumbles over nothing."""
    with pytest.raises(EventInvalid):
        incoming.read(over_http(source="cloudevents"), headers, body)


def test_binary_data_of_a_cloud_event() -> None:
    """Bytes that are no text come as base64, text as text."""
    base = {"ce-id": "1", "ce-source": "s", "ce-type": "t", "ce-specversion": "1.0"}
    section = over_http(source="cloudevents")
    image = incoming.read(section, {**base, "content-type": "image/png"}, b"\x89PNG\xff")
    assert image.body == {"data_base64": base64.b64encode(b"\x89PNG\xff").decode()}
    assert incoming.read(section, {**base, "content-type": "text/plain"}, "né".encode()).body == "né"


def test_keys_of_plain_events() -> None:
    """An id in the event, else `webhook-id` unless it alone is not signed, else the body's digest; never too long."""
    body = json.dumps({"id": 17}).encode()
    digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
    assert incoming.read(over_http(event_id="/body/id"), {}, body).key == "17"
    assert incoming.read(over_http(event_id="/headers/x-id"), {"x-id": "h"}, body).key == "h"
    assert incoming.read(over_http(), {"webhook-id": "m"}, body).key == "m"
    signed = {"kind": "hmac-sha256", "secret_env": "S", "header": "x"}
    assert incoming.read(over_http(signature=signed), {"webhook-id": "m"}, body).key == digest
    long = incoming.read(over_http(), {"webhook-id": "m" * 5000}, body).key
    assert len(long) < 100
    for broken in ({"id": None}, {"id": True}, {"id": ""}, {}):
        with pytest.raises(EventInvalid):
            incoming.read(over_http(event_id="/body/id"), {}, json.dumps(broken).encode())


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/json", b"{"),
        ("application/json", b"\xff"),
        ("application/json", b"NaN"),
        ("application/json", b"[" * 100_000),
        ("application/x-www-form-urlencoded", b"a=1"),
        ("image/png", b"x"),
        ("text/plain", b"\xff"),
    ],
)
def test_bodies_that_are_not_taken(kind: str, body: bytes) -> None:
    """What is neither JSON nor text is refused."""
    with pytest.raises(EventInvalid):
        incoming.read(over_http(), {"content-type": kind}, body)
