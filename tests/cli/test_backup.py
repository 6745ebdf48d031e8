"""`everstep backup`: a copy of a record in use is a record, of one moment, and never half a file."""

from __future__ import annotations

import json
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from everstep.checkpoints import sqlite
from everstep.checkpoints.store import Store
from everstep.errors import BackupImpossible, StoreCorrupt
from everstep.runtime.worker import Worker
from tests.cli.folder import Folder, is_refused
from tests.support.jobs import Log, chain


def test_a_copy_made_beside_writers_is_of_one_moment(tmp_path: Path) -> None:
    """Whatever is written meanwhile, each copy is sound: as many keys as jobs, each job with its first event."""
    stop, copies = threading.Event(), [tmp_path / f"copy {number}.db" for number in range(5)]
    with Store.open(f"sqlite:///{tmp_path / 'record.db'}") as store:

        def write() -> None:
            number = 0
            while not stop.is_set():
                store.enqueue("graph", {"n": (number := number + 1)})

        writing = threading.Thread(target=write)
        writing.start()
        try:
            for copy in copies:
                store.backup(copy)
        finally:
            stop.set()
            writing.join()
        jobs = len(store.jobs(limit=100_000))
    counts: list[int] = []
    for copy in copies:
        with closing(sqlite3.connect(copy)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            (found,) = connection.execute("SELECT count(*) FROM agent_jobs").fetchone()
            assert connection.execute("SELECT count(*) FROM job_events").fetchone() == (found,)
            counts.append(found)
    assert counts == sorted(counts)
    assert counts[-1] <= jobs
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith("record.db")) == [
        copy.name for copy in copies
    ]


def test_a_job_goes_on_in_the_copy(tmp_path: Path) -> None:
    """A record restored from a copy has the threads too: a job that waited for an answer gets it and is done."""
    from langgraph.types import interrupt

    def asking(_state: Log) -> Log:
        return {"log": [interrupt("go on?")]}

    graph = chain(lambda _s: {"log": ["first"]}, asking)
    with Store.open(f"sqlite:///{tmp_path / 'record.db'}") as store:
        job, _ = store.enqueue("graph", {"log": []})
        Worker(store, {"graph": graph}).run(until_idle=True)
        store.backup(tmp_path / "copy.db")
    with Store.open(f"sqlite:///{tmp_path / 'copy.db'}", create=False) as copy:
        copy.answer(copy.reviews()[0].public_id, "respond", value="yes")
        Worker(copy, {"graph": graph}).run(until_idle=True)
        assert json.loads(copy.job(job.public_id).result_json or "") == {"log": ["first", "yes"]}


def test_the_command(folder: Folder) -> None:
    """It says what it made; a file that is there, or a place that is not, is refused and nothing is left behind."""
    folder.submit("count")
    made = folder.json("backup", "copy.db")
    assert made == {"file": str(folder.path / "copy.db"), "bytes": (folder.path / "copy.db").stat().st_size}
    assert len(folder.json("jobs", "--store", "sqlite:///copy.db")) == 1
    before = sorted(folder.path.iterdir())
    for target in ("copy.db", "no/such/folder.db", "."):
        is_refused(folder.run("backup", target), 65, "backup_impossible")
    is_refused(folder.run("backup", "other.db", "--store", "sqlite:///no.db"), 66, "store_not_found")
    assert sorted(folder.path.iterdir()) == before


def test_a_damaged_record_makes_no_backup(tmp_path: Path) -> None:
    """A copy of damage is no backup: the error says so, and the target does not appear."""
    path = tmp_path / "record.db"
    with Store.open(f"sqlite:///{path}") as store:
        for number in range(200):
            store.enqueue("graph", {"text": "x" * 500, "n": number})
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = bytearray(path.read_bytes())
    middle = len(content) // 2 // 4096 * 4096
    content[middle : middle + 4096] = b"\xff" * 4096
    path.write_bytes(content)
    with pytest.raises((StoreCorrupt, BackupImpossible)):
        sqlite.backup(path, tmp_path / "copy.db")
    assert sorted(found.name for found in tmp_path.iterdir()) == ["record.db"]
