"""`RemoteGraph`, LangGraph's client that is used as if it were a graph, against the server as it is."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.pregel.remote import RemoteException, RemoteGraph
from langgraph.types import Command, Interrupt
from langgraph_sdk.errors import ConflictError

from tests.support.chat_graphs import Steps

Remote = Callable[[str], RemoteGraph]
INPUT = {"log": ["in"]}
WHOLE = ["in", "before", "first", "asked", "answered yes"]


@pytest.fixture
def remote(url: str) -> Remote:
    """Gives a graph of the server by its name."""
    return lambda name: RemoteGraph(name, url=url)


@pytest.fixture
def on_thread() -> Any:
    """A config that names a thread which is not there yet."""
    return {"configurable": {"thread_id": str(uuid.uuid4())}}


def test_invoke_gives_the_output(remote: Remote) -> None:
    """`invoke` runs the graph to its end and gives its values, without a thread of the caller's."""
    assert remote("steps").invoke(INPUT) == {"log": ["in", "a", "b", "c"]}


def test_a_failure_is_raised(remote: Remote) -> None:
    """An error of the graph is raised here, with its type and message."""
    with pytest.raises(RemoteException) as failure:
        remote("failing").invoke(INPUT)
    assert failure.value.args == ({"error": "ValueError", "message": "no such thing"},)


def test_values_updates_and_custom_are_streamed(remote: Remote) -> None:
    """What the graph emits comes in the form asked for, one or several at a time."""
    steps = remote("steps")
    assert [part["log"] for part in steps.stream(INPUT, stream_mode="values")][-1] == ["in", "a", "b", "c"]
    assert list(steps.stream(INPUT, stream_mode="updates")) == [{name: {"log": [name]}} for name in "abc"]
    assert list(steps.stream(INPUT, stream_mode="custom")) == [{"at": name} for name in "abc"]
    both = list(steps.stream(INPUT, stream_mode=["updates", "custom"]))
    assert [(part.event, next(iter(part.data))) for part in both] == [
        (mode, name) for own in "abc" for mode, name in (("custom", "at"), ("updates", own))
    ]


def test_tasks_checkpoints_and_debug_are_streamed(remote: Remote) -> None:
    """The modes that tell how a graph runs come, too; a checkpoint tells its place in the form of a thread's state."""
    steps = remote("steps")
    tasks = [part["name"] for part in steps.stream(INPUT, stream_mode="tasks")]
    assert tasks == [name for own in "abc" for name in (own, own)]
    told = list(steps.stream(INPUT, stream_mode="checkpoints"))
    places = [part["checkpoint"]["checkpoint_id"] for part in told]
    assert len(places) == len(set(places)) == 5
    assert [(part["parent_checkpoint"] or {}).get("checkpoint_id") for part in told] == [None, *places[:-1]]
    debug = list(steps.stream(INPUT, stream_mode="debug"))
    assert {part["type"] for part in debug} == {"checkpoint", "task", "task_result"}
    assert all("checkpoint" in part["payload"] for part in debug if part["type"] == "checkpoint")


def test_messages_are_streamed(remote: Remote) -> None:
    """A model's message comes in parts, each with where it is from; together they are the message."""
    parts = list(remote("chat").stream({"messages": [("user", "good day")]}, stream_mode="messages"))
    assert "".join(message["content"] for message, _ in parts) == "You said: good day "
    assert {about["langgraph_node"] for _, about in parts} == {"answer"}


def test_subgraphs_are_streamed(remote: Remote) -> None:
    """With `subgraphs`, what a subgraph emits comes with its namespace."""
    parts = list(remote("nested").stream(INPUT, stream_mode="updates", subgraphs=True))
    within = [part for namespace, part in parts if namespace and namespace[0].startswith("inner:")]
    assert within[0] == {"first": {"log": ["first"]}}
    assert next(part for namespace, part in parts if not namespace) == {"before": {"log": ["before"]}}


def test_a_question_is_answered(remote: Remote, on_thread: Any) -> None:
    """A graph that asks a person comes back with the question; the answer makes it go on, once."""
    nested = remote("nested")
    asked = nested.invoke(INPUT, on_thread)
    (question,) = asked["__interrupt__"]
    assert question["value"] == {"question": "go on?"}
    assert nested.invoke(Command(resume={question["id"]: "yes"}), on_thread)["log"] == WHOLE
    with pytest.raises(ConflictError):
        nested.invoke(Command(resume="again"), on_thread)


def test_questions_come_as_interrupts(remote: Remote, on_thread: Any) -> None:
    """The newer form of the stream tells questions apart from values."""
    *_, last = remote("nested").stream(INPUT, on_thread, stream_mode="values", version="v2")
    (question,) = last["interrupts"]
    assert isinstance(question, Interrupt)
    assert question.value == {"question": "go on?"}


def test_breakpoints_are_kept(remote: Remote, on_thread: Any) -> None:
    """It stops before the node named, and goes on from there when invoked without input."""
    steps = remote("steps")
    assert steps.invoke(INPUT, on_thread, interrupt_before=["b"])["log"] == ["in", "a"]
    assert steps.get_state(on_thread).next == ("b",)
    assert steps.invoke(None, on_thread)["log"] == ["in", "a", "b", "c"]


def test_a_command_updates_and_goes_elsewhere(remote: Remote, on_thread: Any) -> None:
    """`Command(update, goto)` changes the state and runs the node named."""
    steps = remote("steps")
    steps.invoke(INPUT, on_thread)
    assert steps.invoke(Command(update={"log": ["told"]}, goto="c"), on_thread)["log"][-2:] == ["told", "c"]


def test_the_state_is_read(remote: Remote, on_thread: Any) -> None:
    """State, its questions and the state within a subgraph are read as of a local graph."""
    nested = remote("nested")
    nested.invoke(INPUT, on_thread)
    state = nested.get_state(on_thread)
    assert (state.values, state.next) == ({"log": ["in", "before"]}, ("inner",))
    assert [question.value for question in state.interrupts] == [{"question": "go on?"}]
    (task,) = nested.get_state(on_thread, subgraphs=True).tasks
    assert (task.name, task.state.values) == ("inner", {"log": ["first"]})


def test_the_history_is_read_and_forked(remote: Remote, on_thread: Any) -> None:
    """History comes newest first; a state in it can be read again and gone on from with other values."""
    steps = remote("steps")
    steps.invoke(INPUT, on_thread)
    states = list(steps.get_state_history(on_thread))
    assert [state.next for state in states] == [(), ("c",), ("b",), ("a",), ("__start__",)]
    before_b = states[2]
    assert steps.get_state(before_b.config).values == before_b.values == {"log": ["in", "a"]}
    forked = steps.update_state(before_b.config, {"log": ["other"]})
    assert steps.get_state(forked).next == ("b",)
    assert steps.invoke(None, on_thread)["log"] == ["in", "a", "other", "b", "c"]


def test_the_graph_is_drawn(remote: Remote) -> None:
    """The nodes and edges are there, with those of subgraphs if asked for."""
    assert list(remote("steps").get_graph().nodes) == ["__start__", "a", "b", "c", "__end__"]
    assert {"inner:first", "inner:ask"} <= set(remote("nested").get_graph(xray=True).nodes)


def test_it_is_a_node_of_another_graph(remote: Remote, on_thread: Any) -> None:
    """A local graph has it as a node: what it emits is streamed, and what it comes to is in the state."""
    parent = _around(remote("steps"))
    parts = list(parent.stream(INPUT, on_thread, stream_mode="updates", subgraphs=True))
    assert [next(iter(part)) for namespace, part in parts if namespace] == ["a", "b", "c"]
    assert parent.get_state(on_thread).values["log"] == ["in", "one", "in", "one", "a", "b", "c"]


def test_its_question_pauses_the_graph_around_it(remote: Remote, on_thread: Any) -> None:
    """A question of the remote graph is one of the local graph, with the same id."""
    nested = remote("nested")
    asked = _around(nested).invoke(INPUT, on_thread)
    (question,) = asked["__interrupt__"]
    assert question.value == {"question": "go on?"}
    assert [one.id for one in nested.get_state(on_thread).interrupts] == [question.id]


def _around(node: Any) -> Any:
    builder = StateGraph(Steps)
    builder.add_node("one", lambda state: {"log": ["one"]})
    builder.add_node("remote", node)
    builder.add_edge(START, "one")
    builder.add_edge("one", "remote")
    builder.add_edge("remote", END)
    return builder.compile(checkpointer=InMemorySaver())


async def test_it_runs_on_an_event_loop(remote: Remote, on_thread: Any) -> None:
    """The asynchronous client does the same."""
    nested = remote("nested")
    parts = [part async for part in nested.astream(INPUT, on_thread, stream_mode="updates")]
    assert "__interrupt__" in parts[-1]
    assert (await nested.ainvoke(Command(resume="yes"), on_thread))["log"] == WHOLE
    assert (await nested.aget_state(on_thread)).next == ()
    assert len([state async for state in nested.aget_state_history(on_thread)]) == 5
    await nested.aupdate_state(on_thread, {"log": ["edited"]}, as_node="after")
    assert (await nested.aget_state(on_thread)).values["log"] == [*WHOLE, "edited"]
