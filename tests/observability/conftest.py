"""Real parts for trace tests: an in-memory exporter, an OTLP receiver on loopback, a scripted chat model."""

from __future__ import annotations

import gzip
import os
import threading
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from everstep.checkpoints import spans
from everstep.checkpoints.store import Store
from everstep.observability import stored_form, tracing
from everstep.runtime import span_exporter

TRACE_VARIABLES = ("OTEL_", "LANGFUSE_")


@pytest.fixture(autouse=True)
def _no_foreign_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(TRACE_VARIABLES)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")  # the receivers here read spans


@dataclass
class Recording:
    """Tracing into memory, and what came out of it."""

    exporter: InMemorySpanExporter
    tracer: tracing.Tracing

    def leg(self, leg: int = 1, **changes: Any) -> tracing.Leg:
        """A leg of job `job-1` on thread `thread-1`."""
        described: dict[str, Any] = {
            "job_id": "job-1",
            "leg": leg,
            "graph": "agent",
            "thread_id": "thread-1",
            "worker": "worker-1",
            "attempts": leg,
            "previous_leg": leg - 1 or None,
        }
        return self.tracer.leg(**{**described, **changes})

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        """All finished spans, in the order they ended."""
        assert self.tracer.flush(5_000)
        return self.exporter.get_finished_spans()

    def named(self, name: str) -> ReadableSpan:
        """The only span of this name."""
        found = [span for span in self.spans if span.name == name]
        assert len(found) == 1, f"{len(found)} spans named {name!r} in {[span.name for span in self.spans]}"
        return found[0]

    def tree(self) -> str:
        """The traces as an outline: names, with `!` for status ERROR and the Langfuse level where one is set."""
        spans = self.spans
        lines: list[str] = []

        def outline(parent: int | None, depth: int) -> None:
            children = [span for span in spans if (span.parent.span_id if span.parent else None) == parent]
            for span in sorted(children, key=lambda one: (one.start_time or 0, one.name)):
                error = " !" if span.status.status_code.name == "ERROR" else ""
                level = (span.attributes or {}).get("langfuse.observation.level")
                lines.append(f"{'  ' * depth}{span.name}{error}{f' {level}' if level else ''}")
                assert span.context is not None
                outline(span.context.span_id, depth + 1)

        outline(None, 0)
        assert len(lines) == len(spans), "a span's parent was never exported"
        return "\n".join(lines)


@pytest.fixture
def recording() -> Iterator[Recording]:
    """Tracing into memory."""
    exporter = InMemorySpanExporter()
    tracer = tracing.exporting_to(exporter, service_version="1.2.3")
    yield Recording(exporter, tracer)
    tracer.shutdown()


@dataclass
class Received:
    """One request to the receiver."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    status: int = 200

    @property
    def spans(self) -> list[dict[str, Any]]:
        """The spans in it, attributes as plain values."""
        request = ExportTraceServiceRequest.FromString(self.body)
        return [span for group in request.resource_spans for span in spans_of(group)]


def spans_of(group: ResourceSpans) -> list[dict[str, Any]]:
    """The spans of one sender, attributes as plain values."""
    return [
        {
            "name": span.name,
            "trace_id": span.trace_id.hex(),
            "span_id": span.span_id.hex(),
            "parent_span_id": span.parent_span_id.hex(),
            "kind": span.kind,
            "status": span.status.code,
            "message": span.status.message,
            "started_ns": span.start_time_unix_nano,
            "ended_ns": span.end_time_unix_nano,
            "links": [(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
            "attributes": {one.key: _plain(one.value) for one in span.attributes},
            "resource": {one.key: _plain(one.value) for one in group.resource.attributes},
        }
        for scope in group.scope_spans
        for span in scope.spans
    ]


def stored_spans(body: bytes) -> list[dict[str, Any]]:
    """The spans in a row of the record, as a destination would get them."""
    return spans_of(ResourceSpans.FromString(stored_form.otlp(body)))


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_plain(one) for one in value.array_value.values] if kind == "array_value" else getattr(value, kind)


@dataclass
class Receiver:
    """An OTLP/HTTP collector that keeps every request for traces.

    Attributes:
        status: What it answers.
        refuses: Names of spans for whose sake it answers 400 to the whole request, as Langfuse does.
        headers: What it says besides.
        rejects: How many spans of each request it says it did not take.
    """

    status: int = 200
    refuses: set[str] = field(default_factory=set[str])
    headers: dict[str, str] = field(default_factory=dict[str, str])
    rejects: int = 0
    requests: list[Received] = field(default_factory=list[Received])
    url: str = ""

    @property
    def spans(self) -> list[dict[str, Any]]:
        """All spans it took."""
        return [span for request in self.requests if request.status == 200 for span in request.spans]

    def answer(self, path: str, headers: Mapping[str, str], body: bytes) -> int:
        """Keep a request; the status to answer it with."""
        received = Received(path, headers, body, self.status)
        if self.refuses & {span["name"] for span in received.spans}:
            received.status = 400
        self.requests.append(received)
        return received.status


@pytest.fixture
def start_receiver() -> Iterator[Callable[[], Receiver]]:
    """Start a receiver on a free loopback port."""
    servers: list[ThreadingHTTPServer] = []

    def start(port: int = 0) -> Receiver:
        receiver = Receiver()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                encoding = self.headers.get("content-encoding")
                plain = {"gzip": gzip.decompress, "deflate": zlib.decompress}.get(encoding or "", bytes)(body)
                headers = {name.lower(): value for name, value in self.headers.items()}
                is_metrics = self.path.endswith("/v1/metrics")
                status = 200 if is_metrics else receiver.answer(self.path, headers, plain)
                said = ExportTraceServiceResponse()
                said.partial_success.rejected_spans = receiver.rejects
                answer = said.SerializeToString()
                self.send_response(status)
                for name, value in receiver.headers.items():
                    self.send_header(name, value)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: Any) -> None:
                return None

        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        servers.append(server)
        receiver.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return receiver

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


class Sending:
    """Tracing as the environment says, for legs that no worker runs: into a record, and from there over HTTP."""

    def __init__(self, store: Store) -> None:
        self.tracer = tracing.from_environment(service_version="1.2.3")
        self._store = store
        self._legs: list[tuple[int, tracing.Leg]] = []

    def leg(self, **described: Any) -> tracing.Leg:
        """As `Tracing.leg`."""
        leg = self.tracer.leg(**described)
        self._legs.append((described["leg"], leg))
        return leg

    def send(self) -> None:
        """Record what has ended, and send it."""
        job, _ = self._store.enqueue("agent", {}, key="the job of these legs")
        names = [destination.name for destination in self.tracer.destinations]
        for number, leg in self._legs:
            assert leg.buffer is not None
            write = partial(spans.write, job_id=job.id, leg=number, finished=leg.buffer.take(), now=0)
            self._store.write(partial(write, destinations=names)).result()
        self._legs.clear()
        for drain in span_exporter.drains(self._store, self.tracer, holder="sender"):
            assert drain.drain()
            drain.close()


@pytest.fixture
def sending(store: Store) -> Callable[[], Sending]:
    """Make one when the environment is set."""
    return partial(Sending, store)


class ScriptedModel(BaseChatModel):
    """A chat model that gives the same answer every time, with usage, whole or in three chunks."""

    model: str = "scripted-1"
    answer: str = "Yes, it is."
    error: Exception | None = None

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        if self.error is not None:
            raise self.error
        message = AIMessage(
            self.answer,
            usage_metadata={
                "input_tokens": 11,
                "output_tokens": 4,
                "total_tokens": 15,
                "input_token_details": {"cache_read": 3},
            },
            response_metadata={"model_name": "scripted-1-0601", "finish_reason": "stop", "id": "answer-7"},
        )
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _chunks(self) -> Iterator[ChatGenerationChunk]:
        third = len(self.answer) // 3 or 1
        for start in range(0, len(self.answer), third):
            yield ChatGenerationChunk(message=AIMessageChunk(self.answer[start : start + third]))
        last = AIMessageChunk(
            "",
            usage_metadata={"input_tokens": 11, "output_tokens": 4, "total_tokens": 15},
            response_metadata={"model_name": "scripted-1-0601", "finish_reason": "stop"},
            chunk_position="last",
        )
        yield ChatGenerationChunk(message=last)

    def _stream(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        if self.error is not None:
            raise self.error
        for chunk in self._chunks():
            if run_manager is not None:
                run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk

    async def _astream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        if self.error is not None:
            raise self.error
        for chunk in self._chunks():
            if run_manager is not None:
                await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk


@pytest.fixture
def scripted_model() -> Callable[..., ScriptedModel]:
    """The class of the scripted model."""
    return ScriptedModel
