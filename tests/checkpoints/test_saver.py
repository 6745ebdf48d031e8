"""`StepSaver`: the conformance kit, the stock saver on our file, what cannot be stored, and reading beside writers."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import AsyncGenerator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple, empty_checkpoint
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.serde.types import RESUME
from langgraph.types import Command, interrupt

from everstep.checkpoints.saver import StepSaver
from everstep.checkpoints.store import Store
from everstep.errors import StateNotSerializable
from everstep.runtime.worker import Worker
from tests.support.jobs import chain
from tests.support.kill_graphs import GRAPHS
from tests.support.record import Gate, record
from tests.support.saving import checkpoint_with, count, stock_saver, thread
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.both_databases


# ---- conformance


class SyncSaver(StepSaver):
    """The sync methods, offered under the async names that the kit calls."""

    async def aput(self, *args: Any, **kwargs: Any) -> Any:
        return self.put(*args, **kwargs)

    async def aput_writes(self, *args: Any, **kwargs: Any) -> None:
        self.put_writes(*args, **kwargs)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self.get_tuple(config)

    async def alist(self, *args: Any, **kwargs: Any) -> Any:
        for item in self.list(*args, **kwargs):
            yield item

    async def adelete_thread(self, thread_id: str) -> None:
        self.delete_thread(thread_id)

    async def adelete_for_runs(self, run_ids: Any) -> None:
        self.delete_for_runs(run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        self.copy_thread(source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Any, *, strategy: str = "keep_latest") -> None:
        self.prune(thread_ids, strategy=strategy)


@pytest.mark.parametrize("kind", [StepSaver, SyncSaver])
async def test_the_conformance_kit_passes_in_full(kind: type[StepSaver], tmp_path: Path, database: str) -> None:
    """LangGraph's kit finds all eight capabilities, async and sync, and none of its checks fails."""
    number = iter(range(100))

    @checkpointer_test(name=kind.__name__)
    async def ours() -> AsyncGenerator[StepSaver, None]:
        folder = tmp_path / str(next(number))
        folder.mkdir()
        with record(database, folder) as store:
            yield kind(store)

    report = await validate(ours)
    failures = {name: result.failures for name, result in report.results.items() if result.failures}
    assert failures == {}
    assert report.passed_all_base()
    assert report.passed_all()
    assert len(report.results) == 8
    assert all(result.detected and result.tests_passed for result in report.results.values())


def same(ours: CheckpointTuple | None, stock: CheckpointTuple | None) -> None:
    """Both savers read the same."""
    assert ours is not None
    assert stock is not None
    assert ours.config == stock.config
    assert ours.parent_config == stock.parent_config
    assert ours.checkpoint == stock.checkpoint
    assert ours.metadata == stock.metadata
    assert ours.pending_writes == stock.pending_writes


@pytest.mark.parametrize("graph", ["subgraph_node", "parallel", "functional", "nested", "fan_out"])
def test_the_stock_saver_reads_every_thread_of_our_record(store: Store, graph: str, tmp_path: Path) -> None:
    """LangGraph's own saver opens the record, also while it is in use, and lists and gets the same tuples."""
    for number in range(2):
        store.enqueue(graph, {"world": str(tmp_path / f"world {number}")})
    Worker(store, {graph: GRAPHS[graph]()}).run(until_idle=True)
    ours = StepSaver(store)
    with stock_saver(store) as stock:
        mine, theirs = [*ours.list(None)], [*stock.list(None)]
        assert len(mine) >= 2
        assert {found.config["configurable"]["thread_id"] for found in mine} == {j.thread_id for j in store.jobs()}
        for one, other in zip(mine, theirs, strict=True):
            same(one, other)
            same(ours.get_tuple(one.config), stock.get_tuple(one.config))
        for job in store.jobs():
            same(ours.get_tuple(thread(job.thread_id)), stock.get_tuple(thread(job.thread_id)))


def test_a_graph_with_the_stock_saver_goes_on_with_our_thread(store: Store) -> None:
    """A thread that paused in a job can be resumed by plain LangGraph on the same file."""
    graph = chain(lambda _state: {"log": [interrupt("go on?")]}, lambda _state: {"log": ["end"]})
    job, _ = store.enqueue("graph", {"log": []})
    Worker(store, {"graph": graph}).run(until_idle=True)
    with stock_saver(store) as stock:
        plain = chain(
            lambda _state: {"log": [interrupt("go on?")]}, lambda _state: {"log": ["end"]}, checkpointer=stock
        )
        assert plain.invoke(Command(resume="yes"), thread(job.thread_id))["log"] == ["yes", "end"]


# ---- what is stored


async def test_a_value_is_stored_as_it_was_when_it_was_put(store: Store) -> None:
    """A value that the graph changes right after `put`, before the write is done, is stored unchanged."""
    saver = StepSaver(store)
    values: dict[str, Any] = {"items": [1]}
    written: list[Any] = [{"a": 1}]
    checkpoint, versions = checkpoint_with(log=values)
    config = saver.put(thread("other"), empty_checkpoint(), {"step": 0}, {})
    gate = Gate(store)
    putting = asyncio.create_task(saver.aput(thread(), checkpoint, {"step": 0}, versions))
    writing = asyncio.create_task(saver.aput_writes(config, [("log", written)], "task"))
    await asyncio.sleep(0)
    values["items"].append(2)
    written[0]["a"] = 2
    gate.open()
    await asyncio.gather(putting, writing)
    found = saver.get_tuple(thread())
    assert found is not None
    assert found.checkpoint["channel_values"] == {"log": {"items": [1]}}
    other = saver.get_tuple(config)
    assert other is not None
    assert other.pending_writes == [("task", "log", [{"a": 1}])]


class Order:
    class Kind(Enum):
        """An enumeration inside a class, which LangGraph does not find again."""

        GOOD = "good"


@pytest.mark.parametrize(
    ("value", "path", "word"),
    [
        ([{}, {}, {"kind": threading.Lock()}], "$.log[2].kind", "lock"),
        ([{"a b": {1: object()}}], "$.log[0]['a b'][1]", "object"),
        ([1, 2**70], "$.log[1]", "64 bits"),
        ([(1, [lambda: 1])], "$.log[0][1][0]", "function"),
    ],
)
def test_what_cannot_be_stored_is_named_by_its_path(store: Store, value: Any, path: str, word: str) -> None:
    """A job whose node returns something unstorable fails with the place in the state, and stores nothing of it."""
    store.enqueue("graph", {"log": []})
    Worker(store, {"graph": chain(lambda _state: {"log": value})}).run(until_idle=True)
    (job,) = store.jobs()
    error = json.loads(job.error_json or "")
    assert job.status == "failed"
    assert error["code"] == "state_not_serializable"
    assert f"{path} " in error["message"]
    assert word in error["message"]
    assert error["next_step"]


def test_an_input_checkpoint_that_cannot_be_stored_is_named_too(store: Store) -> None:
    """`put` names the path as `put_writes` does, and writes nothing."""
    checkpoint, versions = checkpoint_with(good=[1], bad={"deep": [object()]})
    with pytest.raises(StateNotSerializable) as refused:
        StepSaver(store).put(thread(), checkpoint, {"step": 0}, versions)
    assert refused.value.ids["path"] == "$.bad.deep[0]"
    assert count(store, "checkpoints") == 0


def test_what_comes_back_changed_is_said_once(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """A value that a resumed job would see changed is warned of once with its path, however many steps keep it."""
    caplog.set_level(logging.WARNING, "everstep.state")
    store.enqueue("graph", {"log": []})
    first = {"log": [{"kind": Order.Kind.GOOD, "pair": (1, 2)}]}
    nodes = [lambda _state: first, *[lambda _state: {"log": ["more"]} for _ in range(4)]]
    Worker(store, {"graph": chain(*nodes)}).run(until_idle=True)
    lines = [record.getMessage() for record in caplog.records if record.name == "everstep.state"]
    assert sorted(lines) == sorted(set(lines))
    assert any("$.log[0].kind: Order.Kind comes back as str" in line for line in lines)
    assert any("$.log[0].pair: tuple comes back as list" in line for line in lines)
    assert store.jobs()[0].status == "done"


def test_a_clean_state_is_not_warned_of(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """Plain data causes no warning."""
    caplog.set_level(logging.WARNING, "everstep.state")
    store.enqueue("graph", {"log": [{"a": [1, 2.5, None, True, "é"]}]})
    Worker(store, {"graph": chain(lambda _state: {"log": ["x"]})}).run(until_idle=True)
    assert [record for record in caplog.records if record.name == "everstep.state"] == []


# ---- reading


def test_listing_while_others_write(store: Store) -> None:
    """Lists read beside a thread that writes are each complete and in order, and never fail."""
    saver = StepSaver(store)
    problems: list[BaseException] = []
    done = threading.Event()

    def write() -> None:
        try:
            for step in range(150):
                checkpoint, versions = checkpoint_with(log=[step])
                saver.put(thread(), checkpoint, {"step": step}, versions)
        except BaseException as error:
            problems.append(error)
        finally:
            done.set()

    writing = threading.Thread(target=write)
    writing.start()
    lengths: list[int] = []
    while not done.is_set():
        steps = [found.metadata["step"] for found in saver.list(thread())]
        assert steps == list(range(len(steps) - 1, -1, -1))
        lengths.append(len(steps))
    writing.join(PATIENCE)
    assert problems == []
    assert lengths == sorted(lengths)
    assert len([*saver.list(thread())]) == 150


def test_a_list_that_was_begun_does_not_change(store: Store) -> None:
    """What is stored while a list is walked through is not part of it, and nobody waits for the walk to end."""
    saver = StepSaver(store)
    for step in range(3):
        checkpoint, versions = checkpoint_with(log=[step])
        saver.put(thread(), checkpoint, {"step": step}, versions)
    walk = saver.list(thread())
    assert next(walk).metadata["step"] == 2
    beside = threading.Thread(target=saver.get_tuple, args=(thread(),), daemon=True)
    beside.start()
    beside.join(PATIENCE)
    assert not beside.is_alive()
    saver.delete_thread("thread")
    assert [found.metadata["step"] for found in walk] == [1, 0]


def test_answers_used_are_counted_by_interrupt(store: Store) -> None:
    """For the last question of each task: how many answers it has stored; none at first, one more with each resume."""
    saver = StepSaver(store)
    graph = chain(lambda _state: {"log": [interrupt("one"), interrupt("two")]}, checkpointer=saver)
    graph.invoke({"log": []}, thread())
    (first,) = graph.get_state(thread()).interrupts
    assert saver.answers_used("thread") == {first.id: 0}
    graph.invoke(Command(resume={first.id: None}), thread())
    (second,) = graph.get_state(thread()).interrupts
    assert saver.answers_used("thread") == {second.id: 1}
    graph.invoke(Command(resume={second.id: 2}), thread())
    assert graph.get_state(thread()).values["log"] == [None, 2]
    assert saver.answers_used("another") == {}


def test_the_names_we_read_are_langgraphs() -> None:
    """The names of special writes are those of the installed LangGraph."""
    from langgraph.checkpoint.serde import types

    from everstep.checkpoints import saver

    assert (saver.INTERRUPT, saver.RESUME) == (types.INTERRUPT, RESUME)
