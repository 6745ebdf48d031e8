"""A job's trace as an OTLP export (`ExportTraceServiceRequest`), for import into any backend.

Stored spans go out as a live export sends them. For a leg without spans, spans are made of what the record tells: its
root has the ids that a live export gives it, and the others have ids that follow from their place, so importing twice
adds nothing.
https://opentelemetry.io/docs/specs/otlp/ tells both encodings.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any, Final

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span, Status
from sqlalchemy import Connection

from everstep.checkpoints import trace_rows
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.store import Store
from everstep.observability import names, stored_form
from everstep.runtime.trace import build, deaths
from everstep.runtime.trace.output import write
from everstep.runtime.trace.tree import Leg, Node, TraceTree

_RESOURCE_SPANS = b"\x0a"
"""Field 1 of `ExportTraceServiceRequest`, length-delimited; protobuf messages are concatenated field by field."""
_IDS: Final = ("traceId", "spanId", "parentSpanId")
_SYNTHESISED = "everstep.synthesised"


def export(store: Store, job: Job, target: str, *, leg: int | None = None) -> int:
    """Write the export of a job, or of one leg; as JSON if the file's name ends in `.json`, else as protobuf.

    Args:
        store: The record.
        job: The job.
        target: The file, or `-` for stdout.
        leg: Only this leg.

    Returns:
        How many spans were written.

    Raises:
        LegNotFound: The job has no such leg.
        FileNotWritten: The file cannot be written.
    """
    tree = build.of_job(store, job, leg=leg)
    encode = _as_json if target.endswith(".json") else _as_protobuf
    count = 0

    def bodies(connection: Connection) -> Iterator[bytes]:
        nonlocal count
        for one in tree.legs:
            made = synthesised(tree, one)
            if spans := len(made.scope_spans[0].spans):
                count += spans
                yield made.SerializeToString()
        for row in trace_rows.spans_of(connection, job.id, leg):
            count += 1
            yield stored_form.otlp(row.body)

    store.read(lambda connection: write(target, encode(bodies(connection))))
    return count


def synthesised(tree: TraceTree, leg: Leg) -> ResourceSpans:
    """The spans of a leg that are not in the record: all, or those of what ran as its worker died."""
    group = ResourceSpans()
    _set(group.resource.attributes, {"service.name": "everstep", "service.version": version("everstep")})
    scope = group.scope_spans.add()
    scope.scope.name, scope.scope.version = names.SCOPE, version("everstep")
    about: dict[str, Any] = {
        names.SESSION_ID: tree.thread_id,
        names.CONVERSATION_ID: tree.thread_id,
        names.JOB_ID: tree.job_id,
        names.LEG: leg.number,
        names.TRACE_NAME: tree.graph,
        names.TRACE_METADATA_JOB_ID: tree.job_id,
        names.TRACE_METADATA_LEG: leg.number,
        names.TRACE_METADATA_THREAD_ID: tree.thread_id,
        _SYNTHESISED: True,
    }
    root_id = str(leg.node.span_id)
    waiting: list[tuple[Node, str, str, str]] = [(leg.node, "", names.leg_span(tree.graph), root_id)]
    if leg.has_spans:
        lost = [node for node in leg.node.children if deaths.UNFINISHED in node.facts]
        ids = [_derived_id(leg.trace_id, root_id, place, node.name) for place, node in enumerate(lost)]
        waiting = [(node, root_id, node.name, span_id) for node, span_id in zip(lost, ids, strict=True)]
    while waiting:
        node, parent, name, span_id = waiting.pop()
        span = scope.spans.add()
        span.trace_id, span.span_id = bytes.fromhex(leg.trace_id), bytes.fromhex(span_id)
        span.parent_span_id = bytes.fromhex(parent)
        _describe(span, node, name, leg.node)
        _set(span.attributes, {**about, **_attributes(node, tree)})
        children = [child for child in node.children if child.kind not in ("review", "wait", "gap")]
        for place, child in enumerate(children):
            waiting.append((child, span_id, child.name, _derived_id(leg.trace_id, span_id, place, child.name)))
    return group


def _describe(span: Span, node: Node, name: str, leg: Node) -> None:
    started = node.started_ns if node.started_ns is not None else leg.started_ns or 0
    span.name = name
    span.kind = Span.SpanKind.SPAN_KIND_INTERNAL
    span.start_time_unix_nano = started
    span.end_time_unix_nano = max(node.ended_ns or leg.ended_ns or started, started)
    if node.is_wrong:
        span.status.code, span.status.message = Status.StatusCode.STATUS_CODE_ERROR, node.detail


def _attributes(node: Node, tree: TraceTree) -> dict[str, Any]:
    told: dict[str, Any] = {names.RESUME_COMMAND: node.resume}
    if node.status == "warning":
        told[names.OBSERVATION_LEVEL] = names.LEVEL_WARNING
    if node.stack:
        told[names.observation_metadata("stacktrace")] = node.stack
    if node.kind == "leg":
        told |= {
            names.OPERATION: names.INVOKE_AGENT,
            names.AGENT_NAME: tree.graph,
            names.WORKER: node.facts.get("worker"),
            names.OUTCOME: node.facts.get("outcome"),
        }
    elif node.kind == "step":
        told |= {
            names.STEP: node.facts.get("step"),
            names.NODE: node.facts.get("node"),
            names.ERROR_TYPE: node.facts.get("error.type"),
            names.OBSERVATION_TYPE: names.TYPE_CHAIN,
        }
        if deaths.UNFINISHED in node.facts:
            told |= {names.OUTCOME: "died", names.ERROR_TYPE: names.WORKER_DIED}
    elif node.kind == "effect":
        told |= {
            names.EFFECT_NAME: node.name.removeprefix("effect "),
            names.EFFECT_STATE: node.facts.get("effect.state"),
            names.EFFECT_KEY_DIGEST: node.facts.get("effect.key_digest"),
        }
    return told


def _set(attributes: Any, values: dict[str, Any]) -> None:
    for key, value in values.items():
        if value is None:
            continue
        one = attributes.add(key=key).value
        if isinstance(value, bool):
            one.bool_value = value
        elif isinstance(value, int):
            one.int_value = value
        else:
            one.string_value = str(value)


def _derived_id(trace_id: str, parent: str, place: int, name: str) -> str:
    text = f"everstep/span/{trace_id}/{parent}/{place}/{name}"
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:16]


def _as_protobuf(bodies: Iterator[bytes]) -> Iterator[bytes]:
    for body in bodies:
        yield _RESOURCE_SPANS + _varint(len(body)) + body


def _as_json(bodies: Iterator[bytes]) -> Iterator[bytes]:
    yield b'{"resourceSpans": ['
    for place, body in enumerate(bodies):
        group = ResourceSpans.FromString(body)
        told = MessageToDict(group, use_integers_for_enums=True)
        for scope in told.get("scopeSpans", ()):
            for span in scope.get("spans", ()):
                for one in (span, *span.get("links", ())):
                    one |= {key: base64.b64decode(one[key]).hex() for key in _IDS if key in one}
        yield (b",\n" if place else b"\n") + json.dumps(told).encode()
    yield b"\n]}\n"


def _varint(number: int) -> bytes:
    """A length as protobuf writes it: seven bits a byte, the lowest first."""
    parts = bytearray()
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])
