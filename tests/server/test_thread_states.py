"""The state of threads by LangGraph's own client: what it is, was, and how it is changed; on both databases."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import ConflictError, NotFoundError, UnprocessableEntityError
from sqlalchemy import Connection

from everstep.checkpoints import conversations
from everstep.checkpoints.saver import StepSaver
from everstep.checkpoints.schema import agent_jobs
from everstep.checkpoints.store import Store
from tests.support.thread_graphs import client_of, work

pytestmark = pytest.mark.both_databases


@pytest.fixture
def client(store: Store) -> LangGraphClient:
    """LangGraph's client of a server of this record."""
    return client_of(store)


async def paused(store: Store, graph: str = "asking", given: Any = None) -> str:
    """The id of a thread whose job waits for a person."""
    job, _ = store.enqueue(graph, given or {"messages": []}, key=graph)
    await work(store)
    assert store.job(job.public_id).status == "review"
    return job.public_id


async def test_a_thread_that_never_ran_has_an_empty_state(client: LangGraphClient) -> None:
    """It is there, with nothing in it, and no history."""
    thread_id = (await client.threads.create())["thread_id"]
    assert await client.threads.get_state(thread_id) == {
        "values": {},
        "next": [],
        "checkpoint": None,
        "metadata": {},
        "created_at": None,
        "parent_checkpoint": None,
        "tasks": [],
        "interrupts": [],
    }
    assert await client.threads.get_history(thread_id) == []
    with pytest.raises(UnprocessableEntityError, match="no graph"):
        await client.threads.update_state(thread_id, {"x": 1})


async def test_asked_by_its_checkpoint_an_empty_state_names_its_thread(client: LangGraphClient) -> None:
    """RemoteGraph asks so, and reads the place of what it gets."""
    thread_id = (await client.threads.create(graph_id="asking"))["thread_id"]
    state = await client.threads.get_state(thread_id, checkpoint={"thread_id": thread_id})  # pyright: ignore
    assert state["checkpoint"] == {"thread_id": thread_id, "checkpoint_ns": "", "checkpoint_id": None}


async def test_a_paused_thread_shows_what_it_waits_for(client: LangGraphClient, store: Store) -> None:
    """Messages are objects with type, id and content; interrupts have value and id, and nothing else."""
    state = await client.threads.get_state(await paused(store))
    assert [(one["type"], one["content"]) for one in state["values"]["messages"]] == [("ai", "hello")]
    assert all(one["id"] for one in state["values"]["messages"])
    assert state["next"] == ["ask"]
    (interrupt,) = state["interrupts"]
    assert set(interrupt) == {"id", "value"}
    (task,) = state["tasks"]
    assert (task["name"], task["path"], task["interrupts"]) == ("ask", ["__pregel_pull", "ask"], [interrupt])
    assert state["metadata"]["step"] == 1
    assert state["parent_checkpoint"]["thread_id"] == state["checkpoint"]["thread_id"]


async def test_history_goes_back_step_by_step(client: LangGraphClient, store: Store) -> None:
    """Newest first, as many as wanted, from where it is wanted, by metadata; by GET as well."""
    thread_id = await paused(store)
    states = await client.threads.get_history(thread_id)
    assert [one["metadata"]["step"] for one in states] == [1, 0, -1]
    before = states[0]["checkpoint"]
    assert await client.threads.get_history(thread_id, before=before, limit=1) == states[1:2]
    assert await client.threads.get_history(thread_id, before=before["checkpoint_id"]) == states[1:]
    assert await client.threads.get_history(thread_id, metadata={"step": 0}) == states[1:2]
    assert await client.http.get(f"/threads/{thread_id}/history", params={"limit": 2}) == states[:2]
    with pytest.raises(UnprocessableEntityError):
        await client.http.get(f"/threads/{thread_id}/history", params={"limit": 0})


async def test_an_earlier_state_is_found_by_its_checkpoint(client: LangGraphClient, store: Store) -> None:
    """By id or as a checkpoint; one that is not there is not found, another thread's is refused."""
    thread_id = await paused(store)
    states = await client.threads.get_history(thread_id)
    place = states[1]["checkpoint"]
    assert await client.threads.get_state(thread_id, checkpoint_id=place["checkpoint_id"]) == states[1]
    assert await client.threads.get_state(thread_id, checkpoint=place) == states[1]
    with pytest.raises(NotFoundError):
        await client.threads.get_state(thread_id, checkpoint_id=str(uuid.uuid4()))
    other: Any = {**place, "thread_id": str(uuid.uuid4())}
    with pytest.raises(UnprocessableEntityError):
        await client.threads.get_state(thread_id, checkpoint=other)


async def test_parts_of_a_state_are_selected(client: LangGraphClient, store: Store) -> None:
    """Whole fields, or one key of the values; what no state has is refused."""
    thread_id = await paused(store)
    state = await client.threads.get_state(thread_id, select=["next", "values.answer", "values.messages"])
    assert (set(state), set(state["values"])) == ({"next", "values"}, {"messages"})
    states = await client.threads.get_history(thread_id, select=["checkpoint"])
    assert all(set(one) == {"checkpoint"} for one in states)
    with pytest.raises(UnprocessableEntityError, match="select"):
        await client.threads.get_state(thread_id, select=["colour"])


async def test_subgraphs_are_shown_when_asked_for(client: LangGraphClient, store: Store) -> None:
    """A task that is a subgraph tells where it stands, and with `subgraphs` how; its own place can be asked for."""
    thread_id = await paused(store, "nested", {"log": []})
    (task,) = (await client.threads.get_state(thread_id))["tasks"]
    assert (task["state"], task["checkpoint"]["thread_id"]) == (None, thread_id)
    (shown,) = (await client.threads.get_state(thread_id, subgraphs=True))["tasks"]
    assert shown["state"]["next"] == ["within"]
    below: Any = task["checkpoint"]
    assert (await client.threads.get_state(thread_id, checkpoint=below))["next"] == ["within"]
    nowhere = await client.threads.get_state(thread_id, checkpoint={**below, "checkpoint_ns": "nobody:1"})
    assert (nowhere["values"], nowhere["created_at"]) == ({}, None)


async def test_values_that_are_no_json_are_shown(client: LangGraphClient, store: Store) -> None:
    """Models and dataclasses as objects, moments as ISO 8601, sets as lists, infinity as text."""
    job, _ = store.enqueue("odd", {"rate": 0.0}, key="k")
    await work(store)
    values = (await client.threads.get_state(job.public_id))["values"]
    assert values == {
        "point": {"x": 1, "at": "2030-01-02T00:00:00+00:00"},
        "named": {"name": "n"},
        "tags": ["t"],
        "rate": "inf",
    }


async def test_a_state_is_changed_as_if_by_a_node(client: LangGraphClient) -> None:
    """The change is a checkpoint on top, the thread is found by its new values, and says that it is not at its end."""
    thread_id = (await client.threads.create(graph_id="asking"))["thread_id"]
    values = {"messages": [{"role": "user", "content": "hi"}]}
    changed = await client.threads.update_state(thread_id, values, as_node="greet")
    state = await client.threads.get_state(thread_id)
    assert changed["checkpoint"] == state["checkpoint"]
    assert state["next"] == ["ask"]
    (found,) = await client.threads.search(values={"messages": [{"content": "hi", "type": "human"}]})
    assert (found["thread_id"], found["status"]) == (thread_id, "interrupted")
    await client.threads.update_state(thread_id, {"answer": "x"}, as_node="ask")
    assert (await client.threads.get(thread_id))["status"] == "idle"


async def test_an_earlier_checkpoint_is_changed(client: LangGraphClient) -> None:
    """A change of an earlier checkpoint is a fork, and the thread's newest state."""
    thread_id = (await client.threads.create(graph_id="asking"))["thread_id"]
    first = await client.threads.update_state(thread_id, {"answer": "a"}, as_node="greet")
    await client.threads.update_state(thread_id, {"answer": "b"}, as_node="greet")
    place = first["checkpoint"]
    await client.threads.update_state(thread_id, {"messages": [("user", "c")]}, as_node="greet", checkpoint=place)
    state = await client.threads.get_state(thread_id)
    assert (state["values"]["answer"], state["parent_checkpoint"]) == ("a", place)
    other: Any = {**place, "checkpoint_id": str(uuid.uuid4())}
    with pytest.raises(UnprocessableEntityError, match="two places"):
        await client.threads.update_state(thread_id, None, checkpoint=other, checkpoint_id=place["checkpoint_id"])


async def test_a_checkpoint_that_is_not_there_is_no_beginning(client: LangGraphClient) -> None:
    """A change there, or a run from there, is not found, and the thread stays as it was; so it is with another's."""
    thread_id, other_id = [(await client.threads.create(graph_id="asking"))["thread_id"] for _ in range(2)]
    await client.threads.update_state(thread_id, {"answer": "a"}, as_node="greet")
    other = await client.threads.update_state(other_id, {"answer": "b"}, as_node="greet")
    before = await client.threads.get_history(thread_id)
    for place in ("nowhere", str(uuid.uuid4()), other["checkpoint"]["checkpoint_id"]):
        with pytest.raises(NotFoundError, match="no checkpoint"):
            await client.threads.update_state(thread_id, {"answer": "c"}, as_node="greet", checkpoint_id=place)
        inputs: list[Any] = [{"messages": []}, None]
        for given in inputs:
            with pytest.raises(NotFoundError, match="no checkpoint"):
                await client.runs.create(thread_id, "asking", input=given, checkpoint_id=place)
    assert await client.threads.get_history(thread_id) == before
    assert await client.runs.list(thread_id) == []


async def test_a_value_that_cannot_be_stored_is_refused(client: LangGraphClient) -> None:
    """It is the request's fault: 422, which names the place of the value."""
    thread_id = (await client.threads.create(graph_id="asking"))["thread_id"]
    body = json.dumps({"values": {"answer": {"x": 2**70}}, "as_node": "greet"})
    answer = await client.http.client.post(f"/threads/{thread_id}/state", content=body)
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("$.answer.x is an integer beyond 64 bits")


@pytest.mark.parametrize("value", ["NaN", "1e999", "-Infinity", '"\\ud800"', '{"\\udfff": 1}'])
async def test_what_is_no_json_goes_into_no_state(client: LangGraphClient, value: str) -> None:
    """Numbers that are none and half characters are refused by their field, on every database, before a run starts."""
    thread_id = (await client.threads.create(graph_id="asking"))["thread_id"]
    for field in ("input", "config", "context", "metadata", "command", "values"):
        inner = {"config": '"configurable": {"a": %s}', "command": '"update": {"answer": %s}'}.get(
            field, '"answer": %s'
        )
        path, more = ("state", "") if field == "values" else ("runs", '"assistant_id": "asking", ')
        body = f'{{{more}"{field}": {{{inner % value}}}}}'
        answer = await client.http.client.post(f"/threads/{thread_id}/{path}", content=body)
        assert answer.status_code == 422, (body, answer.text)
        assert answer.json()["detail"].startswith(field)
    assert await client.runs.list(thread_id) == []


@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
async def test_a_text_that_no_database_knows_is_the_requests_fault(client: LangGraphClient, text: str) -> None:
    """NUL and half a character, in what is looked for: refused or found nowhere, and no failure of the server."""
    thread_id = (await client.threads.create(graph_id="asking"))["thread_id"]
    await client.threads.update_state(thread_id, {"answer": "a"}, as_node="greet")
    place = f"/threads/{thread_id}"
    requests: list[tuple[str, dict[str, Any]]] = [
        (f"{place}/history", {"before": text}),
        (f"{place}/history", {"metadata": {"a": text}}),
        (f"{place}/history", {"checkpoint": {"checkpoint_ns": text}}),
        (f"{place}/state/checkpoint", {"checkpoint": {"checkpoint_id": text}}),
        (f"{place}/state", {"values": {}, "checkpoint_id": text}),
        (f"{place}/runs", {"assistant_id": "asking", "input": {}, "checkpoint_id": text}),
        ("/threads/search", {"ids": [text]}),
        ("/threads/prune", {"thread_ids": [text]}),
        ("/assistants/search", {"name": text}),
        ("/runs/cancel", {"status": "pending", "thread_id": text}),
    ]
    for path, body in requests:
        answer = await client.http.client.post(path, content=json.dumps(body))
        assert answer.status_code < 500, (path, body, answer.text)
    for params in ({"checkpoint_id": text}, {"run_id": text}):
        method = "state.fork" if "checkpoint_id" in params else "agent.getTree"
        command = {"id": 1, "method": method, "params": params}
        answer = await client.http.client.post(f"{place}/commands", content=json.dumps(command))
        assert answer.json()["error"] in ("invalid_argument", "no_such_checkpoint", "no_such_run")


async def test_a_change_that_no_graph_takes_is_refused(client: LangGraphClient, store: Store) -> None:
    """An unknown node, values of the wrong form and credentials change nothing."""
    thread_id = await paused(store)
    before = await client.threads.get_state(thread_id)
    for values, node in (({"answer": "x"}, "nobody"), ("text", "ask"), ({"api_key": "sk-" + "a1" * 20}, "ask")):
        with pytest.raises(UnprocessableEntityError):
            await client.threads.update_state(thread_id, values, as_node=node)  # pyright: ignore
    assert await client.threads.get_state(thread_id) == before


async def test_agent_inbox_ignores_a_question(client: LangGraphClient, store: Store) -> None:
    """A thread that is brought to its end no longer waits, and its job is done."""
    thread_id = await paused(store)
    await client.threads.update_state(thread_id, None, as_node="__end__")
    await work(store)
    job = store.job(thread_id)
    assert (job.status, [one.status for one in store.reviews(job)]) == ("done", ["closed"])
    found = await client.threads.get(thread_id)
    assert (found["status"], found["interrupts"]) == ("idle", {})
    assert await client.threads.search(status="interrupted") == []


async def test_a_run_that_comes_between_is_not_disturbed(
    client: LangGraphClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look for runs and the write are one transaction: one that is admitted after a first look is seen."""
    thread_id = (await client.threads.create(graph_id="asking"))["thread_id"]
    await client.threads.update_state(thread_id, {"answer": "a"}, as_node="greet")
    look = conversations.require_idle

    def look_then_admit(connection: Connection, thread_id: str, **how: Any) -> None:
        look(connection, thread_id, **how)
        monkeypatch.setattr(conversations, "require_idle", look)  # from the second look on
        job, _ = store.enqueue("asking", {"messages": []}, key="between")
        moved = agent_jobs.update().where(agent_jobs.c.id == job.id).values(thread_id=thread_id)
        store.write(lambda connection: connection.execute(moved)).result()

    monkeypatch.setattr(conversations, "require_idle", look_then_admit)
    with pytest.raises(ConflictError):
        await client.threads.update_state(thread_id, {"answer": "b"}, as_node="greet")
    saved = StepSaver(store).get_tuple({"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}})
    assert saved is not None
    assert saved.checkpoint["channel_values"]["answer"] == "a"
