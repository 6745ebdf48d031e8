"""The nodes of a leg whose spans are in the record."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from everstep.checkpoints.payload import without_secrets
from everstep.checkpoints.trace_rows import SpanRow
from everstep.observability import enclosing, names, span_rows
from everstep.observability.enclosing import Enclosing
from everstep.observability.span_rows import StoredSpan
from everstep.runtime.trace.tree import UNFINISHED, Fact, Kind, Node, Use, in_order

_DEEPEST = 50
"""Spans nested deeper than this hang where the fiftieth does: whoever walks the tree may recurse."""
_TEXT_LIMIT = 2_000
_OPERATIONS: dict[object, Kind] = {
    names.CHAT: "model",
    names.TEXT_COMPLETION: "model",
    names.EXECUTE_TOOL: "tool",
    names.INVOKE_AGENT: "leg",
}
_KNOWN = {names.JOB_ID, names.LEG, names.CONVERSATION_ID, names.RESUME_COMMAND, names.OPERATION, names.AGENT_NAME}


@dataclass
class SpannedLeg:
    """A leg as its spans tell it.

    Attributes:
        root: Its root; None as long as it is not stored.
        nodes: What lies directly under it.
        lost: What is not stored, though something inside it is: it lasts, or its worker died within it.
        use: Tokens and cost of all its model calls.
        omitted: Spans that were left out.
        seen_ns: The last moment that a span tells of.
    """

    root: Node | None = None
    nodes: list[Node] = field(default_factory=list[Node])
    lost: list[Node] = field(default_factory=list[Node])
    use: Use = field(default_factory=Use)
    omitted: int = 0
    seen_ns: int = 0

    @property
    def steps(self) -> list[Node]:
        """Its attempts at nodes, in whatever they lie."""
        return [node for top in self.nodes for node in top.walk() if node.kind == "step"]

    def ran(self, namespace: str, step: int) -> list[str]:
        """The nodes that it ran in a step of a graph or subgraph, as often as it ran each."""
        steps = (node for node in self.steps if node.facts.get("step") == step)
        return [
            str(node.facts.get("node"))
            for node in steps
            if str(node.facts.get("checkpoint.ns", "")).rpartition("|")[0] == namespace
        ]

    def finished(self) -> set[str] | None:
        """The tasks whose output it stored, by their ids; None if it is not told of all."""
        if self.omitted:
            return None
        ended = (one for one in self.steps if one.is_stored and one.status == "ok" and "outcome" not in one.facts)
        return {task_of(str(one.facts.get("checkpoint.ns", ""))) for one in ended}


def task_of(namespace: str) -> str:
    """The id of the task that a checkpoint namespace belongs to."""
    return namespace.rpartition("|")[2].rpartition(":")[2]


def read(rows: Iterable[SpanRow], root_id: str, limit: int) -> SpannedLeg:
    """Read a leg's spans.

    Args:
        rows: As they are stored, in the order they began.
        root_id: The id of the leg's root span.
        limit: How many to hold: the first and the last; of those between only failures.
    """
    leg = SpannedLeg()
    head: dict[str, StoredSpan] = {}
    tail: deque[StoredSpan] = deque(maxlen=max(limit - limit // 2, 1))
    known, around = set[str](), dict[str, Enclosing]()
    for span, body in ((one, row.body) for row in rows for one in span_rows.read(row.body)):
        known.add(span.span_id)
        around |= {one.span_id: one for one in enclosing.around(body, root_id) if one.span_id not in around}
        if names.REVIEW_ID in span.attributes:
            continue  # a leg tells of the review it was resumed by; the tree shows it in the leg that asked
        leg.seen_ns = max(leg.seen_ns, span.started_ns, span.ended_ns or 0)
        if _kind(span) == "model":
            leg.use = leg.use.plus(_use(span))
        if len(head) < limit // 2 or span.span_id in head or span.span_id == root_id:
            head[span.span_id] = span
            continue
        if len(tail) == tail.maxlen:
            fallen = tail[0]
            if (fallen.is_error or fallen.is_warning) and len(head) < limit:
                head[fallen.span_id] = fallen
            else:
                leg.omitted += 1
        tail.append(span)
    lost = [span_rows.of_lost(one) for span_id, one in around.items() if span_id not in known]
    _hang({span.span_id: span for span in (*head.values(), *tail, *lost)}, {one.span_id for one in lost}, root_id, leg)
    return leg


def _hang(spans: Mapping[str, StoredSpan], lost: Set[str], root_id: str, leg: SpannedLeg) -> None:
    """Hang each span under its parent; one whose parent is not there, or that stands in a circle, under the leg."""
    nodes = {span_id: _node(span, is_stored=span_id not in lost) for span_id, span in spans.items()}
    leg.lost = [node for span_id, node in nodes.items() if span_id in lost]
    leg.root = nodes.pop(root_id, None)
    below: dict[str, list[str]] = {}
    for span_id in nodes:
        below.setdefault(spans[span_id].parent_id, []).append(span_id)
    waiting = [(span_id, 0) for parent, ids in below.items() if parent not in nodes for span_id in ids]
    leg.nodes = [nodes[span_id] for span_id, _ in waiting]
    reached = {span_id for span_id, _ in waiting}
    while waiting:
        parent, depth = waiting.pop()
        around = leg.nodes if depth >= _DEEPEST else nodes[parent].children
        for span_id in below.get(parent, ()):
            reached.add(span_id)
            around.append(nodes[span_id])
            waiting.append((span_id, 0 if depth >= _DEEPEST else depth + 1))
    leg.nodes += [node for span_id, node in nodes.items() if span_id not in reached]
    for node in nodes.values():
        node.children = in_order(node.children)
    for node in leg.nodes:
        _add_up(node)
    leg.nodes = in_order(leg.nodes)


def _add_up(node: Node) -> None:
    for child in node.children:
        _add_up(child)
        node.use = node.use.plus(child.use)


def _node(span: StoredSpan, *, is_stored: bool) -> Node:
    told = span.attributes
    kind = _kind(span)
    node = Node(kind, span.name, span.started_ns, span.ended_ns, span_id=span.span_id, is_stored=is_stored)
    node.status = "error" if span.is_error else "warning" if span.is_warning else "ok"
    if span.ended_ns is None and node.status == "ok":
        node.status = "open"
    state = told.get(names.EFFECT_STATE)
    node.detail = without_secrets(span.message)[:_TEXT_LIMIT] or (str(state) if state else "")
    node.stack = None if span.stack is None else without_secrets(span.stack)
    node.whole_stack = None if span.whole_stack is None else without_secrets(span.whole_stack)
    node.use = _use(span) if kind == "model" else Use()
    node.facts = {_short(key): _fact(value) for key, value in told.items() if key not in _KNOWN}
    if told.get(names.OUTCOME) == names.DIED and span.parent_id:
        node.ended_ns, node.facts[UNFINISHED] = None, True  # who found its worker dead ended it
    return node


def _kind(span: StoredSpan) -> Kind:
    told = span.attributes
    kind = _OPERATIONS.get(told.get(names.OPERATION))
    if kind == "leg" and span.parent_id:
        return "span"  # an agent within the job's own
    if kind is not None:
        return kind
    return "effect" if names.EFFECT_NAME in told else "step" if names.STEP in told else "span"


def _use(span: StoredSpan) -> Use:
    told = span.attributes
    cost = told.get(names.COST)
    return Use(
        _count(told.get(names.INPUT_TOKENS)),
        _count(told.get(names.OUTPUT_TOKENS)),
        round(cost * 1_000_000) if isinstance(cost, (int, float)) and cost >= 0 else None,
    )


def _count(value: Fact | None) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _short(key: str) -> str:
    return key.removeprefix("everstep.").removeprefix("gen_ai.")


def _fact(value: Fact) -> Fact:
    return without_secrets(value)[:_TEXT_LIMIT] if isinstance(value, str) else value
