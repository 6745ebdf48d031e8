"""What a claim that was lost may not write, and what is written without anybody waiting for it."""

from __future__ import annotations

import asyncio
import operator
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send
from sqlalchemy import Connection

from everstep.checkpoints import step_write, writer
from everstep.checkpoints.jobs import LostClaim
from everstep.checkpoints.saver import StepSaver
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock
from everstep.nodes.effect import EffectUnknown
from tests.support.record import begin_running, claim
from tests.support.saving import checkpoint_with, count, fenced, thread

pytestmark = pytest.mark.both_databases


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


def begun(store: Store) -> tuple[StepSaver, RunnableConfig]:
    """The saver of a job whose first checkpoint is stored, and which that is."""
    store.enqueue("graph", {})
    saver = StepSaver(store, fenced(store, begin_running(store)))
    checkpoint, versions = checkpoint_with(log=[])
    return saver, saver.put(thread(), checkpoint, {"step": 0}, versions)


@pytest.mark.parametrize("together", [True, False])
def test_an_output_that_could_not_be_stored_fails_the_next_write(
    store: Store, together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint is not stored over a task's output that is missing; another namespace is not concerned."""
    saver, config = begun(store)
    stored = config["configurable"]["checkpoint_id"]

    refuse_output_of(monkeypatch, "task")
    saver.put_writes(config, [("log", 1)], "task")
    if not together:
        store.flush()
    below: RunnableConfig = {"configurable": {"thread_id": "thread", "checkpoint_ns": "below"}}
    later, versions = checkpoint_with(log=[1])
    saver.put(below, later, {"step": 0}, versions)
    with pytest.raises(RuntimeError, match=r"^no$"):
        saver.put(config, later, {"step": 1}, versions)
    assert [found.checkpoint["id"] for found in saver.list(thread())] == [stored]
    saver.put(config, later, {"step": 1}, versions)
    assert len(list(saver.list(thread()))) == 2


def test_an_error_does_not_clear_an_output_that_is_missing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when another task's error met the output that could not be stored, no checkpoint stands on it."""
    saver, config = begun(store)
    stored = config["configurable"]["checkpoint_id"]

    refuse_output_of(monkeypatch, "task")
    saver.put_writes(config, [("log", 1)], "task")
    with pytest.raises(RuntimeError, match=r"^no$"):
        saver.put_writes(config, [("__error__", ValueError("other"))], "other")
    later, versions = checkpoint_with(log=[1])
    with pytest.raises(RuntimeError, match=r"^no$"):
        saver.put(config, later, {"step": 1}, versions)
    assert [found.checkpoint["id"] for found in saver.list(thread())] == [stored]
