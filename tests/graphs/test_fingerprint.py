"""Fingerprints: equal for equal shapes in every process, and a difference in words otherwise."""

from __future__ import annotations

import json
import operator
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from langchain_core.messages import AnyMessage
from langgraph.channels import EphemeralValue, LastValue
from langgraph.func import entrypoint
from langgraph.graph import END, START, StateGraph, add_messages
from langgraph.managed import RemainingSteps
from langgraph.pregel import NodeBuilder, Pregel
from langgraph.types import Command, Send
from typing_extensions import TypedDict

from everstep.graphs.fingerprint import difference, fingerprint


class State(TypedDict):
    items: Annotated[list[str], operator.add]
    kind: Literal["a", "b"] | None
    messages: Annotated[list[AnyMessage], add_messages]
    remaining: RemainingSteps


def _node(state: State) -> dict[str, Any]:
    return {}


def _jump(state: State) -> Command[Literal["a", "b"]]:
    return Command(goto="a")


def _spread(state: State) -> list[Send]:
    return [Send("b", state)]


def _builder() -> StateGraph[Any, Any, Any, Any]:
    builder = StateGraph(State)
    builder.add_node("a", _node)
    builder.add_node("b", _node)
    builder.add_edge(START, "a")
    builder.add_edge("a", "b")
    builder.add_edge("b", END)
    return builder


def _base() -> Pregel[Any, Any, Any, Any]:
    return _builder().compile()


def _with_node() -> Pregel[Any, Any, Any, Any]:
    return _builder().add_node("c", _node).add_edge("a", "c").compile()


def _with_join() -> Pregel[Any, Any, Any, Any]:
    return _builder().add_node("c", _node).add_edge(["b", "a"], "c").compile()


def _with_branch() -> Pregel[Any, Any, Any, Any]:
    return _builder().add_conditional_edges("b", lambda state: "a", {"again": "a", "stop": END}).compile()


def _with_send() -> Pregel[Any, Any, Any, Any]:
    return _builder().add_conditional_edges("a", _spread).compile()


def _with_command() -> Pregel[Any, Any, Any, Any]:
    return _builder().add_node("jump", _jump).add_edge(START, "jump").compile()


def _with_interrupts() -> Pregel[Any, Any, Any, Any]:
    return _builder().compile(interrupt_before=["b"], interrupt_after="*")


def _with_deferred() -> Pregel[Any, Any, Any, Any]:
    builder = StateGraph(State)
    builder.add_node("a", _node)
    builder.add_node("b", _node, defer=True)
    return builder.add_edge(START, "a").add_edge("a", "b").add_edge("b", END).compile()


def _with_subgraph() -> Pregel[Any, Any, Any, Any]:
    return _builder().add_node("inner", _base()).add_edge("b", "inner").compile()


def _with_changed_subgraph() -> Pregel[Any, Any, Any, Any]:
    return _builder().add_node("inner", _with_node()).add_edge("b", "inner").compile()


def _with_called_subgraph() -> Pregel[Any, Any, Any, Any]:
    inner = _base()

    def call(state: State) -> dict[str, Any]:
        return inner.invoke(state)

    return _builder().add_node("inner", call).add_edge("b", "inner").compile()


def _with_other_state() -> Pregel[Any, Any, Any, Any]:
    class Other(TypedDict):
        items: list[str]
        kind: Literal["a", "b"] | None
        extra: dict[str, int]
        remaining: RemainingSteps

    builder = StateGraph(Other)
    builder.add_node("a", lambda state: {})
    builder.add_node("b", lambda state: {})
    return builder.add_edge(START, "a").add_edge("a", "b").add_edge("b", END).compile()


def _entrypoint() -> Pregel[Any, Any, Any, Any]:
    @entrypoint()
    def workflow(items: list[str]) -> dict[str, int]:
        return {}

    return workflow


def _plain_pregel() -> Pregel[Any, Any, Any, Any]:
    return Pregel(
        nodes={"one": NodeBuilder().subscribe_only("a").do(lambda a: a).write_to("b")},
        channels={"a": EphemeralValue(str), "b": LastValue(str)},
        input_channels=["a"],
        output_channels=["b"],
    )


GRAPHS: dict[str, Callable[[], Pregel[Any, Any, Any, Any]]] = {
    name.removeprefix("_"): value
    for name, value in list(globals().items())
    if name.startswith(("_base", "_with_", "_entrypoint", "_plain_pregel"))
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_built_twice_has_one_fingerprint(name: str) -> None:
    """Building the same source again gives the same digest, and no difference."""
    one, other = fingerprint(GRAPHS[name]()), fingerprint(GRAPHS[name]())
    assert one == other
    assert difference(one.parts, other.parts) == []


def test_fingerprints_are_the_same_in_another_process() -> None:
    """Neither addresses nor hash order enter: two processes with other hash seeds agree, and the parts are JSON."""
    script = (
        "import json, test_fingerprint as t;"
        "print(json.dumps({name: t.fingerprint(make()).parts for name, make in t.GRAPHS.items()}))"
    )
    here = Path(__file__).parent
    found = [
        json.loads(
            subprocess.run(
                [sys.executable, "-c", script],
                env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": f"{here}{os.pathsep}{here.parent.parent}"},
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
        for seed in ("1", "4242")
    ]
    assert found[0] == found[1] == {name: fingerprint(make()).parts for name, make in GRAPHS.items()}


def test_different_shapes_have_different_fingerprints() -> None:
    """Each of the shapes here is told from every other, but for a subgraph called in a node or added as one."""
    digests = {name: fingerprint(make()).digest for name, make in GRAPHS.items()}
    assert digests.pop("with_called_subgraph") == digests["with_subgraph"]
    assert len(set(digests.values())) == len(digests)


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ("base", "with_node", ["node 'c' added", "edge a->c added"]),
        ("with_node", "base", ["node 'c' removed", "edge a->c removed"]),
        ("with_node", "with_join", ["edge a->c removed", "edge a+b->c added"]),
        ("base", "with_branch", ["edge b->__end__ (conditional) added", "edge b->a (conditional) added"]),
        ("base", "with_send", ["edge a->? (conditional) added"]),
        ("base", "with_interrupts", ["interrupt before 'b' added", "interrupt after '*' added"]),
        ("with_deferred", "base", ["node 'b' is no longer deferred"]),
        ("with_subgraph", "with_changed_subgraph", ["in 'inner': node 'c' added", "in 'inner': edge a->c added"]),
        (
            "base",
            "with_command",
            [
                "node 'jump' added",
                "edge __start__->jump added",
                "edge jump->a (conditional) added",
                "edge jump->b (conditional) added",
            ],
        ),
        (
            "base",
            "with_other_state",
            [
                "channel 'messages' removed",
                "channel 'extra' added",
                "channel 'items' changed from BinaryOperatorAggregate[list[str], add] to LastValue[list[str]]",
            ],
        ),
    ],
)
def test_a_difference_is_told_in_words(old: str, new: str, lines: list[str]) -> None:
    """A person who must decide about a changed graph reads what changed."""
    assert difference(fingerprint(GRAPHS[old]()).parts, fingerprint(GRAPHS[new]()).parts) == lines


def test_parts_survive_storage_as_json() -> None:
    """Parts read back from the record compare equal to fresh ones."""
    for make in GRAPHS.values():
        parts = fingerprint(make()).parts
        assert difference(json.loads(json.dumps(parts)), parts) == []


def test_types_are_written_without_where_they_are_defined() -> None:
    """Types appear by name, and the many message types of langchain-core as one."""
    assert fingerprint(_base()).parts["channels"] == {
        "items": "BinaryOperatorAggregate[list[str], add]",
        "kind": "LastValue[Literal['a', 'b'] | None]",
        "messages": "BinaryOperatorAggregate[list[AnyMessage], _add_messages]",
        "remaining": "RemainingStepsManager",
    }


def test_a_replaced_subgraph_is_named() -> None:
    """A node that lost its subgraph is told as such."""
    lines = difference(fingerprint(_with_subgraph()).parts, fingerprint(_with_subgraph_as_function()).parts)
    assert lines == ["node 'inner' has 0 subgraphs instead of 1"]


def _with_subgraph_as_function() -> Pregel[Any, Any, Any, Any]:
    return _builder().add_node("inner", _node).add_edge("b", "inner").compile()


def test_a_graph_that_calls_itself_ends() -> None:
    """Recursion in the graph is marked, not followed."""
    graph = _with_subgraph()
    graph.nodes["inner"].subgraphs = [graph]
    assert fingerprint(graph).parts["nodes"]["inner"] == {"subgraphs": [{"recursive": True}]}


def test_code_inside_nodes_does_not_count() -> None:
    """Another body, another routing function or another retry policy is the same shape."""

    def other(state: State) -> dict[str, Any]:
        return {"items": ["x"]}

    builder = StateGraph(State)
    builder.add_node("a", other)
    builder.add_node("b", lambda state: {})
    graph = builder.add_edge(START, "a").add_edge("a", "b").add_edge("b", END).compile(name="renamed")
    assert difference(fingerprint(_base()).parts, fingerprint(graph).parts) == []


def test_parts_of_another_format_are_not_compared() -> None:
    """A fingerprint of an older format is told apart from a changed graph."""
    parts = fingerprint(_base()).parts
    assert difference({**parts, "format": 0}, parts) == [
        "the fingerprint's own format changed from 0 to 1: the graphs cannot be compared"
    ]
