"""What ran as the worker of a leg died, in its graph and in the subgraphs below, by the checkpoints each had come to.

`deaths` tells it of one graph; here it is asked of each, and what is found hung where it belongs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from everstep.checkpoints.trace_rows import SavedStep
from everstep.runtime.trace import deaths
from everstep.runtime.trace.legs import LegRow
from everstep.runtime.trace.spans import SpannedLeg
from everstep.runtime.trace.steps import Steps
from everstep.runtime.trace.tree import UNFINISHED, Node

STATES = 200
"""Checkpoints of which the state is read, of all dead legs together."""
Channels = Callable[[str, str], Mapping[str, Any]]
"""What the channels of a checkpoint hold, by its namespace and its id."""


class UnderWay:
    """Finds what dead legs left unfinished.

    Args:
        rows: The legs of the job.
        made: What the checkpoints tell of them; the steps that are found are noted there.
        spanned: What the spans tell of them.
        channels: Reads a state.
    """

    def __init__(
        self, rows: Sequence[LegRow], made: Steps, spanned: Mapping[int, SpannedLeg], channels: Channels
    ) -> None:
        self._rows = rows
        self._made = made
        self._spanned = spanned
        self._channels = channels
        self._left = STATES

    def of_leg(self, row: LegRow, resume: str | None) -> list[Node]:
        """The nodes of the root graph that ran as a leg's worker died, with those of subgraphs below them.

        Args:
            row: The leg.
            resume: The command that takes the job up from there, if it stands there.
        """
        last = self._made.last.get(row.number)
        return [] if last is None else self._at(row, "", last, resume)

    def _at(self, row: LegRow, namespace: str, last: SavedStep, resume: str | None) -> list[Node]:
        """Those of one graph, which had come to this checkpoint."""
        if self._left <= 0:
            return []
        self._left -= 1
        channels = self._channels(namespace, last.checkpoint_id)
        told = self._spanned[row.number].ran(namespace, last.number + 1) if row.number in self._spanned else []
        due = [name for name in deaths.due(channels) if name or not (namespace or told)]
        ended = deaths.ended(self._made.stored.get(last.checkpoint_id, []), channels)
        finished = self._finished(row, namespace, last, due, list(ended.values()))
        nodes = deaths.under_way(row, last, due, told=told, finished=finished, resume=resume)
        unbound = self._made.unbound.setdefault(row.number, [])
        unbound += [(namespace, node) for node in nodes]
        if row.number not in self._spanned and finished:
            self._add_ended(row, namespace, last, finished, ended)
        for inner, saved in self._made.below.get(row.number, {}).items():
            if inner.rpartition("|")[0] == namespace and saved.around == last.checkpoint_id:
                around = self._made.bound(row.number, inner)
                if around is not None and UNFINISHED in around.facts:
                    around.children += self._at(row, inner, saved, None)
        return nodes

    def _finished(
        self, row: LegRow, namespace: str, last: SavedStep, due: Sequence[str], stored: list[str]
    ) -> list[str] | None:
        """Those of a step that had an output before the leg ended; None if that cannot be told any more."""
        following = next((one for one in self._rows if one.number > row.number), None)
        if following is None:
            return stored
        if following.number not in self._spanned or following.outcome in ("gone", "running"):
            return None
        again = self._spanned[following.number].ran(namespace, last.number + 1)
        if namespace and not again:
            return None  # it did not come to that
        return deaths.without(due, again)

    def _add_ended(
        self, row: LegRow, namespace: str, last: SavedStep, finished: list[str], ended: Mapping[str, str]
    ) -> None:
        """Note the steps of a leg without spans that had an output, before what ran beside them was killed."""
        is_last = row is self._rows[-1]
        for task_id, name in ended.items() if is_last else ((None, name) for name in finished if name):
            node = deaths.ended_node(row, last, name)
            if task_id is not None:
                self._made.by_task[row.number, task_id] = node
            else:
                self._made.unbound.setdefault(row.number, []).append((namespace, node))
            if namespace:
                around = self._made.bound(row.number, namespace)
                (self._made.by_leg.setdefault(row.number, []) if around is None else around.children).append(node)
            else:
                self._made.by_leg.setdefault(row.number, []).append(node)
