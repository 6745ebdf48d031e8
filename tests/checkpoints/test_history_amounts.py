"""How much is stored of lists that grow, and how much a saver remembers of them."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import END, START, StateGraph

from everstep.checkpoints import history
from everstep.checkpoints.history import CHUNKS
from everstep.checkpoints.saver import StepSaver
from everstep.checkpoints.store import Store
from everstep.errors import StoreCorrupt
from tests.support.long_lists import (
    TEXT,
    State,
    conversation,
    go_on,
    items_of,
    message,
    rows,
    thread,
)


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
