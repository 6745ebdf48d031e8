"""The trace of a job, put together: from its stored spans where a leg has them, else from what the record tells."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import Connection

from everstep.checkpoints import trace_rows
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.payload import without_secrets
from everstep.checkpoints.saver import StepSaver
from everstep.checkpoints.store import Store
from everstep.checkpoints.trace_rows import EffectRow, EvidenceRow, ReviewRow, SavedStep
from everstep.observability.enclosing import died_within
from everstep.observability.failure import explained
from everstep.observability.identity import root_span_id, trace_id
from everstep.runtime.trace import deaths, failures, legs, spans, steps
from everstep.runtime.trace.ledger import effect_nodes, review_node
from everstep.runtime.trace.legs import LegRow, WaitRow, find_leg
from everstep.runtime.trace.spans import SpannedLeg
from everstep.runtime.trace.steps import LIMIT, Steps
from everstep.runtime.trace.tree import UNFINISHED, Leg, Node, Status, TraceTree, Use, in_order
from everstep.runtime.trace.under_way import UnderWay

_Made = TypeVar("_Made", EffectRow, ReviewRow)
_MS = 1_000_000
_DEAD = 50
"""Legs, the newest, of which is told what ran as their worker died: the state is read for it."""
_OUTCOMES: dict[str, Status] = {"running": "open", "retry": "warning", "failed": "error", "gone": "error"}


def of_job(store: Store, job: Job, *, leg: int | None = None, limit: int = LIMIT) -> TraceTree:
    """The trace of a job, or of one leg of it.

    Args:
        store: The record.
        job: The job.
        leg: Only this leg.
        limit: How many steps, spans and effects to hold at most, of each.

    Raises:
        LegNotFound: The job has no such leg.
    """
    return store.read(lambda connection: _Reader(store, job, connection, limit).tree(leg))


class _Reader:
    """Reads one job in one snapshot."""

    def __init__(self, store: Store, job: Job, connection: Connection, limit: int) -> None:
        self._store = store
        self._job = job
        self._connection = connection
        self._limit = limit
        self._now = store.clock.now_ms()
        self._evidence = trace_rows.evidence_of(connection, job.id)
        self._rows, self._waits = legs.of_moves(job, trace_rows.moves(connection, job.id), self._evidence)

    def tree(self, only: int | None) -> TraceTree:
        if only is not None:
            find_leg(self._rows, self._job, only)
        wanted = [row for row in self._rows if only in (None, row.number)]
        counts = trace_rows.span_counts(self._connection, self._job.id)
        near = [row.number for row in self._rows if row not in wanted and abs(row.number - (only or 0)) == 1]
        told = self._spanned([one for one in (*(row.number for row in wanted), *near) if one in counts], counts)
        spanned = {number: leg for number, leg in told.items() if leg.nodes}
        roots = {number: leg.root for number, leg in told.items()}
        dead = [row for row in wanted if self._is_dead(row)][-_DEAD:]
        made = self._steps([row.number for row in wanted if row.number not in spanned], dead, spanned)
        reviews = trace_rows.reviews_of(self._connection, self._job.id)
        effects = self._by_leg(trace_rows.effects_of(self._connection, self._job.id, self._limit))
        asked = self._by_leg(reviews)
        resume = self._resume(reviews)
        for number, leg in spanned.items():
            self._tell_lost(next(row for row in self._rows if row.number == number), leg)
            made.by_task |= {(number, spans.task_of(str(one.facts.get("checkpoint.ns", "")))): one for one in leg.steps}
        finder = UnderWay(self._rows, made, spanned, self._channels)
        running = {row.number: finder.of_leg(row, resume if self._is_last(row) else None) for row in dead}
        for row in wanted:
            if row.number not in spanned:
                unfinished = failures.unfinished(row, made, self._failures(row), resume if self._is_last(row) else None)
                made.by_leg.setdefault(row.number, []).extend(unfinished)
        made.place_subgraphs()
        found = [
            self._leg(
                row,
                spanned.get(row.number),
                roots.get(row.number),
                made,
                asked.get(row.number, []),
                effects.get(row.number, []),
                running.get(row.number, []),
                resume if self._is_last(row) else None,
            )
            for row in wanted
        ]
        self._share(found, whole=only is None)
        nodes = [leg.node for leg in found]
        if only is None:
            nodes = [*(_wait(wait) for wait in self._waits), *nodes]
            nodes += [gap for row in self._rows if (gap := self._gap(row, spanned, made)) is not None]
        return TraceTree(
            job_id=self._job.public_id,
            graph=self._job.graph,
            thread_id=self._job.thread_id,
            status=self._job.status,
            step=self._job.step,
            use=self._use(),
            nodes=in_order(nodes),
            legs=found,
            omitted=made.omitted + sum(spanned[row.number].omitted for row in wanted if row.number in spanned),
            drawn_at_ns=self._now * _MS,
        )

    def _spanned(self, numbers: Sequence[int], counts: Mapping[int, int]) -> dict[int, SpannedLeg]:
        left, found = self._limit, dict[int, SpannedLeg]()
        for place, number in enumerate(numbers):
            share = max(left // (len(numbers) - place), 20)
            rows = trace_rows.spans_of(self._connection, self._job.id, number)
            found[number] = spans.read(rows, root_span_id(self._job.public_id, number), share)
            left -= min(counts[number], share)
        return found

    def _steps(self, numbers: Sequence[int], dead: Sequence[LegRow], spanned: Mapping[int, SpannedLeg]) -> Steps:
        made = steps.of_thread(
            self._connection,
            self._job.thread_id,
            self._job.public_id,
            self._store.database.checkpoint_tables,
            started_ns={row.number: row.started_at * _MS for row in self._rows},
            wanted=numbers,
            sent=self._sent,
            finished={number: finished for number, leg in spanned.items() if (finished := leg.finished()) is not None},
            dead=[row.number for row in dead],
            limit=self._limit,
        )
        made.unfinished = {row.number: deaths.status(row) for row in dead}
        if self._rows and self._rows[-1].ended_at is None:
            made.unfinished.setdefault(self._rows[-1].number, "open")
        return made

    def _sent(self, saved: SavedStep) -> list[str]:
        """The nodes that LangGraph's `Send`s went to stand in the state of the checkpoint they were sent from."""
        return deaths.sent(self._channels(saved.namespace, saved.parent_id))

    def _channels(self, namespace: str, checkpoint_id: str | None) -> dict[str, Any]:
        where = {"thread_id": self._job.thread_id, "checkpoint_ns": namespace, "checkpoint_id": checkpoint_id}
        found = StepSaver(self._store).get_tuple({"configurable": where})
        return {} if found is None else found.checkpoint["channel_values"]

    def _is_dead(self, row: LegRow) -> bool:
        """Whether its worker is gone, also if nobody has taken the job over yet."""
        until = self._job.lease_until
        return row.outcome == "gone" or (row.outcome == "running" and until is not None and until <= self._now)

    def _tell_lost(self, row: LegRow, spanned: SpannedLeg) -> None:
        """Say what became of that of which only what lies inside it is stored."""
        for node in spanned.lost:
            if self._is_dead(row):
                node.status = "warning" if row.is_tried_again else "error"
                node.detail, node.facts[UNFINISHED] = died_within(node.started_ns or 0, apart=row.apart), True
            elif row.ended_at is not None:
                node.status, node.detail = "ok", "its span was not kept"

    def _leg(
        self,
        row: LegRow,
        spanned: SpannedLeg | None,
        root: Node | None,
        made: Steps,
        reviews: Sequence[ReviewRow],
        effects: Sequence[EffectRow],
        running: Sequence[Node],
        resume: str | None,
    ) -> Leg:
        node = Node("leg", f"leg {row.number}", row.started_at * _MS, self._ended_ns(row, spanned, made))
        node.status = _OUTCOMES.get(row.outcome, "ok")
        if row.outcome == "gone" and row.is_tried_again:
            node.status = "warning"
        if row.outcome == "review" and self._failures(row):
            node.status = "error"  # a person must look at it
        node.detail = self._said(row, root)
        node.facts = {"worker": row.worker, "outcome": row.outcome}
        node.resume = resume
        node.span_id, node.is_stored = root_span_id(self._job.public_id, row.number), root is not None
        if root is not None:
            node.facts |= {key: value for key, value in root.facts.items() if key not in node.facts}
            node.stack = root.stack
        if spanned is None:
            node.children = made.by_leg.get(row.number, [])
        else:
            node.use = spanned.use
            node.children = spanned.nodes
            for one in (one for child in node.children for one in child.walk()):
                one.resume = node.resume if one.status == "error" else None  # the job may have gone on since
            if not any(one.is_wrong for child in node.children for one in child.walk()):
                node.children += failures.from_evidence(row, self._failures(row), node.resume)
        alone = effect_nodes([node, *running], effects, lambda effect: self._home(row, node, made, effect))
        for one in (inner for child in (*node.children, *running) for inner in child.walk()):
            one.children = in_order(one.children)
        node.children = in_order([*node.children, *alone])
        node.children += running  # last, whatever the clocks of record and worker say
        node.children += [review_node(review) for review in reviews]
        return Leg(row.number, trace_id(self._job.public_id, row.number), spanned is not None, node, self._is_dead(row))

    def _home(self, row: LegRow, leg: Node, made: Steps, effect: EffectRow) -> Node | None:
        """The step that an effect without a span lies in; None if that is not known."""
        if not effect.place:
            return None
        if row.number in made.unfinished and not made.omitted:
            return made.home(row.number, effect.place, leg.children, began_ns=effect.created_at * _MS)
        return made.by_task.get((row.number, spans.task_of(effect.place)))

    def _said(self, row: LegRow, root: Node | None) -> str:
        """How a leg ended; of a failure its message and what was done about it, as its span says it."""
        if root is not None and root.is_wrong:
            return root.detail
        failed = [one for one in self._failures(row) if one.kind == "error"]
        if failed and row.outcome in ("retry", "review", "failed"):
            return explained(failures.description(failed[-1]), str(failed[-1].detail.get("type")), row.reason)
        return without_secrets(row.reason) if row.reason else row.outcome

    def _by_leg(self, rows: Sequence[_Made]) -> dict[int, list[_Made]]:
        """Rows by the leg that ran as they were made, or the last one before."""
        starts = [row.started_at for row in self._rows]
        found: dict[int, list[_Made]] = {}
        for row in rows:
            place = bisect_right(starts, row.created_at) - 1
            found.setdefault(self._rows[place].number if place >= 0 else 0, []).append(row)
        return found

    def _failures(self, row: LegRow) -> list[EvidenceRow]:
        return [one for one in self._evidence if one.claim_no == row.number]

    def _is_last(self, row: LegRow) -> bool:
        return row is self._rows[-1]

    def _resume(self, reviews: Sequence[ReviewRow]) -> str | None:
        """The command that takes the job up from where it stands now."""
        if self._job.status in ("failed", "retry"):
            return f"everstep retry {self._job.public_id}"
        if self._job.status != "review":
            return None
        waiting = [review for review in reviews if review.status == "open"]
        return f"everstep review show {waiting[0].public_id}" if waiting else "everstep review"

    def _ended_ns(self, row: LegRow, spanned: SpannedLeg | None, made: Steps) -> int | None:
        """When a leg ended; of one whose worker died, the last moment at which it is known to have lived."""
        if row.ended_at is None or row.outcome != "gone" or row.apart:
            return None if row.ended_at is None else row.ended_at * _MS
        seen = max(spanned.seen_ns if spanned else 0, made.seen_ns.get(row.number, 0))
        return min(max(seen, row.started_at * _MS), row.ended_at * _MS)

    def _gap(self, row: LegRow, spanned: Mapping[int, SpannedLeg], made: Steps) -> Node | None:
        """The time from a worker's last sign of life until somebody noticed."""
        if row.apart:
            return None  # its worker lived and saw it end
        if row.outcome == "gone" and row.ended_at is not None:
            since, until = self._ended_ns(row, spanned.get(row.number), made), row.ended_at * _MS
            status: Status = "warning" if row.is_tried_again else "error"
            node = Node("gap", f"worker {row.worker} gone", since, until, status)  # the leg's line says what followed
        elif self._is_dead(row):
            seen = max(made.seen_ns.get(row.number, 0), row.started_at * _MS)
            node = Node("gap", f"worker {row.worker} gone", min(seen, self._now * _MS), None, "error")
            node.detail, node.resume = "its lease ended; any worker will take the job over", "everstep worker"
        else:
            return None
        node.facts = {"leg": row.number, "worker": row.worker}
        return node

    def _share(self, found: Sequence[Leg], *, whole: bool) -> None:
        """The record keeps tokens by job: what no leg's spans tell is that of the only leg without, if it is one."""
        without = [leg for leg in found if not leg.has_spans]
        if not whole or len(without) != 1:
            return
        told = Use()
        for leg in found:
            told = told.plus(leg.node.use)
        without[0].node.use = self._use().minus(told)

    def _use(self) -> Use:
        return Use(self._job.input_tokens, self._job.output_tokens, self._job.cost_micros)


def _wait(wait: WaitRow) -> Node:
    until = None if wait.until is None else wait.until * _MS
    status: Status = "open" if until is None else "ok"
    return Node("wait", wait.name, wait.since * _MS, until, status, without_secrets(wait.reason))
