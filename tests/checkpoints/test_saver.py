"""`StepSaver`: the conformance kit, the stock saver on our file, the fence, pruning, and what cannot be stored."""

from __future__ import annotations

import asyncio
import json
import logging
import operator
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint, CheckpointTuple, empty_checkpoint
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.serde.types import RESUME
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt
from sqlalchemy import Connection

from everstep.checkpoints import step_write, writer
from everstep.checkpoints.jobs import Job, LostClaim
from everstep.checkpoints.saver import StepSaver
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock
from everstep.errors import StateNotSerializable
from everstep.nodes.attempt import Attempt
from everstep.nodes.effect import EffectUnknown
from everstep.runtime.worker import Worker
from tests.support.jobs import chain
from tests.support.kill_graphs import GRAPHS
from tests.support.record import Gate, begin_running, claim, record
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.both_databases


def thread(name: str = "thread") -> RunnableConfig:
    """The config of a root thread."""
    return {"configurable": {"thread_id": name, "checkpoint_ns": ""}}


def checkpoint_with(version: str = "1", **values: Any) -> tuple[Checkpoint, dict[str, Any]]:
    """A checkpoint with these channels, and their versions."""
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = values
    checkpoint["channel_versions"] = dict.fromkeys(values, version)
    return checkpoint, dict.fromkeys(values, version)


def count(store: Store, table: str) -> int:
    """How many rows a table has."""
    return store.read(lambda c: c.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar_one())


def fenced(store: Store, job: Job) -> Attempt:
    """The attempt of a claimed job."""
    return Attempt(store, job.id, job.public_id, job.idempotency_key, job.claim_no, lambda _error: False)


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


# ---- the stock saver on our file


@contextmanager
def stock_saver(store: Store) -> Iterator[BaseCheckpointSaver[str]]:
    """LangGraph's own saver on our record."""
    if store.url.startswith("sqlite"):
        with SqliteSaver.from_conn_string(str(store.path)) as saver:
            yield saver
        return
    with PostgresSaver.from_conn_string(store.url) as saver:
        yield saver


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


# ---- the fence


def test_a_put_under_a_lost_claim_writes_nothing(store: Store, clock: ManualClock) -> None:
    """After a takeover `put` raises LostClaim, and whatever follows; nothing is stored."""
    store.enqueue("graph", {})
    attempt = fenced(store, begin_running(store, "a"))
    saver = StepSaver(store, attempt)
    checkpoint, versions = checkpoint_with(log=["kept"])
    config = saver.put(thread(), checkpoint, {"step": 0}, versions)
    clock.advance(1000)
    (current,) = claim(store, "b")
    late, versions = checkpoint_with(log=["late"])
    with pytest.raises(LostClaim):
        saver.put(config, late, {"step": 1}, versions)
    assert isinstance(attempt.blocked, LostClaim)
    StepSaver(store, fenced(store, store.job_by_row(current.id))).put_writes(config, [("log", "b")], "task")
    with pytest.raises(LostClaim):
        StepSaver(store, attempt).put_writes(config, [("log", "late")], "task")
    assert [found.checkpoint["channel_values"] for found in saver.list(None)] == [{"log": ["kept"]}]
    assert count(store, store.database.checkpoint_tables[-1]) == 1
    assert store.job_by_row(current.id).step == 0


async def test_an_async_put_under_a_lost_claim_writes_nothing(store: Store, clock: ManualClock) -> None:
    """The async forms are fenced as the sync ones are."""
    store.enqueue("graph", {})
    attempt = fenced(store, begin_running(store, "a"))
    clock.advance(1000)
    claim(store, "b")
    checkpoint, versions = checkpoint_with(log=["late"])
    with pytest.raises(LostClaim):
        await StepSaver(store, attempt).aput(thread(), checkpoint, {"step": 0}, versions)
    fresh = fenced(store, store.job_by_row(attempt.job_id))
    fresh.claim_no = attempt.claim_no
    of_task: RunnableConfig = {"configurable": {**thread()["configurable"], "checkpoint_id": "1"}}
    with pytest.raises(LostClaim):
        await StepSaver(store, fresh).aput_writes(of_task, [("__interrupt__", "late")], "task")
    another = fenced(store, store.job_by_row(attempt.job_id))
    another.claim_no = attempt.claim_no
    saver = StepSaver(store, another)
    await saver.aput_writes(of_task, [("log", "late")], "task")  # which nobody waits for
    with pytest.raises(LostClaim):
        await saver.aput(thread(), checkpoint, {"step": 0}, versions)
    assert isinstance(another.blocked, LostClaim)
    assert (count(store, "checkpoints"), count(store, store.database.checkpoint_tables[-1])) == (0, 0)


def test_a_blocked_run_stores_nothing_more(store: Store) -> None:
    """Once a run is blocked every write raises the reason, though the claim still holds."""
    store.enqueue("graph", {})
    attempt = fenced(store, begin_running(store))
    reason = EffectUnknown("nobody knows")
    attempt.block(reason)
    attempt.block(LostClaim("a later reason does not replace the first"))
    saver = StepSaver(store, attempt)
    checkpoint, versions = checkpoint_with(log=[])
    with pytest.raises(EffectUnknown) as raised:
        saver.put(thread(), checkpoint, {"step": 0}, versions)
    assert raised.value is reason
    with pytest.raises(EffectUnknown):
        saver.put_writes({"configurable": {**thread()["configurable"], "checkpoint_id": "1"}}, [("log", 1)], "task")
    assert (count(store, "checkpoints"), count(store, store.database.checkpoint_tables[-1])) == (0, 0)


def test_a_step_and_the_jobs_progress_are_one_write(store: Store) -> None:
    """The step of the job is that of its last checkpoint, and the first write marks its input as part of the thread."""
    store.enqueue("graph", {"log": []})
    (job,) = claim(store)
    attempt = fenced(store, job)
    seen: list[tuple[str, str]] = []
    attempt.committed = lambda checkpoint_id, namespace: seen.append((checkpoint_id, namespace))
    attempt.progress = lambda: {"input_tokens": 7}
    assert store.job_by_row(job.id).input_applied == 0
    checkpoint, versions = checkpoint_with(log=[])
    StepSaver(store, attempt).put(thread(), checkpoint, {"step": 3}, versions)
    after = store.job_by_row(job.id)
    assert (after.input_applied, after.step, after.input_tokens) == (1, 3, 7)
    assert seen == [(checkpoint["id"], "")]


# ---- what nobody waits for


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a task produced is held until something urgent comes."""
    monkeypatch.setattr(writer, "PATIENCE_S", 1e6)


class Long(TypedDict):
    items: Annotated[list[int], operator.add]
    notes: Annotated[list[int], DeltaChannel(lambda state, writes: state + [n for write in writes for n in write])]


def widening(steps: int) -> StateGraph[Any]:
    """Every second superstep runs two tasks."""
    builder = StateGraph(Long)

    def route(state: Long) -> Any:
        return END if len(state["items"]) >= 2 * steps else [Send("step", 1), Send("step", 2)]

    builder.add_node("step", lambda number: {"items": [number], "notes": [number]})
    builder.add_node("plan", lambda state: {"items": []})
    builder.add_edge(START, "plan")
    builder.add_edge("step", "plan")
    builder.add_conditional_edges("plan", route)
    return builder


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_superstep_costs_one_commit(store: Store, asynchronous: bool) -> None:
    """The outputs of a superstep's tasks are committed with its checkpoint, also those of a `DeltaChannel`."""
    saver = StepSaver(store)
    graph: Any = widening(20).compile(checkpointer=saver)
    before = store.commits
    given = {"items": [], "notes": []}
    if asynchronous:
        result = await graph.ainvoke(given, thread(), durability="sync")
    else:
        result = await asyncio.to_thread(lambda: graph.invoke(given, thread(), durability="sync"))
    assert (len(result["items"]), len(result["notes"])) == (40, 40)
    checkpoints = [found async for found in saver.alist(thread())]
    assert store.commits - before <= len(checkpoints)
    assert count(store, store.database.checkpoint_tables[-1]) >= 2 * 40
    assert graph.get_state(thread()).values == result


@pytest.mark.usefixtures("patient")
async def test_what_is_held_is_read(store: Store) -> None:
    """A saver of the same store sees what a task wrote as soon as `put_writes` returned."""
    saver = StepSaver(store)
    config = saver.put(thread(), empty_checkpoint(), {"step": 0}, {})
    saver.put_writes(config, [("log", 1)], "task")
    found = StepSaver(store).get_tuple(thread())
    assert found is not None
    assert found.pending_writes == [("task", "log", 1)]
    await saver.aput_writes(config, [("log", 2)], "other")
    (listed,) = [found async for found in StepSaver(store).alist(thread())]
    assert listed.pending_writes is not None
    assert len(listed.pending_writes) == 2


def refuse_output_of(monkeypatch: pytest.MonkeyPatch, task: str) -> None:
    """Whatever this task wrote cannot be stored, however often it is tried."""
    really = step_write.execute

    def execute(connection: Connection, sql: str, parameters: Any) -> Any:
        if isinstance(parameters, list) and any(task in row for row in parameters):
            raise RuntimeError("no")
        return really(connection, sql, parameters)

    monkeypatch.setattr(step_write, "execute", execute)


@pytest.mark.parametrize("together", [True, False])
def test_an_output_that_could_not_be_stored_fails_the_next_write(
    store: Store, together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint is not stored over a task's output that is missing; another namespace is not concerned."""
    store.enqueue("graph", {})
    attempt = fenced(store, begin_running(store))
    saver = StepSaver(store, attempt)
    checkpoint, versions = checkpoint_with(log=[])
    config = saver.put(thread(), checkpoint, {"step": 0}, versions)

    refuse_output_of(monkeypatch, "task")
    saver.put_writes(config, [("log", 1)], "task")
    if not together:
        store.flush()
    below: RunnableConfig = {"configurable": {"thread_id": "thread", "checkpoint_ns": "below"}}
    later, versions = checkpoint_with(log=[1])
    saver.put(below, later, {"step": 0}, versions)
    with pytest.raises(RuntimeError, match=r"^no$"):
        saver.put(config, later, {"step": 1}, versions)
    assert [found.checkpoint["id"] for found in saver.list(thread())] == [checkpoint["id"]]
    saver.put(config, later, {"step": 1}, versions)
    assert len(list(saver.list(thread()))) == 2


def test_an_error_does_not_clear_an_output_that_is_missing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when another task's error met the output that could not be stored, no checkpoint stands on it."""
    store.enqueue("graph", {})
    attempt = fenced(store, begin_running(store))
    saver = StepSaver(store, attempt)
    checkpoint, versions = checkpoint_with(log=[])
    config = saver.put(thread(), checkpoint, {"step": 0}, versions)

    refuse_output_of(monkeypatch, "task")
    saver.put_writes(config, [("log", 1)], "task")
    with pytest.raises(RuntimeError, match=r"^no$"):
        saver.put_writes(config, [("__error__", ValueError("other"))], "other")
    later, versions = checkpoint_with(log=[1])
    with pytest.raises(RuntimeError, match=r"^no$"):
        saver.put(config, later, {"step": 1}, versions)
    assert [found.checkpoint["id"] for found in saver.list(thread())] == [checkpoint["id"]]


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


# ---- pruning


def appended(state: list[str], writes: Any) -> list[str]:
    """The reducer of a delta channel."""
    return [*state, *(item for write in writes for item in write)]


class Delta(TypedDict, total=False):
    history: Annotated[list[str], DeltaChannel(appended, snapshot_frequency=5)]
    number: int


def delta_graph(saver: StepSaver, steps: int) -> Any:
    """A loop whose history is kept as deltas."""

    def step(state: Delta) -> Delta:
        number = state.get("number", 0)
        return {"history": [f"step {number}"], "number": number + 1}

    builder = StateGraph(Delta)
    builder.add_node("step", step)
    builder.add_edge(START, "step")
    builder.add_conditional_edges("step", lambda state: "step" if state["number"] % steps else END)
    return builder.compile(checkpointer=saver)


@pytest.mark.parametrize("steps", [3, 7, 12, 15])
def test_pruning_keeps_what_a_delta_channel_is_rebuilt_from(store: Store, steps: int) -> None:
    """After `prune` the newest state reads as before, most checkpoints are gone, and the thread goes on."""
    saver = StepSaver(store)
    graph = delta_graph(saver, steps)
    graph.invoke({"number": 0, "history": ["start"]}, thread())
    expected = ["start", *(f"step {number}" for number in range(steps))]
    assert graph.get_state(thread()).values["history"] == expected
    before = count(store, "checkpoints")
    saver.prune(["thread"])
    assert graph.get_state(thread()).values["history"] == expected
    assert count(store, "checkpoints") <= min(before, 8)
    after = graph.invoke({"history": ["again"]}, thread())
    assert after["history"] == [*expected, "again", *(f"step {number}" for number in range(steps, 2 * steps))]


def test_pruning_leaves_a_waiting_question_answerable(store: Store) -> None:
    """A pruned thread that waits for a person goes on with the answer."""
    graph = chain(lambda _s: {"log": ["a"]}, lambda _s: {"log": [interrupt("b?")]}, lambda _s: {"log": ["c"]})
    job, _ = store.enqueue("graph", {"log": []})
    Worker(store, {"graph": graph}).run(until_idle=True)
    before = count(store, "checkpoints")
    StepSaver(store).prune([job.thread_id])
    assert count(store, "checkpoints") < before
    store.answer(store.reviews()[0].public_id, "respond", value="b")
    Worker(store, {"graph": graph}).run(until_idle=True)
    assert json.loads(store.jobs()[0].result_json or "") == {"log": ["a", "b", "c"]}


def test_pruning_beside_a_running_thread_keeps_its_newest_step(store: Store) -> None:
    """A checkpoint that is stored between prune's look and its delete is kept."""

    class Interrupted(StepSaver):
        def as_stored(self, config: Any) -> Any:
            looked_at = super().as_stored(config)
            newer, versions = checkpoint_with("newer", log=["newer"])
            config = saver.put(thread(), newer, {"step": 1}, versions)
            saver.put_writes(config, [("log", "pending")], "task")
            return looked_at

    saver = StepSaver(store)
    for step in (-1, 0):
        old, versions = checkpoint_with(f"old {step}", log=[f"old {step}"])
        saver.put(thread(), old, {"step": step}, versions)
    Interrupted(store).prune(["thread"])
    found = saver.get_tuple(thread())
    assert found is not None
    assert found.checkpoint["channel_values"] == {"log": ["newer"]}
    assert found.pending_writes == [("task", "log", "pending")]
    assert count(store, "checkpoints") == 2


def test_pruning_one_thread_touches_no_other(store: Store) -> None:
    """`prune` and its strategies act on the named threads alone; an unknown strategy is refused."""
    saver = StepSaver(store)
    for name in ("one", "two"):
        for step in range(3):
            checkpoint, versions = checkpoint_with(log=[step])
            saver.put(thread(name), checkpoint, {"step": step}, versions)
    saver.prune(["one"])
    assert [len([*saver.list(thread(name))]) for name in ("one", "two")] == [1, 3]
    saver.prune(["one"], strategy="delete")
    assert [len([*saver.list(thread(name))]) for name in ("one", "two")] == [0, 3]
    with pytest.raises(ValueError, match="strategy"):
        saver.prune(["two"], strategy="everything")


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
