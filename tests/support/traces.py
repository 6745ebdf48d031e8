"""Trees of a trace made by hand, for what draws them."""

from __future__ import annotations

from typing import Any

from everstep.runtime.trace.tree import Leg, Node, TraceTree, Use

SECOND = 1_000_000_000
START = 1_800_000_000 * SECOND


def step(number: int, name: str = "work", *, took: int = SECOND // 10, **more: Any) -> Node:
    """A step that began as many tenths of a second after the start as its number tells."""
    started = START + number * SECOND // 10
    return Node("step", f"step {number} {name}", started, started + took, facts={"node": name, "step": number}, **more)


def leg(number: int, children: list[Node], *, started: int = START, took: int = 60 * SECOND, **more: Any) -> Node:
    """A leg."""
    facts: dict[str, Any] = {"worker": f"worker-{number}"}
    return Node("leg", f"leg {number}", started, started + took, facts=facts, children=children, **more)


def tree(*nodes: Node, **more: Any) -> TraceTree:
    """A tree of these nodes; legs are numbered as they come."""
    legs = [Leg(place, f"{place:032x}", False, node) for place, node in enumerate(nodes, 1) if node.kind == "leg"]
    about: dict[str, Any] = {
        "job_id": "01a22bd0-a869-77c4-8449-d353103909f3",
        "graph": "agent",
        "thread_id": "01a22bd0-a869-77c4-8449-d353103909f3",
        "status": "failed",
        "step": 40,
        "use": Use(),
        "omitted": 0,
        "drawn_at_ns": START + 120 * SECOND,
    }
    return TraceTree(nodes=list(nodes), legs=legs, **{**about, **more})
