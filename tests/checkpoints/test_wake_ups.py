"""Wake-ups between processes of a SQLite record: who hears them, what is left behind, what never disturbs a commit."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from everstep.checkpoints import jobs, wake_ups
from everstep.checkpoints.store import Store
from everstep.checkpoints.wake_ups import WakeUps
from tests.support.record import CONTEXT, claim, fresh, in_processes, read_only_folder
from tests.support.waiting import PATIENCE


class Ear:
    """Somebody who listens, and tells how often it was woken."""

    def __init__(self, record: Path) -> None:
        self._record = record
        self._woken = threading.Semaphore(0)
        self.possible = False

    @contextmanager
    def open(self) -> Generator[Ear]:
        with WakeUps(self._record).listen(self._woken.release) as self.possible:
            yield self

    def hears(self) -> bool:
        """Whether a wake-up comes."""
        return self._woken.acquire(timeout=PATIENCE)


class Temporary(NamedTuple):
    """Stands for `tempfile` where wake-ups are: with another folder for temporary files."""

    folder: str

    def gettempdir(self) -> str:
        return self.folder


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of a record, and a folder for temporary files that no other test uses."""
    temporary = Path(tempfile.mkdtemp(prefix="everstep-test-"))
    monkeypatch.setattr(wake_ups, "tempfile", Temporary(str(temporary)))
    fresh(tmp_path).close()
    yield tmp_path / "record.db"
    shutil.rmtree(temporary)


@contextmanager
def raw_ear(record: Path) -> Generator[socket.socket]:
    """A socket beside those of the ones that listen, so that a test sees each datagram."""
    with Ear(record).open(), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as raw:
        path = wake_ups.folder() / f"{WakeUps(record).name}-everstep-raw"
        raw.bind(str(path))
        raw.setblocking(False)
        yield raw
    path.unlink()


def rung(raw: socket.socket) -> int:
    """How many datagrams have come since this was asked before."""
    number = 0
    try:
        while raw.recv(1):
            number += 1
    except BlockingIOError:
        pass
    return number


# ---- who hears


def test_who_begins_to_listen_is_woken_though_nobody_did_before(record: Path) -> None:
    """That nobody listens is remembered only as long as the folder of sockets stays as it was."""
    bell, ear = WakeUps(record), Ear(record)
    with Ear(record).open():
        pass  # the folder is there
    os.utime(wake_ups.folder(), ns=(0, 0))
    for _ in range(2):
        bell.ring()
    with ear.open():
        bell.ring()
        assert ear.hears()
    bell.close()


def test_ringing_for_nobody_looks_at_no_folder(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most commits tell of what nobody waits for; they cost one look at when the folder changed."""
    bell = WakeUps(record)
    with Ear(record).open():
        os.utime(wake_ups.folder(), ns=(0, 0))
        bell.ring("everstep_pauses")

        def listed(_folder: Any) -> list[str]:
            raise AssertionError("the folder was listed again")

        monkeypatch.setattr(wake_ups.os, "listdir", listed)
        bell.ring("everstep_pauses")
        monkeypatch.undo()
    bell.close()


def test_everybody_who_listens_hears(record: Path) -> None:
    """One ring wakes all listeners of the record, and nobody else's."""
    other = record.with_name("other.db")
    other.touch()
    with Ear(record).open() as one, Ear(record).open() as two, raw_ear(other) as stranger:
        WakeUps(record).ring()
        assert one.hears()
        assert two.hears()
        assert rung(stranger) == 0


def test_a_record_reached_by_several_paths_is_one(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through a link to the file, a link to its folder, or a relative path: the same listeners are woken."""
    links = record.parent / "links"
    links.mkdir()
    (links / "folder").symlink_to(record.parent)
    (links / "file.db").symlink_to(record)
    monkeypatch.chdir(record.parent)
    with raw_ear(record) as raw:
        for path in (record, links / "folder" / "record.db", links / "file.db", Path("record.db")):
            with Store.open(f"sqlite:///{path}") as store:
                store.enqueue("graph", {"path": str(path)})
            assert rung(raw) == 1, path


# ---- what rings


def test_what_makes_work_ready_rings_after_its_commit(record: Path) -> None:
    """An enqueue, a job given back, a wait that ends at another moment: one datagram for each commit."""
    with Store.open(f"sqlite:///{record}") as store, raw_ear(record) as raw:
        store.enqueue("graph", {"n": 1})
        assert rung(raw) == 1
        (job,) = claim(store, "worker")
        assert rung(raw) == 0
        for status in ("retry", "pending"):
            now = store.clock.now_ms()
            what: dict[str, Any] = {"now": now, "actor": "worker", "reason": "test", "next_run_at": now + 1000}
            job = store.write(lambda c, job=job, to=status, what=what: jobs.transition(c, job, to, **what)).result()
            assert rung(raw) == 1
        assert store.enqueue("graph", {"n": 1}).created is False
        assert rung(raw) == 0


def test_what_is_rolled_back_does_not_ring(record: Path) -> None:
    """Neither an operation that fails after it made work ready, nor the next commit in its place."""
    with Store.open(f"sqlite:///{record}") as store, raw_ear(record) as raw:
        store.enqueue("graph", {"n": 1})
        (job,) = claim(store, "worker")
        rung(raw)

        def fails(connection: Any) -> None:
            now = store.clock.now_ms()
            jobs.transition(connection, job, "pending", now=now, actor="worker", reason="test")
            raise ValueError("after all not")

        assert isinstance(store.write(fails).exception(PATIENCE), ValueError)
        store.write(lambda connection: None).result(PATIENCE)
        assert rung(raw) == 0


# ---- what never disturbs


def test_one_who_does_not_take_its_wake_ups_holds_nobody_up(record: Path) -> None:
    """A full socket is passed over: it has wake-ups enough, and the others hear."""
    rings = WakeUps(record)
    with raw_ear(record) as raw:
        for _ in range(2000):
            rings.ring()
        with Ear(record).open() as ear:
            rings.ring()
            assert ear.hears()
        assert 0 < rung(raw) < 2000


def test_who_stops_listening_is_gone_at_once(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread ends by the wake-up that says so; it does not look in a circle, nor wait out its longest wait."""
    looked = 0
    receive = wake_ups._receive

    def counted(receiver: socket.socket) -> None:
        nonlocal looked
        looked += 1
        receive(receiver)

    monkeypatch.setattr(wake_ups, "_receive", counted)
    monkeypatch.setattr(wake_ups, "LONGEST_WAIT_S", 3600.0)
    with Ear(record).open():
        (thread,) = (each for each in threading.enumerate() if each.name == "everstep-listen")
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert looked == 1


def _listen_until_killed(record: str, temporary: str, listening: Any) -> None:
    wake_ups.tempfile = Temporary(temporary)
    with WakeUps(Path(record)).listen(lambda: None):
        listening.set()
        signal.pause()


def test_a_killed_listener_leaves_nothing(record: Path) -> None:
    """Its socket disturbs nobody, and goes as soon as it cannot be one that is just being bound."""
    left = killed_listener(record)
    with Ear(record).open() as ear:
        WakeUps(record).ring()
        assert ear.hears()
        assert left.exists()
        of_old(left)
        WakeUps(record).ring()
        assert ear.hears()
        assert not left.exists()
    assert list(wake_ups.folder().iterdir()) == []


def test_leftovers_of_records_that_are_gone_go_too(record: Path) -> None:
    """Nobody rings for those any more, so who comes to listen for any record removes them, and no living one."""
    left, other = killed_listener(record), record.with_name("other.db")
    of_old(left)
    with raw_ear(record):
        living = next(path for path in wake_ups.folder().iterdir() if path.name.endswith("-raw"))
        of_old(living)
        other.touch()
        with Ear(other).open():
            assert not left.exists()
            assert living.exists()


def killed_listener(record: Path) -> Path:
    """What a process that was killed while it listened left."""
    listening = CONTEXT.Event()
    process = CONTEXT.Process(target=_listen_until_killed, args=(str(record), str(wake_ups.folder().parent), listening))
    process.start()
    assert listening.wait(PATIENCE)
    process.kill()
    process.join(PATIENCE)
    (left,) = wake_ups.folder().iterdir()
    return left


def of_old(socket_file: Path) -> None:
    """Let a socket be too old to be one that is just being bound."""
    old = time.time() - wake_ups.LEFTOVER_S - 1
    os.utime(socket_file, (old, old))


def test_a_folder_that_is_not_ones_own_alone_is_not_used(record: Path) -> None:
    """Others could put sockets of other programs there; so the worker looks by itself as it always could."""
    wake_ups.folder().mkdir(mode=0o700)
    wake_ups.folder().chmod(0o770)
    with Ear(record).open() as ear, Store.open(f"sqlite:///{record}") as store:
        assert not ear.possible
        with store.database.listen(lambda: None) as poll_s:
            assert poll_s == 0.2
        store.enqueue("graph", {"n": 1})
    assert list(wake_ups.folder().iterdir()) == []


def test_a_folder_that_cannot_be_written_is_no_hindrance(record: Path) -> None:
    """Where no socket can be bound, listening is told to be impossible, and ringing does nothing."""
    with read_only_folder(wake_ups.folder().parent), Ear(record).open() as ear:
        assert not ear.possible
        WakeUps(record).ring()


def test_a_read_only_record_can_be_listened_for(record: Path) -> None:
    """What wakes is not in the record's folder, whose file system may be read-only or know no sockets."""
    with read_only_folder(record.parent), Ear(record).open() as ear:
        WakeUps(record).ring()
        assert ear.hears()


def test_an_address_that_is_too_long_is_no_hindrance(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket's address takes about a hundred bytes; beyond that nobody listens, and nothing fails."""
    long = record.parent / ("long" * 40)
    long.mkdir()
    monkeypatch.setattr(wake_ups, "tempfile", Temporary(str(long)))
    with Ear(record).open() as ear:
        assert not ear.possible
        WakeUps(record).ring()


def test_a_system_without_such_sockets_is_no_hindrance(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows: listening is told to be impossible, and ringing does nothing."""
    monkeypatch.setattr(wake_ups, "POSSIBLE", False)
    with Ear(record).open() as ear:
        assert not ear.possible
        WakeUps(record).ring()


def _come_and_go(record: str, temporary: str, times: int) -> None:
    wake_ups.tempfile = Temporary(temporary)
    for _ in range(times):
        with Ear(Path(record)).open() as ear:
            assert ear.possible
            WakeUps(Path(record)).ring()
            assert ear.hears()


def test_many_come_and_go_at_once(record: Path) -> None:
    """Four processes that begin and end to listen all the time hear each time, and leave nothing."""
    arguments = (str(record), str(wake_ups.folder().parent), 30)
    in_processes(_come_and_go, [arguments] * 4)
    assert list(wake_ups.folder().iterdir()) == []
