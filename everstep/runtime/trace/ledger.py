"""Effects and reviews as nodes of a trace: their states and people's decisions, never what was asked or done."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from everstep.checkpoints.jobs import loose_digest
from everstep.checkpoints.payload import without_secrets
from everstep.checkpoints.trace_rows import EffectRow, ReviewRow
from everstep.observability import names
from everstep.runtime.trace.tree import Node, Status

_MS = 1_000_000
_STATES: dict[str, Status] = {"intended": "open", "unknown": "error", "rejected": "warning"}


def effect_nodes(
    known: Sequence[Node], effects: Sequence[EffectRow], home: Callable[[EffectRow], Node | None]
) -> list[Node]:
    """Bring the effects of a leg into it: those that have a span get their state of today, others a node.

    Args:
        known: What is known of the leg.
        effects: Those that began in it.
        home: Tells the step that one lies in.

    Returns:
        The nodes that belong to no step of it.
    """
    inside = [node for top in known for node in top.walk() if node.kind == "effect"]
    by_digest = {node.facts.get("effect.key_digest"): node for node in inside}
    left: list[Node] = []
    for effect in effects:
        told = by_digest.get(loose_digest(effect.key))
        if told is not None:
            told.facts |= _facts(effect)
            told.detail = _detail(effect) if told.status == "ok" else told.detail
            continue
        around = home(effect)
        (left if around is None else around.children).append(_node(effect))
    return left


def review_node(review: ReviewRow) -> Node:
    """A review: who was asked when, and who answered."""
    answered = None if review.answered_at is None else review.answered_at * _MS
    node = Node("review", f"review {review.kind}", review.created_at * _MS, answered)
    node.facts = {"id": review.public_id, "review": review.status}
    if review.status == "open":
        node.status, node.detail = "open", "waits for an answer"
        node.resume = f"everstep review show {review.public_id}"
    elif review.status == "closed":
        node.detail = "closed: nobody need answer any more"
    else:
        node.detail = f"{review.decision} by {review.answered_by}"
        node.facts |= {"decision": review.decision or "", "by": review.answered_by or ""}
    return node


def _node(effect: EffectRow) -> Node:
    settled = None if effect.state in ("intended", "unknown") else effect.updated_at * _MS
    node = Node("effect", names.effect_span(effect.name), effect.created_at * _MS, settled)
    node.status = _STATES.get(effect.state, "ok")
    node.detail, node.facts = _detail(effect), {**_facts(effect), "effect.key_digest": loose_digest(effect.key)}
    return node


def _detail(effect: EffectRow) -> str:
    by = f" by {effect.settled_by}" if effect.settled_by and effect.settled_by != "call" else ""
    error = f": {without_secrets(effect.error)}" if effect.error else ""
    calls = f", called {effect.calls} times" if effect.calls > 1 else ""
    return f"{effect.state}{by}{calls}{error}"


def _facts(effect: EffectRow) -> dict[str, str | int]:
    return {"effect.state": effect.state, "effect.calls": effect.calls, "effect.settled_by": effect.settled_by or ""}
