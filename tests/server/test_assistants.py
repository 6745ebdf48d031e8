"""Assistants by LangGraph's own client, on both databases."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import ConflictError, NotFoundError, PermissionDeniedError, UnprocessableEntityError

from everstep.checkpoints import assistants
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock
from tests.support.thread_graphs import catalogue, client_of

pytestmark = pytest.mark.both_databases


@pytest.fixture
def client(store: Store) -> LangGraphClient:
    """LangGraph's client of a server of this record."""
    return client_of(store)


async def test_each_graph_has_its_own(client: LangGraphClient, store: Store) -> None:
    """The server makes one for each graph, once, however often it starts, with the id that LangGraph's servers give."""
    client_of(store)
    found = await client.assistants.search(metadata={"created_by": "system"}, sort_by="name", sort_order="asc")
    assert [one["graph_id"] for one in found] == sorted(catalogue().names())
    assert assistants.system_id("agent") == "fe096781-5601-53d2-b2f6-0d3403f7e9ca"
    (asking,) = await client.assistants.search(graph_id="asking")
    assert asking["assistant_id"] == assistants.system_id("asking")
    assert await client.assistants.get("asking") == await client.assistants.get(asking["assistant_id"]) == asking
    assert set(asking) == {
        "assistant_id",
        "graph_id",
        "config",
        "context",
        "created_at",
        "updated_at",
        "metadata",
        "version",
        "name",
        "description",
    }


async def test_graphs_that_are_gone_are_not_listed(store: Store) -> None:
    """Assistants of graphs that this server does not have are left out of searches, and are there when they return."""
    from everstep.graphs.loader import GraphCatalogue
    from tests.support.thread_graphs import asking

    client_of(store)
    fewer = client_of(store, GraphCatalogue.from_graphs({"asking": asking()}))
    assert [one["graph_id"] for one in await fewer.assistants.search()] == ["asking"]
    assert await fewer.assistants.count() == 1
    assert await client_of(store).assistants.count() == len(catalogue().names())


async def test_an_assistant_is_made_and_changed_in_versions(client: LangGraphClient, clock: ManualClock) -> None:
    """A change is a new version, the latest; an older one can be made the latest again."""
    made = await client.assistants.create(
        "asking", {"configurable": {"model": "small"}}, metadata={"team": "x"}, name="Anna's", description="asks"
    )
    assert (made["version"], made["name"], made["description"]) == (1, "Anna's", "asks")
    clock.advance(1000)
    changed = await client.assistants.update(
        made["assistant_id"], config={"configurable": {"model": "large"}}, metadata={"more": 1}
    )
    assert (changed["version"], changed["name"], changed["metadata"]) == (2, "Anna's", {"team": "x", "more": 1})
    assert changed["created_at"] == made["created_at"] < changed["updated_at"]
    assert (await client.assistants.get(made["assistant_id"]))["config"] == {"configurable": {"model": "large"}}
    versions = await client.assistants.get_versions(made["assistant_id"])
    assert [one["version"] for one in versions] == [2, 1]
    assert [one["version"] for one in await client.assistants.get_versions(made["assistant_id"], {"more": 1})] == [2]
    back = await client.assistants.set_latest(made["assistant_id"], 1)
    assert (back["version"], back["config"]) == (1, {"configurable": {"model": "small"}})
    assert (await client.assistants.update(made["assistant_id"], name="again"))["version"] == 3
    with pytest.raises(NotFoundError):
        await client.assistants.set_latest(made["assistant_id"], 9)


async def test_an_id_is_made_once(client: LangGraphClient) -> None:
    """A second assistant of an id is refused, or is the first, as the client wants."""
    given = str(uuid.uuid4())
    await client.assistants.create("asking", assistant_id=given, name="first")
    with pytest.raises(ConflictError):
        await client.assistants.create("asking", assistant_id=given)
    again = await client.assistants.create("asking", assistant_id=given, if_exists="do_nothing", name="second")
    assert again["name"] == "first"
    with pytest.raises(NotFoundError):
        await client.assistants.create("no-such-graph")


async def test_they_are_found(client: LangGraphClient) -> None:
    """By graph, by a part of the name whatever its case, and by metadata, with the fields that are wanted."""
    for number in range(3):
        await client.assistants.create("odd", name=f"Helper {number}", metadata={"n": number})
    assert await client.assistants.count(graph_id="odd") == 4
    assert await client.assistants.count(name="helper", metadata={"n": 1}) == 1
    assert await client.assistants.search(name="HELPER 2", select=["name"]) == [{"name": "Helper 2"}]
    page = await client.assistants.search(name="helper", limit=2, response_format="object")
    assert (len(page["assistants"]), page["next"]) == (2, "2")
    assert await client.assistants.search(name="%") == []


async def test_a_deleted_assistant_is_gone(client: LangGraphClient) -> None:
    """With its threads if that is wanted; a graph's own cannot be deleted."""
    made = await client.assistants.create("asking")
    own, other = [
        (await client.threads.create(metadata={"assistant_id": one}))["thread_id"]
        for one in (made["assistant_id"], assistants.system_id("asking"))
    ]
    await client.assistants.delete(made["assistant_id"], delete_threads=True)
    with pytest.raises(NotFoundError):
        await client.assistants.get(made["assistant_id"])
    assert [one["thread_id"] for one in await client.threads.search()] == [other] != [own]
    with pytest.raises(PermissionDeniedError):
        await client.assistants.delete("asking")


async def test_owners_see_their_own_and_everybodys(store: Store) -> None:
    """A graph's own assistant is everybody's and nobody's to change; another owner's is not there."""
    anna, bob = client_of(store, owner="anna"), client_of(store, owner="bob")
    made = await anna.assistants.create("asking", name="Anna's")
    assert await bob.assistants.count() == len(catalogue().names()) == await anna.assistants.count() - 1
    for asked in (
        bob.assistants.get(made["assistant_id"]),
        bob.assistants.update(made["assistant_id"], name="Bob's"),
        bob.assistants.delete(made["assistant_id"]),
        bob.assistants.get_versions(made["assistant_id"]),
        bob.assistants.get_graph(made["assistant_id"]),
    ):
        with pytest.raises(NotFoundError):
            await asked
    with pytest.raises(ConflictError):
        await bob.assistants.create("asking", assistant_id=made["assistant_id"], if_exists="do_nothing")
    with pytest.raises(PermissionDeniedError):
        await bob.assistants.update("asking", name="Bob's")


async def test_a_graph_is_drawn(client: LangGraphClient) -> None:
    """Its nodes and edges, as LangGraph draws them; with `xray` those of its subgraphs."""
    drawn = await client.assistants.get_graph("nested")
    assert [one["id"] for one in drawn["nodes"]] == ["__start__", "outer", "__end__"]
    assert drawn["edges"][0] == {"source": "__start__", "target": "outer"}
    for xray in (True, 1):
        shown = await client.assistants.get_graph("nested", xray=xray)
        assert "outer:within" in [one["id"] for one in shown["nodes"]]
    with pytest.raises(UnprocessableEntityError, match="xray"):
        await client.assistants.get_graph("nested", xray="all")  # pyright: ignore


async def test_schemas_tell_what_a_graph_takes(client: LangGraphClient) -> None:
    """Input, output and state as JSON Schema."""
    schemas: Any = await client.assistants.get_schemas("asking")
    assert schemas["graph_id"] == "asking"
    for name in ("input_schema", "output_schema", "state_schema"):
        assert set(schemas[name]["properties"]) == {"messages", "answer"}


async def test_subgraphs_are_told(client: LangGraphClient) -> None:
    """By their names, with what they take."""
    found: Any = await client.assistants.get_subgraphs("nested", recurse=True)
    assert set(found["outer"]["input_schema"]["properties"]) == {"log"}
    assert await client.assistants.get_subgraphs("nested", "outer") == found
    assert await client.assistants.get_subgraphs("asking") == {}
