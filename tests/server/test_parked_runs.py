"""Runs that wait for a signal, as LangGraph's clients see them: under way, and asking nobody anything."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.types import interrupt
from langgraph_sdk import get_sync_client
from langgraph_sdk.errors import ConflictError

from everstep import wait_for
from everstep.checkpoints.store import Store
from everstep.graphs.loader import GraphCatalogue
from tests.support.jobs import Log, beside, chain
from tests.support.live import live
from tests.support.record import record
from tests.support.waiting import PATIENCE, until

MODES = ["values", "updates", "tasks", "checkpoints", "debug", "events"]


def hears(_state: Log) -> Log:
    """A node that waits for a signal."""
    arrived = wait_for("go")
    return {"log": [arrived and arrived.payload]}


def asks(_state: Log) -> Log:
    """A node that asks a person."""
    return {"log": [interrupt("which?")]}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A record with the machine's clock."""
    with record("sqlite", tmp_path) as store:
        yield store


@pytest.fixture
def sdk(store: Store) -> Iterator[Any]:
    """The SDK's client of a server with a worker."""
    graphs = GraphCatalogue.from_graphs(
        {"hears": chain(hears, lambda _: {"log": ["after"]}), "both": beside(hears, asks)}
    )
    with live(store, graphs) as url:
        yield get_sync_client(url=url, timeout=PATIENCE)


def told(sdk: Any, store: Store, thread: str, graph: str) -> list[Any]:
    """All a stream of a run tells, from its start over its wait to its pause or end; the signal comes in between."""
    parts: list[Any] = []

    def read() -> None:
        parts.extend(sdk.runs.stream(thread, graph, input={"log": ["in"]}, stream_mode=MODES))

    reading = threading.Thread(target=read)
    reading.start()
    until(lambda: [wait for job in store.jobs() for wait in store.waits(job)], "the wait")
    until(lambda: store.jobs()[0].status == "pending", "a parked job")
    (run,) = sdk.runs.list(thread)
    assert run["status"] == "pending"
    assert sdk.threads.get(thread)["status"] == "busy"
    state = sdk.threads.get_state(thread)
    assert "everstep-wait" not in json.dumps([state, sdk.threads.get(thread), sdk.threads.get_history(thread)])
    assert [task["interrupts"] for task in state["tasks"] if task["name"] == "node_0"] == [[]]
    store.emit("go", "went")
    reading.join(PATIENCE)
    assert not reading.is_alive()
    return parts


def test_a_wait_is_no_interrupt_to_clients(sdk: Any, store: Store) -> None:
    """In no stream mode and no state does a wait show; the run goes on in its stream to its end."""
    thread = sdk.threads.create()["thread_id"]
    parts = told(sdk, store, thread, "hears")
    assert not [part for part in parts if part.event != "events" and "everstep-wait" in json.dumps(part.data)]
    assert parts[-1].event == "values" or [part for part in parts if part.event == "values"][-1].data["log"] == [
        "in", "went", "after"
    ]  # fmt: skip
    assert sdk.threads.get(thread)["status"] == "idle"
    assert sdk.runs.list(thread)[0]["status"] == "success"


def test_a_question_beside_a_wait_is_told_as_one(sdk: Any, store: Store) -> None:
    """When the wait is over, the run pauses with the question alone, which the client answers."""
    thread = sdk.threads.create()["thread_id"]
    parts = told(sdk, store, thread, "both")
    assert "everstep-wait" not in json.dumps([part.data for part in parts if part.event == "values"])
    shown = sdk.threads.get(thread)
    assert shown["status"] == "interrupted"
    assert [one["value"] for asked in shown["interrupts"].values() for one in asked] == ["which?"]
    final = sdk.runs.wait(thread, "both", command={"resume": "this"})
    assert final["log"] == ["in", "went", "this"]


def test_a_question_beside_a_wait_is_answered_as_a_review(sdk: Any, store: Store) -> None:
    """While the run waits for something else a client cannot resume it, and is told where the answer can be given."""
    thread = sdk.threads.create()["thread_id"]
    sdk.runs.create(thread, "both", input={"log": ["in"]})
    until(lambda: store.jobs()[0].status == "pending" and store.reviews(), "a parked job with a question")
    (review,) = store.reviews()
    asked = {
        task["name"]: [one["value"] for one in task["interrupts"]] for task in sdk.threads.get_state(thread)["tasks"]
    }
    assert asked == {"node_0": [], "node_1": ["which?"]}
    with pytest.raises(ConflictError) as refused:
        sdk.runs.create(thread, "both", command={"resume": "this"})
    assert f"/everstep/reviews/{review.public_id}/answer" in refused.value.response.json()["next_step"]
    store.answer(review.public_id, "respond", value="this")
    until(lambda: store.jobs()[0].status == "pending" and store.jobs()[0].claim_no == 2, "the answered job's next wait")
    assert (sdk.threads.get(thread)["status"], sdk.runs.list(thread)[0]["status"]) == ("busy", "pending")
    store.emit("go", "went")
    until(lambda: sdk.threads.get(thread)["status"] == "idle", "the end of the run")
    assert sdk.threads.get_state(thread)["values"]["log"] == ["in", "went", "this"]
