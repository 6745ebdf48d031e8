"""The nodes of a leg whose spans are in the record."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from everstep.checkpoints.payload import without_secrets
from everstep.checkpoints.trace_rows import SpanRow
from everstep.observability import names, span_rows
from everstep.observability.span_rows import StoredSpan
from everstep.runtime.trace.tree import Fact, Kind, Node, Use, in_order

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
        use: Tokens and cost of all its model calls.
        omitted: Spans that were left out.
        seen_ns: The last moment that a span tells of.
    """

    root: Node | None = None
    nodes: list[Node] = field(default_factory=list[Node])
    use: Use = field(default_factory=Use)
    omitted: int = 0
    seen_ns: int = 0

    def ran(self, step: int) -> list[str]:
        """The nodes of the root graph that it ran in a step, as often as it ran each."""
        steps = (node for node in self.nodes if node.kind == "step" and node.facts.get("step") == step)
        return [str(node.facts.get("node")) for node in steps if "|" not in str(node.facts.get("checkpoint.ns", ""))]


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
    for span in (one for row in rows for one in span_rows.read(row.body)):
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
    _hang({**head, **{span.span_id: span for span in tail}}, root_id, leg)
    return leg


def _hang(spans: Mapping[str, StoredSpan], root_id: str, leg: SpannedLeg) -> None:
    """Hang each span under its parent; one whose parent is not there, or that stands in a circle, under the leg."""
    nodes = {span_id: _node(span) for span_id, span in spans.items()}
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


def _node(span: StoredSpan) -> Node:
    told = span.attributes
    kind = _kind(span)
    node = Node(kind, span.name, span.started_ns, span.ended_ns, span_id=span.span_id)
    node.status = "error" if span.is_error else "warning" if span.is_warning else "ok"
    if span.ended_ns is None and node.status == "ok":
        node.status = "open"
    state = told.get(names.EFFECT_STATE)
    node.detail = without_secrets(span.message)[:_TEXT_LIMIT] or (str(state) if state else "")
    node.stack = None if span.stack is None else without_secrets(span.stack)
    node.whole_stack = None if span.whole_stack is None else without_secrets(span.whole_stack)
    node.use = _use(span) if kind == "model" else Use()
    node.facts = {_short(key): _fact(value) for key, value in told.items() if key not in _KNOWN}
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
