"""Golden trees: what a trace looks like for each shape of graph."""

from __future__ import annotations

import asyncio
import logging
import operator
import threading
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.language_models.fake_chat_models import FakeListChatModel, GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, RetryPolicy, Send, interrupt
from opentelemetry import trace
from opentelemetry.trace import SpanKind

from everstep.observability import tracing


class State(TypedDict):
    log: Annotated[list[str], operator.add]


@tool
def look(path: str) -> str:
    """Read a file."""
    return f"content of {path}"


@tool
async def alook(path: str) -> str:
    """Read a file."""
    return f"content of {path}"


def config(leg: tracing.Leg, **more: Any) -> Any:
    """The settings of a run."""
    return {"configurable": {"thread_id": "thread-1"}, "callbacks": leg.callbacks, **more}


async def run(graph: Any, leg: tracing.Leg, feed: Any, **more: Any) -> None:
    """Run a graph as the worker does."""
    graph.checkpointer = graph.checkpointer or InMemorySaver()
    async for _ in graph.astream(feed, config(leg, **more), durability="sync"):
        pass


async def test_sync_and_async_nodes_hold_their_model_and_tool_calls(recording, scripted_model):
    """Model and tool calls lie under the node that made them, whether it runs in a thread or on the event loop."""
    model = scripted_model()

    def plan(state: State) -> Any:
        model.invoke("what now?")
        look.invoke({"path": "a.py"})
        return {"log": ["plan"]}

    async def act(state: State) -> Any:
        await alook.ainvoke({"path": "a.py"})
        await model.ainvoke("and now?")
        return {"log": ["act"]}

    graph = StateGraph(State).add_node(plan).add_node(act).add_edge(START, "plan").add_edge("plan", "act").compile()
    with recording.leg() as leg:
        await run(graph, leg, {"log": []})
        leg.outcome("done")

    assert recording.tree() == (
        "invoke_agent agent\n"
        "  step 1 plan\n"
        "    chat scripted-1\n"
        "    execute_tool look\n"
        "  step 2 act\n"
        "    execute_tool alook\n"
        "    chat scripted-1"
    )


def test_a_synchronous_run_gives_the_same_tree(recording, scripted_model):
    """`stream` and `invoke` are traced like `astream`."""
    model = scripted_model()

    def plan(state: State) -> Any:
        model.invoke("what now?")
        return {"log": ["plan"]}

    def act(state: State) -> Any:
        look.invoke({"path": "a.py"})
        return {"log": ["act"]}

    graph = StateGraph(State).add_node(plan).add_node(act).add_edge(START, "plan").add_edge("plan", "act").compile()
    with recording.leg() as leg:
        graph.invoke({"log": []}, config(leg))
        leg.outcome("done")

    assert recording.tree() == (
        "invoke_agent agent\n  step 1 plan\n    chat scripted-1\n  step 2 act\n    execute_tool look"
    )


async def test_parallel_branches_do_not_mix(recording, scripted_model):
    """In a fan-out every branch holds its own calls, although all branches overlap in time."""
    everyone_here = asyncio.Barrier(3)
    threads_here = threading.Barrier(2)

    async def fetch(state: dict[str, Any]) -> Any:
        await everyone_here.wait()
        model = scripted_model(model=f"model-{state['name']}")
        await model.ainvoke("x")
        await everyone_here.wait()
        return {"log": [state["name"]]}

    def crunch(state: dict[str, Any]) -> Any:
        threads_here.wait(10)
        scripted_model(model=f"model-{state['name']}").invoke("x")
        threads_here.wait(10)
        return {"log": [state["name"]]}

    def spread(state: State) -> list[Send]:
        fetches = [Send("fetch", {"name": name}) for name in ("a", "b", "c")]
        return [*fetches, *[Send("crunch", {"name": name}) for name in ("d", "e")]]

    graph = StateGraph(State).add_node(fetch).add_node(crunch).add_conditional_edges(START, spread).compile()
    with recording.leg() as leg:
        await run(graph, leg, {"log": []})
        leg.outcome("done")

    lines = recording.tree().splitlines()
    pairs = sorted(zip(lines[2::2], lines[3::2], strict=True))
    assert lines[:2] == ["invoke_agent agent", "  step 0 __start__"]
    assert pairs == [
        *[("  step 1 crunch", f"    chat model-{name}") for name in "de"],
        *[("  step 1 fetch", f"    chat model-{name}") for name in "abc"],
    ]


async def test_a_subgraph_lies_under_the_node_that_runs_it(recording, scripted_model):
    """The steps of a subgraph are children of the parent graph's step, also two levels down."""
    model = scripted_model()

    def think(state: State) -> Any:
        model.invoke("hm")
        return {"log": ["think"]}

    inner = StateGraph(State).add_node(think).add_edge(START, "think").compile()
    middle = StateGraph(State).add_node("inner", inner).add_edge(START, "inner").compile()

    async def by_hand(state: State) -> Any:
        await inner.ainvoke({"log": []})
        return {"log": ["by hand"]}

    graph = StateGraph(State).add_node("middle", middle).add_node(by_hand)
    graph = graph.add_edge(START, "middle").add_edge("middle", "by_hand").compile(checkpointer=InMemorySaver())
    with recording.leg() as leg:
        await run(graph, leg, {"log": []})
        leg.outcome("done")

    assert recording.tree() == (
        "invoke_agent agent\n"
        "  step 1 middle\n"
        "    step 1 inner\n"
        "      step 1 think\n"
        "        chat scripted-1\n"
        "  step 2 by_hand\n"
        "    step 1 think\n"
        "      chat scripted-1"
    )


async def test_chains_inside_a_node_have_no_spans_of_their_own(recording, scripted_model):
    """Runnables, branch functions and writers are passed through; what they call lies under the node."""
    chain = RunnableLambda(lambda text: f"<{text}>") | scripted_model() | RunnableLambda(lambda message: message.text)

    async def plan(state: State) -> Any:
        return {"log": [await chain.ainvoke("x")]}

    def branch(state: State) -> str:
        return END

    graph = StateGraph(State).add_node(plan).add_edge(START, "plan").add_conditional_edges("plan", branch).compile()
    with recording.leg() as leg:
        await run(graph, leg, {"log": []})
        leg.outcome("done")

    assert recording.tree() == "invoke_agent agent\n  step 1 plan\n    chat scripted-1"


async def test_the_functional_api_is_traced_too(recording, scripted_model):
    """An entrypoint is a step, and so are its tasks."""
    model = scripted_model()

    @task
    async def ask(question: str) -> str:
        return (await model.ainvoke(question)).text

    @entrypoint()
    async def agent(question: str) -> str:
        return await ask(question)

    with recording.leg() as leg:
        await run(agent, leg, "why?")
        leg.outcome("done")

    assert recording.tree() == ("invoke_agent agent\n  step 0 agent\n    step 0 ask\n      chat scripted-1")


async def test_a_streaming_call_tells_when_its_first_chunk_came(recording, scripted_model):
    """A streamed answer is one span with usage, finish reason, and the time to its first chunk in both dialects."""
    model = scripted_model()

    async def talk(state: State) -> Any:
        return {"log": [chunk.text async for chunk in model.astream("go")]}

    graph = StateGraph(State).add_node(talk).add_edge(START, "talk").compile()
    with recording.leg() as leg:
        await run(graph, leg, {"log": []})
        leg.outcome("done")

    assert recording.tree() == "invoke_agent agent\n  step 1 talk\n    chat scripted-1"
    chat = recording.named("chat scripted-1")
    seconds = (chat.end_time - chat.start_time) / 1e9
    assert chat.attributes["gen_ai.request.stream"] is True
    assert 0 < chat.attributes["gen_ai.response.time_to_first_chunk"] <= seconds
    assert chat.attributes["langfuse.observation.completion_start_time"].endswith("Z")
    assert chat.attributes["gen_ai.usage.output_tokens"] == 4
    assert chat.attributes["gen_ai.response.finish_reasons"] == ("stop",)


@pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainBetaWarning")
async def test_event_streaming_tells_the_first_chunk_as_well(recording, scripted_model):
    """LangChain's v3 event stream has no token callback; its first event counts."""
    model = scripted_model()

    async def talk(state: State) -> Any:
        stream = await model.astream_events("go", version="v3")
        return {"log": [(await stream.output).text]}

    graph = StateGraph(State).add_node(talk).add_edge(START, "talk").compile()
    with recording.leg() as leg:
        await run(graph, leg, {"log": []})
        leg.outcome("done")

    assert recording.named("chat scripted-1").attributes["gen_ai.response.time_to_first_chunk"] > 0


async def test_a_model_call_carries_the_genai_attributes(recording, scripted_model):
    """Operation, models, usage with cache, finish reason and response id stand on a CLIENT span."""

    def plan(state: State) -> Any:
        return {"log": [scripted_model().invoke("x").text]}

    graph = StateGraph(State).add_node(plan).add_edge(START, "plan").compile()
    with recording.leg() as leg:
        await run(graph, leg, {"log": []})
        leg.outcome("done")

    chat = recording.named("chat scripted-1")
    told = {key: value for key, value in chat.attributes.items() if key.startswith("gen_ai.")}
    assert chat.kind is SpanKind.CLIENT
    assert told == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "scriptedmodel",
        "gen_ai.request.model": "scripted-1",
        "gen_ai.response.model": "scripted-1-0601",
        "gen_ai.response.id": "answer-7",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 11,
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.usage.cache_read.input_tokens": 3,
        "gen_ai.conversation.id": "thread-1",
    }


@pytest.mark.parametrize("streams", [False, True])
async def test_models_that_name_nothing_are_traced(recording, streams):
    """LangChain's own fake models, which tell neither model nor usage, give a plain `chat` span."""
    models = [GenericFakeChatModel(messages=iter([AIMessage("a b")])), FakeListChatModel(responses=["c d"])]

    async def talk(state: State) -> Any:
        for model in models:
            if streams:
                _ = [chunk async for chunk in model.astream("go")]
            else:
                await model.ainvoke("go")
        return {"log": []}

    graph = StateGraph(State).add_node(talk).add_edge(START, "talk").compile()
    with recording.leg() as leg:
        await run(graph, leg, {"log": []})
        leg.outcome("done")

    assert recording.tree() == "invoke_agent agent\n  step 1 talk\n    chat\n    chat"


async def test_a_tool_call_carries_its_name_and_call_id(recording):
    """A tool call made by a model is recognised by the model's call id."""

    def act(state: State) -> Any:
        look.invoke({"type": "tool_call", "id": "call-9", "name": "look", "args": {"path": "a"}})
        return {"log": []}

    graph = StateGraph(State).add_node(act).add_edge(START, "act").compile()
    with recording.leg() as leg:
        await run(graph, leg, {"log": []})
        leg.outcome("done")

    attributes = recording.named("execute_tool look").attributes
    assert attributes["gen_ai.operation.name"] == "execute_tool"
    assert attributes["gen_ai.tool.name"] == "look"
    assert attributes["gen_ai.tool.type"] == "function"
    assert attributes["gen_ai.tool.call.id"] == "call-9"


async def test_an_interrupt_pauses_and_the_next_leg_resumes(recording):
    """An interrupt is no error, also inside a subgraph; the leg that resumes is another trace, linked to the first."""

    def ask(state: State) -> Any:
        return {"log": [interrupt("delete 14 files?")]}

    inner = StateGraph(State).add_node(ask).add_edge(START, "ask").compile()
    graph = StateGraph(State).add_node("inner", inner).add_edge(START, "inner").compile(checkpointer=InMemorySaver())
    with recording.leg(1) as leg:
        await run(graph, leg, {"log": []})
        leg.outcome("review")
    question = graph.get_state({"configurable": {"thread_id": "thread-1"}}).interrupts[0]
    with recording.leg(2) as leg:
        await run(graph, leg, Command(resume={question.id: "yes"}))
        leg.outcome("done")

    assert recording.tree() == (
        "invoke_agent agent\n  step 1 inner\n    step 1 ask\ninvoke_agent agent\n  step 1 inner\n    step 1 ask"
    )
    first, second = sorted((span for span in recording.spans if span.parent is None), key=lambda span: span.start_time)
    paused = first.attributes["everstep.interrupt.checkpoint.id"]
    assert first.attributes["langfuse.observation.status_message"] == "paused for review"
    assert first.attributes["everstep.outcome"] == "review"
    assert second.attributes["everstep.resume.checkpoint.id"] == paused
    assert f"{first.context.trace_id:032x}" == tracing.trace_id("job-1", 1)
    assert f"{first.context.span_id:016x}" == tracing.root_span_id("job-1", 1)
    assert [link.context for link in second.links] == [
        trace.SpanContext(first.context.trace_id, first.context.span_id, True, trace.TraceFlags(1))
    ]
    assert second.attributes["langfuse.trace.metadata.previous_trace_id"] == tracing.trace_id("job-1", 1)
    asked = [span for span in recording.spans if span.name == "step 1 ask"]
    assert asked[0].attributes["everstep.interrupt.ids"] == (question.id,)
    assert asked[0].attributes["everstep.outcome"] == "interrupted"


async def test_a_command_to_the_parent_graph_is_no_error(recording):
    """LangGraph steers by exceptions; `Command(graph=PARENT)` leaves every span without an error."""

    def leave(state: State) -> Command[Any]:
        return Command(graph=Command.PARENT, goto="after", update={"log": ["left"]})

    inner = StateGraph(State).add_node(leave).add_edge(START, "leave").compile()
    graph = (
        StateGraph(State)
        .add_node("inner", inner, destinations=("after",))
        .add_node("after", lambda state: {"log": ["after"]})
    )
    graph = graph.add_edge(START, "inner").compile()
    with recording.leg() as leg:
        await run(graph, leg, {"log": []})
        leg.outcome("done")

    assert recording.tree() == "invoke_agent agent\n  step 1 inner\n    step 1 leave\n  step 2 after"


async def test_session_trace_name_and_job_stand_on_every_span(recording, scripted_model):
    """Langfuse filters spans, not traces: each span alone tells session, user, trace name, tags, job and leg."""

    def plan(state: State) -> Any:
        scripted_model().invoke("x")
        look.invoke({"path": "a"})
        with tracing.effect("git.push", "digest"):
            pass
        return {"log": []}

    graph = StateGraph(State).add_node(plan).add_edge(START, "plan").compile()
    with recording.leg(3, user_id="user-1", tags=["nightly"]) as leg:
        await run(graph, leg, {"log": []})
        leg.outcome("done")

    assert len(recording.spans) == 5
    for span in recording.spans:
        expected = {
            "session.id": "thread-1",
            "gen_ai.conversation.id": "thread-1",
            "user.id": "user-1",
            "langfuse.trace.name": "agent",
            "langfuse.trace.tags": ("nightly",),
            "langfuse.trace.metadata.job_id": "job-1",
            "langfuse.trace.metadata.leg": 3,
            "langfuse.trace.metadata.thread_id": "thread-1",
            "langfuse.trace.metadata.previous_trace_id": tracing.trace_id("job-1", 2),
            "everstep.job.id": "job-1",
            "everstep.leg": 3,
        }
        assert expected.items() <= dict(span.attributes).items(), span.name
        assert span.context.trace_id == int(tracing.trace_id("job-1", 3), 16)


async def test_two_jobs_on_one_event_loop_stay_apart(recording, scripted_model):
    """Legs that run at the same time in one process never share a span, a session or a current leg."""
    both_here = asyncio.Barrier(2)

    async def plan(state: State) -> Any:
        await both_here.wait()
        await scripted_model().ainvoke("x")
        with tracing.effect("mail.send", "digest"):
            await both_here.wait()
        return {"log": []}

    graph = StateGraph(State).add_node(plan).add_edge(START, "plan").compile()

    async def job(name: str) -> None:
        with recording.leg(job_id=name, thread_id=f"thread-{name}") as leg:
            await run(graph, leg, {"log": []})
            leg.outcome("done")

    await asyncio.gather(job("one"), job("two"))
    assert recording.tree() == "\n".join(
        ["invoke_agent agent\n  step 1 plan\n    chat scripted-1\n    effect mail.send"] * 2
    )
    for span in recording.spans:
        assert span.attributes["session.id"] == f"thread-{span.attributes['everstep.job.id']}"
        assert span.context.trace_id == int(tracing.trace_id(span.attributes["everstep.job.id"], 1), 16)


async def test_other_libraries_see_the_step_as_the_current_span(recording, caplog):
    """In nodes OpenTelemetry's current span is the step, afterwards what it was, and no context fails to detach."""
    seen: dict[str, int] = {}

    def note(name: str) -> Any:
        seen[name] = trace.get_current_span().get_span_context().span_id
        return {"log": [name]}

    async def first(state: State) -> Any:
        return note("first")

    def second(state: State) -> Any:
        return note("second")

    graph = StateGraph(State).add_node(first).add_node(second).add_edge(START, "first").add_edge("first", "second")
    before = trace.get_current_span()
    with caplog.at_level(logging.DEBUG), recording.leg() as leg:
        await run(graph.compile(), leg, {"log": []})
        leg.outcome("done")

    assert trace.get_current_span() is before
    assert tracing.current_leg().callbacks == []
    assert seen["first"] == recording.named("step 1 first").context.span_id
    assert seen["second"] == recording.named("step 2 second").context.span_id
    assert "detach" not in caplog.text


async def test_a_node_that_is_retried_shows_each_attempt(recording):
    """A node that fails and then succeeds is two spans: attempt 1 a warning, attempt 2 clean."""
    tries: list[str] = []

    def flaky(state: State) -> Any:
        look.invoke({"path": "a"})
        tries.append("x")
        if len(tries) == 1:
            raise ConnectionError("reset by peer")
        return {"log": []}

    policy = RetryPolicy(initial_interval=0.001, jitter=False)
    graph = StateGraph(State).add_node("flaky", flaky, retry_policy=policy).add_edge(START, "flaky").compile()
    with recording.leg() as leg:
        await run(graph, leg, {"log": []})
        leg.outcome("done")

    assert recording.tree() == (
        "invoke_agent agent\n  step 1 flaky ! WARNING\n    execute_tool look\n  step 1 flaky\n    execute_tool look"
    )
    attempts = [span.attributes["everstep.node.attempt"] for span in recording.spans if span.name == "step 1 flaky"]
    assert attempts == [1, 2]
