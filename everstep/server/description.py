"""The description of the interface (OpenAPI): what FastAPI finds in the paths, and what holds for all of them.

Errors have one form, `{"detail": …, "code": …}`, and each path names the statuses it can be answered with; who may call
is told by the security schemes; LangGraph's paths get the forms of their answers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from everstep.server.access import needed
from everstep.server.langgraph import shown
from everstep.server.native.shown import ErrorShown

METHODS = ("get", "post", "put", "patch", "delete")
TAGS = {
    "jobs": "Jobs: submit, look at, wait for, follow, cancel and retry them.",
    "reviews": "Questions that only a person can answer, each answered once.",
    "dead letters": "Jobs that failed by themselves.",
    "services": "Services that jobs need, and which are out.",
    "deliveries": "Messages to webhooks: which wait, were taken or given up.",
    "schedules": "What runs when.",
    "triggers": "Events that start jobs.",
    "signals": "Named events that jobs wait for.",
    "provider tasks": "Paid work of providers, and how it is.",
    "quotes": "What paid work would cost.",
    "webhooks": "What providers tell of it.",
    "health": "Whether the server and its record are well.",
    "assistants": "LangGraph's assistants: graphs with a configuration.",
    "threads": "LangGraph's threads: conversations with their states.",
    "runs": "LangGraph's runs on threads.",
    "crons": "LangGraph's crons.",
    "store": "LangGraph's store of items.",
    "meta": "Whether the server is there, and what it can do.",
}
SCHEMES: dict[str, Any] = {
    "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "A key: everstep keys create."},
    "bearer": {"type": "http", "scheme": "bearer", "description": "The same key, as `Authorization: Bearer`."},
}
ABOUT = (
    "Agents as durable jobs: LangGraph's own interface, and Everstep's under `/everstep`. Where nobody has made a key"
    " and the server listens on this machine alone, none is needed. Send `Idempotency-Key` with what creates or"
    " changes: the same request again gets the same answer, with `Idempotency-Replayed: true`."
)
_ERRORS = {
    400: "The body cannot be read.",
    401: "Nobody said who asks, or with a key that does not count.",
    403: "Who asks may not do this, or a web page of a foreign origin asks.",
    404: "It is not there, or not the caller's.",
    409: "It is not in a state for this, or the `Idempotency-Key` came with another request.",
    410: "The job was there, and was deleted; its key is not free yet.",
    413: "The body is too large.",
    422: "A field or parameter is unknown, missing or cannot be honoured; `detail` names it.",
    503: "The record cannot be reached; nothing was done.",
}
_FILTERS = frozenset({"job", "parent"})
"""Parameters that name a job, which may not be there."""
_REF = {"$ref": "#/components/schemas/ErrorShown"}


def complete(schema: dict[str, Any], security: Mapping[str, Any] | None) -> dict[str, Any]:
    """The description with what holds for all paths; changes it.

    Args:
        schema: What FastAPI made.
        security: `securitySchemes` and `security`, as `langgraph.json` gives them in the place of API keys.
    """
    components = schema.setdefault("components", {})
    schemas: dict[str, Any] = components.setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    schemas["ErrorShown"] = shown.schema_of(ErrorShown)
    given = security or {"securitySchemes": SCHEMES, "security": [{name: []} for name in SCHEMES]}
    components["securitySchemes"] = given.get("securitySchemes", {})
    schema["security"] = given.get("security", [])
    schema["info"]["description"] = ABOUT
    used: set[str] = set()
    for path, operations in schema["paths"].items():
        for method in METHODS:
            if method in operations:
                operation = operations[method]
                used.update(operation.get("tags", ()))
                _describe(operation, method.upper(), path, schemas)
    schema["tags"] = [{"name": name, "description": text} for name, text in TAGS.items() if name in used]
    return schema


def _describe(operation: dict[str, Any], method: str, path: str, schemas: dict[str, Any]) -> None:
    about = operation.get("description", "")
    operation["summary"] = re.split(r"(?<=\w)[.;:]\s|\.$|\n\n", about.replace("\n", " ", 1) + "\n\n")[0].strip(" .")
    responses: dict[str, Any] = operation["responses"]
    name = f"{method} {path}"
    success = next(status for status in responses if status.startswith("2"))
    if name in shown.ANSWERS:
        found = shown.schema_of(shown.ANSWERS[name])
        schemas.update(found.pop("$defs", {}))
        responses[success]["content"] = {"application/json": {"schema": found}}
    elif name in shown.STREAMS:
        responses[success]["content"] = {shown.STREAM: {"schema": {"type": "string"}}}
    content: dict[str, Any] = responses[success].get("content", {})
    if shown.STREAM in content:
        content.pop("application/json", None)
    is_open = needed(method, path) is None
    if is_open:
        operation["security"] = []
    for status in _statuses(operation, method, path, is_open=is_open):
        if str(status) not in responses or status == 422:
            responses[str(status)] = {
                "description": _ERRORS[status],
                "content": {"application/json": {"schema": _REF}},
            }
    operation["responses"] = dict(sorted(responses.items()))


def _statuses(operation: dict[str, Any], method: str, path: str, *, is_open: bool) -> list[int]:
    """Which errors a path is answered with."""
    found = [403] if is_open else [401, 403, 503]
    has_body, names_things = "requestBody" in operation, "{" in path
    if has_body or names_things or operation.get("parameters"):
        found += [422]
    if has_body:
        found += [400, 413]
    if has_body or names_things or _FILTERS.intersection(one["name"] for one in operation.get("parameters", ())):
        found += [404]
    if method != "GET":
        found += [409, 503]
    if method == "POST" and path in ("/everstep/jobs",):
        found += [410]
    return found
