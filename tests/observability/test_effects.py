"""Effects in traces: under the node or tool that performs them, with the state that the ledger gave them."""

from __future__ import annotations

import asyncio
import operator
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

from everstep.observability import tracing


class State(TypedDict):
    log: Annotated[list[str], operator.add]


def single(node: Any) -> Any:
    """A graph of one node."""
    return StateGraph(State).add_node("work", node).add_edge(START, "work").compile(checkpointer=InMemorySaver())


async def run(graph: Any, leg: tracing.Leg) -> None:
    """Run a graph as the worker does."""
    settings: Any = {"configurable": {"thread_id": "thread-1"}, "callbacks": leg.callbacks}
    async for _ in graph.astream({"log": []}, settings, durability="sync"):
        pass
    leg.outcome("done")


@tool
def send_mail(to: str) -> str:
    """Send a mail."""
    with tracing.effect("mail.send", "digest-1") as span:
        span.state = "confirmed"
    return "sent"


@tool
async def send_mail_async(to: str) -> str:
    """Send a mail."""
    with tracing.effect("mail.send", "digest-2") as span:
        await asyncio.sleep(0)
        span.state = "confirmed"
    return "sent"


async def test_an_effect_lies_under_the_node_that_performs_it(recording):
    """In async nodes, sync nodes and threads with a copied context the effect's parent is the step."""

    async def work(state: State) -> Any:
        with tracing.effect("file.write", "digest") as span:
            span.state = "confirmed"

        def in_thread() -> None:
            with tracing.current_leg().effect("git.push", "digest") as span:
                span.state = "unknown"

        await asyncio.to_thread(in_thread)
        return {"log": []}

    with recording.leg() as leg:
        await run(single(work), leg)

    assert recording.tree() == "invoke_agent agent\n  step 1 work\n    effect file.write\n    effect git.push"
    attributes = recording.named("effect git.push").attributes
    assert attributes["everstep.effect.name"] == "git.push"
    assert attributes["everstep.effect.state"] == "unknown"
    assert attributes["everstep.effect.key_digest"] == "digest"


async def test_an_effect_in_a_tool_lies_under_the_tool_call(recording):
    """A tool's effects belong to its call, and those after it to the step again, in sync and async code."""

    async def work(state: State) -> Any:
        await send_mail_async.ainvoke({"to": "a"})
        send_mail.invoke({"to": "b"})
        with tracing.effect("file.write", "digest-3"):
            pass
        return {"log": []}

    with recording.leg() as leg:
        await run(single(work), leg)

    assert recording.tree() == (
        "invoke_agent agent\n"
        "  step 1 work\n"
        "    execute_tool send_mail_async\n"
        "      effect mail.send\n"
        "    execute_tool send_mail\n"
        "      effect mail.send\n"
        "    effect file.write"
    )


async def test_parallel_effects_stay_under_their_own_tools(recording):
    """Two tools that run at the same time in one node keep their effects apart."""
    both_here = asyncio.Barrier(2)

    @tool
    async def deliver(name: str) -> str:
        """Deliver."""
        await both_here.wait()
        with tracing.effect(f"deliver.{name}", "digest"):
            await both_here.wait()
        return name

    async def work(state: State) -> Any:
        await asyncio.gather(deliver.ainvoke({"name": "a"}), deliver.ainvoke({"name": "b"}))
        return {"log": []}

    with recording.leg() as leg:
        await run(single(work), leg)

    effects = [span for span in recording.spans if span.name.startswith("effect")]
    tools = [span.context.span_id for span in recording.spans if span.name == "execute_tool deliver"]
    assert sorted(span.parent.span_id for span in effects) == sorted(tools)


async def test_an_effect_that_raises_is_marked_and_the_exception_passes(recording):
    """The exception reaches the caller unchanged; the effect's span fails with the state it had."""

    def work(state: State) -> Any:
        try:
            with tracing.effect("git.push", "digest") as span:
                span.state = "ambiguous"
                raise ConnectionResetError("after the push")
        except ConnectionResetError:
            return {"log": []}

    with recording.leg() as leg:
        await run(single(work), leg)

    assert recording.tree() == "invoke_agent agent\n  step 1 work\n    effect git.push ! WARNING"
    assert recording.named("effect git.push").attributes["everstep.effect.state"] == "ambiguous"


def test_an_effect_outside_a_graph_lies_under_the_leg(recording):
    """Code that runs in a leg but in no node is recorded at the root."""
    with recording.leg() as leg:
        with tracing.effect("mail.send", "digest"):
            pass
        leg.outcome("done")

    assert recording.tree() == "invoke_agent agent\n  effect mail.send"


def test_without_a_leg_an_effect_is_a_plain_block():
    """Outside a job nothing is recorded and exceptions pass."""
    with tracing.effect("mail.send", "digest") as span:
        span.state = "confirmed"
    with pytest.raises(KeyError), tracing.effect("mail.send", "digest"):
        raise KeyError("x")
