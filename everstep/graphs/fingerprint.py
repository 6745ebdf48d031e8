"""The shape of a graph as data, so that a thread is never resumed in another graph than the one it began in.

LangGraph ends a thread silently when the node it waits at is gone. So a job stores the fingerprint of its graph, and
one that no longer fits goes to review with the difference in words.

What counts is what a resumed thread depends on: nodes, edges, the channels of the state with their types and reducers,
static interrupt points, and all of it again in subgraphs. What does not count: the code inside a node, where classes
are defined, the names of routing functions, retry policies, prompts, and `interrupt()` calls, which cannot be seen from
outside. The same source gives the same fingerprint in every process: no addresses, no hash order.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, ForwardRef, Literal, TypeVar, Union, cast, get_args, get_origin

from langchain_core.messages import BaseMessage
from langgraph.constants import START
from langgraph.pregel import Pregel

from everstep.checkpoints.canonical import digest
from everstep.counts import counted

FORMAT = 1
"""Version of the parts; a change of what is looked at gets a new number, not to be taken for a change of the graph."""

Parts = dict[str, Any]


@dataclass(frozen=True)
class Fingerprint:
    """The shape of one graph.

    Attributes:
        digest: SHA-256 of the parts; equal digests, equal shapes.
        parts: JSON-ready: `format`, `nodes` (name → `defer`, `subgraphs`), `edges`, `channels` (name → type),
            `interrupt_before` and `interrupt_after` (node names, or `["*"]`).
    """

    digest: str
    parts: Parts

    @functools.cached_property
    def parts_json(self) -> str:
        """The parts as they are stored with a job."""
        return json.dumps(self.parts)


def fingerprint(graph: Pregel[Any, Any, Any, Any]) -> Fingerprint:
    """The fingerprint of a compiled graph or an entrypoint.

    Args:
        graph: A compiled `StateGraph`, an `@entrypoint` workflow, or any other `Pregel`.
    """
    parts: Parts = {"format": FORMAT, **_shape(graph, ())}
    return Fingerprint(digest(parts), parts)


def difference(old_parts: Parts, new_parts: Parts) -> list[str]:
    """What changed between two fingerprints, in words.

    Args:
        old_parts: `Fingerprint.parts` that a job was begun with.
        new_parts: `Fingerprint.parts` of the graph as it is now.

    Returns:
        Lines such as `node 'review' removed` or `edge a->b added`; changes inside the subgraph of a node start with
        `in 'node': `. Empty exactly when the shapes are equal.
    """
    if old_parts.get("format") != new_parts.get("format"):
        formats = f"{old_parts.get('format')} to {new_parts.get('format')}"
        return [f"the fingerprint's own format changed from {formats}: the graphs cannot be compared"]
    return list(_differences(old_parts, new_parts))


def _shape(graph: Any, above: tuple[int, ...]) -> Parts:
    deferred: set[str] = set()
    builder = getattr(graph, "builder", None)
    if builder is not None:
        channels: dict[str, object] = {**builder.channels, **builder.managed}
        edges = set(_builder_edges(builder))
        deferred.update(name for name, node in builder.nodes.items() if node.defer)
    else:
        channels = {name: channel for name, channel in graph.channels.items() if not name.startswith("__pregel_")}
        edges = set(_channel_edges(graph))
    nodes: dict[str, Parts] = {}
    for name, node in graph.nodes.items():
        if name == START:
            continue
        nodes[name] = {"defer": True} if name in deferred else {}
        if node.subgraphs:
            nodes[name]["subgraphs"] = [_subgraph(subgraph, (*above, id(graph))) for subgraph in node.subgraphs]
    return {
        "nodes": nodes,
        "edges": sorted(edges),
        "channels": {name: _channel(channel) for name, channel in channels.items()},
        "interrupt_before": _interrupts(graph.interrupt_before_nodes),
        "interrupt_after": _interrupts(graph.interrupt_after_nodes),
    }


def _subgraph(graph: Any, above: tuple[int, ...]) -> Parts:
    if id(graph) in above:
        return {"recursive": True}
    if not hasattr(graph, "nodes"):
        return {"remote": str(getattr(graph, "name", None) or type(graph).__qualname__)}
    return _shape(graph, above)


def _builder_edges(builder: Any) -> Iterator[str]:
    for start, end in builder.edges:
        yield f"{start}->{end}"
    for starts, end in builder.waiting_edges:
        yield f"{'+'.join(sorted(starts))}->{end}"
    for start, branches in builder.branches.items():
        for branch in branches.values():
            ends: Iterable[Hashable] = ["?"] if branch.ends is None else branch.ends.values()
            yield from (f"{start}->{end} (conditional)" for end in ends)
    for start, node in builder.nodes.items():
        yield from (f"{start}->{end} (conditional)" for end in node.ends or ())


def _channel_edges(graph: Any) -> Iterator[str]:
    """Without a builder, what connects nodes are the channels that trigger them."""
    for name, node in graph.nodes.items():
        yield from (f"{channel}->{name}" for channel in node.triggers)


def _interrupts(nodes: str | Sequence[str]) -> list[str]:
    return ["*"] if nodes == "*" else sorted(nodes)


def _channel(channel: Any) -> str:
    """A channel as `LastValue[int]` or `BinaryOperatorAggregate[list, add]`, a managed value by its name."""
    if isinstance(channel, type):
        return _type_name(channel)
    details = [_type_name(channel.typ)]
    details += [_name(getattr(channel, reducer)) for reducer in ("operator", "reducer") if hasattr(channel, reducer)]
    details += sorted(map(str, getattr(channel, "names", ())))
    details += ["accumulate"] if getattr(channel, "accumulate", False) else []
    return f"{type(channel).__name__}[{', '.join(details)}]"


def _name(thing: Any) -> str:
    """The name of a class or function, without where it was defined."""
    while isinstance(thing, functools.partial):
        thing = cast("functools.partial[Any]", thing).func
    name = getattr(thing, "__qualname__", None) or getattr(thing, "__name__", None) or type(thing).__qualname__
    return str(name).rpartition("<locals>.")[2]


def _type_name(kind: Any) -> str:
    """A type as text that does not depend on where or when it was defined."""
    if kind is None or kind is NoneType:
        return "None"
    if kind is ...:
        return "..."
    if isinstance(kind, str):
        return kind
    if isinstance(kind, ForwardRef):
        return kind.__forward_arg__
    if isinstance(kind, TypeVar):
        return kind.__name__
    if isinstance(kind, list | tuple):
        return f"[{', '.join(_type_name(member) for member in cast(list[Any], kind))}]"
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _type_name(arguments[0])
    if origin is Literal:
        return f"Literal[{', '.join(_literal(member) for member in arguments)}]"
    if origin in (Union, UnionType):
        if all(_is_message(argument) for argument in arguments):
            return "AnyMessage"
        return " | ".join(_type_name(argument) for argument in arguments)
    if origin is not None:
        return f"{_type_name(origin)}[{', '.join(_type_name(argument) for argument in arguments)}]"
    return _name(kind)


def _is_message(kind: Any) -> bool:
    """A union of messages is one type, however many kinds this release of langchain-core knows."""
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    return isinstance(kind, type) and issubclass(kind, BaseMessage)


def _literal(value: object) -> str:
    return f"{type(value).__qualname__}.{value.name}" if isinstance(value, Enum) else repr(value)


def _differences(old: Parts, new: Parts) -> Iterator[str]:
    for mark in ("recursive", "remote"):
        if old.get(mark) != new.get(mark):
            yield f"subgraph changed from {_kind(old)} to {_kind(new)}"
            return
    old_nodes, new_nodes = cast(dict[str, Parts], old.get("nodes", {})), cast(dict[str, Parts], new.get("nodes", {}))
    yield from _members("node", (f"{name!r}" for name in old_nodes), (f"{name!r}" for name in new_nodes))
    yield from _members("edge", old.get("edges", []), new.get("edges", []))
    old_channels, new_channels = cast(Parts, old.get("channels", {})), cast(Parts, new.get("channels", {}))
    yield from _members("channel", (f"{name!r}" for name in old_channels), (f"{name!r}" for name in new_channels))
    for name in sorted(old_channels.keys() & new_channels.keys()):
        if old_channels[name] != new_channels[name]:
            yield f"channel {name!r} changed from {old_channels[name]} to {new_channels[name]}"
    for when in ("before", "after"):
        points = [[f"{when} {name!r}" for name in parts.get(f"interrupt_{when}", [])] for parts in (old, new)]
        yield from _members("interrupt", *points)
    for name in sorted(old_nodes.keys() & new_nodes.keys()):
        yield from _node_differences(name, old_nodes[name], new_nodes[name])


def _node_differences(name: str, old: Parts, new: Parts) -> Iterator[str]:
    if old.get("defer", False) != new.get("defer", False):
        yield f"node {name!r} is {'now' if new.get('defer') else 'no longer'} deferred"
    old_subgraphs, new_subgraphs = old.get("subgraphs", []), new.get("subgraphs", [])
    if len(old_subgraphs) != len(new_subgraphs):
        yield f"node {name!r} has {counted(len(new_subgraphs), 'subgraph')} instead of {len(old_subgraphs)}"
        return
    for old_subgraph, new_subgraph in zip(old_subgraphs, new_subgraphs, strict=True):
        yield from (f"in {name!r}: {line}" for line in _differences(old_subgraph, new_subgraph))


def _members(what: str, old: Iterable[str], new: Iterable[str]) -> Iterator[str]:
    old_names, new_names = set(old), set(new)
    yield from (f"{what} {name} removed" for name in sorted(old_names - new_names))
    yield from (f"{what} {name} added" for name in sorted(new_names - old_names))


def _kind(parts: Parts) -> str:
    return "itself" if parts.get("recursive") else f"remote {parts['remote']}" if "remote" in parts else "a local graph"
