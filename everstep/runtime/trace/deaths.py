"""What ran when the worker of a leg died: the nodes due at the last checkpoint whose output the record has not.

A checkpoint holds what comes next: channels that call a node, joins whose branches have all arrived, and what was sent.
Which of several nodes had finished is told by the spans of the leg, or by what is stored beside the checkpoint as long
as no later leg has stored there as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

from everstep.checkpoints.change_warnings import NEXT_NODE
from everstep.checkpoints.trace_rows import SavedStep, SavedTask
from everstep.observability.enclosing import died_within
from everstep.runtime.trace.legs import LegRow
from everstep.runtime.trace.tree import UNFINISHED, Node, Status

LIMIT = 100
_JOIN, _SENT, _START = "join:", "__pregel_tasks", "__start__"
_MS = 1_000_000


def due(channels: Mapping[str, Any]) -> list[str]:
    """The nodes that run next, those that were sent to first, in the order they were sent; of a start, its own mark.

    Args:
        channels: What the channels of a checkpoint hold.
    """
    found = sent(channels)
    for name, value in channels.items():
        if name.startswith(NEXT_NODE):
            found.append(name.removeprefix(NEXT_NODE))
        elif name.startswith(_JOIN):
            starts, _, end = name.removeprefix(_JOIN).rpartition(":")
            if isinstance(value, (set, frozenset, list)) and set(starts.split("+")) == set(cast("set[Any]", value)):
                found.append(end)
        elif name == _START:
            found.append("")
    return found


def under_way(
    row: LegRow,
    last: SavedStep,
    names: Sequence[str],
    *,
    told: Collection[str],
    finished: Collection[str] | None,
    resume: str | None,
) -> list[Node]:
    """A node for each that ran as a leg's worker died.

    Args:
        row: The leg.
        last: The root graph's checkpoint it had come to.
        names: The nodes that were due there.
        told: Those of them that the leg has a span of, one entry for each run.
        finished: The nodes of that step whose end is known, one entry for each run; None if that cannot be told.
        resume: The command that takes the job up from there, if it stands there.
    """
    started = _began(row, last)
    step = last.number + 1
    running = without(names, list((Counter(told) | Counter(finished or ())).elements()))  # both may know of the same
    doubt = "" if finished is not None or len(running) < 2 else "; it may have finished before"
    nodes: list[Node] = []
    for name in running[:LIMIT]:
        node = Node("step", f"step {step} {name}".rstrip(), started, None, status(row), resume=resume)
        node.detail = died_within(started, apart=row.apart) + doubt
        node.facts = {"step": step, "node": name, UNFINISHED: True}
        nodes.append(node)
    return nodes


def ended(tasks: Sequence[SavedTask], channels: Mapping[str, Any]) -> dict[str, str]:
    """The nodes of those tasks whose output is stored beside a checkpoint, by the tasks' ids."""
    receivers = sent(channels)
    found: dict[str, str] = {}
    for task in tasks:
        if task.failed or task.paused:
            continue
        name = receivers[task.sent] if task.sent is not None and task.sent < len(receivers) else task.node
        if name:  # a workflow's own tasks are no nodes
            found[task.task_id] = name
    return found


def ended_node(row: LegRow, last: SavedStep, name: str) -> Node:
    """A node that had an output, though its leg made no checkpoint of it any more."""
    node = Node("step", f"step {last.number + 1} {name}", _began(row, last), detail="finished before the worker died")
    node.facts = {"step": last.number + 1, "node": name}
    return node


def sent(channels: Mapping[str, Any]) -> list[str]:
    """The nodes that LangGraph's `Send`s go to, in order."""
    return [str(getattr(one, "node", "")) for one in channels.get(_SENT) or ()]


def without(names: Sequence[str], others: Collection[str]) -> list[str]:
    """The names that are not among the others, each as often as it is more often here."""
    left = Counter(others)
    kept: list[str] = []
    for name in names:
        if left[name] > 0:
            left[name] -= 1
        else:
            kept.append(name)
    return kept


def _began(row: LegRow, last: SavedStep) -> int:
    """When the step after a checkpoint began in a leg."""
    started = row.started_at * _MS
    return max(last.at_ns, started) if last.leg == row.number and last.at_ns is not None else started


def status(row: LegRow) -> Status:
    """What to call that which a dead leg did not finish."""
    return "warning" if row.is_tried_again else "error"
