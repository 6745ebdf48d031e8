"""What reaches a collector: real OTLP over HTTP, decoded again, for any backend and for Langfuse."""

from __future__ import annotations

import base64
import json
import operator
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

from everstep.observability import tracing

CANARY = "canary-7f3a9c"


class State(TypedDict):
    log: Annotated[list[str], operator.add]
    secret: str


@tool
def look(path: str) -> str:
    """Read a file."""
    return f"content of {path}"


def leg_of(tracer: Any, leg: int = 1) -> tracing.Leg:
    """A leg of job `job-1` on thread `thread-1`."""
    return tracer.leg(
        job_id="job-1",
        leg=leg,
        graph="agent",
        thread_id="thread-1",
        worker="worker-1",
        attempts=leg,
        previous_leg=leg - 1 or None,
    )


def run_all(tracer: Any, model: Any, *, pauses: bool = False, fails: Exception | None = None) -> None:
    """One leg with a model call, a tool call and an effect in one step, then a pause or a failure."""

    def work(state: State) -> Any:
        model.invoke([SystemMessage("You are careful."), HumanMessage(f"Is {state['secret']} here?")])
        look.invoke({"type": "tool_call", "id": "call-1", "name": "look", "args": {"path": state["secret"]}})
        with tracing.effect("git.push", "digest") as span:
            span.state = "confirmed"
        return {"log": [state["secret"]]}

    def finish(state: State) -> Any:
        if pauses:
            interrupt({"delete": state["secret"]})
        if fails is not None:
            raise fails
        return {"log": ["end"]}

    graph = StateGraph(State).add_node(work).add_node(finish).add_edge(START, "work").add_edge("work", "finish")
    with leg_of(tracer) as leg:
        settings: Any = {
            "configurable": {"thread_id": "thread-1", "api_key": CANARY},
            "metadata": {"note": CANARY},
            "callbacks": leg.callbacks,
        }
        try:
            graph.compile(checkpointer=InMemorySaver()).invoke({"log": [], "secret": CANARY}, settings)
        except Exception as error:
            leg.outcome("failed", error=error)
        else:
            leg.outcome("review" if pauses else "done")


ALL_SPANS = {
    "invoke_agent agent",
    "step 1 work",
    "chat scripted-1",
    "execute_tool look",
    "effect git.push",
    "step 2 finish",
}


def test_a_collector_gets_every_span_with_ids_session_and_name(start_receiver, sending, scripted_model, monkeypatch):
    """Over OTLP each span carries the derived trace id, its parent, the session, the trace name and the job."""
    receiver = start_receiver()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=blue")
    tracer = sending()
    run_all(tracer, scripted_model())
    tracer.send()

    assert {span["name"] for span in receiver.spans} == ALL_SPANS
    ids = {span["span_id"] for span in receiver.spans}
    for span in receiver.spans:
        assert span["trace_id"] == tracing.trace_id("job-1", 1)
        assert span["attributes"]["session.id"] == "thread-1"
        assert span["attributes"]["langfuse.trace.name"] == "agent"
        assert span["attributes"]["langfuse.trace.metadata.job_id"] == "job-1"
        assert span["attributes"]["langfuse.trace.metadata.leg"] == 1
        assert span["resource"]["service.name"] == "everstep"
        assert span["resource"]["service.version"] == "1.2.3"
        if span["name"] == "invoke_agent agent":
            assert span["parent_span_id"] == ""
            assert span["span_id"] == tracing.root_span_id("job-1", 1)
        else:
            assert span["parent_span_id"] in ids
    assert {request.path for request in receiver.requests} == {"/v1/traces"}
    assert all(request.headers["x-tenant"] == "blue" for request in receiver.requests)
    assert all(request.headers["content-type"] == "application/x-protobuf" for request in receiver.requests)


def test_the_traces_endpoint_is_used_as_it_stands(start_receiver, sending, scripted_model, monkeypatch):
    """`OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` is a full URL, to which no path is added."""
    receiver = start_receiver()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{receiver.url}/own/path")
    tracer = sending()
    run_all(tracer, scripted_model())
    tracer.send()

    assert {request.path for request in receiver.requests} == {"/own/path"}


@pytest.mark.parametrize("host_variable", ["LANGFUSE_HOST", "LANGFUSE_BASE_URL"])
def test_langfuse_gets_its_own_endpoint_and_headers(
    start_receiver, sending, scripted_model, monkeypatch, host_variable
):
    """Langfuse is posted to at its OTLP path with Basic authentication and ingestion version 4."""
    receiver = start_receiver()
    monkeypatch.setenv("LANGFUSE_PUBLIC_KEY", "pk-1")
    monkeypatch.setenv("LANGFUSE_SECRET_KEY", "sk-1")
    monkeypatch.setenv(host_variable, f"{receiver.url}/")
    tracer = sending()
    run_all(tracer, scripted_model())
    tracer.send()

    assert {span["name"] for span in receiver.spans} == ALL_SPANS
    for request in receiver.requests:
        assert request.path == "/api/public/otel/v1/traces"
        assert request.headers["authorization"] == "Basic " + base64.b64encode(b"pk-1:sk-1").decode()
        assert request.headers["x-langfuse-ingestion-version"] == "4"
        assert request.headers["content-encoding"] == "gzip"


def test_both_at_once_and_neither_sees_the_others_keys(start_receiver, sending, scripted_model, monkeypatch):
    """A collector and Langfuse both get all spans, and neither gets the credentials meant for the other."""
    collector, langfuse = start_receiver(), start_receiver()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20other,x-api-key=other")
    monkeypatch.setenv("LANGFUSE_PUBLIC_KEY", "pk-1")
    monkeypatch.setenv("LANGFUSE_SECRET_KEY", "sk-1")
    monkeypatch.setenv("LANGFUSE_HOST", langfuse.url)
    tracer = sending()
    run_all(tracer, scripted_model())
    tracer.send()

    assert {span["name"] for span in collector.spans} == {span["name"] for span in langfuse.spans} == ALL_SPANS
    for request in collector.requests:
        assert request.headers["authorization"] == "Bearer other"
        assert "x-langfuse-ingestion-version" not in request.headers
    for request in langfuse.requests:
        assert request.headers["authorization"].startswith("Basic ")
        assert "other" not in json.dumps(dict(request.headers))


@pytest.mark.parametrize("mode", [None, "NO_CONTENT", "EVENT_ONLY"])
@pytest.mark.parametrize("pauses", [False, True])
def test_a_secret_in_state_config_prompts_and_tools_is_not_exported(
    start_receiver, sending, scripted_model, monkeypatch, mode, pauses
):
    """Capture off: a canary in state, configuration, prompt, answer, tool or interrupt is in no exported byte."""
    receiver = start_receiver()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    if mode is not None:
        monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", mode)
    tracer = sending()
    run_all(tracer, scripted_model(answer=CANARY), pauses=pauses)
    tracer.send()

    assert {span["name"] for span in receiver.spans} == ALL_SPANS
    for request in receiver.requests:
        assert CANARY.encode() not in request.body
        assert CANARY not in json.dumps(dict(request.headers))


def test_an_exceptions_own_text_is_exported(start_receiver, sending, scripted_model, monkeypatch):
    """The limit of that promise: what an exception says in its message is told, since nobody could act without it."""
    receiver = start_receiver()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    tracer = sending()
    run_all(tracer, scripted_model(), fails=ValueError(f"cannot parse {CANARY}"))
    tracer.send()

    telling = {span["name"] for span in receiver.spans if CANARY in json.dumps(span)}
    assert telling <= {"step 2 finish", "invoke_agent agent"}
    assert any(CANARY.encode() in request.body for request in receiver.requests)


@pytest.mark.parametrize("mode", ["SPAN_ONLY", "span_and_event"])
def test_content_is_exported_when_asked_for(recording, scripted_model, monkeypatch, mode):
    """With capture on, prompt, answer, tool arguments and result stand on their spans; the graph's state never does."""
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", mode)
    run_all(recording.tracer, scripted_model(), pauses=True)

    chat = recording.named("chat scripted-1").attributes
    assert json.loads(chat["gen_ai.input.messages"]) == [
        {"role": "system", "parts": [{"type": "text", "content": "You are careful."}]},
        {"role": "user", "parts": [{"type": "text", "content": f"Is {CANARY} here?"}]},
    ]
    assert json.loads(chat["gen_ai.output.messages"]) == [
        {"role": "assistant", "parts": [{"type": "text", "content": "Yes, it is."}], "finish_reason": "stop"}
    ]
    call = recording.named("execute_tool look").attributes
    assert json.loads(call["gen_ai.tool.call.arguments"]) == {"path": CANARY}
    assert json.loads(call["gen_ai.tool.call.result"]) == f"content of {CANARY}"
    paused = recording.named("step 2 finish").attributes
    assert json.loads(paused["langfuse.observation.output"])["interrupts"][0]["value"] == {"delete": CANARY}
    for key, value in recording.named("step 1 work").attributes.items():
        assert CANARY not in str(value), key


def test_tool_calls_and_their_answers_keep_their_form(recording, scripted_model, monkeypatch):
    """In captured conversations tool calls and tool results are parts of their own kind."""
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_ONLY")
    conversation = [
        AIMessage("", tool_calls=[{"id": "call-1", "name": "look", "args": {"path": "a"}}]),
        ToolMessage("content of a", tool_call_id="call-1"),
        HumanMessage([{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "data:secret"}}]),
    ]
    with recording.leg() as leg:
        scripted_model().invoke(conversation, {"callbacks": leg.callbacks})
        leg.outcome("done")

    assert json.loads(recording.named("chat scripted-1").attributes["gen_ai.input.messages"]) == [
        {
            "role": "assistant",
            "parts": [{"type": "tool_call", "id": "call-1", "name": "look", "arguments": {"path": "a"}}],
        },
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "call-1", "response": "content of a"}]},
        {
            "role": "user",
            "parts": [{"type": "text", "content": "see"}, {"type": "image_url", "content": "(not captured)"}],
        },
    ]


@pytest.mark.parametrize(
    "conversation",
    [[HumanMessage("x" * 1_000_000)], [HumanMessage("y" * 300)] * 5_000, [HumanMessage("😀" * 100_000)]],
    ids=["one long message", "many messages", "many bytes a character"],
)
def test_captured_content_is_bounded_and_still_json(recording, scripted_model, monkeypatch, conversation):
    """However long the conversation, the attribute stays within 64 KiB and parses."""
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_ONLY")
    with recording.leg() as leg:
        scripted_model().invoke(conversation, {"callbacks": leg.callbacks})
        leg.outcome("done")

    text = recording.named("chat scripted-1").attributes["gen_ai.input.messages"]
    assert len(text.encode()) <= 65_536
    assert json.loads(text)


def test_text_that_is_not_valid_unicode_does_not_cost_the_batch(start_receiver, sending, scripted_model, monkeypatch):
    """A lone surrogate in a file name ends up in an error, a thread id and a graph name; all spans still arrive."""
    receiver = start_receiver()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    tracer = sending()
    broken = "caf\udce9"
    with tracer.leg(
        job_id=broken, leg=1, graph=broken, thread_id=broken, worker="w", attempts=2**70, tags=[broken]
    ) as leg:
        with tracing.effect(broken, "digest") as span:
            span.state = broken
        leg.outcome("failed", error=FileNotFoundError(broken), detail=broken)
    tracer.send()

    assert {span["name"] for span in receiver.spans} == {"invoke_agent caf?", "effect caf?"}
    assert receiver.spans[-1]["attributes"]["everstep.attempts"] == str(2**70)
