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
from everstep.clock import rfc3339
from everstep.runtime.trace.legs import LegRow
from everstep.runtime.trace.tree import Node, Status

UNFINISHED = "unfinished"
"""The fact of a node that nobody saw the end of."""
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
    started = row.started_at * _MS
    if last.leg == row.number and last.at_ns is not None:
        started = max(last.at_ns, started)
    step, status = last.number + 1, _status(row)
    running = without(names, list((Counter(told) | Counter(finished or ())).elements()))  # both may know of the same
    said = "its process died" if row.apart else "worker died"
    if finished is None and len(running) > 1:
        said += "; it may have finished before"
    nodes: list[Node] = []
    for name in running[:LIMIT]:
        node = Node("step", f"step {step} {name}".rstrip(), started, None, status, resume=resume)
        node.detail = f"unfinished since {rfc3339(started // _MS)}: {said}"
        node.facts = {"step": step, "node": name, UNFINISHED: True}
        nodes.append(node)
    return nodes


def stored(tasks: Sequence[SavedTask], channels: Mapping[str, Any]) -> list[str]:
    """The nodes of those tasks whose output is stored beside a checkpoint."""
    receivers = sent(channels)
    names: list[str] = []
    for task in tasks:
        if task.failed or task.paused:
            continue
        names.append(receivers[task.sent] if task.sent is not None and task.sent < len(receivers) else task.node)
    return names


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


def _status(row: LegRow) -> Status:
    return "warning" if row.is_tried_again else "error"
