"""What a trace says of failures: where, why, how to go on; and whether it is an error or only a warning."""

from __future__ import annotations

import asyncio
import logging
import operator
import threading
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import RetryPolicy, interrupt

from everstep.errors import Cancelled
from everstep.observability import guard, model_call, tracing

RETRY_ONCE = RetryPolicy(max_attempts=2, initial_interval=0.001, jitter=False)


class State(TypedDict):
    log: Annotated[list[str], operator.add]


@tool
def push(branch: str) -> str:
    """Push a branch."""
    raise PermissionError(f"no right to push {branch}")


def single(node: Any, **more: Any) -> Any:
    """A graph of one node."""
    return StateGraph(State).add_node("work", node, **more).add_edge(START, "work").compile()


async def attempt(graph: Any, leg: tracing.Leg, outcome: tracing.Outcome) -> None:
    """Run a graph as the worker does, and tell the outcome of its exception."""
    graph.checkpointer = graph.checkpointer or InMemorySaver()
    settings: Any = {"configurable": {"thread_id": "thread-1"}, "callbacks": leg.callbacks}
    try:
        async for _ in graph.astream({"log": []}, settings, durability="sync"):
            pass
    except Exception as error:
        leg.outcome(outcome, error=error)
    else:
        leg.outcome(outcome)


async def test_a_failed_step_tells_all_that_is_needed_to_go_on(recording):
    """Status, type, stack trace, place in the graph and the command that resumes stand on the failing span itself."""

    def work(state: State) -> Any:
        raise ConnectionResetError("peer closed the connection")

    with recording.leg() as leg:
        leg.committed("checkpoint-40")
        await attempt(single(work), leg, "failed")

    assert recording.tree() == "invoke_agent agent !\n  step 1 work !"
    step = recording.named("step 1 work")
    assert step.status.description == "ConnectionResetError: peer closed the connection"
    attributes = dict(step.attributes)
    namespace = attributes.pop("everstep.checkpoint.ns")
    assert namespace.startswith("work:")
    expected = {
        "error.type": "ConnectionResetError",
        "everstep.step": 1,
        "everstep.node": "work",
        "everstep.node.attempt": 1,
        "everstep.checkpoint.id": "checkpoint-40",
        "everstep.resume_command": "everstep retry job-1",
        "langfuse.observation.metadata.step": 1,
        "langfuse.observation.metadata.node": "work",
        "langfuse.observation.metadata.attempt": 1,
        "langfuse.observation.metadata.checkpoint_id": "checkpoint-40",
        "langfuse.observation.metadata.checkpoint_ns": namespace,
        "langfuse.observation.metadata.resume_command": "everstep retry job-1",
        "langfuse.observation.metadata.langgraph_step": 1,
        "langfuse.observation.metadata.langgraph_node": "work",
        "langfuse.observation.type": "chain",
    }
    assert expected.items() <= attributes.items()
    stack = attributes["langfuse.observation.metadata.stacktrace"]
    named, place, source = stack.splitlines()
    assert named == "ConnectionResetError: peer closed the connection"
    assert place.startswith("  at ")
    assert place.endswith(" work")
    assert source == '    | raise ConnectionResetError("peer closed the connection")'
    (whole,) = [event.attributes["exception.stacktrace"] for event in step.events]
    assert "langgraph" in whole
    assert whole.rstrip().endswith(named)
    root = recording.named("invoke_agent agent")
    assert root.status.description == "ConnectionResetError: peer closed the connection"
    assert root.attributes["everstep.outcome"] == "failed"
    assert root.attributes["everstep.resume_command"] == "everstep retry job-1"


async def test_an_attempt_that_will_be_retried_is_a_warning(recording, scripted_model):
    """When the worker tries the job again, every failure of this leg has level WARNING; the status keeps the error."""

    def work(state: State) -> Any:
        return {"log": [scripted_model(error=TimeoutError("no answer")).invoke("x").text]}

    with recording.leg() as leg:
        await attempt(single(work), leg, "retry")

    assert recording.tree() == ("invoke_agent agent ! WARNING\n  step 1 work ! WARNING\n    chat scripted-1 ! WARNING")
    assert "everstep.resume_command" not in recording.named("invoke_agent agent").attributes


async def test_a_failing_model_call_knows_its_place(recording, scripted_model):
    """The failing call itself, and not only the step around it, tells step, node and how to resume; all are errors."""

    async def work(state: State) -> Any:
        return {"log": [(await scripted_model(error=TimeoutError("no answer")).ainvoke("x")).text]}

    with recording.leg() as leg:
        await attempt(single(work), leg, "failed")

    assert recording.tree() == "invoke_agent agent !\n  step 1 work !\n    chat scripted-1 !"
    attributes = recording.named("chat scripted-1").attributes
    assert attributes["everstep.step"] == 1
    assert attributes["everstep.node"] == "work"
    assert attributes["everstep.resume_command"] == "everstep retry job-1"
    assert attributes["error.type"] == "TimeoutError"


async def test_a_tool_error_that_the_node_handles_is_a_warning(recording):
    """A node that catches its tool's exception and goes on leaves the trace without an error."""

    async def work(state: State) -> Any:
        try:
            await push.ainvoke({"branch": "main"})
        except PermissionError as error:
            return {"log": [str(error)]}

    with recording.leg() as leg:
        await attempt(single(work), leg, "done")

    assert recording.tree() == "invoke_agent agent\n  step 1 work\n    execute_tool push ! WARNING"


async def test_of_two_failed_attempts_only_the_last_is_the_error(recording, scripted_model):
    """LangGraph tried the node again: the first attempt and all in it are warnings, the last one is the failure."""

    def work(state: State) -> Any:
        scripted_model(error=TimeoutError("no answer")).invoke("x")

    with recording.leg() as leg:
        await attempt(
            single(
                work,
                retry_policy=RetryPolicy(max_attempts=2, initial_interval=0.001, jitter=False, retry_on=TimeoutError),
            ),
            leg,
            "failed",
        )

    assert recording.tree() == (
        "invoke_agent agent !\n"
        "  step 1 work ! WARNING\n"
        "    chat scripted-1 ! WARNING\n"
        "  step 1 work !\n"
        "    chat scripted-1 !"
    )


async def test_a_retried_subgraph_takes_its_failed_steps_along(recording):
    """When the node around a subgraph is tried again, the failed step inside the first try is a warning too."""
    tries: list[str] = []

    def deep(state: State) -> Any:
        tries.append("x")
        if len(tries) == 1:
            raise ConnectionError("once")
        return {"log": []}

    inner = StateGraph(State).add_node(deep).add_edge(START, "deep").compile()
    with recording.leg() as leg:
        await attempt(single(inner, retry_policy=RETRY_ONCE), leg, "done")

    assert recording.tree() == (
        "invoke_agent agent\n  step 1 work ! WARNING\n    step 1 deep ! WARNING\n  step 1 work\n    step 1 deep"
    )


async def test_an_error_that_needs_a_person_is_an_error(recording):
    """A review caused by an exception keeps level ERROR and points to the review; a review by interrupt is none."""

    def work(state: State) -> Any:
        raise PermissionError("401")

    with recording.leg() as leg:
        await attempt(single(work), leg, "review")

    assert recording.tree() == "invoke_agent agent !\n  step 1 work !"
    assert recording.named("invoke_agent agent").attributes["everstep.resume_command"] == "everstep review"


async def test_an_interrupt_inside_a_tool_is_no_error(recording):
    """A tool that asks a person is paused, not failed, and neither is the step around it."""

    @tool
    def delete(path: str) -> str:
        """Delete a file."""
        return interrupt(f"delete {path}?")

    async def work(state: State) -> Any:
        return {"log": [await delete.ainvoke({"path": "a"})]}

    with recording.leg() as leg:
        await attempt(single(work), leg, "review")

    assert recording.tree() == "invoke_agent agent\n  step 1 work\n    execute_tool delete"
    assert (
        recording.named("execute_tool delete").attributes["langfuse.observation.status_message"] == "paused for review"
    )


async def test_a_cancelled_run_is_not_failed(recording, scripted_model):
    """A run cancelled from outside (lost lease, shutdown) ends its open spans without calling them errors."""
    inside = asyncio.Event()

    async def work(state: State) -> Any:
        inside.set()
        await asyncio.Event().wait()

    async def job() -> None:
        with recording.leg() as leg:
            await attempt(single(work), leg, "done")

    running = asyncio.create_task(job())
    await inside.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert recording.tree() == "invoke_agent agent\n  step 1 work"
    assert recording.named("step 1 work").attributes["everstep.outcome"] == "CancelledError"
    assert recording.named("invoke_agent agent").attributes["everstep.outcome"] == "cancelled"


async def test_what_still_runs_when_the_leg_ends_is_marked_as_abandoned(recording):
    """A thread that outlives its run has its span ended with the leg; what it starts later is not recorded."""
    inside, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    @tool
    def crunch(path: str) -> str:
        """Crunch numbers."""
        inside.set()
        go_on.wait(10)
        return path

    def work(state: State) -> Any:
        try:
            crunch.invoke({"path": "a"})
            with tracing.effect("late", "digest"), pytest.raises(PermissionError):
                push.invoke({"branch": "late"})
            return {"log": []}
        finally:
            ended.set()

    async def job() -> None:
        with recording.leg() as leg:
            await attempt(single(work), leg, "done")

    running = asyncio.create_task(job())
    await asyncio.to_thread(inside.wait, 10)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    go_on.set()
    await asyncio.to_thread(ended.wait, 10)

    assert recording.tree() == "invoke_agent agent\n  step 1 work\n    execute_tool crunch"
    assert recording.named("execute_tool crunch").attributes["everstep.outcome"] == "abandoned"


@pytest.mark.parametrize("outcome", ["released", "done"])
async def test_a_leg_given_back_or_done_is_no_error(recording, outcome):
    """`released` and `done` leave the root without an error, and say so."""
    with recording.leg() as leg:
        leg.outcome(outcome, detail="the worker shuts down")

    root = recording.named("invoke_agent agent")
    assert recording.tree() == "invoke_agent agent"
    assert root.attributes["langfuse.observation.metadata.status"] == outcome
    assert root.attributes["langfuse.observation.status_message"] == "the worker shuts down"


def test_a_leg_that_is_left_by_an_exception_shows_it(recording):
    """An exception that escapes before any outcome was told passes on unchanged and stands on the root."""
    with pytest.raises(ZeroDivisionError), recording.leg():
        _ = 1 / 0

    assert recording.tree() == "invoke_agent agent !"
    assert recording.named("invoke_agent agent").status.description == "ZeroDivisionError: division by zero"


async def test_our_own_errors_are_told_with_their_code(recording):
    """An Everstep error keeps its module in the type and its code and next step in the message."""

    def work(state: State) -> Any:
        raise Cancelled("The job was cancelled.", next_step="Nothing.")

    with recording.leg() as leg:
        await attempt(single(work), leg, "failed")

    step = recording.named("step 1 work")
    assert step.attributes["error.type"] == "everstep.errors.Cancelled"
    assert step.status.description == "Cancelled: The job was cancelled. [cancelled] Next: Nothing."


async def test_a_huge_message_is_bounded(recording):
    """A megabyte of exception text leaves at most 2 KiB of status and 8 KiB of stack trace."""

    def work(state: State) -> Any:
        raise ValueError("x" * 1_000_000)

    with recording.leg() as leg:
        await attempt(single(work), leg, "failed")

    step = recording.named("step 1 work")
    assert len(step.status.description.encode()) <= 2_048
    assert len(step.attributes["langfuse.observation.metadata.stacktrace"].encode()) <= 8_192
    assert step.attributes["langfuse.observation.metadata.stacktrace"].startswith("ValueError: xxx")
    assert "bytes cut" in step.status.description


async def test_an_exception_without_readable_text_is_told_by_its_type(recording):
    """An exception whose `__str__` raises costs neither the run nor the span."""

    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    def work(state: State) -> Any:
        raise Mute

    with recording.leg() as leg:
        await attempt(single(work), leg, "failed")

    assert recording.tree() == "invoke_agent agent !\n  step 1 work !"
    assert recording.named("step 1 work").status.description.startswith("Mute: ")


async def test_a_step_names_only_the_checkpoint_it_runs_from(recording):
    """The checkpoint told last belongs to one step; without news a later step names none rather than a wrong one."""
    graph = StateGraph(State).add_node("one", lambda state: {"log": []}).add_node("two", lambda state: {"log": []})
    graph = graph.add_edge(START, "one").add_edge("one", "two").compile()
    with recording.leg() as leg:
        leg.committed("checkpoint-1")
        await attempt(graph, leg, "done")

    assert recording.named("step 1 one").attributes["everstep.checkpoint.id"] == "checkpoint-1"
    assert "everstep.checkpoint.id" not in recording.named("step 2 two").attributes


async def test_steps_name_the_checkpoints_that_a_saver_tells(recording):
    """A saver that tells each commit gives every step the checkpoint it runs from, also in subgraphs."""

    class TellingSaver(InMemorySaver):
        async def aput(self, config: Any, checkpoint: Any, *rest: Any) -> Any:
            stored = await super().aput(config, checkpoint, *rest)
            tracing.current_leg().committed(checkpoint["id"], config["configurable"]["checkpoint_ns"])
            return stored

    ran_from: dict[str, str] = {}

    def note(state: State, runtime: Runtime) -> Any:
        info = runtime.execution_info
        ran_from[info.checkpoint_ns] = info.checkpoint_id
        return {"log": []}

    async def anote(state: State, runtime: Runtime) -> Any:
        return note(state, runtime)

    inner = StateGraph(State).add_node("deep", note).add_node("deeper", anote)
    inner = inner.add_edge(START, "deep").add_edge("deep", "deeper").compile()
    graph = StateGraph(State).add_node("one", note).add_node("inner", inner).add_node("two", anote)
    graph = graph.add_edge(START, "one").add_edge("one", "inner").add_edge("inner", "two")
    with recording.leg() as leg:
        await attempt(graph.compile(checkpointer=TellingSaver()), leg, "done")

    named = {
        span.attributes["everstep.checkpoint.ns"]: span.attributes["everstep.checkpoint.id"]
        for span in recording.spans
        if span.name.startswith("step") and span.name != "step 2 inner"
    }
    assert named == ran_from
    assert len(ran_from) == 4


async def test_a_fault_in_tracing_never_breaks_the_run(recording, scripted_model, monkeypatch, caplog):
    """When recording a model call raises, the call goes on, its span is missing, and one warning says so."""

    def broken(*_: Any) -> Any:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(model_call, "request_attributes", broken)
    monkeypatch.setattr(guard, "_told", set())

    def work(state: State) -> Any:
        return {"log": [scripted_model().invoke("x").text for _ in range(3)]}

    with caplog.at_level(logging.WARNING), recording.leg() as leg:
        await attempt(single(work), leg, "done")

    assert recording.tree() == "invoke_agent agent\n  step 1 work"
    assert [entry.levelname for entry in caplog.records] == ["WARNING"]
    assert "the run goes on without this span" in caplog.text
