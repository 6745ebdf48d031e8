"""Lists stored by their growth, for others: stock savers, whoever prunes or deletes, and whoever writes meanwhile."""

from __future__ import annotations

import threading

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple, empty_checkpoint
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command
from sqlalchemy import Connection

from everstep.checkpoints.history import CHUNKS
from everstep.checkpoints.long_lists import Shortened
from everstep.checkpoints.saver import StepSaver
from everstep.checkpoints.store import Store
from everstep.errors import StoreCorrupt
from tests.checkpoints.test_saver import stock_saver
from tests.support.long_lists import (
    TEXT,
    conversation,
    go_on,
    items_of,
    message,
    rows,
    seen,
    talk,
    thread,
)
from tests.support.waiting import PATIENCE, until


def test_a_stock_saver_refuses_what_it_cannot_read(store: Store) -> None:
    """It does not take a list it does not find for an empty one."""
    conversation(StepSaver(store))
    with (
        SqliteSaver.from_conn_string(str(store.path)) as stock,
        pytest.raises(NotImplementedError, match="Unknown serialization type: everstep"),
    ):
        stock.get_tuple(thread("thread"))


def test_a_thread_with_whole_lists_is_gone_on_with(store: Store) -> None:
    """A thread an earlier version stored is read, grows from there, and can be stored whole again."""
    items = conversation(StepSaver(store, full_lists=True))
    saver = StepSaver(store)
    found = saver.get_tuple(thread("thread"))
    assert found is not None
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = {"items": [*items, AIMessage(TEXT, id="new")]}
    checkpoint["channel_versions"] = {"items": "9"}
    after = saver.put(found.config, checkpoint, {"step": 9}, {"items": "9"})
    assert rows(store) == 1
    last = empty_checkpoint()
    last["channel_values"], last["channel_versions"] = checkpoint["channel_values"], {"items": "91"}
    StepSaver(store, full_lists=True).put(after, last, {"step": 10}, {"items": "91"})
    with SqliteSaver.from_conn_string(str(store.path)) as stock:
        read = stock.get_tuple(thread("thread"))
        assert read is not None
        assert len(read.checkpoint["channel_values"]["items"]) == 4
    assert len(list(StepSaver(store).list(thread("thread")))) == 5


@pytest.mark.both_databases
def test_a_thread_can_be_made_readable_for_stock_savers(shared: Store) -> None:
    """`store_whole` leaves every checkpoint as it reads, in LangGraph's format, and no parts."""
    saver = StepSaver(shared)
    graph = talk(saver)
    graph.invoke(
        {"messages": [HumanMessage(TEXT, id="b")], "log": [], "deltas": []}, thread("thread"), durability="sync"
    )
    everything: RunnableConfig = {"configurable": {"thread_id": "thread"}}
    before = [seen(found) for found in saver.list(everything)]
    saver.store_whole("thread")
    assert rows(shared) == 0
    assert [seen(found) for found in StepSaver(shared).list(everything)] == before
    with stock_saver(shared) as stock:
        assert [seen(found) for found in stock.list(everything)] == before
        assert talk(stock).invoke(Command(resume="yes"), thread("thread"))["count"] == 8


@pytest.mark.both_databases
def test_parts_that_were_deleted_by_others_are_written_again(shared: Store) -> None:
    """A saver that goes on from what another process deleted stores the list whole."""
    saver = StepSaver(shared)
    items = conversation(saver)
    config = saver.get_tuple(thread("thread"))
    assert config is not None
    StepSaver(shared).delete_thread("thread")
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = {"items": [*items, AIMessage(TEXT, id="new")]}
    checkpoint["channel_versions"] = {"items": "9"}
    saver.put(config.config, checkpoint, {"step": 9}, {"items": "9"})
    found = StepSaver(shared).get_tuple(thread("thread"))
    assert found is not None
    assert found.checkpoint["channel_values"] == checkpoint["channel_values"]


@pytest.mark.both_databases
def test_parts_that_are_missing_are_an_error(shared: Store) -> None:
    """A list that is not all there is not read as a shorter one."""
    conversation(StepSaver(shared))
    table = shared.database.checkpoint_tables[-1]
    sql = f"DELETE FROM {table} WHERE checkpoint_id = '{CHUNKS}' AND idx = 1"
    shared.write(lambda connection: connection.exec_driver_sql(sql)).result()
    with pytest.raises(StoreCorrupt, match="2 of 3 items"):
        StepSaver(shared).get_tuple(thread("thread"))


@pytest.mark.both_databases
def test_pruning_deletes_the_parts_nobody_needs(shared: Store) -> None:
    """What only deleted checkpoints consisted of goes; a thread that is deleted leaves nothing."""
    saver = StepSaver(shared)
    conversation(saver)
    other = [AIMessage(f"other {TEXT}", id="other")]
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"], checkpoint["channel_versions"] = {"items": other}, {"items": "9"}
    saver.put(thread("thread"), checkpoint, {"step": 9}, {"items": "9"})
    assert rows(shared) == 4
    saver.prune(["thread"])
    assert rows(shared) == 1
    found = saver.get_tuple(thread("thread"))
    assert found is not None
    assert found.checkpoint["channel_values"]["items"] == other
    saver.delete_thread("thread")
    assert rows(shared) == 0


@pytest.mark.both_databases
def test_what_is_put_while_a_thread_is_pruned_stays_readable(shared: Store) -> None:
    """Between prune's look and its deletion the thread goes on, and branches from a checkpoint that is not kept."""
    one = StepSaver(shared)
    old = go_on(one, thread("thread"), [message("old")])
    newest = go_on(one, old, [message("new")])
    put: list[RunnableConfig] = []

    class Interrupted(StepSaver):
        def as_stored(self, config: RunnableConfig) -> CheckpointTuple | None:
            found = super().as_stored(config)
            for begin, text in ((newest, "new"), (old, "old")):
                successor = StepSaver(shared)
                assert successor.get_tuple(begin) is not None
                put.append(go_on(successor, begin, [message(text), message("next")]))
            return found

    Interrupted(shared).prune(["thread"])
    assert [items_of(shared, config) for config in (newest, *put)] == [["new"], ["new", "next"], ["old", "next"]]
    one.prune(["thread"])
    assert items_of(shared, thread("thread")) == ["old", "next"]
    assert rows(shared) == 2


@pytest.mark.parametrize("database", ["postgres"])
@pytest.mark.parametrize("how", ["delete", "prune", "runs"])
def test_whoever_deletes_parts_waits_for_what_needs_them(
    shared: Store, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deletion by another process between the look whether a list is still there and the commit breaks no list."""
    saver = StepSaver(shared)
    old = go_on(saver, thread("thread"), [message("old")], "first")
    go_on(saver, old, [message("new")], "first")
    with Store.open(shared.url) as other:
        deletion = {
            "delete": lambda: StepSaver(other).delete_thread("thread"),
            "prune": lambda: StepSaver(other).prune(["thread"]),
            "runs": lambda: StepSaver(other).delete_for_runs(["first"]),
        }[how]
        beside = threading.Thread(target=deletion, daemon=True)
        check = Shortened.check

        def checked(self: Shortened, connection: Connection) -> None:
            check(self, connection)
            beside.start()
            sql = (
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
            until(
                lambda: (
                    not beside.is_alive()
                    or shared.read(lambda connection: connection.exec_driver_sql(sql).scalar_one())
                )
            )

        monkeypatch.setattr(Shortened, "check", checked)
        successor = StepSaver(shared)
        assert successor.get_tuple(old) is not None
        after = go_on(successor, old, [message("old"), message("next")], "second")
        beside.join(PATIENCE)
        assert not beside.is_alive()
    if how == "delete":
        assert StepSaver(shared).get_tuple(after) is None
    else:
        assert items_of(shared, after) == ["old", "next"]


@pytest.mark.both_databases
def test_runs_that_are_deleted_take_their_words_along(shared: Store) -> None:
    """What only checkpoints of these runs consisted of goes, by the same saver or another, and at last everything."""
    saver = StepSaver(shared)
    first = go_on(saver, thread("thread"), [message("1")], "first")
    again = go_on(saver, first, [message("1"), message("2")], "second")
    successor = StepSaver(shared)
    assert successor.get_tuple(again) is not None
    go_on(successor, again, [message("1"), message("2"), message("3")], "third")
    assert rows(shared) == 3
    saver.delete_for_runs(["third"])
    assert rows(shared) == 2
    assert items_of(shared, again) == ["1", "2"]
    saver.delete_for_runs(["second"])
    assert rows(shared) == 1
    assert items_of(shared, thread("thread")) == ["1"]
    saver.delete_for_runs(["first"])
    assert rows(shared) == 0
