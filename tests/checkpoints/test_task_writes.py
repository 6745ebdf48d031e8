"""What tasks wrote is stored once, with the list that it went into, and read as it was."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import operator
import random
import re
import zlib
from concurrent.futures import Future
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

from everstep.checkpoints import compression, loop_bridge, task_writes
from everstep.checkpoints.history import Grown
from everstep.checkpoints.lean import full, lean
from everstep.checkpoints.saver import StepSaver
from everstep.checkpoints.step_serializer import CHECKPOINT, PACKED, STEP, StepSerializer
from everstep.checkpoints.store import Store
from everstep.checkpoints.task_writes import PART, PARTS, TOGETHER, Row, Shorter, TaskWrites, apart

CHANCE = random.Random(7)
STEPS = 40


def words(size: int = 1000) -> str:
    """A text that deflates as little as hexadecimal digits do."""
    return CHANCE.randbytes(size // 2).hex()


class State(TypedDict, total=False):
    """What the agents hold."""

    messages: Annotated[list[AnyMessage], add_messages]
    count: int


def agent(saver: Any, *, with_ids: bool = True, steps: int = STEPS) -> Any:
    """One message of 1 KB a step."""

    async def step(state: State) -> Any:
        count = state.get("count", 0)
        return {"messages": [AIMessage(words(), id=str(count) if with_ids else None)], "count": count + 1}

    builder = StateGraph(State)
    builder.add_node("step", step)
    builder.add_edge(START, "step")
    builder.add_conditional_edges("step", lambda state: "step" if state["count"] < steps else END)
    return builder.compile(checkpointer=saver)


def thread(name: str = "thread", checkpoint_id: str | None = None) -> RunnableConfig:
    """Where a saver reads and writes."""
    where = {"thread_id": name, "checkpoint_ns": ""}
    return {
        "configurable": where if checkpoint_id is None else {**where, "checkpoint_id": checkpoint_id},
        "recursion_limit": 500,
    }


def begin(saver: Any, name: str = "thread", **how: Any) -> Any:
    """Run an agent to its end; how it is compiled."""
    graph = agent(saver, **how)
    asyncio.run(graph.ainvoke({"messages": [HumanMessage("go", id="go")]}, thread(name), durability="sync"))
    return graph


def written(store: Store, kinds: str = "") -> list[Any]:
    """The rows of the table of writes, or those of a type."""
    table = store.database.checkpoint_tables[-1]
    value = "blob" if store.url.startswith("postgresql") else "value"
    sql = f"SELECT checkpoint_id, task_id, channel, type, length({value}) FROM {table}"
    sql += f" WHERE type IN ({kinds})" if kinds else ""
    return [*store.read(lambda connection: connection.exec_driver_sql(sql).fetchall())]


@pytest.mark.both_databases
@pytest.mark.parametrize("with_ids", [True, False])
def test_a_step_stores_its_message_once(shared: Store, with_ids: bool) -> None:
    """Of a task that adds to a long list one row of a few bytes is stored beside its message; also if it got its id."""
    begin(StepSaver(shared), with_ids=with_ids)
    rows = written(shared)
    assert len(rows) < 2 * STEPS + 10
    assert sum(row[4] for row in rows) < 900 * STEPS  # 1,000 hexadecimal digits have 500 bytes in them
    parts = written(shared, f"'{PARTS}'")
    assert len(parts) > STEPS - 5
    assert max(row[4] for row in parts) < 100


@pytest.mark.parametrize("with_ids", [True, False])
def test_a_record_grows_by_little_more_than_the_message(store: Store, with_ids: bool) -> None:
    """A step takes less than 1.7 KB of the file, indexes and all, for a message of 1 KB that deflates to half."""
    begin(StepSaver(store), "warm", steps=20, with_ids=with_ids)
    pages = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
    before = store.read(lambda connection: connection.exec_driver_sql(pages).scalar_one())
    begin(StepSaver(store), steps=200, with_ids=with_ids)
    after = store.read(lambda connection: connection.exec_driver_sql(pages).scalar_one())
    assert after - before < 1700 * 200


@pytest.mark.both_databases
@pytest.mark.parametrize("with_ids", [True, False])
def test_what_tasks_wrote_is_read_as_it_was(shared: Store, with_ids: bool) -> None:
    """The history of a thread tells what each task wrote, also of a message that was given its id later."""
    whole, short = StepSaver(shared, full_lists=True), StepSaver(shared)
    for each, name in ((whole, "whole"), (short, "short")):
        CHANCE.seed(7)
        begin(each, name, with_ids=with_ids)
    assert written(shared, f"'{PARTS}', '{PART}'")
    expected, found = (
        [[write[1:] for write in each.pending_writes or ()] for each in StepSaver(shared).list(thread(name))]
        for name in ("whole", "short")
    )
    found, expected = (
        re.sub(r"\bid=(None|'[0-9a-f]{8}-[-0-9a-f]*')", "id=?", repr(each)) for each in (found, expected)
    )
    assert found == expected
    results = [task.result for state in agent(short).get_state_history(thread("short")) for task in state.tasks]
    assert [len(result["messages"]) for result in results if result and "messages" in result] == [1] * (STEPS + 1)


@pytest.mark.both_databases
def test_a_thread_that_is_branched_keeps_what_its_tasks_wrote_first(shared: Store) -> None:
    """A task that runs again after time travel leaves what it wrote the first time, as with a stock saver."""
    graph = begin(StepSaver(shared))
    states = [state for state in graph.get_state_history(thread()) if state.next == ("step",)]
    before = states[3]
    first = before.tasks[0].result
    asyncio.run(graph.ainvoke(None, before.config, durability="sync"))
    again = agent(StepSaver(shared)).get_state(before.config)
    assert again.tasks[0].result == first
    assert graph.get_state(thread()).values["messages"][-4].content != first["messages"][0].content


@pytest.mark.both_databases
def test_what_a_task_wrote_first_stays(shared: Store) -> None:
    """What another leg's task of the same id wrote is not taken for what this one wrote."""
    one, other = StepSaver(shared), StepSaver(shared)
    items = [AIMessage(words(3000), id="0")]
    config = put(one, thread(), items, "first")
    first, second = AIMessage(words(), id="1"), AIMessage(words(), id="2")
    one.put_writes(config, [("items", [first])], "task", "~__pregel_pull, step")
    assert other.get_tuple(config) is not None
    other.put_writes(config, [("items", [second])], "task", "~__pregel_pull, step")
    put(other, config, [*items, second], "second")
    found = StepSaver(shared).get_tuple(config)
    assert found is not None
    assert found.pending_writes == [("task", "items", [first])]


@pytest.mark.both_databases
def test_a_task_that_runs_again_elsewhere_adds_nothing(shared: Store) -> None:
    """What a task wrote is one row or several, as its saver knows; another saver's rows of it are no further writes."""
    one, other = StepSaver(shared), StepSaver(shared)
    config = put(one, thread(), [AIMessage(words(3000), id="0")], "first")
    first = [("items", [AIMessage(words(), id="1")]), ("branch:to:step", None)]
    one.put_writes(config, first, "task", "~__pregel_pull, step")
    assert other.get_tuple(config) is not None
    again: list[Any] = [("items", [AIMessage(words(), id="2")]), ("branch:to:step", None), ("branch:to:other", None)]
    other.put_writes(config, again, "task", "~__pregel_pull, step")
    other.put_writes(config, [("__resume__", ["yes"])], "task", "~__pregel_pull, step")
    assert len(written(shared, f"'{TOGETHER}'")) == 1
    expected = [("task", "__resume__", ["yes"]), *(("task", *each) for each in first)]
    for _ in range(2):
        found = StepSaver(shared).get_tuple(config)
        assert found is not None
        assert found.pending_writes == expected
        one.store_whole("thread")


@pytest.mark.both_databases
def test_what_others_need_outlives_a_run_that_is_deleted(shared: Store) -> None:
    """What a task wrote is read after the checkpoint that holds it with the list is deleted with its run."""
    saver = StepSaver(shared)
    items = [AIMessage(words(3000), id="0")]
    config = put(saver, thread(), items, "first")
    new = AIMessage(words(), id="1")
    saver.put_writes(config, [("items", [new])], "task", "~__pregel_pull, step")
    put(saver, config, [*items, new], "second")
    assert written(shared, f"'{PART}', '{PARTS}'")
    saver.delete_for_runs(["second"])
    found = StepSaver(shared).get_tuple(thread())
    assert found is not None
    assert found.pending_writes == [("task", "items", [new])]
    assert found.checkpoint["channel_values"]["items"] == items
    saver.prune(["thread"])
    assert StepSaver(shared).get_tuple(thread()) == found


def test_a_thread_of_before_is_read_and_gone_on_with(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists, checkpoints and writes in the form of earlier releases are read as they were, and mix with new ones."""

    def packed(self: StepSerializer, checkpoint: Any, lists: Any) -> tuple[str, bytes]:
        return PACKED, zlib.compress(JsonPlusSerializer.dumps_typed(self, [checkpoint, lists])[1], 1)

    with monkeypatch.context() as before:
        before.setattr(StepSerializer, "_checkpoint", packed)
        before.setattr(TaskWrites, "shorten", lambda _self, _place, _id, chunks: Shorter([], chunks))
        before.setattr(task_writes, "can_be_one", lambda _rows, _plain: False)
        graph = begin(StepSaver(store), steps=10)
        told = repr([*graph.get_state_history(thread())])
    assert not written(store, f"'{PARTS}', '{PART}', '{TOGETHER}'")
    graph = agent(StepSaver(store), steps=20)
    assert repr([*graph.get_state_history(thread())]) == told

    async def go_on() -> Any:
        await graph.aupdate_state(thread(), {"messages": []}, as_node="step")
        return await graph.ainvoke(None, thread(), durability="sync")

    assert len(asyncio.run(go_on())["messages"]) == 21
    assert len(written(store, f"'{PARTS}'")) > 5
    assert len(agent(StepSaver(store)).get_state(thread()).values["messages"]) == 21


VERSIONS = itertools.count(1)


def put(saver: StepSaver, config: RunnableConfig, items: list[Any], run: str) -> RunnableConfig:
    """Store one checkpoint after another."""
    checkpoint, version = empty_checkpoint(), f"{next(VERSIONS):032}"
    checkpoint["channel_values"], checkpoint["channel_versions"] = {"items": items}, {"items": version}
    metadata: Any = {"run_id": run}
    return saver.put(config, checkpoint, metadata, {"items": version})


class Deltas(TypedDict, total=False):
    """As `State`, with messages that are rebuilt from what was written."""

    messages: Annotated[
        list[Any], DeltaChannel(lambda state, writes: [*state, *(item for write in writes for item in write)])
    ]
    count: int


class Plain(TypedDict, total=False):
    """The same by LangGraph's plain channel."""

    messages: Annotated[list[Any], operator.add]
    count: int


@pytest.mark.both_databases
def test_a_list_becomes_a_delta_channel_under_one_saver(shared: Store) -> None:
    """What a graph wrote to a plain list is found when another one, of the same saver, rebuilds it from its writes."""
    saver = StepSaver(shared)

    def compiled(state: Any, **how: Any) -> Any:
        builder = StateGraph(state)
        builder.add_node("step", lambda state: {"messages": [words()], "count": state.get("count", 0) + 1})
        builder.add_edge(START, "step")
        builder.add_conditional_edges("step", lambda state: "step" if state["count"] % 5 else END)
        return builder.compile(checkpointer=saver, **how)

    pausing = compiled(Plain, interrupt_after=["step"])
    pausing.invoke({"messages": []}, thread(), durability="sync")
    for _ in range(3):
        pausing.invoke(None, thread(), durability="sync")
    before = pausing.get_state(thread()).values["messages"]
    graph = compiled(Deltas)
    graph.invoke(None, thread(), durability="sync")
    after = graph.get_state(thread()).values["messages"]
    assert after[:4] == before
    assert len(after) == 5


def test_rows_of_channels_that_are_looked_for_stay_apart(store: Store) -> None:
    """Only a task's writes to channels that are known as plain are stored as one row, and come apart as they were."""
    rows = [
        Row("thread", "", "checkpoint", "task", "path", at, channel, "msgpack", bytes([at]) * 300)
        for at, channel in enumerate(["items", "branch:to:step"])
    ]
    writes = TaskWrites(StepSaver(store))
    assert writes.to_store(rows, set()) == rows
    assert writes.to_store([row._replace(task_path="") for row in rows], {"items"})[0].channel == "items"
    assert writes.to_store([row._replace(channel="a,b") for row in rows], {"a,b"})[0].channel == "a,b"
    (one,) = writes.to_store(rows, {"items"})
    assert one.kind == TOGETHER
    assert len(one.value) < 100
    assert apart(one, lambda part: b"") == rows


# ---- forms


def test_a_checkpoint_comes_back_as_it_was() -> None:
    """Its id, time and versions are stored as numbers, and read as texts."""
    checkpoint: Any = {
        **empty_checkpoint(),
        "channel_versions": {"a": f"{7:032}", "b": f"{7:032}.0.1", "c": "7", "d": "9" * 32, "e": f"{2**63:032}"},
        "versions_seen": {"__input__": {}, "step": {"a": f"{6:032}"}},
        "channel_values": {"a": Grown((("line", 3),), 5), "b": "x" * 3000},
        "updated_channels": None,
    }
    kind, value = StepSerializer().dumps_typed(checkpoint)
    assert kind == STEP
    assert len(value) < 300
    assert StepSerializer().loads_typed((kind, value)) == checkpoint
    short = lean({**checkpoint, "channel_values": {}})
    assert short is not None
    assert full(short) == {**checkpoint, "channel_values": {}}


@pytest.mark.parametrize(
    "other",
    [
        {"id": "1"},
        {"id": "1F1ECF44-FA00-61C4-800A-E8E016F51A66"},
        {"ts": "2026-11-30T19:29:07+01:00"},
        {"ts": "yesterday"},
        {"channel_versions": {"a": 7}},
        {"versions_seen": {"step": {"a": 1.5}}},
    ],
)
def test_a_checkpoint_unlike_langgraphs_own_stays_as_it_is(other: dict[str, Any]) -> None:
    """What would not come back as it was is not made shorter."""
    checkpoint = {**empty_checkpoint(), "channel_values": {"a": Grown((("line", 3),), 5)}, **other}
    kind, value = StepSerializer().dumps_typed(checkpoint)
    assert kind == CHECKPOINT
    assert StepSerializer().loads_typed((kind, value)) == checkpoint


def test_what_stored_values_are_read_with_never_changes() -> None:
    """Values that are in records were deflated with these words: another byte of them, and none could be read."""
    known = [hashlib.sha256(each).hexdigest() for each in (compression.VALUES, compression.CHECKPOINTS)]
    assert known == [
        "ac5c893ad101c982d06ea8dfaa50541e669b0e4ba9d1eb24bef9ed96a1f7ecd9",
        "0818f84dfd2ca9a2f8a3d072d911c75fad7a743040f7ea6541acd429c643eaf3",
    ]
    text = words().encode()
    assert compression.inflated(compression.deflated(text)) == text


# ---- a loop and the writer


def test_agents_that_step_at_once_share_commits(store: Store) -> None:
    """What an event loop has ready is handed over together, so that most steps need no commit of their own."""
    agents, steps = 50, 10

    async def main() -> None:
        graph = agent(StepSaver(store), steps=steps)
        given = {"messages": [HumanMessage("go", id="go")]}
        await asyncio.gather(*(graph.ainvoke(given, thread(str(at)), durability="sync") for at in range(agents)))

    before = store.commits
    asyncio.run(main())
    assert store.commits - before < agents * steps / 2


def test_what_another_thread_did_is_told() -> None:
    """A wait gives the result or the error; one that is cancelled cancels what has not begun."""

    async def main() -> None:
        bridge = loop_bridge.of_running_loop()
        assert loop_bridge.of_running_loop() is bridge
        done, failed, pending = Future[int](), Future[int](), Future[int]()
        waits = [asyncio.ensure_future(bridge.wait(future)) for future in (done, failed, pending)]
        await asyncio.sleep(0)
        for future in (done, failed):
            future.set_running_or_notify_cancel()
        await asyncio.to_thread(done.set_result, 1)
        await asyncio.to_thread(failed.set_exception, OSError("lost"))
        assert await waits[0] == 1
        with pytest.raises(OSError, match="lost"):
            await waits[1]
        waits[2].cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits[2]
        assert pending.cancelled()

    asyncio.run(main())


def test_what_is_called_after_a_turn_is_called_once() -> None:
    """Of one key once, when what was ready is done; what fails as its record is closed harms no other."""
    called: list[str] = []

    def closed() -> None:
        called.append("closed")
        raise RuntimeError("the record is closed")

    async def main() -> None:
        bridge = loop_bridge.of_running_loop()
        for key, call in (("a", closed), ("a", closed), ("b", lambda: called.append("b"))):
            bridge.after_this_turn(key, call)
        assert called == []
        await asyncio.sleep(0)
        assert called == ["closed", "b"]

    asyncio.run(main())
