"""The key-value store by LangGraph's own client, and as graphs see it; on both databases."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import UnprocessableEntityError

from everstep.checkpoints.store import Store
from tests.support.thread_graphs import catalogue, client_of, work

pytestmark = pytest.mark.both_databases


@pytest.fixture
def client(store: Store) -> LangGraphClient:
    """LangGraph's client of a server of this record."""
    return client_of(store)


async def raw(client: LangGraphClient, method: str, path: str, **how: Any) -> httpx.Response:
    """A request as it is, for what the client does not tell."""
    return await client.http.client.request(method, path, **how)


async def test_an_item_is_put_got_and_deleted(client: LangGraphClient) -> None:
    """It comes back as it was put; what is not there is null, not an error."""
    place = ("users", "anna")
    assert await client.store.get_item(place, "likes") is None
    await client.store.put_item(place, "likes", {"colours": ["red"], "n": 1.5})
    item = await client.store.get_item(place, "likes")
    assert (item["namespace"], item["key"], item["value"]) == (
        ["users", "anna"],
        "likes",
        {"colours": ["red"], "n": 1.5},
    )
    assert set(item) == {"namespace", "key", "value", "created_at", "updated_at"}
    await client.store.put_item(place, "likes", {"n": 2})
    assert (await client.store.get_item(place, "likes"))["value"] == {"n": 2}
    await client.store.delete_item(place, "likes")
    await client.store.delete_item(place, "likes")
    assert await client.store.get_item(place, "likes") is None


async def test_items_are_searched(client: LangGraphClient) -> None:
    """Below a namespace, by what their values hold, page by page."""
    for number in range(4):
        await client.store.put_item(
            ("docs", "a" if number < 2 else "ab"), f"k{number}", {"n": number, "odd": number % 2}
        )
    found = (await client.store.search_items(("docs",)))["items"]
    assert sorted(one["key"] for one in found) == ["k0", "k1", "k2", "k3"]
    assert [one["key"] for one in (await client.store.search_items(("docs", "a"), filter={"odd": 1}))["items"]] == [
        "k1"
    ]
    more = (await client.store.search_items(("docs",), filter={"n": {"$gte": 1}}))["items"]
    assert sorted(one["key"] for one in more) == ["k1", "k2", "k3"]
    pages = [(await client.store.search_items((), limit=3, offset=offset))["items"] for offset in (0, 3)]
    assert [len(page) for page in pages] == [3, 1]
    with pytest.raises(UnprocessableEntityError):
        await client.store.search_items(("docs",), filter={"n": {"$like": 1}})
    with pytest.raises(UnprocessableEntityError, match="index"):
        await client.store.search_items(("docs",), query="what is odd?")


async def test_namespaces_are_listed(client: LangGraphClient) -> None:
    """By prefix, suffix and depth."""
    for namespace in (("a", "x"), ("a", "y", "z"), ("b", "x")):
        await client.store.put_item(namespace, "k", {})
    listed = await client.store.list_namespaces()
    assert sorted(listed["namespaces"]) == [["a", "x"], ["a", "y", "z"], ["b", "x"]]
    assert sorted((await client.store.list_namespaces(prefix=["a"]))["namespaces"]) == [["a", "x"], ["a", "y", "z"]]
    assert sorted((await client.store.list_namespaces(suffix=["x"]))["namespaces"]) == [["a", "x"], ["b", "x"]]
    assert sorted((await client.store.list_namespaces(max_depth=1))["namespaces"]) == [["a"], ["b"]]


async def test_labels_that_no_namespace_has_are_refused(client: LangGraphClient) -> None:
    """Dots, nothing at all, and the label that LangGraph keeps for itself."""
    for namespace in (["a.b"], [""], [], ["langgraph", "x"]):
        response = await raw(client, "PUT", "/store/items", json={"namespace": namespace, "key": "k", "value": {}})
        assert response.status_code == 422, namespace
    for asked in ({"namespace_prefix": ["a.b"]}, {"namespace_prefix": ["a"], "colour": "red"}):
        assert (await raw(client, "POST", "/store/items/search", json=asked)).status_code == 422


async def test_credentials_and_odd_texts_are_refused(client: LangGraphClient) -> None:
    """The store is no place for credentials, nor for what no database can look into."""
    for value in ({"password": "hunter2hunter2"}, {"text": "nul \0"}):
        with pytest.raises(UnprocessableEntityError):
            await client.store.put_item(("a",), "k", value)
    assert await client.store.get_item(("a",), "k") is None


async def test_a_graph_and_a_client_see_the_same_items(client: LangGraphClient, store: Store) -> None:
    """What a run puts is there for clients, and the other way round."""
    await client.store.put_item(("notes",), "mine", {"text": "mine"})
    job, _ = store.enqueue("remembering", {"text": "its"}, key="k")
    await work(store)
    assert store.job(job.public_id).result_json == '{"text": "2"}'
    assert (await client.store.get_item(("notes",), "its"))["value"] == {"text": "its"}


async def test_owners_have_stores_of_their_own(store: Store) -> None:
    """Neither a client nor a run sees another owner's items, whatever they are called."""
    anna, bob = client_of(store, owner="anna@example.org"), client_of(store, owner="bob")
    await anna.store.put_item(("notes",), "hers", {"text": "hers"})
    assert await bob.store.get_item(("notes",), "hers") is None
    assert (await bob.store.search_items(()))["items"] == []
    assert (await bob.store.list_namespaces())["namespaces"] == []
    assert (await client_of(store).store.search_items(()))["items"] == []
    job, _ = store.enqueue("remembering", {"text": "his"}, key="k", owner="bob")
    await work(store)
    assert store.job(job.public_id).result_json == '{"text": "1"}'
    assert [one["key"] for one in (await anna.store.search_items(()))["items"]] == ["hers"]
    assert (await anna.store.list_namespaces())["namespaces"] == [["notes"]]


async def test_an_item_whose_time_is_over_is_not_there(client: LangGraphClient, store: Store) -> None:
    """Nobody sees it, reading does not bring it back, and `everstep prune` deletes it."""
    await client.store.put_item(("a",), "short", {"n": 1}, ttl=1)
    await client.store.put_item(("a",), "long", {"n": 2}, ttl=60)
    assert (await client.store.get_item(("a",), "short", refresh_ttl=False))["value"] == {"n": 1}
    past = "UPDATE store SET expires_at = '2000-01-01 00:00:00+00:00' WHERE key = 'short'"
    store.write(lambda connection: connection.exec_driver_sql(past)).result()
    assert await client.store.get_item(("a",), "short", refresh_ttl=True) is None
    found = (await client.store.search_items(("a",), refresh_ttl=True))["items"]
    assert [one["key"] for one in found] == ["long"]
    store.flush()
    assert [store.prune(dry_run=dry).items for dry in (True, False, False)] == [1, 1, 0]


async def test_reading_lets_a_time_begin_anew(client: LangGraphClient, store: Store) -> None:
    """An item's time to live counts from the last read, if the read says so."""
    await client.store.put_item(("a",), "k", {"n": 1}, ttl=60)
    soon = {"sqlite": "datetime(CURRENT_TIMESTAMP, '+1 minutes')", "postgresql": "now() + interval '1 minute'"}

    def shorten(connection: Any) -> None:
        connection.exec_driver_sql(f"UPDATE store SET expires_at = {soon[connection.dialect.name]}")

    def expires_at(connection: Any) -> str:
        return str(connection.exec_driver_sql("SELECT expires_at FROM store").scalar_one())

    for refresh, changes in ((False, False), (True, True)):
        store.write(shorten).result()
        before = store.read(expires_at)
        assert await client.store.get_item(("a",), "k", refresh_ttl=refresh) is not None
        store.flush()
        assert (store.read(expires_at) > before) is changes


def test_a_catalogue_has_one_set_of_tables_for_a_record(store: Store) -> None:
    """Runs and requests share connections."""
    graphs = catalogue()
    first, second = graphs.items_of(store, "anna"), graphs.items_of(store, "bob")
    assert first._tables is second._tables  # pyright: ignore
