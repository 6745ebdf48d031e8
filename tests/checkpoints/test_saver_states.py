"""A state machine over threads' checkpoints: several savers store, branch, delete, copy; others read what a model says.

However lists grew and changed, whatever became part of what, and whoever deleted or copied what it was part of: each
checkpoint and what its tasks wrote are read as they were given.
"""

from __future__ import annotations

import copy
import hashlib
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import WRITES_IDX_MAP, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6

from everstep.checkpoints.saver import StepSaver
from tests.support.machines import RecordMachine, machine_settings

THREADS = ["one", "two"]
TASKS = {"first": ("items", "count", "branch:to:step"), "second": ("items", "branch:to:step"), "third": ("plain",)}
RUNS = ["a", "b", "c"]
MOSTLY_ONE = st.sampled_from(["one"] * 4 + ["two"])
CHANGES = ["grow", "grow", "grow", "grow with more", "cut", "change", "remove", "repeat", "replace", "nothing"]


@dataclass
class Saved:
    """A checkpoint as it was given."""

    parent: str | None
    values: dict[str, Any]
    versions: dict[str, Any]
    run: str
    writes: dict[tuple[str, int], tuple[str, Any]] = field(default_factory=dict[tuple[str, int], tuple[str, Any]])


class Checkpoints(RecordMachine):
    """Two threads, and two savers that are replaced now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.savers = [StepSaver(self.store), StepSaver(self.store)]
        self.model: dict[str, dict[str, Saved]] = {name: {} for name in THREADS}
        self.number = 0
        for _ in range(3):
            self.step(THREADS[0], RUNS[0], 900)

    def teardown(self) -> None:
        try:
            self.look(0, is_new=True)
        finally:
            super().teardown()

    # ---- rules

    @rule(
        name=MOSTLY_ONE,
        which=st.sampled_from([0, 0, 0, 1]),
        back=st.sampled_from([0, 0, 0, 0, 1, 2]),
        reads=st.booleans(),
        change=st.sampled_from(CHANGES),
        run=st.sampled_from(RUNS),
    )
    def put(self, name: str, which: int, back: int, reads: bool, change: str, run: str) -> None:
        """A checkpoint after the newest, or after an earlier one, as its tasks' writes or something else make it."""
        saver, parent = self.savers[which], self.of(name, back)
        if reads and parent is not None:
            saver.get_tuple(where(name, parent))
        before = Saved(None, {}, {}, "") if parent is None else self.model[name][parent]
        wrote = [item for channel, value in before.writes.values() if channel == "items" for item in value]
        values = {**before.values, "count": before.values.get("count", 0) + 1, "branch:to:step": None}
        values["items"] = self.changed(before.values.get("items", []), wrote, change)
        version = saver.get_next_version(max(before.versions.values(), default=None), None)
        checkpoint = empty_checkpoint()
        checkpoint["id"] = str(uuid6(clock_seq=self.number % 16_000))
        checkpoint["channel_values"] = copy.deepcopy(values)
        checkpoint["channel_versions"] = versions = dict.fromkeys(values, version)
        saver.put(where(name, parent), checkpoint, {"source": "loop", "step": 1, "run_id": run}, versions)
        self.model[name][checkpoint["id"]] = Saved(parent, values, versions, run)

    @precondition(lambda self: any(self.model.values()))
    @rule(
        name=MOSTLY_ONE,
        which=st.sampled_from([0, 0, 0, 1]),
        back=st.sampled_from([0, 0, 0, 0, 1, 2]),
        reads=st.booleans(),
        task=st.sampled_from([*TASKS, "pauses"]),
        size=st.sampled_from([10, 300, 3_000]),
    )
    def write(self, name: str, which: int, back: int, reads: bool, task: str, size: int) -> None:
        """A task ends, or pauses; one that ended before, and runs again, changes nothing."""
        at = self.of(name, back)
        if at is None:
            return
        saver, known = self.savers[which], self.model[name][at].writes
        if reads:
            saver.get_tuple(where(name, at))
        new = {"items": [self.message(size)], "plain": [self.message(size)], "count": self.number}
        writes = [(channel, new.get(channel)) for channel in TASKS.get(task, ())] or [("__interrupt__", [self.number])]
        saver.put_writes(where(name, at), writes, task, "~__pregel_pull, step")
        for position, (channel, value) in enumerate(writes):
            if channel in WRITES_IDX_MAP:
                known[task, WRITES_IDX_MAP[channel]] = channel, value
            else:
                known.setdefault((task, position), (channel, value))

    @rule(name=MOSTLY_ONE, run=st.sampled_from(RUNS), size=st.sampled_from([300, 900]))
    def step(self, name: str, run: str, size: int) -> None:
        """A leg goes on by a step, as it mostly does: its tasks end, and then there is a checkpoint."""
        for task in TASKS:
            self.write(name, 0, 0, False, task, size)
        self.put(name, 0, 0, False, "grow", run)

    @rule(
        name=MOSTLY_ONE,
        which=st.sampled_from([0, 1]),
        back=st.sampled_from([0, 1, 2]),
        reads=st.booleans(),
    )
    def step_again(self, name: str, which: int, back: int, reads: bool) -> None:
        """What ran is run again from where it was, by a saver that knows other things."""
        for task in TASKS:
            self.write(name, which, back, reads, task, 900)

    @rule(which=st.sampled_from([0, 1]))
    def replace_saver(self, which: int) -> None:
        """Another worker goes on, which knows nothing."""
        self.savers[which] = StepSaver(self.store)

    @rule(run=st.sampled_from(RUNS))
    def delete_run(self, run: str) -> None:
        """The checkpoints of a run are deleted from every thread."""
        self.savers[1].delete_for_runs([run])
        for name, have in self.model.items():
            self.model[name] = {at: saved for at, saved in have.items() if saved.run != run}

    @rule(name=st.sampled_from(THREADS))
    def prune(self, name: str) -> None:
        """Only the newest checkpoint is kept."""
        self.savers[1].prune([name])
        newest = self.of(name, 0)
        self.model[name] = {} if newest is None else {newest: self.model[name][newest]}

    @rule(name=st.sampled_from(THREADS))
    def make_whole(self, name: str) -> None:
        """What a stock saver could read is what it was."""
        self.savers[1].store_whole(name)

    @rule(source=st.sampled_from(THREADS))
    def copy_thread(self, source: str) -> None:
        """One thread becomes what the other is."""
        target = next(name for name in THREADS if name != source)
        self.savers[1].delete_thread(target)
        self.savers[1].copy_thread(source, target)
        self.model[target] = copy.deepcopy(self.model[source])

    @rule(which=st.sampled_from([0, 1]), is_new=st.booleans())
    def look(self, which: int, *, is_new: bool) -> None:
        """A saver that knows, or one that does not, reads all of it."""
        saver = StepSaver(self.store) if is_new else self.savers[which]
        for name, have in self.model.items():
            found = [*saver.list(where(name))]
            assert [each.checkpoint["id"] for each in found] == sorted(have, reverse=True)
            for each in found:
                saved = have[each.checkpoint["id"]]
                assert each.checkpoint["channel_values"] == saved.values
                assert (each.parent_config and each.parent_config.get("configurable", {})["checkpoint_id"]) == (
                    saved.parent
                )
                writes = sorted(each.pending_writes or [], key=lambda write: write[0])
                assert writes == [(task, *write) for (task, _), write in sorted(saved.writes.items())]

    # ---- what they need

    def of(self, name: str, back: int) -> str | None:
        """The newest checkpoint of a thread, or one so many before it."""
        have = sorted(self.model[name], reverse=True)
        return have[min(back, len(have) - 1)] if have else None

    def message(self, size: int) -> Any:
        """A new item; some have no id yet, some are no messages."""
        self.number += 1
        text = hashlib.shake_128(str(self.number).encode()).hexdigest(size // 2)
        if self.number % 5 == 0:
            return {"text": text}
        return HumanMessage(text) if self.number % 3 == 0 else AIMessage(text, id=str(self.number))

    def changed(self, items: list[Any], wrote: list[Any], change: str) -> list[Any]:
        """What a reducer makes of a list and of what was written to it."""
        items = copy.deepcopy(items) or [self.message(500) for _ in range(6)]
        match change:
            case "grow" | "grow with more":
                items += copy.deepcopy(wrote)
                items += [self.message(1_500) for _ in range(3)] if change == "grow with more" else []
            case "cut":
                del items[len(items) // 2 :]
            case "change" if items:
                items[len(items) // 2] = self.message(300)
            case "remove" if items:
                del items[len(items) // 3]
            case "repeat":
                items += copy.deepcopy(items[-1:])
            case "replace":
                items = [self.message(600) for _ in range(5)]
            case _:
                pass
        for item in items:
            if not isinstance(item, dict) and item.id is None:
                self.number += 1
                item.id = f"given {self.number}"
        return items


def where(name: str, checkpoint_id: str | None = None) -> RunnableConfig:
    """A thread, or a checkpoint in it."""
    place = {"thread_id": name, "checkpoint_ns": ""}
    return {"configurable": place if checkpoint_id is None else {**place, "checkpoint_id": checkpoint_id}}


class OnPostgres(Checkpoints):
    """The same on PostgreSQL."""

    database = "postgres"


TestCheckpoints = Checkpoints.TestCase
TestCheckpoints.settings = machine_settings(80, 50)
TestOnPostgres = OnPostgres.TestCase
TestOnPostgres.settings = machine_settings(10, 40)
