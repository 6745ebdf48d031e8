"""Lists stored by their growth are read as those a stock saver stores whole, whatever is done to them or the thread."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command
from pydantic import BaseModel

from everstep.checkpoints import history
from everstep.checkpoints.saver import StepSaver
from everstep.checkpoints.store import Store
from tests.support.long_lists import (
    NUMBERS,
    TEXT,
    go_on,
    items_of,
    rows,
    seen,
    talk,
    thread,
)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short lists are stored by their growth as well, and their lines soon become one."""
    monkeypatch.setattr(history, "SMALLEST", 30)
    monkeypatch.setattr(history, "MOST_ALIKE", 3)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from([0.0, -0.0, 1.0]) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)

MESSAGES = st.builds(
    lambda n, text, given: AIMessage(text, id=str(n), additional_kwargs={"g": given}),
    st.integers(0, 5),
    st.text(min_size=9, max_size=20),
    st.sampled_from([0, 1, True, None, 1.0, "a", [1]]),
)

OTHERS = st.builds(HumanMessage, st.text(max_size=30)) | st.builds(lambda given: (given, b"x"), PLAIN)

ITEMS = MESSAGES | st.builds(lambda given: {"g": given}, PLAIN) | st.one_of(PLAIN, OTHERS)


class Step(NamedTuple):
    """What is done to a thread.

    Attributes:
        kind: What.
        at: Chooses a checkpoint to go on from; the newest if 0.
        index: Chooses an item.
        item: What comes in its place.
        fresh: Whether the list that is gone on with is read, not the one that was put.
    """

    kind: str
    at: int
    index: int
    item: Any
    fresh: bool


KINDS = (
    ["append"] * 8 + ["extend"] * 2 + ["replace", "change", "change", "remove", "same", "clear", "reverse", "insert"]
)
KINDS += ["restart", "writes", "prune", "copy", "delete", "runs"]

STEPS = st.lists(
    st.builds(
        Step, st.sampled_from(KINDS), st.sampled_from([0, 0, 0, 1, 2, 3]), st.integers(0, 9), ITEMS, st.booleans()
    ),
    min_size=8,
    max_size=25,
)


def changed(items: list[Any], step: Step) -> list[Any]:
    """The list after a step; some change it, or an item of it, in place."""
    index = step.index % len(items) if items else 0
    if step.kind == "append":
        return [*items, step.item]
    if step.kind == "extend":
        items.extend([step.item, copy.deepcopy(step.item)])
    elif step.kind == "replace" and items:
        return [*items[:index], step.item, *items[index + 1 :]]
    elif step.kind == "change" and items:
        if isinstance(items[index], AIMessage):
            items[index].additional_kwargs["g"] = step.item if not isinstance(step.item, AIMessage) else True
        elif isinstance(items[index], dict):
            items[index]["g"] = True
        elif isinstance(items[index], list):
            items[index].append(1)
        elif isinstance(items[index], (int, float)):
            items[index] = bool(items[index])
    elif step.kind == "remove" and items:
        del items[index]
    elif step.kind == "insert":
        items.insert(index, step.item)
    elif step.kind == "clear":
        return []
    elif step.kind == "reverse":
        items.reverse()
    return items


class Both:
    """A saver under test, and one that stores lists whole, in threads of one record."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.number = next(NUMBERS)
        self.versions = 0
        self.put: list[tuple[str, list[Any]]] = []
        self.restart()

    def restart(self) -> None:
        """As another process would find the record."""
        savers = {"grown": StepSaver(self.store), "whole": StepSaver(self.store, full_lists=True)}
        self.savers = {f"{name} {self.number}": saver for name, saver in savers.items()}

    def compare(self, suffix: str = "") -> None:
        """All that can be read is the same."""
        grown, whole = (
            [seen(each) for each in (saver.get_tuple(thread(name + suffix)), *saver.list(thread(name + suffix)))]
            for name, saver in self.savers.items()
        )
        assert grown == whole

    def do(self, step: Step) -> None:
        """One step, in both threads."""
        there = self.put[-1 - step.at % len(self.put)] if self.put else None
        if step.kind == "restart":
            self.restart()
        elif step.kind == "runs":
            next(iter(self.savers.values())).delete_for_runs([self.run(step.index)])
        elif step.kind not in ("writes", "prune", "copy", "delete"):
            self.store_next(step, there)
        else:
            for name, saver in self.savers.items():
                if step.kind == "writes" and there:
                    saver.put_writes(thread(name, there[0]), [("items", [step.item])], f"task {step.index}")
                elif step.kind == "prune":
                    saver.prune([name])
                elif step.kind == "delete":
                    saver.delete_thread(name)
                elif step.kind == "copy":
                    saver.copy_thread(name, f"{name} copy")
            if step.kind == "copy":
                self.compare(" copy")

    def run(self, number: int) -> str:
        """The id of a run."""
        return f"{self.number} {number % 3}"

    def store_next(self, step: Step, there: tuple[str, list[Any]] | None) -> None:
        """Store a checkpoint after another."""
        items = list[Any]() if there is None else there[1]
        if step.fresh and there:
            name, saver = next(iter(self.savers.items()))
            found = saver.get_tuple(thread(name, there[0]))
            items = found.checkpoint["channel_values"].get("items", []) if found else []
        items = changed(items, step)
        self.versions += 1
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"items": items, "n": self.versions, "other": [TEXT]}
        new = {"items": str(self.versions), "n": str(self.versions)}
        checkpoint["channel_versions"] = {**new, "other": "1"}
        for name, saver in self.savers.items():
            metadata: Any = {"step": self.versions, "run_id": self.run(self.versions)}
            saver.put(
                thread(name, there[0] if there else None),
                checkpoint,
                metadata,
                new if there else checkpoint["channel_versions"],
            )
        self.put.append((checkpoint["id"], items))


@pytest.mark.both_databases
@pytest.mark.usefixtures("small")
def test_what_is_read_is_what_a_stock_saver_stores(shared: Store) -> None:
    """After any sequence of growth, changes in place, branches, restarts, prunings, copies and deletions."""

    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
    @given(STEPS)
    def check(steps: list[Step]) -> None:
        both = Both(shared)
        for step in steps:
            both.do(step)
            both.compare()

    check()
    assert rows(shared) > 0


class Point(BaseModel):
    """An object of a class that nothing is known of."""

    x: Any


CHANGES: dict[str, Callable[[list[Any]], Any]] = {
    "content": lambda items: setattr(items[0], "content", "changed"),
    "number to truth": lambda items: items[0].additional_kwargs.update(g=True),
    "order of keys": lambda items: items[0].additional_kwargs.update(g=items[0].additional_kwargs.pop("g")),
    "sign of zero": lambda items: items[0].additional_kwargs.update(h=-0.0),
    "nested": lambda items: items[0].additional_kwargs["deep"]["list"].append(1),
    "extra": lambda items: setattr(items[0], "further", 2),
    "tool call": lambda items: items[0].tool_calls[0]["args"].update(a=2),
    "class": lambda items: operator.setitem(items, 0, AIMessageChunk(**items[0].model_dump(exclude={"type"}))),
    "dictionary": lambda items: items[1]["list"].append(1),
    "tuple for list": lambda items: items[1].update(list=(1,)),
    "object": lambda items: setattr(items[2], "x", 2),
    "bytes": lambda items: items[3].update(bytes=bytearray(b"x")),
    "item": lambda items: operator.setitem(items, 1, "other"),
    "removed": lambda items: items.pop(0),
    "swapped": lambda items: items.reverse(),
}


@pytest.mark.parametrize("change", list(CHANGES))
def test_a_change_in_place_is_stored(store: Store, change: str) -> None:
    """Whatever is changed in an item that is stored already, the next checkpoint has it, and the one before has not."""
    message = AIMessage(
        TEXT,
        id="1",
        additional_kwargs={"g": 1, "h": 0.0, "deep": {"list": []}},
        tool_calls=[{"name": "tool", "args": {"a": 1}, "id": "call"}],
        further=1,
    )
    items: list[Any] = [message, {"list": [1]}, Point(x=1), {"bytes": b"x"}]
    places: list[list[RunnableConfig]] = []
    for saver, name in ((StepSaver(store), "grown"), (StepSaver(store, full_lists=True), "whole")):
        own, config, places = copy.deepcopy(items), thread(name), [*places, []]
        for version in ("1", "2", "3"):
            checkpoint = empty_checkpoint()
            checkpoint["channel_values"], checkpoint["channel_versions"] = {"items": own}, {"items": version}
            config = saver.put(config, checkpoint, {}, {"items": version})
            places[-1].append(config)
            if version == "1":
                CHANGES[change](own)
            own.append(AIMessage(TEXT, id=version))
    assert rows(store) == 3
    grown, whole = ([values_of(StepSaver(store), place) for place in each] for each in places)
    assert grown == whole
    assert len(set(whole)) == 3


def values_of(saver: StepSaver, config: RunnableConfig) -> str:
    """What a checkpoint holds."""
    found = saver.get_tuple(config)
    assert found is not None
    return repr(found.checkpoint["channel_values"])


def told(graph: Any, config: RunnableConfig) -> list[str]:
    """The history of a thread, without what differs by itself."""
    return [
        repr(
            (
                state.values,
                state.next,
                (state.metadata or {}).get("step"),
                [(task.name, task.result) for task in state.tasks],
            )
        )
        for state in graph.get_state_history(config)
    ]


def lived(make: Callable[[], Any]) -> list[list[str]]:
    """Everything that happens to a thread; each time with a new saver, as in another process."""
    config, seen = thread("thread"), list[list[str]]()
    talk(make()).invoke(
        {"messages": [HumanMessage(TEXT, id="begin")], "log": [], "deltas": []}, config, durability="sync"
    )
    seen.append(told(talk(make()), config))
    talk(make()).invoke(Command(resume="yes"), config, durability="async")
    graph = talk(make())
    seen.append(told(graph, config))
    before = [state.config for state in graph.get_state_history(config) if "say" in state.next][3]
    graph.invoke(None, before, durability="sync")
    seen.append(told(talk(make()), config))
    changed = graph.update_state(before, {"messages": [AIMessage("by hand", id="2")], "log": [TEXT]}, as_node="inner")
    graph.invoke(None, changed, durability="exit")
    seen.append(told(talk(make()), config))
    return seen


def test_a_graph_lives_as_with_the_stock_saver(store: Store, tmp_path: Path) -> None:
    """Reducers, replacement and removal of messages, changes in place, `Send`, subgraphs, answers, time travel."""
    with SqliteSaver.from_conn_string(str(tmp_path / "stock.db")) as stock:
        expected = lived(lambda: stock)
    assert [len(each) for each in expected] == sorted(len(each) for each in expected)
    assert lived(lambda: StepSaver(store)) == expected
    assert rows(store) > 10


def test_fields_that_change_places_are_a_change(store: Store) -> None:
    """A message whose fields hold each other's values in another order is not the same message."""
    saver = StepSaver(store)
    given = HumanMessage(TEXT, name="a", id="b")
    config = go_on(saver, thread("thread"), [given])
    del given.name
    given.id, given.name = "a", "b"
    assert items_of(store, config) == ["b"]
    assert items_of(store, go_on(saver, config, [given])) == ["a"]
