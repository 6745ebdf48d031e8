"""What came over HTTP, read as an event: its key, what is kept of its headers, its body, when it happened."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from everstep.checkpoints.strict_json import DuplicateName, object_of
from everstep.errors import EventInvalid
from everstep.graphs.event_sections import CloudEventsTrigger, GithubTrigger, Hmac, HttpTrigger, OverHttp, Trigger
from everstep.runtime.triggers import rules

KEPT = frozenset(
    "content-type user-agent webhook-id webhook-timestamp idempotency-key"
    " x-github-event x-github-delivery x-github-hook-id x-request-id".split()
)
"""Headers that are stored, and of CloudEvents `ce-…`; beside those that the trigger's filter, mapping or key names."""
LONGEST_KEY = 400


@dataclass(frozen=True)
class Incoming:
    """An event that is to be stored.

    Attributes:
        key: What tells it from others of its trigger.
        headers: What is kept of its headers.
        body: What it holds: JSON data.
        occurred_at: When it happened, UTC milliseconds, where its source says so.
    """

    key: str
    headers: Mapping[str, str]
    body: Any
    occurred_at: int | None = None


def read(trigger: OverHttp, headers: Mapping[str, str], body: bytes) -> Incoming:
    """Read a request whose signature was checked.

    Args:
        trigger: The trigger.
        headers: The request's headers, their names in small letters.
        body: What was sent.

    Raises:
        EventInvalid: It is not what the trigger takes.
    """
    if isinstance(trigger, CloudEventsTrigger):
        return _cloud_event(trigger, headers, body)
    value = _parsed(headers.get("content-type", ""), body)
    kept = _kept(trigger, headers)
    if isinstance(trigger, GithubTrigger):
        if not isinstance(value, dict) or "x-github-event" not in kept or "x-github-delivery" not in kept:
            raise EventInvalid(
                "this is no webhook of GitHub: it lacks X-GitHub-Event or X-GitHub-Delivery, or its body is no object",
                next_step="let GitHub send it, with the content type application/json",
            )
        return Incoming(shortened(kept["x-github-delivery"]), kept, value)
    return Incoming(_own_key(trigger, kept, value, body), kept, value)


def is_wanted(trigger: Trigger, document: Mapping[str, Any]) -> bool:
    """Whether an event is one its trigger is for: its filter, and for GitHub the events and actions."""
    if isinstance(trigger, GithubTrigger):
        action = rules.at(document, "/body/action")
        if document["headers"].get("x-github-event") not in trigger.events:
            return False
        if trigger.actions and action not in trigger.actions:
            return False
    return rules.wants(trigger, document)


def shortened(key: str) -> str:
    """A key as it can be stored: one that is long, or no plain text, by its digest."""
    if len(key) <= LONGEST_KEY and key.isprintable():
        return key
    return f"sha256:{hashlib.sha256(key.encode(errors='surrogatepass')).hexdigest()}"


def _own_key(trigger: HttpTrigger, kept: Mapping[str, str], value: Any, body: bytes) -> str:
    if trigger.event_id is not None:
        found = rules.at({"headers": kept, "body": value}, trigger.event_id)
        if not isinstance(found, str | int) or isinstance(found, bool) or found == "":
            raise EventInvalid(f"the event has no id at {trigger.event_id}", path=trigger.event_id)
        return shortened(str(found))
    digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
    if isinstance(trigger.signature, Hmac):  # which does not sign that header: who repeats the event could change it
        return digest
    return shortened(kept.get("webhook-id") or digest)


def _kept(trigger: Trigger, headers: Mapping[str, str]) -> dict[str, str]:
    asked = {pointer.split("/")[2].lower() for pointer in trigger.pointers() if pointer.lower().startswith("/headers/")}
    return {name: value for name, value in headers.items() if name in KEPT or name in asked}


def _parsed(content_type: str, body: bytes) -> Any:
    kind = content_type.partition(";")[0].strip().lower()
    if kind and "json" not in kind and not kind.startswith("text/"):
        raise EventInvalid(f"a body of type {kind} is not taken", next_step="send JSON (application/json), or text")
    try:
        text = body.decode("utf-8-sig")
        return text if kind.startswith("text/") else _strict(text)
    except DuplicateName as twice:
        raise EventInvalid(f"the body is not clear: {twice}", next_step="keep one of them") from twice
    except (ValueError, RecursionError) as error:
        what = "UTF-8" if isinstance(error, UnicodeDecodeError) else "JSON"
        raise EventInvalid(f"the body is not {what}", next_step="send JSON (application/json), or text") from error


def _strict(text: str | bytes) -> Any:
    return json.loads(text, parse_constant=_no_constant, object_pairs_hook=object_of)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _cloud_event(trigger: CloudEventsTrigger, headers: Mapping[str, str], body: bytes) -> Incoming:
    """A CloudEvent; its attributes are kept as headers `ce-…`, in whichever mode they came.

    https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/http-protocol-binding.md
    """
    from cloudevents.core.bindings.http import HTTPMessage, from_binary_event, from_structured_event

    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/cloudevents-batch+json":
        raise EventInvalid("batches of CloudEvents are not taken", next_step="send each event by itself")
    structured = kind.startswith("application/cloudevents")
    try:
        if structured or "json" in kind or not kind:
            _strict(body or b"null")
        message = HTTPMessage(headers=dict(headers), body=body)
        event = from_structured_event(message) if structured else from_binary_event(message)
        attributes, data = event.get_attributes(), event.get_data()
    except Exception as error:  # whatever a broken one makes the library stumble over
        raise EventInvalid(
            f"this is no CloudEvent: {' '.join(str(error).split())[:300]}",
            next_step="send one of version 1.0, in binary or structured mode",
        ) from error
    told = {name: _written(value) for name, value in attributes.items() if value is not None}
    kept = {f"ce-{name}": value for name, value in told.items() if name != "datacontenttype"}
    if "datacontenttype" in told:
        kept["content-type"] = told["datacontenttype"]
    plain: Any = {"data_base64": base64.b64encode(data).decode()} if isinstance(data, bytes | bytearray) else data
    at: Any = attributes.get("time")
    occurred_at = int(at.timestamp() * 1000) if isinstance(at, datetime) and at.tzinfo is not None else None
    key = json.dumps([told["source"], told["id"]], ensure_ascii=False)
    return Incoming(shortened(key), {**_kept(trigger, headers), **kept}, plain, occurred_at)


def _written(value: Any) -> str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z") if value.tzinfo else value.isoformat()
    return str(value).lower() if isinstance(value, bool) else str(value)
