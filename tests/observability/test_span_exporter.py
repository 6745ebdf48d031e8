"""Exporting from the record: backends that are down, refuse or stall; two exporters; bounds; what is counted."""

from __future__ import annotations

import logging
import random
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from everstep.checkpoints import span_outbox
from everstep.checkpoints.span_outbox import Destination
from everstep.checkpoints.store import Store
from everstep.observability import span_rows, tracing
from everstep.observability.measures import Measures
from everstep.runtime import beside, span_exporter
from everstep.runtime.span_exporter import Drain, SpanExporter
from everstep.runtime.worker import Worker
from tests.support.jobs import chain, run
from tests.support.waiting import Halt, until

pytestmark = pytest.mark.both_databases


def node(state: Any) -> Any:
    """A node that does nothing."""
    return {"log": ["x"]}


def record_spans(store: Store, monkeypatch: pytest.MonkeyPatch, count: int = 2) -> None:
    """A job of so many steps, run by a worker that has nobody to export to in time."""
    traces = tracing.from_environment(service_version="1.2.3")
    with monkeypatch.context() as patched:
        patched.setattr(beside, "_exporters", lambda _around: [])
        assert run(store, chain(*[node] * count), {"log": [len(store.jobs())]}, tracing=traces).status == "done"


def fares(store: Store) -> Destination:
    """How the only destination fares."""
    (one,) = store.read(span_outbox.every)
    return one


def drain_of(store: Store, **more: Any) -> Drain:
    """The drain of the only destination."""
    (destination,) = tracing.from_environment(service_version="1.2.3").destinations
    return Drain(store, destination, **{"holder": "exporter", "randomness": random.Random(0), **more})


@pytest.fixture(autouse=True)
def _no_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")


@pytest.fixture
def closed_port() -> int:
    """A port where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


@pytest.fixture
def black_hole() -> Iterator[str]:
    """A socket that accepts connections into its backlog and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_a_backend_that_comes_back_gets_everything(start_receiver, store, clock, monkeypatch, closed_port, caplog):
    """Down during the whole job, told once, tried later and later; when it is there all spans arrive, in order."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://user:password@127.0.0.1:{closed_port}")
    record_spans(store, monkeypatch)
    drain = drain_of(store)
    waits: list[int] = []
    with caplog.at_level(logging.INFO, "everstep.spans"):
        for _ in range(4):
            assert drain.drain() is False
            failing = fares(store)
            assert failing.next_try_at is not None
            waits.append(failing.next_try_at - clock.now_ms())
            assert drain.drain() is False, "not before its time"
            clock.advance(waits[-1])
        assert (failing.waiting, failing.delivered, failing.dropped) == (3, 0, 0)
        assert failing.failing_since == clock.now_ms() - sum(waits)
        assert failing.last_error == "ConnectionError: Connection refused"
        assert all(least <= wait <= least * 1.25 for wait, least in zip(waits, (1000, 2000, 4000, 8000), strict=True))

        receiver = start_receiver(closed_port)
        assert drain.drain() is True
    assert [span["name"] for span in receiver.spans] == ["step 1 node_0", "step 2 node_1", "invoke_agent graph"]
    well = fares(store)
    assert (well.waiting, well.delivered, well.dropped, well.failing_since) == (0, 3, 0, None)
    assert [entry.levelname for entry in caplog.records] == ["WARNING", "INFO"]
    assert "password" not in caplog.text + str(failing)


def test_one_bad_span_is_found_and_given_up_alone(start_receiver, store, monkeypatch, caplog):
    """A backend that answers 400 for the sake of one span gets all others; that one is counted, and why is kept."""
    receiver = start_receiver()
    receiver.refuses = {"step 6 node_5"}
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    record_spans(store, monkeypatch, 10)
    assert drain_of(store).drain() is True
    names = [span["name"] for span in receiver.spans]
    assert names == [*[f"step {n + 1} node_{n}" for n in range(10) if n != 5], "invoke_agent graph"]
    one = fares(store)
    assert (one.waiting, one.delivered, one.dropped, one.failing_since) == (0, 10, 1, None)
    assert one.last_error == "HTTP 400 Bad Request"
    assert "refuses 1 span for good" in caplog.text


@pytest.mark.parametrize("status", [401, 404, 408, 429, 500, 503])
def test_a_backend_that_refuses_everything_costs_no_span(start_receiver, store, monkeypatch, status):
    """A wrong key, a wrong address or an overload is no span's fault: all wait."""
    receiver = start_receiver()
    receiver.status = status
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    record_spans(store, monkeypatch)
    assert drain_of(store).drain() is False
    assert len(receiver.requests) == 1
    one = fares(store)
    assert (one.waiting, one.dropped) == (3, 0)
    assert (one.last_error or "").startswith(f"HTTP {status}")


def test_retry_after_is_heeded_within_reason(start_receiver, store, clock, monkeypatch):
    """What the backend asks for is waited for, an hour at most."""
    receiver = start_receiver()
    receiver.status = 429
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    record_spans(store, monkeypatch)
    for asked, expected in (("30", 30_000), ("999999", 3_600_000)):
        receiver.headers = {"Retry-After": asked}
        drain_of(store).drain(at_once=True)
        assert (fares(store).next_try_at or 0) - clock.now_ms() == expected


def test_spans_that_a_backend_says_it_did_not_take_are_counted_as_dropped(start_receiver, store, monkeypatch):
    """A 200 that rejects some of the spans (`partial_success`) is believed."""
    receiver = start_receiver()
    receiver.rejects = 1
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    record_spans(store, monkeypatch)
    assert drain_of(store).drain() is True
    assert (fares(store).delivered, fares(store).dropped) == (2, 1)


def test_batches_are_bounded(start_receiver, store, monkeypatch):
    """A request holds so many spans and so many bytes at most; one that is larger alone travels alone."""
    receiver = start_receiver()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    record_spans(store, monkeypatch, 7)
    monkeypatch.setattr(span_exporter, "BATCH", 3)
    assert drain_of(store).drain() is True
    assert [len(request.spans) for request in receiver.requests] == [3, 3, 2]
    record_spans(store, monkeypatch, 2)
    monkeypatch.setattr(span_exporter, "BATCH_BYTES", 1)
    assert drain_of(store).drain() is True
    assert [len(request.spans) for request in receiver.requests[3:]] == [1, 1, 1]


def test_of_two_processes_one_exports(start_receiver, store, clock, monkeypatch):
    """While one holds the lease the other sends nothing; when it has ended, or is silent for long, the other does."""
    receiver = start_receiver()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    one, other = drain_of(store, holder="one"), drain_of(store, holder="other")
    for takes, gives in ((one, other), (other, one)):
        record_spans(store, monkeypatch, 1)
        before = len(receiver.requests)
        assert takes.drain() is True
        assert len(receiver.requests) == before + 1
        record_spans(store, monkeypatch, 1)
        assert gives.drain() is False
        assert len(receiver.requests) == before + 1
        if takes is one:
            takes.release()
        else:
            clock.advance(span_exporter.LEASE_MS)
        assert gives.drain() is True
        assert len(receiver.requests) == before + 2
        gives.release()
    assert len({span["span_id"] for span in receiver.spans}) == len(receiver.spans) == 8


def test_an_exporter_that_was_stopped_for_long_counts_nothing_twice(start_receiver, store, clock, monkeypatch):
    """It sent a batch, stood still while another took over and sent it again: the spans are delivered once."""
    receiver = start_receiver()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    record_spans(store, monkeypatch)
    slow, halt = drain_of(store, holder="slow"), Halt()
    arrived = slow._arrived  # pyright: ignore[reportPrivateUsage]

    def stand(*told: Any) -> None:
        halt.stand()
        arrived(*told)

    monkeypatch.setattr(slow, "_arrived", stand)
    thread = threading.Thread(target=slow.drain)
    thread.start()
    halt.wait_until_reached()
    clock.advance(span_exporter.LEASE_MS)
    assert drain_of(store, holder="quick").drain() is True
    halt.release()
    thread.join()
    assert len(receiver.spans) == 6, "at least once"
    assert (fares(store).delivered, fares(store).waiting) == (3, 0)


def test_what_comes_while_it_sends_travels_the_next_time(start_receiver, store, monkeypatch):
    """A drain sends what waited when it began; it does not run after an agent that goes on."""
    receiver = start_receiver()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    record_spans(store, monkeypatch)
    drain = drain_of(store)
    arrived = drain._arrived  # pyright: ignore[reportPrivateUsage]

    def step_meanwhile(*told: Any) -> None:
        arrived(*told)
        if len(receiver.requests) < 3:
            record_spans(store, monkeypatch)

    monkeypatch.setattr(drain, "_arrived", step_meanwhile)
    assert drain.drain() is True
    assert (len(receiver.requests), fares(store).waiting) == (1, 3)


def test_too_much_gives_up_ordinary_spans_first(start_receiver, store, monkeypatch):
    """Beyond the bound the oldest ordinary spans go, then roots and failures; all are counted and stay recorded."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    for _ in range(3):
        record_spans(store, monkeypatch, 3)
    drain_of(store, most_waiting=5).clean()
    assert (fares(store).waiting, fares(store).dropped) == (5, 7)
    receiver = start_receiver()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    names = waiting_names(store)
    assert names == ["invoke_agent graph", "invoke_agent graph", "step 2 node_1", "step 3 node_2", "invoke_agent graph"]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    drain_of(store, most_waiting=2).clean()
    assert waiting_names(store) == ["invoke_agent graph"] * 2
    assert fares(store).dropped == 10


def waiting_names(store: Store) -> list[str]:
    """The names of the spans that wait, in their order."""
    rows = store.read(partial(span_outbox.oldest, name="http://127.0.0.1:9", after=0, limit=1000))
    return [one.name for row in rows for one in span_rows.read(row.body)]


def test_what_waited_too_long_is_given_up_also_for_a_destination_nobody_names_any_more(store, clock, monkeypatch):
    """After seven days a span waits for nobody; an exporter of another destination sees to that."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    record_spans(store, monkeypatch)
    clock.advance(span_exporter.MOST_AGE_MS)
    record_spans(store, monkeypatch, 1)
    clock.advance(1)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:10")
    drain_of(store).clean()
    one = fares(store)
    assert (one.name, one.waiting, one.dropped) == ("http://127.0.0.1:9", 2, 3)


def test_a_stalled_backend_holds_up_neither_jobs_nor_shutdown(shared, black_hole, monkeypatch):
    """A backend that never answers: the job is done, the worker ends within its two seconds, the spans are there."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", black_hole)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "0")
    assert run(shared, chain(node, node)).status == "done"
    assert fares(shared).waiting == 3
    exporter = SpanExporter(shared, tracing.from_environment(service_version="1"), holder="other")
    exporter.start()
    started = time.monotonic()
    exporter.stop()
    assert time.monotonic() - started < 10, "bounded: a second and a half, and what a loaded machine adds"


def test_spans_and_metrics_are_given_up_at_the_same_time(store, monkeypatch):
    """A worker's end waits for the last export of both together, not for one after the other."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    both = threading.Barrier(2, timeout=60)
    stop = SpanExporter.stop

    def meet(exporter: SpanExporter) -> None:
        both.wait()
        stop(exporter)

    class Meeting(Measures):
        def close(self) -> None:
            both.wait()

    monkeypatch.setattr(SpanExporter, "stop", meet)
    Worker(store, {}, measures=Meeting(), tracing=tracing.from_environment(service_version="1.2.3")).run(
        until_idle=True
    )
    assert not both.broken


def test_a_worker_exports_what_a_dead_one_left(start_receiver, shared, monkeypatch):
    """Spans that wait when a worker starts are sent by it, though it has no job."""
    receiver = start_receiver()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    record_spans(shared, monkeypatch)
    Worker(shared, {}, tracing=tracing.from_environment(service_version="1")).run(until_idle=True)
    assert len(receiver.spans) == 3


def test_spans_of_a_running_job_arrive_while_it_runs(start_receiver, shared, monkeypatch):
    """A step's span is there soon after its commit, not only at the end of the leg."""
    receiver: Any = start_receiver()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "0")
    seen: list[str] = []

    def look(state: Any) -> Any:
        seen.extend(until(lambda: [span["name"] for span in receiver.spans], "a span"))
        return {"log": []}

    assert run(shared, chain(node, look)).status == "done"
    assert seen == ["step 1 node_0"]


def test_an_unusable_setting_is_told_and_the_spans_stay(store, monkeypatch, caplog):
    """A credential provider that does not exist leaves a warning; jobs run, and their spans wait."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER", "no-such-provider")
    assert run(store, chain(node)).status == "done"
    assert "Traces are not sent to http://127.0.0.1:9" in caplog.text
    assert fares(store).waiting == 2


@pytest.mark.parametrize("switch", [None, "OTEL_SDK_DISABLED"])
def test_without_a_destination_no_statement_and_no_thread_is_for_spans(store, monkeypatch, switch):
    """Switched off, a whole job leaves no row, starts no exporter and runs no statement on a table of spans."""
    from sqlalchemy import event

    if switch is not None:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
        monkeypatch.setenv(switch, "true")
    statements: list[str] = []
    threads: list[str] = []

    def watch(state: Any) -> Any:
        threads.extend(thread.name for thread in threading.enumerate())
        return {"log": []}

    for engine in (store._writing, store._reading):  # pyright: ignore[reportPrivateUsage]
        event.listen(engine, "before_cursor_execute", lambda _c, _cu, sql, *_: statements.append(sql))
    assert run(store, chain(node, watch)).status == "done"
    assert statements
    assert [sql for sql in statements if "span" in sql] == []
    assert [name for name in threads if "span" in name] == []


def test_spans_can_be_kept_in_the_record_alone(store, monkeypatch):
    """`EVERSTEP_TRACES=record`: the spans are in the record, and wait for nobody."""
    from everstep.checkpoints import spans

    monkeypatch.setenv("EVERSTEP_TRACES", "record")
    job = run(store, chain(node))
    assert len(store.read(partial(spans.of_leg, job_id=job.id, leg=1))) == 2
    assert store.read(span_outbox.every) == []
