"""The single writer: group commit, isolation of one operation from another, order, durability, a full disk."""

from __future__ import annotations

import math
import queue
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from everstep.checkpoints import sqlite, writer
from everstep.checkpoints.sqlite import Sqlite
from everstep.checkpoints.store import Store
from everstep.checkpoints.writer import MAX_BATCH, Writer
from everstep.errors import StoreUnavailable
from tests.support.disk import fill, small_disk
from tests.support.notes import note, noted, notes
from tests.support.record import Gate
from tests.support.waiting import PATIENCE, until


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A record with a table of notes."""
    with noted(tmp_path) as store:
        yield store


def test_what_waits_shares_one_commit(store: Store) -> None:
    """A hundred operations that wait together are made durable by one commit."""
    gate = Gate(store)
    before = store.commits
    futures = [store.write(note(str(number))) for number in range(100)]
    gate.open()
    assert [future.result(PATIENCE) for future in futures] == [str(number) for number in range(100)]
    assert store.commits - before == 2
    assert len(notes(store.path)) == 100


def test_a_batch_is_bounded(store: Store) -> None:
    """More than MAX_BATCH waiting operations are split, so that no commit grows without limit."""
    gate = Gate(store)
    before = store.commits
    futures = [store.write(note(str(number))) for number in range(2 * MAX_BATCH + 1)]
    gate.open()
    wait(futures, PATIENCE)
    assert store.commits - before == 4
    assert len(notes(store.path)) == 2 * MAX_BATCH + 1


def test_an_operation_that_raises_takes_nothing_with_it(store: Store) -> None:
    """Half-done work of a failing operation is undone, and the others of its batch are stored."""

    def halfway(connection: Connection) -> None:
        connection.exec_driver_sql("INSERT INTO notes VALUES ('half')")
        connection.exec_driver_sql("CREATE TABLE half (x)")
        raise ValueError("no")

    gate = Gate(store)
    first, failing, last = store.write(note("first")), store.write(halfway), store.write(note("last"))
    gate.open()
    with pytest.raises(ValueError, match=r"^no$"):
        failing.result(PATIENCE)
    assert (first.result(PATIENCE), last.result(PATIENCE)) == ("first", "last")
    assert notes(store.path) == ["first", "last"]
    assert store.read(lambda c: c.exec_driver_sql("SELECT 1 FROM sqlite_schema WHERE name='half'").first()) is None


def test_operations_keep_their_order_and_see_each_other(store: Store) -> None:
    """Each operation runs after all that were submitted before it, and sees what they wrote."""
    gate = Gate(store)

    def count(connection: Connection) -> int:
        return connection.exec_driver_sql("SELECT count(*) FROM notes").scalar_one()

    futures = [store.write(operation) for number in range(50) for operation in (note(str(number)), count)]
    gate.open()
    assert [future.result(PATIENCE) for future in futures[1::2]] == list(range(1, 51))
    assert notes(store.path) == [str(number) for number in range(50)]


def test_a_future_resolves_only_when_the_write_is_on_disk(store: Store) -> None:
    """At the moment a future resolves, another connection sees its write; while the operation runs, it does not."""
    seen: dict[str, list[str]] = {}

    def operation(connection: Connection) -> None:
        note("kept")(connection)
        seen["during"] = notes(store.path)

    gate = Gate(store)
    future = store.write(operation)
    future.add_done_callback(lambda _: seen.update(after=notes(store.path)))
    gate.open()
    future.result(PATIENCE)
    store.write(lambda _connection: None).result(PATIENCE)
    assert seen == {"during": [], "after": ["kept"]}


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is patient is held for ever."""
    monkeypatch.setattr(writer, "PATIENCE_S", 1e6)


@pytest.mark.usefixtures("patient")
def test_a_patient_operation_shares_the_commit_of_the_next_urgent_one(store: Store) -> None:
    """Patient operations wait until an urgent one comes; all are carried out in order by its commit."""
    before = store.commits
    held = [store.write(note(text), patient=True) for text in ("first", "second")]
    assert not held[0].done()
    store.write(note("third")).result(PATIENCE)
    assert [future.result(0) for future in held] == ["first", "second"]
    assert store.commits - before == 1
    assert notes(store.path) == ["first", "second", "third"]


def test_a_patient_operation_alone_is_carried_out_soon(store: Store) -> None:
    """When nothing follows, a patient operation is committed by itself."""
    assert store.write(note("alone"), patient=True).result(PATIENCE) == "alone"
    assert notes(store.path) == ["alone"]


@pytest.mark.usefixtures("patient")
def test_what_is_submitted_together_wakes_the_thread_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred operations that come while the thread is busy, or holds what is patient, wake it once."""
    rings: list[None] = []

    class Bell(queue.SimpleQueue[Any]):
        def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
            rings.append(None)
            super().put(item, block, timeout)

    monkeypatch.setattr(queue, "SimpleQueue", Bell)
    with noted(tmp_path) as store:
        gate = Gate(store)
        before = len(rings)
        busy = [store.write(lambda _connection: None, patient=number % 2 > 0) for number in range(100)]
        while_busy = len(rings) - before
        gate.open()
        wait(busy, PATIENCE)
        assert while_busy == 1
        before = len(rings)
        held = [store.write(lambda _connection: None, patient=True)]
        until(lambda: store._writer._looks_at < math.inf)
        held += [store.write(lambda _connection: None, patient=True) for _ in range(100)]
        assert len(rings) - before <= 1  # a ring from before may be left
        store.write(lambda _connection: None).result(PATIENCE)
        assert all(future.done() for future in held)
        assert len(rings) - before <= 2


@pytest.mark.usefixtures("patient")
def test_what_a_client_is_told_is_held_only_behind_another_such(store: Store) -> None:
    """The first is committed at once, with what is held before it; those that follow wait, and share a commit."""
    before = store.commits
    held = store.write(note("held"), patient=True)
    assert store.write(note("token"), told=True).result(PATIENCE) == "token"
    assert held.result(0) == "held"
    more = [store.write(note(text), told=True) for text in ("second", "third")]
    until(lambda: store._writer._looks_at < math.inf)
    assert not more[0].done()
    store.write(note("urgent")).result(PATIENCE)
    assert [future.result(0) for future in more] == ["second", "third"]
    assert store.commits - before == 2
    assert notes(store.path) == ["held", "token", "second", "third", "urgent"]


@pytest.mark.usefixtures("patient")
def test_what_is_held_can_be_asked_for(store: Store) -> None:
    """`flush` carries out what is held, and costs nothing when nothing is."""
    store.write(note("held"), patient=True)
    store.flush()
    assert notes(store.path) == ["held"]
    before = store.commits
    store.flush()
    assert store.commits == before


@pytest.mark.usefixtures("patient")
def test_what_is_held_before_one_that_is_cancelled_can_be_asked_for(store: Store) -> None:
    """`flush` carries out what is held also if its newest was cancelled, and then nothing is left to ask for."""
    store.write(note("held"), patient=True)
    gate = Gate(store)
    store.write(note("then"), patient=True)
    assert store.write(note("unwanted"), patient=True).cancel()
    gate.open()
    store.flush()
    assert notes(store.path) == ["held", "then"]
    before = store.commits
    store.flush()
    assert store.commits == before


@pytest.mark.usefixtures("patient")
def test_close_does_not_wait_out_the_patience(tmp_path: Path) -> None:
    """Closing the record carries out what is held at once."""
    with Store.open(f"sqlite:///{tmp_path / 'record.db'}") as store:
        store.write(lambda connection: connection.exec_driver_sql("CREATE TABLE notes (text TEXT)")).result()
        store.write(note("held"), patient=True)
    assert notes(tmp_path / "record.db") == ["held"]
    store.flush()


def test_a_cancelled_future_is_skipped(store: Store) -> None:
    """An operation that is cancelled while it waits never runs; its neighbours do."""
    gate = Gate(store)
    first, unwanted, last = (store.write(note(text)) for text in ("first", "unwanted", "last"))
    assert unwanted.cancel()
    gate.open()
    wait([first, last], PATIENCE)
    assert notes(store.path) == ["first", "last"]
    threads: list[threading.Thread] = []
    store.carry_out(lambda _connection: threads.append(threading.current_thread()))
    assert threads == [threading.current_thread()], "it is not waited for any more"


def test_close_finishes_what_was_queued(tmp_path: Path) -> None:
    """Closing the record makes everything durable that was submitted before."""
    store = Store.open(f"sqlite:///{tmp_path / 'record.db'}")
    store.write(lambda connection: connection.exec_driver_sql("CREATE TABLE notes (text TEXT)")).result()
    gate = Gate(store)
    futures = [store.write(note(str(number))) for number in range(20)]
    closing = threading.Thread(target=store.close)
    closing.start()
    gate.open()
    closing.join(PATIENCE)
    assert all(future.done() for future in futures)
    assert len(notes(store.path)) == 20
    with pytest.raises(RuntimeError, match="closed"):
        store.write(note("late"))
    store.close()


def test_no_operation_is_forgotten_between_submit_and_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operation accepted while another thread closes is carried out: no future stays open for ever."""
    path = tmp_path / "record.db"
    sqlite.prepare(path)
    engine = sqlite.writing_engine(path)
    closing: list[threading.Thread] = []

    class SlowQueue(deque[Any]):
        """Gives another thread the time to close between `submit`'s look and its `append`."""

        def append(self, item: Any) -> None:
            if item is not None:
                closing.append(threading.Thread(target=own.close))
                closing[0].start()
                closing[0].join(0.3)
            super().append(item)

    monkeypatch.setattr(writer, "deque", SlowQueue)
    own = Writer(engine.connect, Sqlite(f"sqlite:///{path}"))
    accepted = own.submit(lambda _connection: "done")
    assert accepted.result(2.0) == "done"
    closing[0].join(PATIENCE)
    with pytest.raises(RuntimeError, match="closed"):
        own.submit(lambda _connection: None)
    engine.dispose()


def test_a_connection_that_cannot_be_opened_is_tried_again(tmp_path: Path) -> None:
    """What waits when the database cannot be opened fails with that reason; the next operation opens it."""
    path = tmp_path / "record.db"
    sqlite.prepare(path)
    engine = sqlite.writing_engine(path)
    tries: list[int] = []

    def connect() -> Connection:
        tries.append(1)
        if len(tries) == 1:
            raise StoreUnavailable("away")
        return engine.connect()

    own = Writer(connect, Sqlite(f"sqlite:///{path}"))
    with pytest.raises(StoreUnavailable, match="away"):
        own.submit(lambda _connection: None).result(PATIENCE)
    assert own.submit(lambda connection: connection.exec_driver_sql("SELECT 1").scalar_one()).result(PATIENCE) == 1
    own.close()
    engine.dispose()


def integrity(path: Path) -> str:
    """SQLite's own check of the file."""
    connection = sqlite3.connect(path)
    try:
        return str(connection.execute("PRAGMA integrity_check").fetchone()[0])
    finally:
        connection.close()


def test_a_full_disk_fails_the_whole_batch_and_the_record_goes_on_with_space(store: Store) -> None:
    """With no page left every write of a batch fails as StoreUnavailable, none is stored; with space all goes on."""

    def limit(pages: int) -> Callable[[Connection], Any]:
        return lambda connection: connection.exec_driver_sql(f"PRAGMA max_page_count={pages}").scalar_one()

    store.write(note("before")).result(PATIENCE)
    used = store.read(lambda connection: connection.exec_driver_sql("PRAGMA page_count").scalar_one())
    assert store.write(limit(used)).result(PATIENCE) == used
    gate = Gate(store)
    futures = [store.write(note(text)) for text in ("small", "x" * 100_000, "small too")]
    gate.open()
    for future in futures:
        with pytest.raises(StoreUnavailable, match="no space left") as refused:
            future.result(PATIENCE)
        assert refused.value.next_step
    assert notes(store.path) == ["before"]
    assert integrity(store.path) == "ok"
    store.write(limit(1_000_000)).result(PATIENCE)
    assert store.write(note("x" * 100_000)).result(PATIENCE)
    assert len(notes(store.path)) == 2
    assert integrity(store.path) == "ok"


def test_a_really_full_disk_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """On a file system without space writes fail with StoreUnavailable; once there is space the same record goes on."""
    folder = tmp_path / "disk"
    filler = folder / "filler"
    with small_disk(folder, 4), Store.open(f"sqlite:///{folder / 'record.db'}") as store:
        store.write(lambda connection: connection.exec_driver_sql("CREATE TABLE notes (text TEXT)")).result(PATIENCE)
        acknowledged: list[str] = []
        fill(filler)
        refused = 0
        for number in range(20):
            try:
                acknowledged.append(store.write(note(f"{number}" + "y" * 5000)).result(PATIENCE))
            except StoreUnavailable:
                refused += 1
        assert refused > 0
        assert notes(store.path) == acknowledged
        filler.unlink()
        acknowledged.append(store.write(note("again" + "y" * 5000)).result(PATIENCE))
        assert notes(store.path) == acknowledged
        store.close()
        assert integrity(folder / "record.db") == "ok"


def test_a_broken_constraint_is_the_operations_own_error(store: Store) -> None:
    """A database error that says nothing of the record as a whole comes back as it is, to its operation alone."""
    gate = Gate(store)
    bad = store.write(lambda connection: connection.exec_driver_sql("INSERT INTO job_events (at) VALUES (1)"))
    good = store.write(note("good"))
    gate.open()
    with pytest.raises(sqlite3.IntegrityError, match="NOT NULL"):
        bad.result(PATIENCE)
    assert good.result(PATIENCE) == "good"
