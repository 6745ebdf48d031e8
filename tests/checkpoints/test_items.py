"""The key-value store of graphs beside the record's writer: under the claim, all or nothing, and never locked out."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from langgraph.store.base import GetOp, PutOp
from langgraph.store.sqlite import SqliteStore

from everstep.checkpoints.fence import Fence
from everstep.checkpoints.items import OwnedItems
from everstep.checkpoints.jobs import LostClaim
from everstep.checkpoints.sqlite import Sqlite
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock
from everstep.errors import ConfigInvalid
from everstep.graphs.loader import GraphCatalogue
from everstep.nodes.attempt import Attempt
from tests.support.record import begin_running, claim


@pytest.fixture
def graphs() -> GraphCatalogue:
    """No graphs, and no configuration."""
    return GraphCatalogue.from_graphs({})


def attempt(store: Store) -> Fence:
    """A run of a job, under its claim."""
    store.enqueue("graph", {"n": 1}, key="k")
    job = begin_running(store)
    return Attempt(
        store=store,
        job_id=job.id,
        public_id=job.public_id,
        job_key=job.idempotency_key,
        claim_no=job.claim_no,
        surely_not_sent=lambda _: False,
    )


@pytest.mark.both_databases
def test_a_run_that_lost_its_claim_puts_nothing(store: Store, clock: ManualClock, graphs: GraphCatalogue) -> None:
    """An item is stored only under the claim, like a step; and after a refusal nothing more is tried."""
    mine, other = graphs.items_of(store, "anna", attempt(store)), graphs.items_of(store, "anna")
    mine.put(("a",), "before", {"n": 1})
    clock.advance(2_000)
    claim(store, "another worker")
    for key in ("after", "again"):
        with pytest.raises(LostClaim):
            mine.put(("a",), key, {"n": 2})
    assert [item.key for item in other.search(("a",))] == ["before"]


@pytest.mark.both_databases
def test_a_batch_is_stored_as_a_whole(store: Store, graphs: GraphCatalogue) -> None:
    """Of several writes and reads in one batch, the reads see what was before, and all writes are one commit."""
    items = graphs.items_of(store, "anna")
    items.put(("a",), "k", {"n": 0})
    before = store.commits
    found = items.batch([PutOp(("a",), "k", {"n": 1}), GetOp(("a",), "k"), PutOp(("a",), "other", {"n": 2})])
    assert store.commits == before + 1
    assert [item and item.value for item in found] == [None, {"n": 0}, None]  # pyright: ignore
    assert [item.value["n"] for item in sorted(items.search(("a",)), key=lambda item: item.key)] == [1, 2]


@pytest.mark.both_databases
async def test_what_is_put_cannot_change_afterwards(store: Store, graphs: GraphCatalogue) -> None:
    """The value is taken as it is when it is put."""
    items, value = graphs.items_of(store, "anna"), {"n": [1]}
    put = asyncio.ensure_future(items.aput(("a",), "k", value))
    await asyncio.sleep(0)
    value["n"].append(2)
    await put
    found = await items.aget(("a",), "k")
    assert found is not None
    assert found.value == {"n": [1]}


async def test_many_who_read_and_write_at_once_lose_nothing(store: Store, graphs: GraphCatalogue) -> None:
    """A batch that reads and writes beside other writers is never told that the database is locked."""

    async def one(owner: int) -> None:
        items: OwnedItems = graphs.items_of(store, f"owner {owner}")
        for number in range(20):
            await items.abatch([GetOp(("a",), "n"), PutOp(("a",), "n", {"n": number})])

    await asyncio.gather(*(one(owner) for owner in range(20)))
    for owner in range(20):
        found = graphs.items_of(store, f"owner {owner}").get(("a",), "n")
        assert found is not None
        assert found.value == {"n": 19}


def test_a_stock_store_reads_the_same_tables(store: Store, graphs: GraphCatalogue) -> None:
    """The tables are LangGraph's; the first label of a namespace is the owner."""
    graphs.items_of(store, "anna@example.org").put(("a",), "k", {"n": 1})
    connection = sqlite3.connect(store.path, check_same_thread=False, isolation_level=None)
    stock = SqliteStore(connection)
    stock.setup()
    (found,) = stock.search(())
    connection.close()
    assert (found.namespace, found.key, found.value) == (("anna@example%2Eorg", "a"), "k", {"n": 1})


def configured(folder: Path, **store: Any) -> GraphCatalogue:
    """A catalogue whose `langgraph.json` says this about the store."""
    (folder / "embedding.py").write_text(
        "def by_letters(texts):\n    return [[float(text.count(letter)) + 0.1 for letter in 'abc'] for text in texts]\n"
    )
    (folder / "graph.py").write_text("graph = None\n")
    path = folder / "langgraph.json"
    path.write_text(json.dumps({"graphs": {"g": "./graph.py:graph"}, "store": store}))
    return GraphCatalogue.from_config(path)


@pytest.mark.both_databases
def test_items_are_found_by_meaning(store: Store, tmp_path: Path) -> None:
    """With an index in `langgraph.json` a search takes words, and the nearest comes first; where it can be, or not."""
    index = {"dims": 3, "embed": "./embedding.py:by_letters", "fields": ["text"]}
    graphs = configured(tmp_path, index=index)
    if isinstance(store.database, Sqlite) and not hasattr(sqlite3.Connection, "enable_load_extension"):
        with pytest.raises(ConfigInvalid, match=r"store\.index.*SQLite"):
            graphs.items_of(store, "anna")
        return
    items = graphs.items_of(store, "anna")
    for text in ("aaa", "bbb", "ccc"):
        items.put(("a",), text, {"text": text})
    found = items.search(("a",), query="bb")
    assert found[0].key == "bbb"
    assert found[0].score is not None


@pytest.mark.parametrize(
    "index",
    [
        {"dims": 3, "embed": "./embedding.py:no_such_function"},
        {"dims": 3, "embed": "no-such-provider:model"},
        {"dims": 0, "embed": "./embedding.py:by_letters"},
        {"dims": 3},
        {"dims": 3, "embed": "./embedding.py:by_letters", "colour": "red"},
    ],
)
def test_an_index_that_cannot_be_is_refused_at_the_start(store: Store, tmp_path: Path, index: Any) -> None:
    """Whoever serves or works is told before anything runs."""
    with pytest.raises(ConfigInvalid, match=r"store\.index"):
        configured(tmp_path, index=index).items_of(store, "anna")


def test_the_default_time_to_live_is_the_configurations(store: Store, tmp_path: Path) -> None:
    """Items that say nothing live as long as `store.ttl` has it."""
    items = configured(tmp_path, ttl={"default_ttl": 60, "refresh_on_read": False}).items_of(store, "anna")
    items.put(("a",), "k", {})
    assert items.refreshes is False
    minutes = "SELECT ttl_minutes FROM store"
    assert store.read(lambda connection: connection.exec_driver_sql(minutes).scalar_one()) == 60


def test_a_graphs_own_store_is_replaced_with_a_warning(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """The same file works by itself and here."""
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.store.memory import InMemoryStore

    builder = StateGraph(MessagesState)
    builder.add_node("node", lambda _: {})
    builder.add_edge(START, "node")
    graphs = GraphCatalogue.from_graphs({"g": builder.compile(store=InMemoryStore())})
    items = graphs.items_of(store, "anna")

    async def opened() -> Any:
        async with graphs.open("g", items=items) as graph:
            return graph.store

    assert asyncio.run(opened()) is items
    assert "its own store" in caplog.text
