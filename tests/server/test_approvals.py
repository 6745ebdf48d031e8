"""Effects that a person must approve, by LangGraph's client and by jobs in processes of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from everstep import ApprovalRejected, GraphCatalogue, Worker, effect
from everstep.checkpoints.store import Store
from everstep.server.app import create_app
from tests.support.jobs import Log, chain
from tests.support.thread_graphs import client_of
from tests.support.thread_graphs import work as work_on

GRAPH = """
from pathlib import Path
from typing import Any, TypedDict
from langgraph.graph import END, START, StateGraph
from everstep import effect

class State(TypedDict, total=False):
    to: str

@effect("payment.send", approval="Pay?")
def pay(to: str) -> str:
    with Path("world").open("a") as world:
        world.write(to + "\\n")
    return to

graph: Any = StateGraph(State).add_node("pay", lambda state: {"to": pay(state["to"])})
graph.add_edge(START, "pay").add_edge("pay", END)
"""


@pytest.fixture
def graphs(world: list[Any]) -> GraphCatalogue:
    """A graph that pays, once it may."""

    @effect("payment.send", approval=lambda to, amount: f"Pay {amount} to {to}?")
    def pay(to: str, amount: int) -> str:
        world.append((to, amount))
        return f"paid {amount} to {to}"

    def node(_state: Log) -> Log:
        try:
            return {"log": [pay("ann", 7)]}
        except ApprovalRejected as no:
            return {"log": [no.words]}

    return GraphCatalogue.from_graphs({"graph": chain(node)})


@pytest.fixture
def world() -> list[Any]:
    """What was paid."""
    return []


@pytest.mark.parametrize(
    ("answer", "by_id", "log", "paid"),
    [
        ({"decisions": [{"type": "approve"}]}, False, "paid 7 to ann", [("ann", 7)]),
        (
            [{"type": "edit", "args": {"action": "payment.send", "args": {"to": "bob", "amount": 1}}}],
            True,
            "paid 1 to bob",
            [("bob", 1)],
        ),
        ({"decisions": [{"type": "reject", "message": "no"}]}, True, "no", []),
    ],
)
async def test_a_client_of_langgraph_answers_it_as_any_interrupt(
    store: Store, graphs: GraphCatalogue, world: list[Any], answer: Any, by_id: bool, log: str, paid: list[Any]
) -> None:
    """The thread shows the question; a run with `Command(resume=…)`, by id or not, lets the effect happen or not."""
    client = client_of(store, graphs)
    thread = (await client.threads.create())["thread_id"]
    await client.runs.create(thread, "graph", input={"log": []})
    await work_on(store, graphs)
    state: Any = await client.threads.get_state(thread)
    (asked,) = state["tasks"][0]["interrupts"]
    assert asked["value"]["action_requests"][0]["description"] == "Pay 7 to ann?"
    assert world == []
    await client.runs.create(thread, "graph", command={"resume": {asked["id"]: answer} if by_id else answer})
    await work_on(store, graphs)
    assert (await client.threads.get_state(thread))["values"] == {"log": [log]}
    assert world == paid
    with pytest.raises(httpx.HTTPStatusError):
        await client.runs.create(thread, "graph", command={"resume": {asked["id"]: answer}})


async def test_a_yes_on_a_copy_of_the_thread_is_for_the_copy(
    store: Store, graphs: GraphCatalogue, world: list[Any]
) -> None:
    """Another job asks for itself: what was answered before its effect asked is not taken."""
    client = client_of(store, graphs)
    thread = (await client.threads.create())["thread_id"]
    await client.runs.create(thread, "graph", input={"log": []})
    await work_on(store, graphs)
    copied: Any = await client.threads.copy(thread)
    (asked,) = (await client.threads.get_state(thread))["tasks"][0]["interrupts"]
    await client.runs.create(thread, "graph", command={"resume": True})
    await work_on(store, graphs)
    assert world == [("ann", 7)]
    await client.runs.create(copied["thread_id"], "graph", input=None)
    await work_on(store, graphs)
    (again,) = (await client.threads.get_state(copied["thread_id"]))["tasks"][0]["interrupts"]
    assert again["id"] != asked["id"]
    assert world == [("ann", 7)]
    await client.runs.create(copied["thread_id"], "graph", command={"resume": True})
    await work_on(store, graphs)
    assert world == [("ann", 7), ("ann", 7)]


async def test_over_http_a_review_tells_what_it_was_used_for(store: Store, graphs: GraphCatalogue) -> None:
    """The native API answers it by its decision, and shows the effect afterwards."""
    store.enqueue("graph", {"log": []})
    await work_on(store, graphs)
    transport = httpx.ASGITransport(create_app(store, graphs))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:2024") as client:
        (asked,) = (await client.get("/everstep/reviews")).json()["reviews"]
        assert asked["used_for"] is None
        path = f"/everstep/reviews/{asked['id']}"
        wrong = {"decision": "edit", "value": {"to": "bob"}}
        assert (await client.post(f"{path}/answer", json=wrong)).status_code == 422
        answer = {"decision": "approve", "argument_digest": asked["argument_digest"]}
        assert (await client.post(f"{path}/answer", json=answer)).status_code == 200
        await work_on(store, graphs)
        used = (await client.get(path)).json()["used_for"]
    assert (used["effect"], used["state"]) == ("payment.send", "consumed")
    assert used["argument_digest"] == asked["argument_digest"]
    assert used["consumed_at"] is not None


def test_an_isolated_job_asks_and_pays_once(shared: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each leg of the job is another process: the yes finds its call."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pay.py").write_text(GRAPH)
    config = tmp_path / "langgraph.json"
    config.write_text(json.dumps({"graphs": {"pay": "./pay.py:graph"}, "dependencies": ["."]}))
    job, _ = shared.enqueue("pay", {"to": "ann"})
    worker = Worker(shared, GraphCatalogue.from_config(config), isolate=True)
    worker.run(until_idle=True)
    (asked,) = shared.reviews()
    assert not (tmp_path / "world").exists()
    shared.answer(asked.public_id, "edit", value={"to": "bob"})
    Worker(shared, GraphCatalogue.from_config(config), isolate=True).run(until_idle=True)
    assert json.loads(shared.job(job.public_id).result_json or "") == {"to": "bob"}
    assert (tmp_path / "world").read_text() == "bob\n"
