"""The tree that a trace is: one small node type, for what spans tell and for what the record tells without them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from everstep.clock import rfc3339

Kind: TypeAlias = Literal["leg", "step", "model", "tool", "effect", "review", "wait", "gap", "error", "span"]
Status: TypeAlias = Literal["ok", "warning", "error", "open"]
Fact: TypeAlias = str | int | float | bool

UNFINISHED = "unfinished"
"""The fact of a node that nobody saw the end of."""


@dataclass(frozen=True)
class Use:
    """Tokens and cost; None where nobody told it.

    Attributes:
        input_tokens: Tokens of prompts.
        output_tokens: Tokens of answers.
        cost_micros: Cost, millionths of a US dollar.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_micros: int | None = None

    def plus(self, other: Use) -> Use:
        """Both together; what one does not know, the other tells."""
        return Use(
            _sum(self.input_tokens, other.input_tokens),
            _sum(self.output_tokens, other.output_tokens),
            _sum(self.cost_micros, other.cost_micros),
        )

    def minus(self, other: Use) -> Use:
        """What is left without the other; never below 0."""
        return Use(
            _rest(self.input_tokens, other.input_tokens),
            _rest(self.output_tokens, other.output_tokens),
            _rest(self.cost_micros, other.cost_micros),
        )

    def as_dict(self) -> dict[str, int | float | None]:
        """As JSON-ready data, the cost in US dollars."""
        cost = None if self.cost_micros is None else self.cost_micros / 1_000_000
        return {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens, "cost": cost}


@dataclass
class Node:
    """Something that happened, and what happened inside it.

    Attributes:
        kind: What it is.
        name: Its name, as a span of it is called.
        started_ns: When it began, UTC nanoseconds.
        ended_ns: When it ended; None while it lasts, or when nobody saw the end.
        status: `ok`; `warning` (it failed, and was or will be tried again); `error`; `open` (it lasts).
        detail: One sentence: how a leg ended, the state of an effect, the error's type and message.
        resume: The command that takes the job up from here, on what went wrong.
        stack: Where the error was raised: the places in the user's own code.
        whole_stack: The same with the places in libraries.
        use: Tokens and cost, itself and all below it.
        facts: What else is known.
        children: What happened inside, in the order it began.
        span_id: The id of its span, where it has one or will have one.
        is_stored: Whether that span is in the record; of others an export makes one.
    """

    kind: Kind
    name: str
    started_ns: int | None = None
    ended_ns: int | None = None
    status: Status = "ok"
    detail: str = ""
    resume: str | None = None
    stack: str | None = None
    whole_stack: str | None = None
    use: Use = field(default_factory=Use)
    facts: dict[str, Fact] = field(default_factory=dict[str, Fact])
    children: list[Node] = field(default_factory=list["Node"])
    span_id: str | None = None
    is_stored: bool = False

    @property
    def duration_ns(self) -> int | None:
        """How long it took; None if that is not known."""
        if self.started_ns is None or self.ended_ns is None:
            return None
        return max(self.ended_ns - self.started_ns, 0)

    @property
    def is_wrong(self) -> bool:
        """Whether it failed, also if it was tried again."""
        return self.status in ("warning", "error")

    def walk(self) -> Iterator[Node]:
        """This node and all below it, each before what is inside it."""
        waiting: list[Node] = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(reversed(node.children))

    def as_dict(self) -> dict[str, Any]:
        """As `everstep trace --json` gives it."""
        duration = self.duration_ns
        return {
            "kind": self.kind,
            "name": self.name,
            "status": self.status,
            "started_at": moment(self.started_ns),
            "ended_at": moment(self.ended_ns),
            "duration_ms": None if duration is None else duration / 1_000_000,
            "detail": self.detail,
            "resume": self.resume,
            "stack": self.stack,
            "whole_stack": self.whole_stack,
            **self.use.as_dict(),
            "facts": self.facts,
            "children": [child.as_dict() for child in self.children],
        }


@dataclass(frozen=True)
class Leg:
    """A leg's place in the tree, and where its trace is.

    Attributes:
        number: Which leg of the job it is, from 1.
        trace_id: Its trace.
        has_spans: Whether its spans are in the record; otherwise its steps were put together from checkpoints.
        node: The leg in the tree.
        died: Whether its worker is gone, also if nobody has taken the job over yet.
    """

    number: int
    trace_id: str
    has_spans: bool
    node: Node
    died: bool = False


@dataclass
class TraceTree:
    """The trace of a job.

    Attributes:
        job_id: The job's public id.
        graph: The name of its graph.
        thread_id: Its thread, which is the session of its traces.
        status: Its status.
        step: LangGraph's step of its last root checkpoint.
        use: Tokens and cost of the whole job.
        nodes: Legs, and the waits and gaps between them, in the order they began.
        legs: The legs among them.
        omitted: Steps or spans that were left out, because there are too many to hold at once.
        drawn_at_ns: When it was drawn, UTC nanoseconds: until then what is open lasts.
    """

    job_id: str
    graph: str
    thread_id: str
    status: str
    step: int
    use: Use
    nodes: list[Node]
    legs: list[Leg]
    omitted: int
    drawn_at_ns: int

    def count(self) -> int:
        """How many nodes there are."""
        return sum(1 for node in self.nodes for _ in node.walk())

    def only_leg(self, number: int) -> TraceTree:
        """One leg alone."""
        legs = [leg for leg in self.legs if leg.number == number]
        return replace(self, nodes=[leg.node for leg in legs], legs=legs)

    def only_errors(self) -> TraceTree:
        """Only what failed, and what it happened in."""
        kept = {id(node): _paths_to(node, lambda one: one.is_wrong) for node in self.nodes}
        legs = [replace(leg, node=node) for leg in self.legs if (node := kept.get(id(leg.node))) is not None]
        return replace(self, nodes=[node for node in kept.values() if node is not None], legs=legs)

    def as_dict(self) -> dict[str, Any]:
        """As `everstep trace --json` gives it."""
        return {
            "id": self.job_id,
            "graph": self.graph,
            "thread_id": self.thread_id,
            "status": self.status,
            "step": self.step,
            **self.use.as_dict(),
            "omitted": self.omitted,
            "legs": [{"leg": leg.number, "trace_id": leg.trace_id, "from_spans": leg.has_spans} for leg in self.legs],
            "nodes": [node.as_dict() for node in self.nodes],
        }


def moment(at_ns: int | None) -> str | None:
    """A time in nanoseconds as RFC 3339, to the millisecond."""
    return None if at_ns is None else rfc3339(at_ns // 1_000_000)


def in_order(nodes: list[Node]) -> list[Node]:
    """Nodes in the order they began; those of which nobody knows it keep their place behind the one before."""
    keys: list[int] = []
    for node in nodes:
        last = keys[-1] if keys else 0
        keys.append(last if node.started_ns is None else node.started_ns)
    return [nodes[index] for index in sorted(range(len(nodes)), key=lambda index: (keys[index], index))]


def _paths_to(node: Node, wanted: Callable[[Node], bool]) -> Node | None:
    children = [kept for child in node.children if (kept := _paths_to(child, wanted)) is not None]
    return replace(node, children=children) if children or wanted(node) else None


def _sum(first: int | None, second: int | None) -> int | None:
    return second if first is None else first if second is None else first + second


def _rest(whole: int | None, part: int | None) -> int | None:
    return None if whole is None else max(whole - (part or 0), 0)
