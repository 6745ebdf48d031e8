"""What a process measures: bounded, on a page for Prometheus, by OTLP to a real receiver, and nothing when off."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    HistogramDataPoint,
    InMemoryMetricReader,
    MetricsData,
)

from everstep.errors import MetricsAddressUnavailable
from everstep.observability import metric_exports, metric_names
from everstep.observability.label_cap import OTHER, SERIES, VALUES, LabelCap
from everstep.observability.measures import Sample
from everstep.observability.metric_names import METRICS, Metric
from everstep.observability.prometheus import PrometheusPage
from everstep.observability.tally import Tally
from tests.support.scrape import scrape
from tests.support.waiting import PATIENCE, until

RECORD = [
    Sample(metric_names.JOBS, 3, ("done",)),
    Sample(metric_names.OLDEST_DUE, 1.5),
    Sample(metric_names.SPANS_DROPPED, 7, ('odd "name"\n',)),
]


@pytest.fixture
def measures() -> Tally:
    """What the process measures."""
    return Tally()


@pytest.fixture
def page(measures: Tally) -> Iterator[PrometheusPage]:
    """A page that is not served yet."""
    page = PrometheusPage(lambda: RECORD, measures)
    yield page
    page.close()


# ---- labels


def test_ten_thousand_names_are_a_hundred_and_other() -> None:
    """The first values of a label are told apart, over all metrics; what comes later is counted together."""
    cap = LabelCap()
    for number in range(10_000):
        cap.bounded(metric_names.COST, (f"model-{number}",))
    assert cap.bounded(metric_names.COST, ("model-99",)) == ("model-99",)
    assert cap.bounded(metric_names.COST, ("model-100",)) == (OTHER,)
    where = ("chat", "provider", "model-5000")
    assert cap.bounded(metric_names.TIME_TO_FIRST_CHUNK, where) == ("chat", "provider", OTHER)


def test_combinations_are_bounded_too() -> None:
    """A hundred providers of a hundred models are a thousand series; fixed values such as the outcome stay."""
    cap = LabelCap()
    found = {
        cap.bounded(metric_names.TOKENS, ("chat", f"provider-{one}", f"model-{two}", kind))
        for one in range(VALUES)
        for two in range(VALUES)
        for kind in ("input", "output")
    }
    assert SERIES <= len(found) <= SERIES + 2
    assert {("chat", OTHER, OTHER, "input"), ("chat", OTHER, OTHER, "output")} <= found


def test_a_value_is_short_and_valid() -> None:
    """A name of a megabyte, or with half a character, is a label of 128 bytes at most."""
    (value,) = LabelCap().bounded(metric_names.COST, ("x" * 1_000_000 + "\ud800",))
    assert len(value.encode()) <= 128


def test_ten_thousand_models_make_a_page_of_bounded_size(page: PrometheusPage, measures: Tally) -> None:
    """Whatever names answers bring, the series on the page are bounded, and no token is lost."""
    for number in range(10_000):
        measures.add(metric_names.TOKENS, 2, "chat", f"provider-{number}", f"model-{number}", "input")
    found = scrape(page.serve("127.0.0.1", 0))
    assert len([name for name, _ in found.values if name == "gen_ai_client_token_usage_count"]) <= VALUES + 1
    assert found("gen_ai_client_token_usage_sum") == 20_000


# ---- the page


def test_counters_gauges_and_histograms_are_on_the_page(page: PrometheusPage, measures: Tally) -> None:
    """What was measured, and what the record knows, each with its type; odd labels come through whole."""
    measures.add(metric_names.STALE_WRITES)
    measures.add(metric_names.STALE_WRITES, 2)
    measures.add(metric_names.RUNNING_JOBS, 4)
    measures.add(metric_names.RUNNING_JOBS, 3)
    measures.add(metric_names.STEP_DURATION, 0.3, "agent")
    measures.add(metric_names.LEG_DURATION, 7, "agent", "done")
    found = scrape(page.serve("127.0.0.1", 0))
    assert found("everstep_stale_writes_refused_total") == 3
    assert found("everstep_running_jobs") == 3
    assert found("everstep_step_duration_seconds_sum", graph="agent") == 0.3
    assert found("everstep_step_duration_seconds_bucket", graph="agent", le="0.25") == 0
    assert found("everstep_step_duration_seconds_bucket", graph="agent", le="0.5") == 1
    assert found("everstep_leg_duration_seconds_count", graph="agent", outcome="done") == 1
    assert found("everstep_jobs", state="done") == 3
    assert found("everstep_oldest_due_seconds") == 1.5
    assert found("everstep_spans_dropped_total", destination='odd "name"\n') == 7
    assert found.types["everstep_jobs"] == "gauge"
    assert found.types["everstep_spans_dropped"] == found.types["everstep_stale_writes_refused"] == "counter"
    assert not any(name.endswith("_created") for name in found.names)


def test_only_the_record_is_told_by_who_measures_nothing() -> None:
    """A page without measures has what the record knows alone."""
    page = PrometheusPage(lambda: RECORD)
    found = scrape(page.serve("127.0.0.1", 0))
    page.close()
    assert found.names == {"everstep_jobs", "everstep_oldest_due_seconds", "everstep_spans_dropped_total"}


def test_a_port_that_is_taken_is_a_clear_error(page: PrometheusPage) -> None:
    """So is an address that is not this machine's; and when it is closed, the port is free again."""
    url = page.serve("127.0.0.1", 0)
    port = int(url.rpartition(":")[2].split("/")[0])
    other = PrometheusPage(list)
    with pytest.raises(MetricsAddressUnavailable, match=rf"127\.0\.0\.1:{port}.*metrics_address_unavailable"):
        other.serve("127.0.0.1", port)
    with pytest.raises(MetricsAddressUnavailable):
        other.serve("192.0.2.1", 0)
    with pytest.raises(MetricsAddressUnavailable):
        other.serve("no-such-host.invalid", 0)
    page.close()
    other.serve("127.0.0.1", port)
    other.close()


def test_a_failure_to_measure_is_told_once_and_swallowed(measures: Tally, caplog: pytest.LogCaptureFixture) -> None:
    """A wrong label stops no run."""
    for _ in range(3):
        measures.add(metric_names.STEP_DURATION, 1.0)
    assert [entry.message for entry in caplog.records if entry.levelname == "WARNING"] == [
        "everstep.step.duration was not measured; the run goes on."
    ]


# ---- OTLP


class Collector:
    """An OTLP receiver on loopback that answers with a status, or not at all."""

    def __init__(self, status: int) -> None:
        self.bodies: list[bytes] = []
        self.paths: list[str] = []
        self.silent = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.bodies.append(self.rfile.read(int(self.headers["content-length"])))
                outer.paths.append(self.path)
                if status == 0:
                    outer.silent.wait(PATIENCE)
                    return
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                return None

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def metrics(self) -> dict[str, Any]:
        """The newest metrics, by name."""
        request = ExportMetricsServiceRequest.FromString(self.bodies[-1])
        return {
            metric.name: metric
            for group in request.resource_metrics
            for scope in group.scope_metrics
            for metric in scope.metrics
        }

    @property
    def resource(self) -> dict[str, str]:
        """Who sent them."""
        (group,) = ExportMetricsServiceRequest.FromString(self.bodies[-1]).resource_metrics
        return {one.key: one.value.string_value for one in group.resource.attributes}


@pytest.fixture
def collector() -> Iterator[Callable[[int], Collector]]:
    """Starts collectors; they end with the test."""
    started: list[Collector] = []

    def start(status: int = 200) -> Collector:
        started.append(Collector(status))
        return started[-1]

    yield start
    for one in started:
        one.silent.set()
        one.server.shutdown()
        one.server.server_close()


def otlp(record: Callable[[], list[Sample]] = lambda: RECORD) -> Tally:
    """Measures that are sent as the environment says."""
    from everstep.observability.otlp_metrics import OtlpMetrics

    tally = Tally()
    tally.leaves_by(OtlpMetrics(record, "1.2.3", tally))
    return tally


def attributes(point: Any) -> dict[str, str]:
    """The attributes of a data point."""
    return {one.key: one.value.string_value for one in point.attributes}


def test_every_metric_is_sent_under_its_name(
    collector: Callable[[int], Collector], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kinds, units, buckets and attributes as the registry has them, GenAI metrics as the conventions name them."""
    receiver = collector(200)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    everything = [
        Sample(metric, 1.0, tuple(f"{label}-value" for label in metric.labels))
        for metric in METRICS
        if metric.from_record
    ]
    measures = otlp(lambda: everything)
    for metric in METRICS:
        if not metric.from_record:
            measures.add(metric, 2.0, *("" if label == "error.type" else f"{label}-value" for label in metric.labels))
    measures.close()
    assert receiver.paths == ["/v1/metrics"]
    found = receiver.metrics
    assert set(found) == {metric.name for metric in METRICS}
    for metric in METRICS:
        told = found[metric.name]
        kind = {"counter": "sum", "gauge": "gauge", "histogram": "histogram"}[metric.kind]
        assert (told.WhichOneof("data"), told.unit, told.description) == (kind, metric.unit, metric.help)
        (point,) = getattr(told, kind).data_points
        assert attributes(point) == {label: f"{label}-value" for label in metric.labels if label != "error.type"}
        if metric.kind == "histogram":
            assert (list(point.explicit_bounds), point.sum, point.count) == (list(metric.buckets), 2.0, 1)
        if metric.kind == "counter":
            assert told.sum.is_monotonic
    assert {"gen_ai.client.token.usage", "gen_ai.client.operation.duration"} <= set(found)
    assert "gen_ai.client.operation.time_to_first_chunk" in found
    assert receiver.resource["service.name"] == "everstep"
    assert receiver.resource["service.version"] == "1.2.3"
    assert receiver.resource["service.instance.id"]


def told(data: MetricsData) -> dict[str, Any]:
    """What an export says, without its moments and what is not known of the time since the export before."""
    found: dict[str, Any] = {}
    for metric in data.resource_metrics[0].scope_metrics[0].metrics:
        temporality = getattr(metric.data, "aggregation_temporality", None)
        is_total = temporality is not AggregationTemporality.DELTA
        for point in metric.data.data_points:
            histogram = isinstance(point, HistogramDataPoint)
            values: Any = (point.count, point.sum, *point.bucket_counts) if histogram else point.value
            extremes = (point.min, point.max, *point.explicit_bounds) if histogram and is_total else ()
            labels = tuple(sorted((point.attributes or {}).items()))
            found[metric.name, labels] = (metric.unit, metric.description, temporality, values, extremes)
    return found


def opentelemetrys(temporality: dict[type, Any]) -> tuple[Callable[..., None], Callable[[], MetricsData]]:
    """OpenTelemetry's own instruments: how they are given an observation, and what they make of all."""
    reader = InMemoryMetricReader(preferred_temporality=temporality)
    meter = MeterProvider([reader]).get_meter("everstep")
    instruments: dict[str, Any] = {}

    def add(metric: Metric, value: float, *labels: str) -> None:
        about = {"name": metric.name, "unit": metric.unit, "description": metric.help}
        if metric.name not in instruments:
            instruments[metric.name] = {
                "counter": lambda: meter.create_counter(**about).add,
                "gauge": lambda: meter.create_gauge(**about).set,
                "histogram": lambda: (
                    meter.create_histogram(**about, explicit_bucket_boundaries_advisory=metric.buckets).record
                ),
            }[metric.kind]()
        instruments[metric.name](value, dict(zip(metric.labels, labels, strict=True)))

    def collected() -> MetricsData:
        data = reader.get_metrics_data()
        assert data is not None
        return data

    return add, collected


@pytest.mark.parametrize("preference", ["cumulative", "delta", "lowmemory"])
def test_what_is_sent_is_what_opentelemetrys_instruments_would_send(
    monkeypatch: pytest.MonkeyPatch, preference: str
) -> None:
    """Export after export: totals since the beginning, or what came since the one before, as the variable says."""
    from everstep.observability.otlp_metrics import OtlpMetrics

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", preference)
    tally = Tally()
    ours = OtlpMetrics(list, "1.2.3", tally)
    add, theirs = opentelemetrys(OTLPMetricExporter()._preferred_temporality)
    edges = metric_names.STEP_DURATION.buckets
    for values in ((0.0, edges[0], edges[0] * 1.01, edges[-1], edges[-1] * 9), (3.5, 1)):
        for value in values:
            for measure in (tally.add, add):
                for graph in ("one", "two"):
                    measure(metric_names.STEP_DURATION, value, graph)
                measure(metric_names.STALE_WRITES, value)
                measure(metric_names.RUNNING_JOBS, value)
        assert told(ours._collected()) == told(theirs())
    ours.close()


def test_a_counter_of_the_record_is_told_as_the_variable_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `delta` what came since the export before; with `lowmemory` the total, as it is no counter of ours."""
    from everstep.observability.otlp_metrics import OtlpMetrics

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    dropped = [7.0]
    for preference, expected in (("delta", [7, 2]), ("lowmemory", [7, 9])):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", preference)
        dropped[0] = 7.0
        metrics = OtlpMetrics(lambda: [Sample(metric_names.SPANS_DROPPED, dropped[0], ("there",))], "1.2.3")
        found = [told(metrics._collected())]
        dropped[0] = 9.0
        found.append(told(metrics._collected()))
        assert [values for one in found for _, _, _, values, _ in one.values()] == expected
        metrics.close()


def test_a_record_that_cannot_be_read_takes_nothing_else_from_an_export(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the process measured is sent all the same."""
    from everstep.observability.otlp_metrics import OtlpMetrics

    def broken() -> list[Sample]:
        raise OSError("gone")

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    tally = Tally()
    tally.add(metric_names.STALE_WRITES)
    metrics = OtlpMetrics(broken, "1.2.3", tally)
    assert [name for name, _ in told(metrics._collected())] == [metric_names.STALE_WRITES.name]
    metrics.close()


def test_metrics_are_sent_at_an_interval(
    collector: Callable[[int], Collector], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without waiting for the end; each export reads the record again."""
    receiver = collector(200)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", f"{receiver.url}/own/path")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "20")
    measures = otlp()
    until(lambda: len(receiver.bodies) >= 3, "three exports")
    measures.close()
    assert set(receiver.paths) == {"/own/path"}
    (point,) = receiver.metrics["everstep.jobs"].gauge.data_points
    assert (point.as_int or point.as_double, attributes(point)) == (3, {"state": "done"})


@pytest.mark.parametrize("status", [0, 503])
def test_a_dead_endpoint_harms_nothing(
    collector: Callable[[int], Collector],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    status: int,
) -> None:
    """One that stalls or refuses is told once, takes nothing from who measures, and lets go within two seconds."""
    receiver = collector(status)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "20")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.1" if status else "60")
    measures = otlp()
    until(lambda: receiver.bodies, "the first export")
    if status:
        until(lambda: len(receiver.bodies) >= 2, "another export")
        until(lambda: caplog.records, "the warning")
    for _ in range(100):
        measures.add(metric_names.STALE_WRITES)
    closing = threading.Thread(target=measures.close)
    closing.start()
    closing.join(20)  # two seconds are meant; the library alone would wait for thirty
    assert not closing.is_alive()
    told = [entry.message for entry in caplog.records if entry.levelname in ("WARNING", "ERROR")]
    assert len(told) <= 1
    assert all(message.startswith("Metrics do not arrive by OTLP (") for message in told)


def test_nobody_listening_is_told_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever takes no connection is named in one line, without the library's own."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.1")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "20")
    measures = otlp()
    until(lambda: caplog.records, "the warning")
    measures.close()
    assert [entry.levelname for entry in caplog.records] == ["WARNING"]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "  "}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c:4318/m"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/t"}, False),
        ({"OTEL_METRICS_EXPORTER": "otlp"}, True),
        ({"OTEL_METRICS_EXPORTER": "prometheus", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, False),
        ({"OTEL_METRICS_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, False),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, False),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, False),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", "OTEL_METRICS_EXPORTER": "otlp"}, True),
    ],
)
def test_the_environment_says_whether_metrics_are_sent(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: bool
) -> None:
    """By the standard variables; a protocol that is not spoken is refused with a warning."""
    monkeypatch.delenv("OTEL_METRICS_EXPORTER", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert metric_exports.is_configured() is expected


def test_nothing_is_loaded_when_nobody_asks(tmp_path: Path) -> None:
    """A worker whose metrics nobody wants imports neither library, and measures nothing."""
    source = """
import sys
from everstep import Store, Worker
with Store.open(sys.argv[1]) as store:
    worker = Worker(store, {})
    assert worker._measures.is_on is False
    worker.run(until_idle=True)
loaded = [name for name in sys.modules if name.startswith(("prometheus_client", "opentelemetry.sdk.metrics"))]
assert not loaded, loaded
"""
    command = [sys.executable, "-c", source, f"sqlite:///{tmp_path}/record.db"]
    subprocess.run(command, check=True, timeout=PATIENCE, env={**os.environ, "OTEL_METRICS_EXPORTER": "none"})


def test_a_metric_knows_its_series() -> None:
    """A histogram has three, what is counted or set has one."""
    assert metric_names.STEP_DURATION.series == (
        "everstep_step_duration_seconds_bucket",
        "everstep_step_duration_seconds_sum",
        "everstep_step_duration_seconds_count",
    )
    assert Metric("everstep.x", "counter", "By", "").series == ("everstep_x_bytes_total",)
