"""Graphs of every shape a job can be killed in. Each acts on the outside world and keeps a log in its state."""

from __future__ import annotations

import operator
from datetime import timedelta
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, RemoveMessage
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt

from everstep import ApprovalRejected, await_for, current_job, sleep_until, wait_for
from tests.support.accepted import Talk
from tests.support.jobs import chain
from tests.support.models import MeteredModel
from tests.support.outside import act, act_approved, act_approved_blindly, act_async, act_blindly, note


class State(TypedDict, total=False):
    world: str
    count: int
    log: Annotated[list[str], operator.add]


class Conversation(State, total=False):
    messages: Annotated[list[Any], add_messages]


def bodies(state: State, name: str) -> None:
    """Note, outside the ledger, that a node's body started."""
    note(state["world"] + ".bodies", name)


def linear() -> Any:
    """Five nodes in a row, sync and async in turn, each with an effect."""
    builder = StateGraph(State)

    def sync_node(name: str) -> Any:
        def node(state: State) -> State:
            bodies(state, name)
            return {"log": [act(state["world"], name)]}

        return node

    def async_node(name: str) -> Any:
        async def node(state: State) -> State:
            bodies(state, name)
            return {"log": [await act_async(state["world"], name)]}

        return node

    names = ["a", "b", "c", "d", "e"]
    for index, name in enumerate(names):
        builder.add_node(name, (async_node if index % 2 else sync_node)(name))
    for before, after in zip([START, *names], [*names, END], strict=True):
        builder.add_edge(before, after)
    return builder.compile()


def looping() -> Any:
    """One node that loops, with the same effect name and two equal calls each time."""
    builder = StateGraph(State)

    def step(state: State) -> State:
        number = state.get("count", 0)
        bodies(state, f"step {number}")
        return {"count": number + 1, "log": [act(state["world"], f"{number}"), act(state["world"], f"{number} again")]}

    builder.add_node("step", step)
    builder.add_edge(START, "step")
    builder.add_conditional_edges("step", lambda state: "step" if state["count"] < 4 else END)
    return builder.compile()


def talking() -> Any:
    """A conversation that is stored by its growth: messages are added, one is replaced, one removed."""
    text = "word " * 500
    builder = StateGraph(Conversation)

    def say(state: Conversation) -> Any:
        count = state.get("count", 0)
        bodies(state, f"say {count}")
        said: list[Any] = [AIMessage(f"{count} {act(state['world'], f'say {count}')} {text}", id=str(count))]
        if count == 2:
            said += [AIMessage("instead", id="1"), RemoveMessage(id="0")]
        return {"count": count + 1, "messages": said}

    builder.add_node("say", say)
    builder.add_edge(START, "say")
    builder.add_conditional_edges("say", lambda state: "say" if state["count"] < 5 else END)
    return builder.compile()


def asking() -> Any:
    """An effect before a question, two questions in one node with an effect between them, and an effect after."""
    builder = StateGraph(State)

    def ask(state: State) -> State:
        before = act(state["world"], "before")
        first = interrupt({"question": "first"})
        between = act(state["world"], f"between {first}")
        second = interrupt({"question": "second"})
        return {"log": [before, between, act(state["world"], f"after {second}")]}

    builder.add_node("ask", ask)
    builder.add_node("end", lambda state: {"log": [act(state["world"], "end")]})
    builder.add_edge(START, "ask")
    builder.add_edge("ask", "end")
    builder.add_edge("end", END)
    return builder.compile()


def parallel() -> Any:
    """Two branches that ask at the same time, and one that only works."""
    builder = StateGraph(State)

    def branch(name: str) -> Any:
        def node(state: State) -> State:
            answer = interrupt({"question": name})
            return {"log": [act(state["world"], f"{name} {answer}")]}

        return node

    builder.add_node("left", branch("left"))
    builder.add_node("right", branch("right"))
    builder.add_node("busy", lambda state: {"log": [act(state["world"], "busy")]})
    builder.add_node("join", lambda state: {"log": [act(state["world"], "join")]})
    for name in ("left", "right", "busy"):
        builder.add_edge(START, name)
    builder.add_edge(["left", "right", "busy"], "join")
    builder.add_edge("join", END)
    return builder.compile()


def nested() -> Any:
    """A subgraph that a node calls, with an effect, a question and another effect."""
    inner = StateGraph(State)

    def inner_ask(state: State) -> State:
        answer = interrupt({"question": "inner"})
        return {"log": [act(state["world"], f"inner {answer}")]}

    inner.add_node("one", lambda state: {"log": [act(state["world"], "inner one")]})
    inner.add_node("inner_ask", inner_ask)
    inner.add_node("two", lambda state: {"log": [act(state["world"], "inner two")]})
    inner.add_edge(START, "one")
    inner.add_edge("one", "inner_ask")
    inner.add_edge("inner_ask", "two")
    inner.add_edge("two", END)

    subgraph = inner.compile()

    outer = StateGraph(State)
    outer.add_node("first", lambda state: {"log": [act(state["world"], "outer first")]})
    outer.add_node("inner", lambda state: {"log": subgraph.invoke({"world": state["world"], "log": []})["log"]})
    outer.add_node("last", lambda state: {"log": [act(state["world"], "outer last")]})
    outer.add_edge(START, "first")
    outer.add_edge("first", "inner")
    outer.add_edge("inner", "last")
    outer.add_edge("last", END)
    return outer.compile()


def subgraph_node() -> Any:
    """A compiled subgraph as a node, with a question inside."""

    class Sub(TypedDict, total=False):
        world: str
        found: Annotated[list[str], operator.add]

    def ask(state: Sub) -> Sub:
        answer = interrupt({"question": "inside"})
        return {"found": [act(state["world"], f"inside {answer}")]}

    inner = StateGraph(Sub)
    inner.add_node("look", lambda state: {"found": [act(state["world"], "look")]})
    inner.add_node("ask", ask)
    inner.add_node("finish", lambda state: {"found": [act(state["world"], "finish")]})
    inner.add_edge(START, "look")
    inner.add_edge("look", "ask")
    inner.add_edge("ask", "finish")
    inner.add_edge("finish", END)

    class Outer(TypedDict, total=False):
        world: str
        found: Annotated[list[str], operator.add]
        log: Annotated[list[str], operator.add]

    outer = StateGraph(Outer)
    outer.add_node("first", lambda state: {"log": [act(state["world"], "first")]})
    outer.add_node("inner", inner.compile())
    outer.add_node("last", lambda state: {"log": [act(state["world"], "last")]})
    outer.add_edge(START, "first")
    outer.add_edge("first", "inner")
    outer.add_edge("inner", "last")
    outer.add_edge("last", END)
    return outer.compile()


def fan_out() -> Any:
    """Three tasks sent at once, then a join, then a `goto`."""
    builder = StateGraph(State)
    builder.add_node("plan", lambda state: {"log": ["plan"]})
    builder.add_node("work", lambda item: {"log": [act(item["world"], f"work {item['number']}")]})
    builder.add_node("join", lambda state: Command(goto="end", update={"log": [act(state["world"], "join")]}))
    builder.add_node("end", lambda state: {"log": [act(state["world"], "end")]})
    builder.add_edge(START, "plan")
    builder.add_conditional_edges(
        "plan",
        lambda state: [Send("work", {"world": state["world"], "number": number}) for number in range(3)],
        ["work"],
    )
    builder.add_edge("work", "join")
    builder.add_edge("end", END)
    return builder.compile()


def branching() -> Any:
    """Two tasks sent beside a subgraph, with an effect each, in the subgraph after model calls; then a model call."""

    def ask_model(name: str) -> str:
        return str(MeteredModel(name_told=name).invoke("?").content)

    def deed(state: State) -> State:
        ask_model("in deed")
        return {"log": [act(state["world"], "deed")]}

    inner = StateGraph(State).add_node("think", lambda state: {"log": [ask_model("in think")]}).add_node("deed", deed)
    inner = inner.add_edge(START, "think").add_edge("think", "deed").add_edge("deed", END)
    builder = StateGraph(State)
    builder.add_node("plan", lambda state: {"log": ["plan"]})
    builder.add_node("work", lambda item: {"log": [act(item["world"], f"work {item['number']}")]})
    builder.add_node("sub", inner.compile())
    builder.add_node("join", lambda state: {"log": [ask_model("in join")]})
    builder.add_edge(START, "plan")
    builder.add_conditional_edges(
        "plan",
        lambda state: [*(Send("work", {"world": state["world"], "number": number}) for number in range(2)), "sub"],
        ["work", "sub"],
    )
    return builder.add_edge("work", "join").add_edge("sub", "join").add_edge("join", END).compile()


@task
def double(world: str, number: int) -> int:
    """A task of the functional API, with an effect."""
    act(world, f"double {number}")
    return number * 2


@entrypoint()
def functional(given: dict[str, Any]) -> dict[str, Any]:
    """A workflow of the functional API: tasks, a question, an effect."""
    futures = [double(given["world"], number) for number in range(3)]
    numbers = [future.result() for future in futures]
    answer = interrupt({"question": "functional"})
    act(given["world"], f"answered {answer}")
    return {"numbers": numbers, "answer": answer}


def stopping() -> Any:
    """Static breakpoints before one node and after another."""
    builder = StateGraph(State)
    for name in ("a", "b", "c"):
        builder.add_node(name, lambda state, name=name: {"log": [act(state["world"], name)]})
    builder.add_edge(START, "a")
    builder.add_edge("a", "b")
    builder.add_edge("b", "c")
    builder.add_edge("c", END)
    return builder.compile(interrupt_before=["b"], interrupt_after=["b"])


def blind() -> Any:
    """Effects nobody can look at: what was interrupted is for a person to settle."""
    builder = StateGraph(State)
    for name in ("a", "b"):
        builder.add_node(name, lambda state, name=name: {"log": [act_blindly(state["world"], name)]})
    builder.add_edge(START, "a")
    builder.add_edge("a", "b")
    builder.add_edge("b", END)
    return builder.compile()


def verified() -> Any:
    """Two nodes that act on the world, by how often they were told something; in the third round with success."""

    def node(name: str) -> Any:
        def work(state: Talk) -> Talk:
            told = sum(message.type == "human" for message in state["messages"])
            note(state["folder"] + "/../bodies", f"{name} {told}")
            act(state["folder"] + "/world", f"{name} {told}")
            return {"messages": [{"role": "assistant", "content": f"{name} {told}"}]}

        return work

    return chain(node("begin"), node("end"), schema=Talk)


def chatting() -> Any:
    """A conversation over several runs: each acts, asks, and acts on the answer, by lines of its own job."""
    builder = StateGraph(State)

    def begin(state: State) -> State:
        turn = state.get("count", 0) + 1
        return {"count": turn, "log": [act(state["world"], f"begin {turn} {current_job()}")]}

    def ask(state: State) -> State:
        turn = state["count"]
        prepared = act(state["world"], f"prepare {turn} {current_job()}")
        said = interrupt({"question": f"turn {turn}"})
        return {"log": [prepared, f"said {said}"]}

    def finish(state: State) -> State:
        return {"log": [act(state["world"], f"finish {state['count']} {current_job()}")]}

    for name, node in (("begin", begin), ("ask", ask), ("finish", finish)):
        builder.add_node(name, node)
    for before, after in (("__start__", "begin"), ("begin", "ask"), ("ask", "finish"), ("finish", END)):
        builder.add_edge(before, after)
    return builder.compile()


def waiting() -> Any:
    """Effects before and after a sleep and a signal in one node, beside a question and a node that only waits."""
    builder = StateGraph(State)

    def sleeps_and_hears(state: State) -> State:
        before = act(state["world"], "before")
        sleep_until(timedelta(milliseconds=1))
        arrived = wait_for("paid:17")
        return {"log": [before, str(arrived and arrived.payload), act(state["world"], "after")]}

    async def hears(state: State) -> State:
        arrived = await await_for("other", until=timedelta(days=400))
        return {"log": [str(arrived and arrived.payload)]}

    def asks(state: State) -> State:
        return {"log": [interrupt({"question": "beside?"}), act(state["world"], "asked")]}

    def joins(state: State) -> State:
        bodies(state, "joins")
        return {"log": [act(state["world"], "joined")]}

    for node in (sleeps_and_hears, hears, asks):
        builder.add_node(node.__name__, node)
        builder.add_edge(START, node.__name__)
    builder.add_node("joins", joins)
    builder.add_edge(["sleeps_and_hears", "hears", "asks"], "joins")
    return builder.compile()


def approving() -> Any:
    """Effects that need an approval, two after one another and one beside them: edited, approved, rejected."""
    builder = StateGraph(State)

    def pay(state: State) -> State:
        return {"log": [act_approved(state["world"], "pay"), act_approved_blindly(state["world"], "pay more")]}

    def other(state: State) -> State:
        try:
            return {"log": [act_approved(state["world"], "never")]}
        except ApprovalRejected as error:
            return {"log": [act(state["world"], f"not approved: {error.words}")]}

    for name, node in (("pay", pay), ("other", other)):
        builder.add_node(name, node)
        builder.add_edge(START, name)
        builder.add_edge(name, END)
    return builder.compile()


SHAPES: dict[str, Any] = {
    "linear": linear,
    "looping": looping,
    "talking": talking,
    "asking": asking,
    "parallel": parallel,
    "nested": nested,
    "subgraph_node": subgraph_node,
    "fan_out": fan_out,
    "functional": lambda: functional,
    "stopping": stopping,
    "blind": blind,
    "waiting": waiting,
    "approving": approving,
}
GRAPHS: dict[str, Any] = {**SHAPES, "verified": verified, "chatting": chatting, "branching": branching}
