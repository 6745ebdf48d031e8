"""Backends that are down, stalled or refuse: the run does not notice, shutdown is short, what is lost is counted."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import Status, StatusCode, set_span_in_context

from everstep.observability import tracing
from everstep.observability.delivery import Delivery


def run_leg(tracer: tracing.Tracing, effects: int, leg: int = 1) -> None:
    """A leg of one root and so many effects."""
    with tracer.leg(job_id="job-1", leg=leg, graph="agent", thread_id="t", worker="w", attempts=1) as current:
        for _ in range(effects):
            with tracing.effect("mail.send", "digest"):
                pass
        current.outcome("done")


@pytest.fixture
def black_hole() -> Iterator[str]:
    """A socket that accepts connections into its backlog and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def closed_port() -> str:
    """An address where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_a_stalled_backend_holds_up_neither_run_nor_shutdown(black_hole, monkeypatch):
    """A backend that never answers slows no leg; flush and shutdown keep their time, all spans count as lost."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", black_hole)
    monkeypatch.setenv("LANGFUSE_PUBLIC_KEY", "pk")
    monkeypatch.setenv("LANGFUSE_SECRET_KEY", "sk")
    monkeypatch.setenv("LANGFUSE_HOST", black_hole)
    tracer = tracing.from_environment(service_version="1.2.3")
    start = time.monotonic()
    run_leg(tracer, effects=1_000)
    assert time.monotonic() - start < 2
    start = time.monotonic()
    assert tracer.flush(timeout_ms=200) is False
    assert time.monotonic() - start < 1
    run_leg(tracer, effects=99, leg=2)
    start = time.monotonic()
    tracer.shutdown()
    assert time.monotonic() - start < 2
    assert tracer.dropped_spans() == 2 * (1_001 + 100)


def leg_without_shutdown(endpoint: str) -> float:
    """Run a leg in a process that never calls shutdown; gives the seconds it took to exit after its work."""
    program = textwrap.dedent("""
        import time
        from everstep.observability import tracing
        tracer = tracing.from_environment(service_version="1")
        with tracer.leg(job_id="j", leg=1, graph="g", thread_id="t", worker="w", attempts=1) as leg:
            leg.outcome("done")
        print(time.monotonic(), flush=True)
    """)
    environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stderr == ""
    return time.monotonic() - float(ended.stdout)


def test_a_process_that_forgets_the_shutdown_still_delivers(start_receiver):
    """At interpreter exit what waits is sent."""
    receiver = start_receiver()
    leg_without_shutdown(receiver.url)
    assert [span["name"] for span in receiver.spans] == ["invoke_agent g"]


def test_a_process_with_a_stalled_backend_ends_in_time(black_hole):
    """A process that never calls shutdown exits within the bound after its work, whatever the backend does."""
    assert leg_without_shutdown(black_hole) < 2.5


def test_a_backend_that_is_down_is_reported_once(closed_port, monkeypatch, caplog):
    """Refused connections lose spans, which are counted, and leave one warning that names the host, not one a batch."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", closed_port.replace("http://", "http://user:password@"))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    with caplog.at_level(logging.WARNING):
        tracer = tracing.from_environment(service_version="1.2.3")
        for leg in (1, 2, 3):
            run_leg(tracer, effects=1, leg=leg)
            assert tracer.flush(5_000)
        tracer.shutdown()

    assert tracer.dropped_spans() == 6
    assert len(caplog.records) == 1
    assert f"Traces do not arrive at {closed_port}" in caplog.text
    assert "password" not in caplog.text


def test_a_backend_that_refuses_is_counted_and_its_return_noticed(start_receiver, monkeypatch, caplog):
    """Spans answered with 401 count as lost; when the backend accepts again the log says so, each once."""
    receiver = start_receiver()
    receiver.status = 401
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    with caplog.at_level(logging.INFO, "everstep"):
        tracer = tracing.from_environment(service_version="1.2.3")
        run_leg(tracer, effects=3)
        assert tracer.flush(5_000)
        assert tracer.dropped_spans() == 4
        receiver.status = 200
        run_leg(tracer, effects=3, leg=2)
        assert tracer.flush(5_000)
        tracer.shutdown()

    assert tracer.dropped_spans() == 4
    assert [entry.levelname for entry in caplog.records] == ["WARNING", "INFO"]
    assert "401" in caplog.text


class Gate(SpanExporter):
    """An exporter that waits until it is opened."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.entered = threading.Event()
        self.spans: list[ReadableSpan] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.entered.set()
        self.opened.wait(10)
        self.spans += spans
        return SpanExportResult.SUCCESS


def test_a_full_queue_drops_ordinary_spans_first_and_counts_them():
    """Under overload roots and failures still find a place, and the count of lost spans is exact."""
    gate = Gate()
    delivery = Delivery("gate", gate, queue_limit=8)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(delivery)
    tracer = provider.get_tracer("test")
    root = tracer.start_span("root")
    tracer.start_span("first").end()
    flushing = delivery.begin_flush()
    assert gate.entered.wait(10)
    inside = set_span_in_context(root)
    for number in range(10):
        tracer.start_span(f"step {number}", context=inside).end()
    failed = tracer.start_span("failed", context=inside)
    failed.set_status(Status(StatusCode.ERROR))
    failed.end()
    root.end()
    assert delivery.dropped == 4
    gate.opened.set()
    flushing.join(10)
    delivery.begin_flush().join(10)
    delivery.begin_shutdown().join(10)

    names = [span.name for span in gate.spans]
    assert names == ["first", *[f"step {number}" for number in range(6)], "failed", "root"]
    assert delivery.dropped == 4


def test_spans_after_shutdown_are_counted_not_raised(start_receiver, monkeypatch):
    """A leg that outlives the shutdown runs on; its spans are lost and counted; a second shutdown is harmless."""
    receiver = start_receiver()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    tracer = tracing.from_environment(service_version="1.2.3")
    run_leg(tracer, effects=1)
    tracer.shutdown()
    run_leg(tracer, effects=4, leg=2)
    tracer.shutdown()

    assert len(receiver.spans) == 2
    assert tracer.dropped_spans() == 5
