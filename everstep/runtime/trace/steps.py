"""The steps of legs without spans, put together from LangGraph's checkpoints: numbers, nodes and durations.

A step ends when its checkpoint is made, and begins when the one before it was, or when its leg began. Of very many
steps the first and the last are kept.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection

from everstep.checkpoints import trace_rows
from everstep.checkpoints.trace_rows import SavedStep, SavedTask
from everstep.runtime.trace.tree import Node

LIMIT = 10_000
"""Steps that are held at once; and spans."""
_NAMESPACES = 1_000
_BRANCHES = 200
SentNodes = Callable[[SavedStep], list[str]]
"""The nodes that tasks were sent to from a checkpoint, in order; it reads the state, so it is asked rarely."""


@dataclass(frozen=True)
class _Timed:
    saved: SavedStep
    leg: int
    since_ns: int | None


@dataclass
class Steps:
    """The steps of a job's legs.

    Attributes:
        by_leg: The steps of the root graph, by leg.
        by_task: The step that each task made, by the leg and the task's id.
        last: For each leg the root graph's checkpoint it had come to, its own or an earlier leg's.
        stored: The tasks of which something is stored beside that checkpoint, by leg.
        under_way: For each leg the nodes that ran as its worker died.
        seen_ns: For each leg the last moment at which it stored a checkpoint.
        omitted: How many steps were left out.
    """

    by_leg: dict[int, list[Node]] = field(default_factory=dict[int, list[Node]])
    by_task: dict[tuple[int, str], Node] = field(default_factory=dict[tuple[int, str], Node])
    last: dict[int, SavedStep] = field(default_factory=dict[int, SavedStep])
    stored: dict[int, list[SavedTask]] = field(default_factory=dict[int, list[SavedTask]])
    under_way: dict[int, list[Node]] = field(default_factory=dict[int, list[Node]])
    seen_ns: dict[int, int] = field(default_factory=dict[int, int])
    omitted: int = 0
    _below: list[tuple[str, int, Node]] = field(default_factory=list[tuple[str, int, Node]])

    def place_subgraphs(self) -> None:
        """Put the steps of subgraphs under the steps that ran them; to be called when those that failed are known."""
        for namespace, leg, node in sorted(self._below, key=lambda one: one[0].count("|")):
            name, _, task_id = namespace.rpartition("|")[2].partition(":")
            around = self.by_task.get((leg, task_id))
            if around is None:
                running = (one for one in self.under_way.get(leg, ()) if one.facts.get("node") == name)
                around = next(running, None)
            if around is None:  # the leg ended before that step did
                around = self.by_task[leg, task_id] = Node(
                    "step", f"step {name}", node.started_ns, detail="not finished"
                )
                self.by_leg.setdefault(leg, []).append(around)
            around.children.append(node)
        self._below.clear()

    def add(self, timed: _Timed, nodes: Sequence[Node]) -> None:
        """Take in what a checkpoint tells."""
        for node in nodes:
            if timed.saved.namespace:
                self._below.append((timed.saved.namespace, timed.leg, node))
            else:
                self.by_leg.setdefault(timed.leg, []).append(node)


def of_thread(
    connection: Connection,
    thread_id: str,
    job_id: str,
    checkpoint_tables: Sequence[str],
    *,
    started_ns: Mapping[int, int],
    wanted: Collection[int],
    sent: SentNodes,
    dead: Collection[int] = (),
    limit: int = LIMIT,
) -> Steps:
    """The steps of a job on its thread.

    Args:
        connection: The transaction to read in.
        thread_id: The thread.
        job_id: The job whose steps are wanted.
        checkpoint_tables: LangGraph's tables, as the database names them.
        started_ns: When each leg began, UTC nanoseconds.
        wanted: The legs whose steps are wanted; of the others only `last` and `seen_ns` are told.
        sent: Tells the nodes that tasks were sent to.
        dead: Legs of which `last`, `seen_ns` and `stored` are wanted, though their steps are not.
        limit: How many steps to hold at most.
    """
    found = Steps()
    if not wanted and not dead:
        return found
    head: list[_Timed] = []
    tail: deque[_Timed] = deque(maxlen=max(limit - limit // 2, 1))
    before: OrderedDict[str, tuple[int, int | None]] = OrderedDict()
    leg = 1
    for saved in trace_rows.steps(connection, thread_id, job_id):
        leg = saved.leg if saved.leg is not None else leg
        earlier_leg, earlier_ns = before.pop(saved.namespace, (None, None))
        since = earlier_ns if earlier_leg == leg else started_ns.get(leg)
        before[saved.namespace] = (leg, saved.at_ns)
        if len(before) > _NAMESPACES:
            before.popitem(last=False)
        if not saved.namespace:
            found.last[leg] = saved
        if saved.at_ns is not None:
            found.seen_ns[leg] = max(saved.at_ns, found.seen_ns.get(leg, 0))
        if leg in wanted and saved.number >= 0:
            if len(head) < limit // 2:
                head.append(_Timed(saved, leg, since))
            else:
                found.omitted += len(tail) == tail.maxlen
                tail.append(_Timed(saved, leg, since))
    _fill_last(found, started_ns)
    kept = [*head, *tail]
    parents = {timed.saved.parent_id for timed in kept} | {found.last[one].checkpoint_id for one in found.last}
    tasks = trace_rows.tasks(connection, thread_id, sorted(one for one in parents if one), checkpoint_tables)
    branches = 0
    for timed in kept:
        ran = tasks.get(timed.saved.parent_id or "", [])
        names = [task.node for task in ran]
        if "" in names and branches < _BRANCHES:
            branches += 1
            names = _named(names, sent(timed.saved))
        found.add(timed, _nodes(timed, ran, names, found.by_task))
    for number, saved in found.last.items():
        found.stored[number] = tasks.get(saved.checkpoint_id, [])
    return found


def _fill_last(found: Steps, legs: Collection[int]) -> None:
    """A leg that stored nothing stood where the one before it did."""
    last: SavedStep | None = None
    for leg in sorted(legs):
        if leg in found.last:
            last = found.last[leg]
        elif last is not None:
            found.last[leg] = last


def _nodes(
    timed: _Timed, ran: Sequence[SavedTask], names: Sequence[str], by_task: dict[tuple[int, str], Node]
) -> list[Node]:
    saved = timed.saved
    if not ran and saved.number == 0:
        return []  # the input was taken in
    if not ran:
        what = "" if saved.source == "loop" else saved.source
        return [_node(timed, what)]
    nodes: list[Node] = []
    for task, name in zip(ran, names, strict=True):
        node = by_task[timed.leg, task.task_id] = _node(timed, name or "task")
        nodes.append(node)
    return nodes


def _node(timed: _Timed, name: str) -> Node:
    label = f"step {timed.saved.number} {name}".rstrip()
    since, at = timed.since_ns, timed.saved.at_ns
    if since is not None and at is not None:
        since = min(since, at)  # the clocks of the record and of the worker need not agree
    node = Node("step", label, since, at)
    node.facts = {"step": timed.saved.number, "checkpoint": timed.saved.checkpoint_id}
    if name:
        node.facts["node"] = name
    return node


def _named(names: Sequence[str], sent: Sequence[str]) -> list[str]:
    """Sent tasks come after the others, in the order they were sent."""
    waiting = iter(sent)
    return [name or next(waiting, "") for name in names]
