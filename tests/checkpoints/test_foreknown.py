"""What a saver knows of its thread without looking, and what it still finds out."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata, CheckpointTuple, empty_checkpoint
from langgraph.types import interrupt
from sqlalchemy import Connection

from everstep.checkpoints import loop_bridge, step_write
from everstep.checkpoints.saver import StepSaver
from everstep.checkpoints.store import Store
from everstep.nodes.attempt import Attempt
from tests.support.jobs import chain
from tests.support.record import Gate, claim
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.both_databases


def config(thread_id: str) -> RunnableConfig:
    """A thread's root namespace."""
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}


def metadata(source: Any, step: int) -> CheckpointMetadata:
    """A checkpoint's metadata."""
    return {"source": source, "step": step, "parents": {}, "run_id": "run"}


def after(*ran: str) -> Checkpoint:
    """A checkpoint that was taken after these nodes ran; the input comes first."""
    return {**empty_checkpoint(), "versions_seen": {node: {} for node in ("__input__", *ran)}}


def of_a_leg(store: Store) -> StepSaver:
    """The saver of a claimed job."""
    store.enqueue("graph", {})
    (job,) = claim(store)
    return StepSaver(store, Attempt(store, job.id, job.public_id, job.idempotency_key, job.claim_no, lambda _: False))


def refuse(_connection: Connection) -> None:
    """What a full disk does."""
    raise RuntimeError("the disk is on fire")


def test_of_a_thread_known_to_be_empty_nothing_is_read_until_something_is_written(store: Store) -> None:
    """It looks empty without a look; other threads, and the thread once something was put there, are read."""
    other = StepSaver(store)
    other.put(config("other"), empty_checkpoint(), metadata("input", -1), {})
    other.put(config("new"), empty_checkpoint(), metadata("input", -1), {})
    saver = StepSaver(store)
    saver.begin_empty("new")
    assert saver.get_tuple(config("new")) is None
    assert asyncio.run(saver.aget_tuple(config("new"))) is None
    assert saver.get_tuple(config("other")) is not None
    latest = empty_checkpoint()
    saver.put(config("new"), latest, metadata("loop", 0), {})
    found = saver.get_tuple(config("new"))
    assert found is not None
    assert found.checkpoint["id"] == latest["id"]


@pytest.mark.parametrize("routed", [False, True])
def test_what_comes_before_the_nodes_of_an_empty_thread_is_committed_with_its_first_step(
    store: Store, routed: bool
) -> None:
    """Storing it does not wait for its commit, but a read sees it, and all are one commit; a route is waited for."""
    saver = StepSaver(store)
    saver.begin_empty("new", routed=routed)

    async def steps() -> int:
        gate = Gate(store)
        before = store.commits
        await saver.aput(config("new"), after(), metadata("input", -1), {})  # though the writer is busy
        start = asyncio.create_task(saver.aput(config("new"), after("__start__"), metadata("loop", 0), {}))
        if not routed:
            await asyncio.wait_for(start, PATIENCE)
        step = asyncio.create_task(saver.aput(config("new"), after("__start__", "node"), metadata("loop", 1), {}))
        await asyncio.sleep(0)
        assert (start.done(), step.done()) == (not routed, False)
        gate.open()
        await asyncio.gather(start, step)
        return store.commits - before

    assert asyncio.run(steps()) == 2  # the gate's own, and theirs
    assert len([*saver.list(config("new"))]) == 3


def test_what_is_committed_is_told_in_order(store: Store) -> None:
    """That nobody waited for the first checkpoints does not let a later one be heard of before them."""
    saver = of_a_leg(store)
    told: list[str] = []
    fence: Any = saver._fence  # pyright: ignore[reportPrivateUsage]
    fence.committed = lambda checkpoint_id, _namespace: told.append(checkpoint_id)
    saver.begin_empty("new", routed=False)
    first, second = after(), after("__start__", "node")

    async def steps() -> None:
        bridge = loop_bridge.of_running_loop()
        gate = Gate(store)
        woken = bridge.here(store.write(lambda _connection: None))  # of another agent, in the same commit
        await saver.aput(config("new"), first, metadata("input", -1), {})
        step = asyncio.create_task(saver.aput(config("new"), second, metadata("loop", 1), {}))
        await asyncio.sleep(0)
        last = store.write(lambda _connection: None)
        gate.open()
        last.result(PATIENCE)  # meanwhile the loop hears of nothing
        await asyncio.gather(woken, step)

    asyncio.run(steps())
    assert told == [first["id"], second["id"]]


def test_what_a_second_try_stores_fails_no_step(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that fails is run again: what nobody waits for fails what follows only if it fails then, too."""
    saver = StepSaver(store)
    saver.begin_empty("new")
    failures = [RuntimeError("once")]
    really = step_write.execute

    def execute(*given: Any) -> Any:
        if failures:
            raise failures.pop()
        return really(*given)

    monkeypatch.setattr(step_write, "execute", execute)

    async def steps() -> None:
        gate = Gate(store)
        await saver.aput(config("new"), after(), metadata("input", -1), {})
        step = asyncio.create_task(saver.aput(config("new"), after("node"), metadata("loop", 0), {}))
        await asyncio.sleep(0)
        gate.open()
        await step

    asyncio.run(steps())
    assert failures == []
    assert len([*saver.list(config("new"))]) == 2


def test_an_input_that_could_not_be_stored_fails_the_first_step(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not waited for is not forgotten: nothing of the thread stands on an input that is missing."""
    saver = StepSaver(store)
    saver.begin_empty("new")
    monkeypatch.setattr("everstep.checkpoints.step_write.execute", lambda *_: refuse(_[0]))

    async def two_steps() -> None:
        await saver.aput(config("new"), after(), metadata("input", -1), {})
        store.flush()
        monkeypatch.undo()
        await saver.aput(config("new"), after("node"), metadata("loop", 0), {})

    with pytest.raises(RuntimeError, match="on fire"):
        asyncio.run(two_steps())
    assert [*saver.list(config("new"))] == []


def test_what_was_read_ahead_is_given_once_and_not_after_a_write(store: Store) -> None:
    """A read ahead answers the next read of the same place, unless something is written before it."""
    saver = StepSaver(store)
    first, second = empty_checkpoint(), empty_checkpoint()
    saver.put(config("thread"), first, metadata("input", -1), {})
    saver.read_ahead(config("thread"))
    StepSaver(store).put(config("thread"), second, metadata("loop", 0), {})

    def newest() -> str:
        found = asyncio.run(saver.aget_tuple(config("thread")))
        assert found is not None
        return found.checkpoint["id"]

    assert [newest(), newest()] == [first["id"], second["id"]]
    saver.read_ahead(config("thread"))
    third = empty_checkpoint()
    saver.put(config("thread"), third, metadata("loop", 1), {})
    assert newest() == third["id"]


@pytest.mark.parametrize("goes_on", [False, True])
def test_what_ended_a_run_is_known_as_it_is_read(store: Store, goes_on: bool) -> None:
    """Its last checkpoint need not be read again, and is told as it is read; one that a node follows is read."""
    saver = of_a_leg(store)
    values = {"said": ("a", {"b": [1.5, None]}), **({"branch:to:node": None} if goes_on else {})}
    checkpoint: Checkpoint = {**after("node"), "channel_values": values, "channel_versions": dict.fromkeys(values, "1")}

    async def look() -> CheckpointTuple | None:
        await saver.aput(config("new"), checkpoint, metadata("loop", 1), dict.fromkeys(values, "1"))
        assert saver.knows(config("new")) is not goes_on
        found = await saver.aget_tuple(config("new"))
        assert not saver.knows(config("new")), "it is given once"
        return found

    found, read = asyncio.run(look()), StepSaver(store).get_tuple(config("new"))
    assert found is not None
    assert read is not None
    assert (found.config, found.checkpoint, found.pending_writes) == (read.config, read.checkpoint, read.pending_writes)
    assert found.checkpoint["channel_values"]["said"] is not values["said"]
    assert found.metadata.get("step") == read.metadata.get("step") == 1


def test_what_ended_a_run_is_not_known_any_more_once_a_task_wrote(store: Store) -> None:
    """A question that a run stopped at is read."""
    saver = of_a_leg(store)
    checkpoint = after("node")
    place = {"thread_id": "new", "checkpoint_ns": "", "checkpoint_id": checkpoint["id"]}

    async def steps() -> None:
        await saver.aput(config("new"), checkpoint, metadata("loop", 1), {})
        assert saver.knows(config("new"))
        await saver.aput_writes({"configurable": place}, [("__interrupt__", ["?"])], "task")

    asyncio.run(steps())
    assert not saver.knows(config("new"))


def test_a_saver_of_no_leg_reads_what_it_wrote(store: Store) -> None:
    """Others write to its threads, too."""
    saver = StepSaver(store)
    asyncio.run(saver.aput(config("new"), after("node"), metadata("loop", 1), {}))
    assert not saver.knows(config("new"))


@pytest.mark.parametrize("asks", [False, True])
def test_what_a_run_that_stores_at_its_exit_came_to_is_known_as_it_is_read(store: Store, asks: bool) -> None:
    """With `durability="exit"` the checkpoint and what its tasks wrote come at once: none is told without the other."""
    saver = of_a_leg(store)
    graph = chain(lambda _: {"log": ["first"]}, lambda _: {"log": [interrupt("which?") if asks else "last"]})

    async def steps() -> tuple[bool, Any, Any]:
        await graph.copy({"checkpointer": saver}).ainvoke({"log": []}, config("new"), durability="exit")
        known = saver.knows(config("new"))
        told = await graph.copy({"checkpointer": saver}).aget_state(config("new"))
        return known, told, await graph.copy({"checkpointer": StepSaver(store)}).aget_state(config("new"))

    known, told, read = asyncio.run(steps())
    assert known is not asks
    assert (told.values, told.next, told.interrupts) == (read.values, read.next, read.interrupts)
    assert (told.values["log"], len(told.interrupts)) == ((["first"], 1) if asks else (["first", "last"], 0))
