"""Who waits for a commit anyway carries the transaction out itself: in its turn, and never within another write."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from everstep.checkpoints import sqlite, writer
from everstep.checkpoints.sqlite import Sqlite
from everstep.checkpoints.store import Store
from everstep.checkpoints.writer import Writer
from tests.support.notes import note, noted, notes
from tests.support.record import Gate, fresh
from tests.support.waiting import PATIENCE, Halt, until


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A record with a table of notes."""
    with noted(tmp_path) as store:
        yield store


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is patient is held for ever."""
    monkeypatch.setattr(writer, "PATIENCE_S", 1e6)


def test_who_waits_anyway_runs_the_transaction_itself(store: Store) -> None:
    """With nothing else under way an operation is carried out on its caller's thread, durable when that goes on."""
    before = store.commits
    threads: list[threading.Thread] = []

    def operation(connection: Connection) -> None:
        note("mine")(connection)
        threads.append(threading.current_thread())

    store.carry_out(operation)
    assert threads == [threading.current_thread()]
    assert notes(store.path) == ["mine"]
    assert store.commits - before == 1
    assert store.write(note("next")).result(PATIENCE) == "next"
    assert notes(store.path) == ["mine", "next"]


def test_who_waits_anyway_takes_turns_with_the_others(store: Store) -> None:
    """While another operation is under way, one that is carried out waits for it, and joins those that are queued."""
    gate = Gate(store)
    before = store.commits
    queued = store.write(note("queued"))
    found: list[str] = []
    caller = threading.Thread(target=lambda: found.append(store.carry_out(note("waited"))))
    caller.start()
    gate.open()
    caller.join(PATIENCE)
    assert (found, queued.result(PATIENCE)) == (["waited"], "queued")
    assert notes(store.path) == ["queued", "waited"]
    assert store.commits - before <= 3


@pytest.mark.usefixtures("patient")
def test_what_is_carried_out_comes_after_what_is_held(store: Store) -> None:
    """A patient operation that was submitted before is committed before, or with, one that is waited for."""
    store.write(note("held"), patient=True)
    assert store.carry_out(note("waited")) == "waited"
    assert notes(store.path) == ["held", "waited"]


@pytest.mark.usefixtures("patient")
def test_what_comes_as_a_thread_takes_its_turn_is_written_before_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a thread is alone is decided when it has its turn, not when it looked before."""
    of_record: Any = store._writer  # pyright: ignore[reportPrivateUsage]
    comes = [lambda: store.write(note("came"), patient=True)]

    class Turn:
        """Has something come before a thread gets its turn."""

        really = of_record._turn

        def __enter__(self) -> None:
            if comes:
                comes.pop()()
            self.really.acquire()

        def __exit__(self, *_: object) -> None:
            self.really.release()

    monkeypatch.setattr(of_record, "_turn", Turn())
    assert store.carry_out(note("waited")) == "waited"
    assert notes(store.path) == ["came", "waited"]


def standing(halt: Halt) -> Callable[[Connection], str]:
    """An operation that adds a note and stands before its end."""

    def operation(connection: Connection) -> str:
        note("standing")(connection)
        halt.stand()
        return "standing"

    return operation


def test_what_comes_while_something_is_carried_out_follows_it(store: Store) -> None:
    """What others submit and carry out while a transaction is open is written after it, in the order it came."""
    halt, before = Halt(), store.commits
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(store.carry_out, standing(halt))
        halt.wait_until_reached()
        second = store.write(note("second"), patient=True)
        third = threads.submit(store.carry_out, note("third"))
        assert not second.done()
        assert notes(store.path) == []
        halt.release()
        assert [each.result(PATIENCE) for each in (first, second, third)] == ["standing", "second", "third"]
    assert notes(store.path) == ["standing", "second", "third"]
    assert store.commits - before <= 3


def test_threads_that_carry_out_at_once_take_turns(store: Store) -> None:
    """Nobody is within another's operation, and none is lost."""
    within: list[int] = []
    overlaps: list[list[int]] = []
    ready = threading.Barrier(4)

    def carry_out(number: int) -> None:
        def operation(connection: Connection) -> None:
            within.append(number)
            note(str(number))(connection)
            overlaps.extend([[*within]] if len(within) > 1 else [])
            within.remove(number)

        ready.wait(PATIENCE)
        store.carry_out(operation)

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(carry_out, number) for number in range(4)]:
            done.result(PATIENCE)
    assert overlaps == []
    assert sorted(notes(store.path)) == ["0", "1", "2", "3"]


def test_close_waits_for_what_is_carried_out(tmp_path: Path) -> None:
    """A transaction under way when another thread closes the record is committed; none begins after it."""
    halt = Halt()
    with noted(tmp_path) as store, ThreadPoolExecutor(2) as threads:
        under_way = threads.submit(store.carry_out, standing(halt))
        halt.wait_until_reached()
        closing = threads.submit(store.close)

        def is_closed() -> bool:
            try:
                store.write(lambda _connection: None)
            except RuntimeError:
                return True
            return False

        until(is_closed, "the closing of the record")
        with pytest.raises(RuntimeError, match="closed"):
            store.carry_out(note("late"))
        assert not closing.done()
        halt.release()
        assert under_way.result(PATIENCE) == "standing"
        closing.result(PATIENCE)
    assert notes(tmp_path / "record.db") == ["standing"]


def test_a_thread_that_was_interrupted_leaves_no_connection_behind(store: Store) -> None:
    """Nobody knows in which state it is, so the next write has a new one; after an error it stays."""
    used: list[Connection] = []

    def look(connection: Connection) -> None:
        used.append(connection)

    def fail(error: BaseException) -> Callable[[Connection], None]:
        def operation(connection: Connection) -> None:
            look(connection)
            raise error

        return operation

    for error in (ValueError(), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            store.carry_out(fail(error))
        store.carry_out(look)
    assert used[0] is used[1] is used[2] is not used[3]
    assert used[0].closed
    assert not used[3].closed


def test_many_threads_that_wait_lose_nothing(store: Store) -> None:
    """Threads that carry out and threads that submit write through one connection, each operation once."""

    def write(number: int) -> None:
        for count in range(20):
            text = note(f"{number} {count}")
            assert store.carry_out(text) if number % 2 else store.write(text).result(PATIENCE)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(notes(store.path)) == sorted(f"{number} {count}" for number in range(6) for count in range(20))


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_an_error_of_what_is_carried_out_is_its_callers(store: Store, error: BaseException) -> None:
    """An operation that fails, or whose thread is interrupted, leaves nothing behind; the record goes on."""

    def halfway(connection: Connection) -> None:
        note("half")(connection)
        raise error

    with pytest.raises(type(error)):
        store.carry_out(halfway)
    assert store.carry_out(note("next")) == "next"
    assert store.write(note("last")).result(PATIENCE) == "last"
    assert notes(store.path) == ["next", "last"]


def test_an_operation_cannot_wait_for_another(store: Store) -> None:
    """Nor can a signal's handler that interrupts it: that is told, where it would be waited for without end."""

    def nested(connection: Connection) -> None:
        note("outer")(connection)
        store.carry_out(note("inner"))

    for carry_out in (store.carry_out, lambda operation: store.write(operation).result(PATIENCE)):
        with pytest.raises(RuntimeError, match="cannot wait"):
            carry_out(nested)
    inner: list[Future[str]] = []
    store.carry_out(lambda _connection: inner.append(store.write(note("submitted"))))
    assert inner[0].result(PATIENCE) == "submitted"
    assert store.carry_out(note("next")) == "next"
    assert notes(store.path) == ["submitted", "next"]


def test_who_is_told_of_a_commit_cannot_wait_for_another(store: Store) -> None:
    """It is told on the writer's thread, which alone could carry out what it would wait for."""
    refused: list[str] = []

    def told(_done: Future[str]) -> None:
        try:
            store.carry_out(note("never"))
        except RuntimeError as error:
            refused.append(str(error))

    gate = Gate(store)
    store.write(note("first")).add_done_callback(told)
    gate.open()
    assert store.write(note("last")).result(PATIENCE) == "last"
    assert [text[:22] for text in refused] == ["this thread is writing"]
    assert notes(store.path) == ["first", "last"]


class OwnWriter:
    """A writer that is interrupted by a signal's handler, on a thread that the test does not wait for without end.

    Args:
        folder: Where its record is.
        monkeypatch: For its queue.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.handling: list[Callable[[], Any]] = []
        """What the handler does as something is handed over to the writer's thread, once."""
        self.connecting: list[Callable[[], Any]] = []
        """And as a connection is opened."""
        handling = self.handling

        class Interrupted(queue.SimpleQueue[Any]):
            def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
                if handling:
                    handling.pop()()
                super().put(item, block, timeout)

        monkeypatch.setattr(queue, "SimpleQueue", Interrupted)
        path = folder / "record.db"
        sqlite.prepare(path)
        self._engine = sqlite.writing_engine(path)
        self.writer = Writer(self._connect, Sqlite(f"sqlite:///{path}"))
        monkeypatch.undo()

    def _connect(self) -> Connection:
        if self.connecting:
            self.connecting.pop()()
        return self._engine.connect()

    def done(self, call: Callable[[], Any]) -> Any:
        """What a call gives that must not hang, and the writer closed after it."""
        given: list[Any] = []
        thread = threading.Thread(target=lambda: given.append(call()), daemon=True)
        thread.start()
        thread.join(PATIENCE)
        assert given, "it hangs, or raised"
        self.writer.close()
        self._engine.dispose()
        return given[0]


def operation(result: str) -> Callable[[Connection], str]:
    """An operation that does nothing."""
    return lambda _connection: result


@pytest.mark.parametrize("is_busy", [False, True])
def test_a_handler_that_comes_as_something_is_handed_over_can_write_and_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_busy: bool
) -> None:
    """A signal's handler that interrupts `write` finds its own thread in the middle of it: neither hangs."""
    own = OwnWriter(tmp_path, monkeypatch)
    handled: list[str] = []

    def handle() -> None:
        handled.append(own.writer.submit(operation("submitted")).result(PATIENCE))
        if is_busy:
            own.writer.submit(operation("held"), patient=True)
        handled.append(own.writer.carry_out(operation("carried out")))
        own.writer.flush()

    own.handling.append(handle)
    assert own.done(lambda: own.writer.submit(operation("interrupted")).result(PATIENCE)) == "interrupted"
    assert handled == ["submitted", "carried out"]


def test_a_handler_that_comes_before_a_transaction_cannot_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As soon as a thread has its turn, what interrupts it is refused where it would wait; what it submits follows."""
    own = OwnWriter(tmp_path, monkeypatch)
    submitted: list[Future[str]] = []

    def handle() -> None:
        submitted.append(own.writer.submit(operation("submitted"), patient=True))
        for wait in (lambda: own.writer.carry_out(operation("never")), own.writer.flush):
            with pytest.raises(RuntimeError, match="cannot wait"):
                wait()

    own.connecting.append(handle)
    assert own.done(lambda: own.writer.carry_out(operation("interrupted"))) == "interrupted"
    assert submitted[0].result(PATIENCE) == "submitted"


@pytest.mark.usefixtures("patient")
def test_an_operation_cannot_wait_for_what_is_held(store: Store) -> None:
    """It cannot ask for what is held either, which is carried out after it."""

    def nested(_connection: Connection) -> None:
        store.write(note("held"), patient=True)
        store.flush()

    with pytest.raises(RuntimeError, match="cannot wait"):
        store.carry_out(nested)
    store.flush()
    assert notes(store.path) == ["held"]


def test_a_fork_is_refused(store: Store) -> None:
    """A process that was forked has no part in its parent's connection: it is told so, and nothing is written."""
    store.carry_out(note("parent"))
    child = os.fork()
    if child == 0:
        refused = 0
        for write in (store.carry_out, store.write):
            try:
                write(note("child"))
            except RuntimeError as error:
                refused += "forked" in str(error)
        os._exit(0 if refused == 2 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.carry_out(note("parent")) == "parent"
    assert notes(store.path) == ["parent", "parent"]


def test_nothing_is_carried_out_in_a_record_that_is_closed(tmp_path: Path) -> None:
    """A closed record refuses it."""
    store = fresh(tmp_path)
    store.close()
    with pytest.raises(RuntimeError, match="closed"):
        store.carry_out(note("late"))
