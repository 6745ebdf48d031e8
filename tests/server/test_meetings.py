"""What happens over HTTP when a client's requests meet: a rollback and a change, a deletion and whoever follows."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph_sdk import get_sync_client
from langgraph_sdk.client import LangGraphClient
from sqlalchemy import Connection, update

from everstep.checkpoints import conversations, runs, thread_removal
from everstep.checkpoints.idle_saver import IdleSaver
from everstep.checkpoints.schema import runs as rows
from everstep.checkpoints.store import Store
from everstep.errors import ThreadNotFound
from tests.support.live import live
from tests.support.thread_graphs import catalogue, client_of, work
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.both_databases


@pytest.fixture
def client(store: Store) -> LangGraphClient:
    """LangGraph's client of a server of this record."""
    return client_of(store)


async def rolled_back(client: LangGraphClient, store: Store) -> tuple[str, str]:
    """A thread with a run that paused, as if it had been cancelled with its steps before: their ids."""
    thread = (await client.threads.create())["thread_id"]
    given: Any = {"messages": [("user", "gone")]}
    run = await client.runs.create(thread, "asking", input=given, interrupt_before=["greet"])
    await work(store)
    mark = update(rows).where(rows.c.run_id == run["run_id"]).values(rolled_back=1)
    await store.awrite(lambda connection: connection.execute(mark))
    return thread, run["run_id"]


async def test_a_change_of_the_state_is_not_made_on_what_is_rolled_back(client: LangGraphClient, store: Store) -> None:
    """A run was cancelled with its steps, and a client changes the state: on what was before that run."""
    thread, _ = await rolled_back(client, store)
    await client.threads.update_state(thread, {"messages": [("user", "new")]}, as_node="greet")
    state: Any = await client.threads.get_state(thread)
    assert [message["content"] for message in state["values"]["messages"]] == ["new"]


async def test_a_run_that_is_forgotten_stays_rolled_back(client: LangGraphClient, store: Store) -> None:
    """A run was cancelled with its steps, and then is deleted: its steps go all the same."""
    thread, run_id = await rolled_back(client, store)
    await client.runs.delete(thread, run_id)
    state: Any = await client.threads.get_state(thread)
    assert not state["values"].get("messages")


async def test_a_thread_that_is_gone_is_not_made_again(client: LangGraphClient, store: Store) -> None:
    """A thread is deleted while another request changes it, which saw it before: that one is told so."""
    thread = (await client.threads.create(graph_id="asking"))["thread_id"]
    await client.threads.delete(thread)
    with pytest.raises(ThreadNotFound):
        await store.awrite(lambda c: conversations.change(c, thread, now=1, metadata={"a": 1}))
    saver = IdleSaver(store)
    place: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    with pytest.raises(ThreadNotFound):
        await saver.aput(place, empty_checkpoint(), {}, {})
    assert await client.threads.search() == []
    assert await saver.aget_tuple(place) is None


@pytest.mark.parametrize("path", ["stream", "wait"])
def test_who_follows_a_run_that_is_deleted_is_told_its_end(shared: Store, path: str) -> None:
    """A thread is deleted at once with its run while a client follows that: the answer ends, and is whole."""
    with live(shared, catalogue(), work=False) as url:
        client = get_sync_client(url=url)
        thread = client.threads.create()["thread_id"]
        body: dict[str, Any] = {"assistant_id": "asking", "input": {"messages": []}}
        with httpx.stream("POST", f"{url}/threads/{thread}/runs/{path}", json=body, timeout=PATIENCE) as answer:
            shared.write(lambda connection: delete(connection, thread, shared)).result()
            told, until = "", time.monotonic() + PATIENCE
            for part in answer.iter_text():
                told += part
                assert time.monotonic() < until, "it waits for ever"
    assert "event: end" in told if path == "stream" else "run_not_found" in told


def delete(connection: Connection, thread_id: str, store: Store) -> None:
    """Delete a thread with what waits on it, in one transaction."""
    for run in runs.going(connection, thread_id=thread_id):
        runs.cancel(connection, run, now=1, actor="http")
    thread, tables = conversations.find(connection, thread_id), store.database.checkpoint_tables
    thread_removal.remove(connection, thread, now=1, actor="http", checkpoint_tables=tables)
