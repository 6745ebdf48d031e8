"""What has a time to live goes by itself, beside a worker; and what `langgraph.json` may say about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from everstep.checkpoints import conversations
from everstep.checkpoints.store import Store
from everstep.checkpoints.thread import Ttl
from everstep.clock import ManualClock
from everstep.errors import ConfigInvalid
from everstep.graphs.loader import GraphCatalogue
from everstep.graphs.storage import read_storage
from everstep.runtime.expiry import Expiry
from tests.support.waiting import until


def threads(store: Store, count: int, minutes: float) -> None:
    """Some threads that live so long."""
    now = store.clock.now_ms()
    for _ in range(count):
        store.write(
            lambda connection: conversations.create(connection, None, owner="anna", now=now, ttl=Ttl(minutes))
        ).result()


def left(store: Store) -> int:
    """How many threads there are."""
    return store.read(lambda connection: connection.exec_driver_sql("SELECT count(*) FROM threads").scalar_one())


@pytest.mark.both_databases
def test_a_look_deletes_so_many_of_what_is_over(store: Store, clock: ManualClock) -> None:
    """What is over goes, at most so many threads at a time; the rest at the next look."""
    threads(store, 3, minutes=1)
    threads(store, 1, minutes=100)
    expiry = Expiry(store, 5, most=2)
    expiry.look()
    assert left(store) == 4
    clock.advance(60_000)
    expiry.look()
    assert left(store) == 2
    expiry.look()
    assert left(store) == 1


def test_it_looks_again_and_again(store: Store, clock: ManualClock) -> None:
    """In a thread of its own, until it is stopped."""
    threads(store, 1, minutes=1)
    expiry = Expiry(store, 0.0001, most=10)
    expiry.start()
    clock.advance(60_000)
    until(lambda: left(store) == 0)
    expiry.stop()


def test_the_configuration_gives_times(tmp_path: Path) -> None:
    """`checkpointer.ttl` and `store.ttl` are read; of two intervals the shorter holds."""
    (tmp_path / "graph.py").write_text("graph = None\n")
    path = tmp_path / "langgraph.json"
    thread_ttl = {"strategy": "keep_latest", "default_ttl": 60, "sweep_interval_minutes": 10, "sweep_limit": 7}
    item_ttl = {"default_ttl": 30, "refresh_on_read": False, "sweep_interval_minutes": 2}
    path.write_text(
        json.dumps(
            {"graphs": {"g": "./graph.py:graph"}, "checkpointer": {"ttl": thread_ttl}, "store": {"ttl": item_ttl}}
        )
    )
    storage = GraphCatalogue.from_config(path).storage
    assert storage.thread_ttl == Ttl(60, "keep_latest")
    assert (storage.item_ttl.default_minutes, storage.item_ttl.refresh_on_read) == (30, False)
    assert (storage.sweep_minutes, storage.sweep_limit) == (2, 7)


@pytest.mark.parametrize(
    "content",
    [
        {"checkpointer": {"ttl": {"default_ttl": 0}}},
        {"checkpointer": {"ttl": {"default_ttl": True}}},
        {"checkpointer": {"ttl": {"strategy": "forget"}}},
        {"checkpointer": {"ttl": {"colour": "red"}}},
        {"checkpointer": []},
        {"store": {"ttl": {"refresh_on_read": 1}}},
        {"store": {"colour": "red"}},
    ],
)
def test_what_cannot_be_honoured_is_refused(content: Any) -> None:
    """By its name, when the file is read."""
    with pytest.raises(ConfigInvalid, match=r"checkpointer|store"):
        read_storage(content)
