"""What went wrong in a leg, and where it paused, by the evidence that the record keeps of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everstep.checkpoints.payload import without_secrets
from everstep.checkpoints.trace_rows import EvidenceRow, SavedTask
from everstep.observability.attributes import STATUS_LIMIT, bounded
from everstep.observability.exception_chain import heading, indent
from everstep.runtime.trace.legs import LegRow
from everstep.runtime.trace.steps import Steps
from everstep.runtime.trace.tree import Fact, Node, Status

_MS = 1_000_000
_FACTS = ("code", "attempt", "verdict", "reason", "signal", "exit_code", "peak_memory_bytes", "beside", "deaths")


def unfinished(row: LegRow, made: Steps, evidence: Sequence[EvidenceRow], resume: str | None) -> list[Node]:
    """The steps that a leg without spans did not finish: the one that failed, and those that wait for a person."""
    last = made.last.get(row.number)
    began = row.started_at * _MS
    if last is not None and last.leg == row.number and last.at_ns is not None:
        began = max(last.at_ns, began)
    number = None if last is None else last.number + 1
    tasks = [one for one in made.beside(row.number) if one.failed or one.paused]
    nodes: list[Node] = []
    if row.outcome == "review":
        nodes += [_paused(task, number, began, row, made) for task in tasks if task.paused and task.node]
    for one in from_evidence(row, evidence, resume, number=number, began=began):
        nodes.append(one)
        for task in tasks:
            if task.failed and task.node == one.facts.get("node"):
                made.by_task[row.number, task.task_id] = one
    return nodes


def from_evidence(
    row: LegRow,
    evidence: Sequence[EvidenceRow],
    resume: str | None,
    *,
    number: int | None = None,
    began: int | None = None,
) -> list[Node]:
    """A node for each failure of a leg, without the deaths of its worker, which are gaps.

    Args:
        row: The leg.
        evidence: What was kept of its failures.
        resume: The command that takes the job up from there, if it stands there.
        number: The step it failed at, if that is known better than from the evidence.
        began: When that step began, UTC nanoseconds.
    """
    status: Status = "warning" if row.is_tried_again else "error"
    found: list[Node] = []
    for one in evidence:
        if one.kind != "error":
            continue
        detail = one.detail
        step = number if number is not None else int(detail.get("step") or 0) + 1
        node = Node("step", f"step {step} {detail.get('node') or ''}".rstrip(), began, one.at * _MS, status)
        node.detail = description(one)
        node.stack = without_secrets(_chain(detail)) or None
        node.whole_stack = without_secrets(_chain(detail, whole=True)) or None
        node.resume = resume
        node.facts = {key: _fact(detail[key]) for key in _FACTS if detail.get(key) is not None}
        node.facts |= {"step": step, "node": str(detail.get("node") or ""), "error.type": str(detail.get("type"))}
        found.append(node)
    return found


def description(failure: EvidenceRow) -> str:
    """`Type: message` of a failure."""
    kind, message = _short(failure.detail.get("type")), str(failure.detail.get("message") or "")
    return bounded(without_secrets(f"{kind}: {message}" if message else kind), STATUS_LIMIT)


def _paused(task: SavedTask, number: int | None, began: int | None, row: LegRow, made: Steps) -> Node:
    ended = None if row.ended_at is None else row.ended_at * _MS
    node = Node("step", f"step {number} {task.node}", began, ended, detail="paused for a person")
    node.facts = {"node": task.node, "step": number or 0}
    made.by_task.setdefault((row.number, task.task_id), node)
    return node


def _chain(detail: dict[str, Any], *, whole: bool = False) -> str:
    """The exceptions that led to each other or lie in a group, and where each was raised, the innermost function first.

    Args:
        detail: What is kept of a failure.
        whole: With the places in libraries, as far as they are kept.
    """
    links: list[dict[str, Any]] = detail.get("chain") or []
    told: list[str] = []
    for link in links:
        told.append(heading(link))
        places = str(link.get("where") or "").split(" < ")
        shown = link.get("frames") or places if whole else places
        told += [f"{indent(link)}  at {place}" for place in shown if place]
    return "\n".join(told)


def _short(kind: object) -> str:
    return str(kind or "error").rpartition(".")[2]


def _fact(value: object) -> Fact:
    return value if isinstance(value, (bool, int, float)) else without_secrets(str(value))
