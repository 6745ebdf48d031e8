"""Pruning leaves what a thread needs to go on, and touches no other."""

from __future__ import annotations

import json
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.channels import DeltaChannel
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

from everstep.checkpoints.saver import StepSaver
from everstep.checkpoints.store import Store
from everstep.runtime.worker import Worker
from tests.support.jobs import chain
from tests.support.saving import checkpoint_with, count, thread

pytestmark = pytest.mark.both_databases


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
