"""Lists stored by their growth are read as those a stock saver stores whole, whatever is done to them or the thread."""

from __future__ import annotations

import copy
import itertools
import operator
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AIMessageChunk, AnyMessage, HumanMessage, RemoveMessage
from langchain_core.runnables import RunnableConfig
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import CheckpointTuple, empty_checkpoint
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt
from pydantic import BaseModel
from sqlalchemy import Connection

from everstep.checkpoints import history
from everstep.checkpoints.history import CHUNKS
from everstep.checkpoints.long_lists import Shortened
from everstep.checkpoints.saver import StepSaver
from everstep.checkpoints.store import Store
from everstep.errors import StoreCorrupt
from tests.checkpoints.test_saver import stock_saver
from tests.support.waiting import PATIENCE, until

NUMBERS = itertools.count()
TEXT = "word " * 600


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short lists are stored by their growth as well, and their lines soon become one."""
    monkeypatch.setattr(history, "SMALLEST", 30)
    monkeypatch.setattr(history, "MOST_ALIKE", 3)


def thread(name: str, checkpoint_id: str | None = None, namespace: str = "") -> RunnableConfig:
    """A place."""
    there = {"thread_id": name, "checkpoint_ns": namespace}
    return {"configurable": there | ({"checkpoint_id": checkpoint_id} if checkpoint_id else {})}


def rows(store: Store) -> int:
    """How many chunks there are."""
    table = store.database.checkpoint_tables[-1]
    sql = f"SELECT count(*) FROM {table} WHERE checkpoint_id = '{CHUNKS}'"
    return store.read(lambda connection: connection.exec_driver_sql(sql).scalar_one())


# ---- any sequence of operations, against lists stored whole

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


def seen(found: CheckpointTuple | None) -> Any:
    """A checkpoint without its thread; by `repr`, for which 1, 1.0 and True differ, and as it is."""
    if found is None:
        return None
    parent = (found.parent_config or {}).get("configurable", {}).get("checkpoint_id")
    return repr((dict(found.checkpoint), dict(found.metadata), parent, found.pending_writes))


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


# ---- graphs, against LangGraph without us


class State(TypedDict, total=False):
    """Lists of each kind."""

    messages: Annotated[list[AnyMessage], add_messages]
    log: Annotated[list[Any], operator.add]
    last: list[str]
    deltas: Annotated[
        list[str], DeltaChannel(lambda state, writes: state + [text for write in writes for text in write])
    ]
    count: int


def talk(saver: Any) -> Any:
    """A graph that does to its lists what can be done; it asks once, and has a subgraph with a memory of its own."""
    inner = StateGraph(State)
    inner.add_node(
        "note", lambda state: {"log": [TEXT], "messages": [HumanMessage(TEXT, id=f"inner {len(state['log'])}")]}
    )
    inner.add_edge(START, "note")

    def say(state: State) -> Any:
        count = state.get("count", 0)
        update: dict[str, Any] = {"count": count + 1, "log": [{"n": count, "text": TEXT}], "deltas": [TEXT]}
        update["last"] = [*state.get("last", []), TEXT]
        messages: list[Any] = [AIMessage(TEXT, id=str(count))]
        if count == 3:
            messages = [AIMessage("other", id="1"), RemoveMessage(id="0"), *messages]
        if count == 4:
            state["log"][0]["text"] = "changed in place"
            state["messages"][0].content = "changed in place"
            state["last"].append("in place")
        if count == 5:
            update["log"].append(interrupt("go on?"))
        return {**update, "messages": messages}

    builder = StateGraph(State)
    builder.add_node("say", say)
    builder.add_node("inner", inner.compile(checkpointer=True))
    builder.add_node("one", lambda number: {"log": [number]})
    builder.add_edge(START, "say")
    builder.add_edge("one", "inner")
    builder.add_conditional_edges("say", lambda state: [Send("one", number) for number in range(3)])
    builder.add_conditional_edges("inner", lambda state: "say" if state["count"] < 8 else END)
    return builder.compile(checkpointer=saver)


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


# ---- how much is stored


def growing() -> StateGraph[Any]:
    """One message of 1 KB a step."""
    builder = StateGraph(State)

    def step(state: State) -> Any:
        return {"messages": [AIMessage(str(len(state["messages"])).zfill(1000), id=str(uuid.uuid4()))]}

    builder.add_node("step", step)
    builder.add_edge(START, "step")
    builder.add_conditional_edges("step", lambda state: "step" if len(state["messages"]) <= LENGTH else END)
    return builder


LENGTH = 150


@pytest.mark.both_databases
def test_a_step_stores_its_message_and_not_the_list(shared: Store) -> None:
    """Of a list that grows by one message a step, one message a step is stored, in one commit; also by a successor."""
    config = {**thread("thread"), "recursion_limit": 1000}
    before = shared.commits
    growing().compile(checkpointer=StepSaver(shared)).invoke(
        {"messages": [HumanMessage("go", id="0")]}, config, durability="sync"
    )
    assert shared.commits - before <= LENGTH + 5
    assert LENGTH - 5 <= rows(shared) <= LENGTH
    stored = written(shared)
    graph = growing().compile(checkpointer=StepSaver(shared))
    graph.update_state(config, {"messages": [AIMessage("x" * 1000, id="last")]}, as_node="step")
    assert written(shared) - stored < 5000
    assert stored < 4500 * LENGTH
    assert len(graph.get_state(config).values["messages"]) == LENGTH + 2


def written(store: Store) -> int:
    """Bytes of all values that are stored of threads."""
    values = {"checkpoints": "checkpoint", "writes": "value", "checkpoint_writes": "blob", "checkpoint_blobs": "blob"}
    if store.url.startswith("postgresql"):
        values["checkpoints"] = "CAST(checkpoint AS TEXT)"
    tables = [table for table in store.database.checkpoint_tables if table in values]
    sizes = " + ".join(f"(SELECT coalesce(sum(length({values[table]})), 0) FROM {table})" for table in tables)
    return int(store.read(lambda connection: connection.exec_driver_sql(f"SELECT {sizes}").scalar_one()))


# ---- what is stored for others


def conversation(saver: StepSaver, name: str = "thread", *, more: int = 3) -> list[AIMessage]:
    """Store some checkpoints, each with one message more."""
    items: list[AIMessage] = []
    config = thread(name)
    for number in range(more):
        items.append(AIMessage(TEXT, id=str(number)))
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"items": items}
        checkpoint["channel_versions"] = {"items": str(number)}
        config = saver.put(config, checkpoint, {"step": number}, {"items": str(number)})
    return items


def test_many_runs_of_a_thread_write_little_more_than_one(store: Store) -> None:
    """A list that each run goes on with is written some `log n` times, and is spread over as many lines."""
    config, items, runs = thread("talk"), list[Any](), 150
    for number in range(runs):
        items = [*items, AIMessage(TEXT, id=f"message-{number}")]
        saver = StepSaver(store)
        saver.get_tuple(config)
        config = go_on(saver, config, items)
    assert items_of(store, config) == [item.id for item in items]
    table = store.database.checkpoint_tables[-1]
    sql = f"SELECT sum(length(value)) FROM {table} WHERE checkpoint_id = '{CHUNKS}'"
    stored = store.read(lambda connection: connection.exec_driver_sql(sql).scalar_one())
    assert stored < 4 * runs * len(TEXT)
    found = StepSaver(store).as_stored(config)
    assert found is not None
    assert 2 < len(found.checkpoint["channel_values"]["items"].lines) < 4 * history.MOST_ALIKE


def test_a_stock_saver_refuses_what_it_cannot_read(store: Store) -> None:
    """It does not take a list it does not find for an empty one."""
    conversation(StepSaver(store))
    with (
        SqliteSaver.from_conn_string(str(store.path)) as stock,
        pytest.raises(NotImplementedError, match="Unknown serialization type: everstep"),
    ):
        stock.get_tuple(thread("thread"))


def test_a_thread_with_whole_lists_is_gone_on_with(store: Store) -> None:
    """A thread an earlier version stored is read, grows from there, and can be stored whole again."""
    items = conversation(StepSaver(store, full_lists=True))
    saver = StepSaver(store)
    found = saver.get_tuple(thread("thread"))
    assert found is not None
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = {"items": [*items, AIMessage(TEXT, id="new")]}
    checkpoint["channel_versions"] = {"items": "9"}
    after = saver.put(found.config, checkpoint, {"step": 9}, {"items": "9"})
    assert rows(store) == 1
    last = empty_checkpoint()
    last["channel_values"], last["channel_versions"] = checkpoint["channel_values"], {"items": "91"}
    StepSaver(store, full_lists=True).put(after, last, {"step": 10}, {"items": "91"})
    with SqliteSaver.from_conn_string(str(store.path)) as stock:
        read = stock.get_tuple(thread("thread"))
        assert read is not None
        assert len(read.checkpoint["channel_values"]["items"]) == 4
    assert len(list(StepSaver(store).list(thread("thread")))) == 5


@pytest.mark.both_databases
def test_a_thread_can_be_made_readable_for_stock_savers(shared: Store) -> None:
    """`store_whole` leaves every checkpoint as it reads, in LangGraph's format, and no parts."""
    saver = StepSaver(shared)
    graph = talk(saver)
    graph.invoke(
        {"messages": [HumanMessage(TEXT, id="b")], "log": [], "deltas": []}, thread("thread"), durability="sync"
    )
    everything: RunnableConfig = {"configurable": {"thread_id": "thread"}}
    before = [seen(found) for found in saver.list(everything)]
    saver.store_whole("thread")
    assert rows(shared) == 0
    assert [seen(found) for found in StepSaver(shared).list(everything)] == before
    with stock_saver(shared) as stock:
        assert [seen(found) for found in stock.list(everything)] == before
        assert talk(stock).invoke(Command(resume="yes"), thread("thread"))["count"] == 8


@pytest.mark.both_databases
def test_parts_that_were_deleted_by_others_are_written_again(shared: Store) -> None:
    """A saver that goes on from what another process deleted stores the list whole."""
    saver = StepSaver(shared)
    items = conversation(saver)
    config = saver.get_tuple(thread("thread"))
    assert config is not None
    StepSaver(shared).delete_thread("thread")
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = {"items": [*items, AIMessage(TEXT, id="new")]}
    checkpoint["channel_versions"] = {"items": "9"}
    saver.put(config.config, checkpoint, {"step": 9}, {"items": "9"})
    found = StepSaver(shared).get_tuple(thread("thread"))
    assert found is not None
    assert found.checkpoint["channel_values"] == checkpoint["channel_values"]


@pytest.mark.both_databases
def test_parts_that_are_missing_are_an_error(shared: Store) -> None:
    """A list that is not all there is not read as a shorter one."""
    conversation(StepSaver(shared))
    table = shared.database.checkpoint_tables[-1]
    sql = f"DELETE FROM {table} WHERE checkpoint_id = '{CHUNKS}' AND idx = 1"
    shared.write(lambda connection: connection.exec_driver_sql(sql)).result()
    with pytest.raises(StoreCorrupt, match="2 of 3 items"):
        StepSaver(shared).get_tuple(thread("thread"))


@pytest.mark.both_databases
def test_pruning_deletes_the_parts_nobody_needs(shared: Store) -> None:
    """What only deleted checkpoints consisted of goes; a thread that is deleted leaves nothing."""
    saver = StepSaver(shared)
    conversation(saver)
    other = [AIMessage(f"other {TEXT}", id="other")]
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"], checkpoint["channel_versions"] = {"items": other}, {"items": "9"}
    saver.put(thread("thread"), checkpoint, {"step": 9}, {"items": "9"})
    assert rows(shared) == 4
    saver.prune(["thread"])
    assert rows(shared) == 1
    found = saver.get_tuple(thread("thread"))
    assert found is not None
    assert found.checkpoint["channel_values"]["items"] == other
    saver.delete_thread("thread")
    assert rows(shared) == 0


def go_on(saver: StepSaver, config: RunnableConfig, items: list[Any], run: str = "") -> RunnableConfig:
    """Store one checkpoint after another."""
    checkpoint, version = empty_checkpoint(), str(next(NUMBERS))
    checkpoint["channel_values"], checkpoint["channel_versions"] = {"items": items}, {"items": version}
    metadata: Any = {"run_id": run}
    return saver.put(config, checkpoint, metadata, {"items": version})


def items_of(store: Store, config: RunnableConfig) -> list[str]:
    """The ids of the messages of a checkpoint."""
    found = StepSaver(store).get_tuple(config)
    assert found is not None
    return [item.id for item in found.checkpoint["channel_values"]["items"]]


def message(name: str) -> AIMessage:
    """A long one."""
    return AIMessage(TEXT, id=name)


@pytest.mark.both_databases
def test_what_is_put_while_a_thread_is_pruned_stays_readable(shared: Store) -> None:
    """Between prune's look and its deletion the thread goes on, and branches from a checkpoint that is not kept."""
    one = StepSaver(shared)
    old = go_on(one, thread("thread"), [message("old")])
    newest = go_on(one, old, [message("new")])
    put: list[RunnableConfig] = []

    class Interrupted(StepSaver):
        def as_stored(self, config: RunnableConfig) -> CheckpointTuple | None:
            found = super().as_stored(config)
            for begin, text in ((newest, "new"), (old, "old")):
                successor = StepSaver(shared)
                assert successor.get_tuple(begin) is not None
                put.append(go_on(successor, begin, [message(text), message("next")]))
            return found

    Interrupted(shared).prune(["thread"])
    assert [items_of(shared, config) for config in (newest, *put)] == [["new"], ["new", "next"], ["old", "next"]]
    one.prune(["thread"])
    assert items_of(shared, thread("thread")) == ["old", "next"]
    assert rows(shared) == 2


@pytest.mark.parametrize("database", ["postgres"])
@pytest.mark.parametrize("how", ["delete", "prune", "runs"])
def test_whoever_deletes_parts_waits_for_what_needs_them(
    shared: Store, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deletion by another process between the look whether a list is still there and the commit breaks no list."""
    saver = StepSaver(shared)
    old = go_on(saver, thread("thread"), [message("old")], "first")
    go_on(saver, old, [message("new")], "first")
    with Store.open(shared.url) as other:
        deletion = {
            "delete": lambda: StepSaver(other).delete_thread("thread"),
            "prune": lambda: StepSaver(other).prune(["thread"]),
            "runs": lambda: StepSaver(other).delete_for_runs(["first"]),
        }[how]
        beside = threading.Thread(target=deletion, daemon=True)
        check = Shortened.check

        def checked(self: Shortened, connection: Connection) -> None:
            check(self, connection)
            beside.start()
            sql = (
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
            until(
                lambda: (
                    not beside.is_alive()
                    or shared.read(lambda connection: connection.exec_driver_sql(sql).scalar_one())
                )
            )

        monkeypatch.setattr(Shortened, "check", checked)
        successor = StepSaver(shared)
        assert successor.get_tuple(old) is not None
        after = go_on(successor, old, [message("old"), message("next")], "second")
        beside.join(PATIENCE)
        assert not beside.is_alive()
    if how == "delete":
        assert StepSaver(shared).get_tuple(after) is None
    else:
        assert items_of(shared, after) == ["old", "next"]


@pytest.mark.both_databases
def test_runs_that_are_deleted_take_their_words_along(shared: Store) -> None:
    """What only checkpoints of these runs consisted of goes, by the same saver or another, and at last everything."""
    saver = StepSaver(shared)
    first = go_on(saver, thread("thread"), [message("1")], "first")
    again = go_on(saver, first, [message("1"), message("2")], "second")
    successor = StepSaver(shared)
    assert successor.get_tuple(again) is not None
    go_on(successor, again, [message("1"), message("2"), message("3")], "third")
    assert rows(shared) == 3
    saver.delete_for_runs(["third"])
    assert rows(shared) == 2
    assert items_of(shared, again) == ["1", "2"]
    saver.delete_for_runs(["second"])
    assert rows(shared) == 1
    assert items_of(shared, thread("thread")) == ["1"]
    saver.delete_for_runs(["first"])
    assert rows(shared) == 0


def test_a_list_of_checkpoints_is_walked_through_one_at_a_time(store: Store) -> None:
    """The long lists of a checkpoint are read when it is its turn; gone by then, that is an error."""
    saver = StepSaver(store)
    conversation(saver)
    walk = saver.list(thread("thread"))
    assert len(next(walk).checkpoint["channel_values"]["items"]) == 3
    saver.delete_thread("thread")
    with pytest.raises(StoreCorrupt, match="pruned or deleted meanwhile"):
        next(walk)


def test_what_a_subgraph_left_is_not_remembered(store: Store) -> None:
    """A saver lets go of the lists of a call of a subgraph that is over; one that has a memory keeps its own."""
    inner = StateGraph(State)
    inner.add_node("note", lambda _: {"log": [TEXT]})
    inner.add_node("more", lambda _: {"log": [TEXT]})
    inner.add_edge(START, "note")
    inner.add_edge("note", "more")
    builder = StateGraph(State)
    for name, memory in (("forgets", None), ("remembers", True)):
        builder.add_node(name, inner.compile(checkpointer=memory))
    builder.add_edge(START, "forgets")
    builder.add_edge("forgets", "remembers")
    saver = StepSaver(store)
    builder.compile(checkpointer=saver).invoke({"log": []}, thread("thread"), durability="sync")
    assert {place[1] for place, _ in saver._lists._memory._known} == {"", "remembers"}


def test_fields_that_change_places_are_a_change(store: Store) -> None:
    """A message whose fields hold each other's values in another order is not the same message."""
    saver = StepSaver(store)
    given = HumanMessage(TEXT, name="a", id="b")
    config = go_on(saver, thread("thread"), [given])
    del given.name
    given.id, given.name = "a", "b"
    assert items_of(store, config) == ["b"]
    assert items_of(store, go_on(saver, config, [given])) == ["a"]


def test_savers_remember_so_much_together(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What many savers know is bounded as what one does; the one that has not been at work for longest forgets."""
    monkeypatch.setattr(history, "MOST_KNOWN", 8000)
    savers = [StepSaver(store) for _ in range(4)]
    for number, saver in enumerate(savers):
        go_on(saver, thread(f"thread {number}"), [message("1")])
    assert [len(saver._lists._memory._known) for saver in savers] == [0, 0, 1, 1]


def test_only_so_much_is_remembered(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a saver knows of lists is bounded; what it forgot it stores whole, in a line of its own."""
    conversation(StepSaver(store))
    assert lines(store) == 1
    monkeypatch.setattr(history, "MOST_KNOWN", 5000)
    items = conversation(StepSaver(store), "other")
    assert lines(store) == 3
    found = StepSaver(store).get_tuple(thread("other"))
    assert found is not None
    assert found.checkpoint["channel_values"]["items"] == items


def lines(store: Store) -> int:
    """How many lines of chunks there are."""
    sql = f"SELECT count(DISTINCT task_id) FROM writes WHERE checkpoint_id = '{CHUNKS}'"
    return store.read(lambda connection: connection.exec_driver_sql(sql).scalar_one())
