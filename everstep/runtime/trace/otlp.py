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
from everstep.runtime.trace import build
from everstep.runtime.trace.output import write
from everstep.runtime.trace.tree import UNFINISHED, Leg, Node, TraceTree

_RESOURCE_SPANS = b"\x0a"
"""Field 1 of `ExportTraceServiceRequest`, length-delimited; protobuf messages are concatenated field by field."""
_IDS: Final = ("traceId", "spanId", "parentSpanId")
_SYNTHESISED = "everstep.synthesised"
_OUTCOMES: Final = {"given back": "released"}
_ABANDONED: Final = "the lease of its worker ended; any worker will take the job over"


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
    """The spans of all in a leg that has none in the record: of what its worker died within, or of everything."""
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
    ended_ns = leg.node.ended_ns or max(node.ended_ns or node.started_ns or 0 for node in leg.node.walk())
    waiting: list[tuple[Node, str, str]] = [(leg.node, "", str(leg.node.span_id))]
    while waiting:
        node, parent, span_id = waiting.pop()
        if not node.is_stored:
            span = scope.spans.add(name=names.leg_span(tree.graph) if node is leg.node else node.name)
            span.trace_id, span.span_id = bytes.fromhex(leg.trace_id), bytes.fromhex(span_id)
            span.parent_span_id = bytes.fromhex(parent)
            _describe(span, node, leg, ended_ns)
            _set(span.attributes, {**about, **_attributes(node, tree)})
            if node is leg.node:
                _set(span.attributes, _end_of(leg))
        made = 0
        for child in node.children:
            if child.kind in ("review", "wait", "gap"):
                continue
            waiting.append((child, span_id, child.span_id or _derived_id(leg.trace_id, span_id, made, child.name)))
            made += not child.is_stored
    return group


def _describe(span: Span, node: Node, leg: Leg, ended_ns: int) -> None:
    started = node.started_ns if node.started_ns is not None else leg.node.started_ns or 0
    span.kind = Span.SpanKind.SPAN_KIND_INTERNAL
    span.start_time_unix_nano = started
    span.end_time_unix_nano = max(node.ended_ns or ended_ns, started)
    if node.is_wrong:
        span.status.code, span.status.message = Status.StatusCode.STATUS_CODE_ERROR, node.detail
    elif node is leg.node and leg.died:
        span.status.code, span.status.message = Status.StatusCode.STATUS_CODE_ERROR, f"unfinished: {_ABANDONED}"


def _end_of(leg: Leg) -> dict[str, Any]:
    """How a leg ended, as its root says it in a live export, or that it has not."""
    outcome = leg.node.facts.get("outcome")
    told: dict[str, Any] = {names.OUTCOME: names.DIED if leg.died else _OUTCOMES.get(str(outcome), outcome)}
    if leg.died:
        told[names.ERROR_TYPE] = names.WORKER_DIED
    if leg.node.status == "open":
        told |= {
            names.OBSERVATION_LEVEL: names.LEVEL_WARNING if leg.died else None,
            names.OBSERVATION_STATUS_MESSAGE: f"unfinished: {_ABANDONED if leg.died else 'its worker runs it'}",
        }
    return told


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
        }
    elif node.kind == "step":
        told |= {
            names.STEP: node.facts.get("step"),
            names.NODE: node.facts.get("node"),
            names.NODE_ATTEMPT: node.facts.get("node.attempt"),
            names.CHECKPOINT_NS: node.facts.get("checkpoint.ns"),
            names.CHECKPOINT_ID: node.facts.get("checkpoint.id"),
            names.ERROR_TYPE: node.facts.get("error.type"),
            names.OBSERVATION_TYPE: names.TYPE_CHAIN,
        }
    elif node.kind == "tool":
        told |= {names.OPERATION: names.EXECUTE_TOOL, names.TOOL_NAME: node.facts.get("tool.name")}
    elif node.kind == "effect":
        told |= {
            names.EFFECT_NAME: node.name.removeprefix("effect "),
            names.EFFECT_STATE: node.facts.get("effect.state"),
            names.EFFECT_KEY_DIGEST: node.facts.get("effect.key_digest"),
        }
    if node.status == "open" and node.kind != "leg":
        told[names.OBSERVATION_STATUS_MESSAGE] = "unfinished: it lasts"
    if UNFINISHED in node.facts:
        told |= {names.OUTCOME: names.DIED, names.ERROR_TYPE: names.WORKER_DIED}
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
