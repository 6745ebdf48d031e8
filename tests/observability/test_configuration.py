"""Which environment switches tracing on, and that an unconfigured process pays and hears nothing."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import textwrap
import threading

import pytest
from opentelemetry import trace

from everstep.observability import langfuse, metric_exports, otlp_settings, tracing
from everstep.observability.destinations import LangfuseDestination, OtlpDestination, from_environment
from everstep.observability.otlp import Sender
from everstep.observability.otlp_metrics import OtlpMetrics
from everstep.observability.tally import Tally

LANGFUSE = {
    "LANGFUSE_PUBLIC_KEY": "pk-1",
    "LANGFUSE_SECRET_KEY": "sk-secret",
    "LANGFUSE_HOST": "https://langfuse.example",
}
COLLECTOR = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}
TO_COLLECTOR = OtlpDestination("http://collector:4318")
TO_LANGFUSE = LangfuseDestination(
    "https://langfuse.example (Langfuse)", "https://langfuse.example/api/public/otel/v1/traces", "pk-1", "sk-secret"
)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, []),
        (COLLECTOR, [TO_COLLECTOR]),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "  "}, []),
        (
            {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://u:p@traces:4318/x?k=v"},
            [OtlpDestination("https://traces:4318")],
        ),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, [OtlpDestination("http://localhost:4318")]),
        ({**COLLECTOR, "OTEL_TRACES_EXPORTER": "console"}, []),
        ({**COLLECTOR, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, [TO_COLLECTOR]),
        (LANGFUSE, [TO_LANGFUSE]),
        ({**COLLECTOR, **LANGFUSE}, [TO_COLLECTOR, TO_LANGFUSE]),
        ({**COLLECTOR, **LANGFUSE, "OTEL_TRACES_EXPORTER": "none"}, []),
        ({**COLLECTOR, **LANGFUSE, "OTEL_SDK_DISABLED": "TRUE"}, []),
        ({**COLLECTOR, **LANGFUSE, "LANGFUSE_TRACING_ENABLED": "False"}, [TO_COLLECTOR]),
        ({"LANGFUSE_HOST": "https://langfuse.example"}, []),
    ],
)
def test_the_environment_decides_where_traces_go(monkeypatch, caplog, environment, expected):
    """Each combination of variables gives exactly its destinations, without a word in the log."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert from_environment() == expected
    assert caplog.records == []


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({**COLLECTOR, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "the protocol grpc is not supported"),
        ({"LANGFUSE_PUBLIC_KEY": "pk-1", "LANGFUSE_SECRET_KEY": "sk-secret"}, "set LANGFUSE_HOST as well"),
        ({"LANGFUSE_PUBLIC_KEY": "pk-1", "LANGFUSE_HOST": "https://x"}, "set LANGFUSE_SECRET_KEY as well"),
    ],
)
def test_half_a_configuration_is_explained(monkeypatch, caplog, environment, told):
    """What cannot be used is named with what to set, nothing is sent, and no key is in the log."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert not tracing.from_environment(service_version="1.2.3").is_enabled()
    assert [entry.levelname for entry in caplog.records] == ["WARNING"]
    assert told in caplog.text
    assert "sk-secret" not in caplog.text


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("127.0.0.1:4318", "127.0.0.1:4318"),
        ("ftp://x", "ftp://x"),
        ("http://127.0.0.1:99999/v1", "http://127.0.0.1:99999"),
        ("http://:4318", "http://:4318"),
        ("http://", "http://"),
        ("http:/u:canary@host:1/canary?k=canary", "http:/host:1"),
        ("u:ca#nary@host:4318", "…"),
        ("u:canary@host:4318", "host:4318"),
        ("http://a b:4318", "http://a b:4318"),
    ],
)
@pytest.mark.parametrize(
    ("variable", "besides", "what"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", {}, "traces are not sent."),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", COLLECTOR, "traces are not sent."),
        ("LANGFUSE_HOST", LANGFUSE, "traces are not sent to Langfuse."),
        ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", {}, "metrics are not sent."),
    ],
)
def test_an_endpoint_that_is_no_url_is_refused(monkeypatch, caplog, variable, besides, what, value, shown):
    """One warning names the variable and its value without credentials, and nothing waits for such a destination."""
    for name, given in {**besides, variable: value}.items():
        monkeypatch.setenv(name, given)
    if "METRICS" in variable:
        monkeypatch.delenv("OTEL_METRICS_EXPORTER", raising=False)
        assert not metric_exports.is_configured()
    else:
        assert not tracing.from_environment(service_version="1.2.3").is_enabled()
    assert [entry.levelname for entry in caplog.records] == ["WARNING"]
    assert f"{variable}={shown} is no http:// or https:// URL; {what} Next: set {variable} " in caplog.text
    assert "canary" not in caplog.text


def test_an_unusable_endpoint_leaves_the_other_destination(monkeypatch, caplog):
    """A Langfuse gets its traces though the collector's endpoint is none, and asking for it warns no more."""
    for name, value in {**LANGFUSE, "OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"}.items():
        monkeypatch.setenv(name, value)
    assert from_environment() == [TO_LANGFUSE]
    assert langfuse.configured() == TO_LANGFUSE
    assert len(caplog.records) == 1


def test_an_unusable_setting_switches_tracing_off_not_the_worker(monkeypatch, caplog):
    """A limit that is no number leaves a warning and a process that runs untraced."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "many")
    with caplog.at_level(logging.WARNING):
        tracer = tracing.from_environment(service_version="1.2.3")
    assert not tracer.is_enabled()
    assert "Traces are off" in caplog.text


@pytest.fixture
def told(monkeypatch, caplog):
    """The warnings on settings, in a process that gave none yet."""
    monkeypatch.setattr(otlp_settings, "_told", set())
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    return caplog


def set_up_exports():
    """What a worker and a flush set up; the sender, and the metrics' exporter."""
    metrics = OtlpMetrics(list, "1.2.3", Tally())
    metrics.close()
    Sender(TO_COLLECTOR).close()
    sender = Sender(TO_COLLECTOR)
    sender.close()
    return sender


@pytest.mark.parametrize("variable", ["OTEL_EXPORTER_OTLP_TIMEOUT", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT"])
@pytest.mark.parametrize("value", ["abc", "0", "-1", "nan", "inf", "1e30"])
def test_a_time_limit_that_is_none_is_replaced(monkeypatch, told, variable, value):
    """The default holds, and one warning names the variable."""
    monkeypatch.setenv(variable, value)
    assert set_up_exports().timeout_s == 10
    ours = [entry.getMessage() for entry in told.records if "Metrics do not arrive" not in entry.getMessage()]
    assert [text.split(" ")[0] for text in ours] == [f"{variable}={value}"]


def test_a_compression_that_is_not_spoken_is_left_out(monkeypatch, told):
    """It is sent uncompressed, one warning says so; the compressions that are spoken are taken without a word."""
    for value in ("gzip", "Deflate", "none"):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", value)
        assert otlp_settings.compression("TRACES") == value.lower()
    assert "COMPRESSION" not in told.text
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "brotli")
    set_up_exports()
    assert otlp_settings.compression("TRACES") == "none"
    assert told.text.count("OTEL_EXPORTER_OTLP_COMPRESSION=brotli is not supported") == 1
    assert told.text.count("COMPRESSION=") == 2  # the advice has the other


def test_a_header_that_is_none_is_told_by_its_place(monkeypatch, told):
    """Once, and without its text, which may be a key; the others are sent."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "a=1, canary-key-1 ,b=x y,canary key=2,")
    set_up_exports()
    assert otlp_settings.headers("TRACES") == {"a": "1", "b": "x y"}
    assert told.text.count("OTEL_EXPORTER_OTLP_HEADERS: entry 2 is no name=value") == 1
    assert told.text.count("OTEL_EXPORTER_OTLP_HEADERS: entry 4 is no name=value") == 1
    assert "canary" not in told.text


def test_keys_are_not_in_the_destinations_text():
    """A destination that is printed or logged shows no key."""
    assert "sk-secret" not in repr(TO_LANGFUSE)


def test_switched_off_nothing_is_attached_and_nothing_starts(caplog):
    """Unconfigured, a leg has no callbacks, flush and shutdown return at once, and no thread was started."""
    threads = threading.active_count()
    tracer = tracing.from_environment(service_version="1.2.3")
    with tracer.leg(job_id="j", leg=1, graph="g", thread_id="t", worker="w", attempts=1) as leg:
        assert leg.callbacks == []
        leg.committed("checkpoint-1")
        with leg.effect("mail.send", "digest") as span:
            span.state = "confirmed"
        leg.outcome("failed", error=ValueError("x"))
    assert tracer.is_enabled() is False
    assert tracer.flush() is True
    tracer.shutdown()
    assert threading.active_count() == threads
    assert caplog.records == []


def test_switched_off_opentelemetry_and_langchain_are_not_even_imported():
    """Importing the module, asking the environment and naming a trace loads neither OpenTelemetry nor LangChain."""
    program = textwrap.dedent("""
        import sys
        from everstep.observability import tracing
        tracing.from_environment(service_version="1")
        tracing.trace_id("job", 1)
        heavy = ("opentelemetry", "langchain_core", "langgraph", "requests", "google")
        print([name for name in sys.modules if name.split(".")[0] in heavy])
    """)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "LANGFUSE_"))}
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout.strip() == "[]"


def test_the_process_wide_provider_and_langsmith_are_left_alone(monkeypatch):
    """Our tracing sets neither OpenTelemetry's global provider nor any variable of LangSmith."""
    before = trace.get_tracer_provider()
    variables = {name: value for name, value in os.environ.items() if name.startswith(("LANGSMITH", "LANGCHAIN"))}
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    tracer = tracing.from_environment(service_version="1.2.3")
    assert tracer.is_enabled()
    assert trace.get_tracer_provider() is before
    assert variables == {
        name: value for name, value in os.environ.items() if name.startswith(("LANGSMITH", "LANGCHAIN"))
    }
    tracer.shutdown()


def test_the_service_can_be_renamed_by_the_standard_variables(start_receiver, sending, monkeypatch):
    """`OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES` and Langfuse's environment and release end up on the resource."""
    receiver = start_receiver()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "nightly-agents")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=green")
    monkeypatch.setenv("LANGFUSE_TRACING_ENVIRONMENT", "staging")
    monkeypatch.setenv("LANGFUSE_RELEASE", "r-9")
    tracer = sending()
    with tracer.leg(job_id="j", leg=1, graph="g", thread_id="t", worker="w", attempts=1) as leg:
        leg.outcome("done")
    tracer.send()
    resource = receiver.spans[0]["resource"]
    assert resource["service.name"] == "nightly-agents"
    assert resource["service.version"] == "1.2.3"
    assert resource["team"] == "green"
    assert resource["deployment.environment.name"] == "staging"
    assert resource["langfuse.release"] == "r-9"
