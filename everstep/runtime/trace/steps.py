"""The steps of legs without spans, put together from LangGraph's checkpoints: numbers, nodes and durations.

A step ends when its checkpoint is made, and begins when the one before it was, or when its leg began. Of very many
steps the first and the last are kept.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field

from sqlalchemy import Connection

from everstep.checkpoints import trace_rows
from everstep.checkpoints.trace_rows import SavedStep, SavedTask
from everstep.observability.enclosing import died_within
from everstep.runtime.trace.tree import UNFINISHED, Node, Status

LIMIT = 10_000
"""Steps that are held at once; and spans."""
_NAMESPACES = 1_000
_BRANCHES = 200
EITHER = "in this leg or in one before"
"""Said of a task that had an output when a leg ended by a checkpoint what an earlier one had begun."""
SentNodes = Callable[[SavedStep], list[str]]
"""The nodes that tasks were sent to from a checkpoint, in order; it reads the state, so it is asked rarely."""


@dataclass(frozen=True)
class _Timed:
    saved: SavedStep
    leg: int
    since_ns: int | None
    inherited: int | None = None
    """The earlier leg that stored the checkpoint before it."""


@dataclass
class Steps:
    """The steps of a job's legs.

    Attributes:
        by_leg: The steps of the root graph, by leg.
        by_task: The step that each task made, by the leg and the task's id.
        last: For each leg the root graph's checkpoint it had come to, its own or an earlier leg's.
        below: For each dead leg the checkpoints that subgraphs had come to, by their namespaces.
        stored: The tasks of which something is stored beside such checkpoints, by their ids.
        unbound: For each leg the nodes of which it is not known yet which task they are, with their graph's namespace.
        unfinished: What to call that which has no end, of legs whose worker is gone and of those that run.
        seen_ns: For each leg the last moment at which it stored a checkpoint.
        omitted: How many steps were left out.
    """

    by_leg: dict[int, list[Node]] = field(default_factory=dict[int, list[Node]])
    by_task: dict[tuple[int, str], Node] = field(default_factory=dict[tuple[int, str], Node])
    last: dict[int, SavedStep] = field(default_factory=dict[int, SavedStep])
    below: dict[int, dict[str, SavedStep]] = field(default_factory=dict[int, dict[str, SavedStep]])
    stored: dict[str, list[SavedTask]] = field(default_factory=dict[str, list[SavedTask]])
    unbound: dict[int, list[tuple[str, Node]]] = field(default_factory=dict[int, list[tuple[str, Node]]])
    unfinished: dict[int, Status] = field(default_factory=dict[int, Status])
    seen_ns: dict[int, int] = field(default_factory=dict[int, int])
    omitted: int = 0
    _below: list[tuple[str, int, Node]] = field(default_factory=list[tuple[str, int, Node]])

    def beside(self, leg: int) -> list[SavedTask]:
        """The tasks of which something is stored beside the root graph's checkpoint that a leg had come to."""
        last = self.last.get(leg)
        return [] if last is None else self.stored.get(last.checkpoint_id, [])

    def place_subgraphs(self) -> None:
        """Put the steps of subgraphs under the steps that ran them; to be called when those that failed are known."""
        for namespace, leg, node in sorted(self._below, key=lambda one: one[0].count("|")):
            top = self.by_leg.setdefault(leg, [])
            self.home(leg, namespace, top, began_ns=node.started_ns).children.append(node)
        self._below.clear()

    def bound(self, leg: int, namespace: str) -> Node | None:
        """The step of a task, by the namespace of that: one that is known, or one of its name that is no other's yet.

        Args:
            leg: The leg.
            namespace: The checkpoint namespace of the task.
        """
        graph, _, task = namespace.rpartition("|")
        name, _, task_id = task.rpartition(":")
        if (known := self.by_task.get((leg, task_id))) is not None:
            return known
        for place, (around, node) in enumerate(self.unbound.get(leg, ())):
            if around == graph and node.facts.get("node") == name:
                del self.unbound[leg][place]
                node.facts["checkpoint.ns"] = namespace
                self.by_task[leg, task_id] = node
                return node
        return None

    def home(self, leg: int, namespace: str, top: list[Node], *, began_ns: int | None) -> Node:
        """As `bound`; of a step that the record tells nothing else of, one is made where it belongs.

        Args:
            leg: The leg.
            namespace: The checkpoint namespace of the task.
            top: The steps of the leg's root graph.
            began_ns: When something is known to have been in it.
        """
        children, parts = top, namespace.split("|")
        found: Node | None = None
        for depth, part in enumerate(parts, start=1):
            around = "|".join(parts[:depth])
            found = self.bound(leg, around)
            if found is None:  # the leg ended before that step did
                name, _, task_id = part.rpartition(":")
                found = self.by_task[leg, task_id] = Node("step", f"step {name}", began_ns, detail="not finished")
                found.facts = {"node": name, "checkpoint.ns": around}
                status = self.unfinished.get(leg)
                if task_id in {task.task_id for task in self.beside(leg)}:
                    found.detail = ""  # its output is stored
                elif status is not None:
                    found.status, found.detail = status, ""
                    if status != "open":
                        found.detail, found.facts[UNFINISHED] = died_within(began_ns or 0), True
                children.append(found)
            children = found.children
        assert found is not None
        return found

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
    finished: Mapping[int, Set[str]],
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
        finished: Of legs of which that is known, the ids of the tasks whose output they stored.
        dead: Legs of which `last`, `below`, `seen_ns` and `stored` are wanted, though their steps are not.
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
        inherited = earlier_leg if earlier_leg is not None and earlier_leg < leg else None
        before[saved.namespace] = (leg, saved.at_ns)
        if len(before) > _NAMESPACES:
            before.popitem(last=False)
        if not saved.namespace:
            found.last[leg] = saved
        else:
            for one in dead:
                if leg <= one:
                    _note_below(found.below.setdefault(one, {}), saved)
        if saved.at_ns is not None:
            found.seen_ns[leg] = max(saved.at_ns, found.seen_ns.get(leg, 0))
        if leg in wanted and saved.number >= 0:
            if len(head) < limit // 2:
                head.append(_Timed(saved, leg, since, inherited))
            else:
                found.omitted += len(tail) == tail.maxlen
                tail.append(_Timed(saved, leg, since, inherited))
    _fill_last(found, started_ns)
    kept = [*head, *tail]
    parents = {timed.saved.parent_id for timed in kept} | {found.last[one].checkpoint_id for one in found.last}
    parents |= {saved.checkpoint_id for below in found.below.values() for saved in below.values()}
    tasks = trace_rows.tasks(connection, thread_id, sorted(one for one in parents if one), checkpoint_tables)
    branches = 0
    for timed in kept:
        ran = tasks.get(timed.saved.parent_id or "", [])
        names = [task.node for task in ran]
        if "" in names and branches < _BRANCHES:
            branches += 1
            names = _named(names, sent(timed.saved))
        found.add(timed, _nodes(timed, ran, names, found.by_task, finished))
    found.stored = tasks
    return found


def _note_below(below: dict[str, SavedStep], saved: SavedStep) -> None:
    below.pop(saved.namespace, None)
    below[saved.namespace] = saved
    if len(below) > _NAMESPACES:
        del below[next(iter(below))]


def _fill_last(found: Steps, legs: Collection[int]) -> None:
    """A leg that stored nothing stood where the one before it did."""
    last: SavedStep | None = None
    for leg in sorted(legs):
        if leg in found.last:
            last = found.last[leg]
        elif last is not None:
            found.last[leg] = last


def _nodes(
    timed: _Timed,
    ran: Sequence[SavedTask],
    names: Sequence[str],
    by_task: dict[tuple[int, str], Node],
    finished: Mapping[int, Set[str]],
) -> list[Node]:
    saved = timed.saved
    if not ran and saved.number == 0:
        return []  # the input was taken in
    if not ran:
        what = "" if saved.source == "loop" else saved.source
        return [_node(timed, what)]
    nodes: list[Node] = []
    for task, name in zip(ran, names, strict=True):
        earlier = [] if timed.inherited is None else [finished.get(leg) for leg in range(timed.inherited, timed.leg)]
        if any(one is not None and task.task_id in one for one in earlier):
            continue  # it ran in that leg
        node = by_task[timed.leg, task.task_id] = _node(timed, name or "task")
        if None in earlier and not (len(earlier) == 1 and (task.failed or task.paused)):
            node.detail = EITHER
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
