"""Wake-ups between processes of a SQLite record: who hears them, what is left behind, what never disturbs a commit."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from everstep.checkpoints import jobs, wake_ups
from everstep.checkpoints.store import Store
from everstep.checkpoints.wake_ups import WakeUps
from tests.support.record import CONTEXT, claim, fresh, read_only_folder
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


@contextmanager
def raw_ear(record: Path) -> Generator[socket.socket]:
    """A socket in the folder of one that listens, so that a test sees each datagram."""
    with Ear(record).open(), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as raw:
        raw.bind(str(folder_of(record) / "raw"))
        raw.setblocking(False)
        yield raw


def folder_of(record: Path) -> Path:
    """Where the sockets of a record are."""
    return record.with_name(f"{record.name}-wake")


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


def test_everybody_who_listens_hears(tmp_path: Path) -> None:
    """One ring wakes all listeners of the record, and nobody else's."""
    record, other = tmp_path / "record.db", tmp_path / "other.db"
    with Ear(record).open() as one, Ear(record).open() as two, raw_ear(other) as stranger:
        WakeUps(record).ring()
        assert one.hears()
        assert two.hears()
        assert rung(stranger) == 0


def test_a_record_reached_by_several_paths_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through a link to the file, a link to its folder, or a relative path: the same listeners are woken."""
    folder = tmp_path / "real"
    folder.mkdir()
    fresh(folder).close()
    record = folder / "record.db"
    (tmp_path / "folder").symlink_to(folder)
    (tmp_path / "file.db").symlink_to(record)
    monkeypatch.chdir(folder)
    with raw_ear(record) as raw:
        for path in (record, tmp_path / "folder" / "record.db", tmp_path / "file.db", Path("record.db")):
            with Store.open(f"sqlite:///{path}") as store:
                store.enqueue("graph", {"path": str(path)})
            assert rung(raw) == 1, path


def test_a_long_path_is_no_hindrance(tmp_path: Path) -> None:
    """The address of a socket takes about a hundred bytes; a record's path may be longer."""
    folder = tmp_path / ("long" * 40)
    folder.mkdir()
    with Ear(folder / "record.db").open() as ear:
        if not Path("/proc/self/fd").exists():
            pytest.skip("this system has no shorter name for the folder")
        assert ear.possible
        WakeUps(folder / "record.db").ring()
        assert ear.hears()


# ---- what rings


def test_what_makes_work_ready_rings_after_its_commit(tmp_path: Path) -> None:
    """An enqueue, a job given back, a wait that ends at another moment: one datagram for each commit."""
    with fresh(tmp_path) as store, raw_ear(tmp_path / "record.db") as raw:
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


def test_what_is_rolled_back_does_not_ring(tmp_path: Path) -> None:
    """Neither an operation that fails after it made work ready, nor the next commit in its place."""
    with fresh(tmp_path) as store, raw_ear(tmp_path / "record.db") as raw:
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


def test_one_who_does_not_take_its_wake_ups_holds_nobody_up(tmp_path: Path) -> None:
    """A full socket is passed over: it has wake-ups enough, and the others hear."""
    record = tmp_path / "record.db"
    rings = WakeUps(record)
    with raw_ear(record) as raw:
        for _ in range(2000):
            rings.ring()
        with Ear(record).open() as ear:
            rings.ring()
            assert ear.hears()
        assert 0 < rung(raw) < 2000


def _listen_until_killed(record: str, listening: Any) -> None:
    with WakeUps(Path(record)).listen(lambda: None):
        listening.set()
        time.sleep(3600)


def test_a_killed_listener_leaves_nothing(tmp_path: Path) -> None:
    """Its socket disturbs nobody, and goes as soon as it cannot be one that is just being bound."""
    record = tmp_path / "record.db"
    listening = CONTEXT.Event()
    process = CONTEXT.Process(target=_listen_until_killed, args=(str(record), listening))
    process.start()
    assert listening.wait(PATIENCE)
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join(PATIENCE)
    (left,) = folder_of(record).iterdir()
    with Ear(record).open() as ear:
        WakeUps(record).ring()
        assert ear.hears()
        assert left in folder_of(record).iterdir()
        old = time.time() - wake_ups.LEFTOVER_S - 1
        os.utime(left, (old, old))
        WakeUps(record).ring()
        assert ear.hears()
        assert left not in folder_of(record).iterdir()
        assert len(list(folder_of(record).iterdir())) == 1
    assert not folder_of(record).exists()


def test_without_a_listener_the_leftovers_go_with_their_folder(tmp_path: Path) -> None:
    """Who finds nobody at all tidies up after them."""
    record = tmp_path / "record.db"
    folder_of(record).mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as gone:
        gone.bind(str(folder_of(record) / "gone"))
    os.utime(folder_of(record) / "gone", (0, 0))
    WakeUps(record).ring()
    assert not folder_of(record).exists()


def test_a_folder_that_is_not_ones_own_alone_is_not_used(tmp_path: Path) -> None:
    """Others could put sockets of other programs there; so the worker looks by itself as it always could."""
    record = tmp_path / "record.db"
    folder_of(record).mkdir(mode=0o700)
    folder_of(record).chmod(0o770)
    with Ear(record).open() as ear, fresh(tmp_path) as store:
        assert not ear.possible
        with store.database.listen(lambda: None) as poll_s:
            assert poll_s == 0.2
        store.enqueue("graph", {"n": 1})
    assert list(folder_of(record).iterdir()) == []


def test_a_read_only_folder_is_no_hindrance(tmp_path: Path) -> None:
    """Where no socket can be bound, listening is told to be impossible, and ringing does nothing."""
    with read_only_folder(tmp_path), Ear(tmp_path / "record.db").open() as ear:
        assert not ear.possible
        WakeUps(tmp_path / "record.db").ring()


def test_a_system_without_such_sockets_is_no_hindrance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows: listening is told to be impossible, and ringing does nothing."""
    monkeypatch.setattr(wake_ups, "POSSIBLE", False)
    with Ear(tmp_path / "record.db").open() as ear:
        assert not ear.possible
        WakeUps(tmp_path / "record.db").ring()
    assert not folder_of(tmp_path / "record.db").exists()


def _come_and_go(record: str, times: int) -> None:
    for _ in range(times):
        with Ear(Path(record)).open() as ear:
            assert ear.possible, "the folder was tidied away too often"
            WakeUps(Path(record)).ring()
            assert ear.hears()


def test_many_come_and_go_at_once(tmp_path: Path) -> None:
    """Each that leaves tidies up; nobody who comes at that moment stays without its socket, or unheard."""
    record = tmp_path / "record.db"
    processes = [CONTEXT.Process(target=_come_and_go, args=(str(record), 100)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE)
    assert [process.exitcode for process in processes] == [0] * 4
    assert not folder_of(record).exists()
