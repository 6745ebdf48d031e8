"""`everstep prune`: what it deletes by which rules, whom it asks, and what becomes of the room."""

from __future__ import annotations

import os
import pty
import select
import time
from pathlib import Path

import pytest

from everstep.checkpoints import space
from everstep.checkpoints.store import Store
from tests.cli import forked
from tests.cli.conftest import Prepared
from tests.cli.folder import PATIENCE_S, Folder, environment, is_refused

DAYS = {"done_days": 30, "failed_days": 90, "key_days": 365, "outage_days": 90}


def aged(folder: Folder, days: float) -> None:
    """Let everything in the record be so many days older."""
    with Store.open(folder.url) as store:
        store.write(
            lambda c: c.exec_driver_sql(f"UPDATE agent_jobs SET updated_at = updated_at - {int(days * 86_400_000)}")
        ).result()


def test_it_deletes_what_is_old_enough(copied: Prepared) -> None:
    """By default done jobs go after 30 days and failed ones after 90; all that has not ended stays."""
    folder = copied.folder
    told = folder.json("prune")
    assert {name: told[name] for name in DAYS} == DAYS
    assert (told["jobs"], told["keys"], told["kept"]) == ({"done": 0, "failed": 0}, 0, 0)
    aged(folder, 30)
    dry = folder.json("prune", "--dry-run")
    assert (dry["jobs"], dry["dry_run"]) == ({"done": 2, "failed": 0}, True)
    is_refused(folder.run("prune", "--quiet"), 64, "usage")
    refused = folder.run("prune")
    assert (refused.code, refused.out) == (64, "")
    assert "2 done jobs older than 30 days" in refused.err
    assert folder.json("prune", "--yes")["jobs"] == {"done": 2, "failed": 0}
    aged(folder, 60)
    assert folder.json("prune", "--yes")["jobs"] == {"done": 0, "failed": 2}
    kept = {job["graph"] for job in folder.json("jobs")}
    assert kept == {graph for graph in copied.jobs if graph not in ("count", "mail", "fails", "garbled")}


def test_rules_come_from_the_configuration_and_options_win(copied: Prepared) -> None:
    """[retention] of the everstep.toml beside --config counts; an option goes before it; one graph can be named."""
    folder = copied.folder
    retention = "[retention]\ndone_days = 0\nfailed_days = 0.5\nkey_days = 7\noutage_days = 9\n"
    (folder.path / "everstep.toml").write_text(retention)
    told = folder.json("prune", "--dry-run", "--failed-days", "0", "--graph", "mail")
    assert {name: told[name] for name in DAYS} == {"done_days": 0, "failed_days": 0, "key_days": 7, "outage_days": 9}
    assert told["jobs"] == {"done": 1, "failed": 0}
    assert folder.json("prune", "--yes")["jobs"] == {"done": 2, "failed": 0}
    (folder.path / "everstep.toml").write_text("[retention]\ndone_day = 0\n")
    is_refused(folder.run("prune"), 78, "config_invalid")
    (folder.path / "everstep.toml").unlink()
    for wrong in ("-1", "nan", "36501"):
        assert folder.run("prune", "--done-days", wrong).code == 64


def test_a_pruned_submission_is_told(copied: Prepared) -> None:
    """The same submission as a deleted job's exits 65 with its id; once its key is forgotten it is a new job."""
    folder, job = copied.folder, copied.jobs["count"]
    folder.json("prune", "--done-days", "0", "--yes")
    refused = folder.run("submit", "count", "--input", "{}", "--json")
    assert (refused.code, refused.error["code"], refused.error["job"]) == (65, "job_pruned", job)
    with Store.open(folder.url) as store:
        store.write(lambda c: c.exec_driver_sql("UPDATE tombstones SET expires_at = 0")).result()
    assert folder.json("prune", "--yes")["keys"] == 2
    assert folder.submit("count") != job


def test_it_asks_on_a_terminal(copied: Prepared) -> None:
    """On a terminal it says what it will delete and asks; anything but yes deletes nothing."""
    folder = copied.folder
    for answer, code, left in (("n\n", 130, 2), ("y\n", 0, 0)):
        said, ended = on_a_terminal(folder, answer, "prune", "--done-days", "0")
        assert ended == code, said
        assert "2 done jobs" in said
        assert "Delete 2 jobs" in said
        assert sum(job["status"] == "done" for job in folder.json("jobs")) == left


def on_a_terminal(folder: Folder, answer: str, *arguments: str) -> tuple[str, int]:
    """Run a command on a terminal and answer its question; what was seen there, and the exit code."""
    ours, theirs = pty.openpty()
    process = forked.Running(arguments, folder=folder.path, environment=environment(), streams=[theirs] * 3)
    os.close(theirs)
    seen, end, answered = b"", time.monotonic() + PATIENCE_S, False
    while time.monotonic() < end:
        if not select.select([ours], [], [], 0.1)[0]:
            if process.poll() is not None:
                break
            continue
        try:
            got = os.read(ours, 4096)
        except OSError:  # the other side is closed
            break
        if not got:
            break
        seen += got
        if not answered and b"[y/N]" in seen:
            os.write(ours, answer.encode())
            answered = True
    os.close(ours)
    return seen.decode(), process.wait(PATIENCE_S)


def test_vacuum_gives_the_room_back(tmp_path: Path) -> None:
    """Deleting leaves room in the file to be used again; --vacuum makes the file smaller; the log is emptied."""
    folder = Folder(tmp_path)
    with Store.open(folder.url) as store:
        for number in range(200):
            store.cancel(store.enqueue("graph", {"n": number, "text": "x" * 10_000}).job.public_id)
    told = folder.json("prune", "--failed-days", "0", "--yes")
    assert told["jobs"] == {"done": 0, "failed": 200}
    assert told["bytes"]["free"] > 1_000_000
    assert told["log_emptied"] is True
    wal = folder.path / "everstep.db-wal"
    assert not wal.exists() or wal.stat().st_size == 0
    smaller = folder.json("prune", "--vacuum")
    assert (smaller["vacuumed"], smaller["bytes"]["free"]) == (True, 0)
    assert smaller["bytes"]["after"] < smaller["bytes"]["before"] - 1_000_000
    assert folder.run("doctor").code in (0, 1)
    with Store.open(folder.url) as store:
        assert store.read(store.database.problem) is None


@pytest.mark.both_databases
def test_room_is_measured_on_both_databases(store: Store) -> None:
    """What a record takes is known; what of it is free, where the database tells; emptying the log does no harm."""
    store.enqueue("graph", {})
    assert space.truncate_log(store)
    space.vacuum(store)
    measured = space.measure(store)
    assert measured.taken > 0
    assert (measured.free is None) == (store.database.poll_s == 1.0)
    assert len(store.jobs()) == 1
