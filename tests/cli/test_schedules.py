"""`everstep schedules`: making, looking at and firing schedules by the real command, and a worker that runs them."""

from __future__ import annotations

from contextlib import closing

import pytest

from everstep.checkpoints import schedules
from everstep.checkpoints.store import Store
from tests.cli import forked
from tests.cli.folder import PATIENCE_S, TIME, Folder, environment, is_refused
from tests.support.waiting import until

ADD = ("--graph", "count", "--cron", "30 2 * * *", "--timezone", "Europe/Berlin", "--overlap", "skip")
INPUT = ("--input", '{"log": []}')


def is_due(folder: Folder) -> None:
    """Make the schedule due now."""
    with Store.open(folder.url) as store:
        now = store.clock.now_ms() // 60_000 * 60_000
        values = {"next_slot_at": now, "next_fire_at": now}
        store.write(lambda c: c.execute(schedules.schedules.update().values(**values))).result()


def test_a_schedule_is_made_shown_and_removed(folder: Folder) -> None:
    """Added, listed, looked ahead at, paused, resumed, removed; each with the same fields in JSON."""
    added = folder.run("schedules", "add", "nightly", *ADD, "--jitter", "60", *INPUT, "--json").value
    assert (added["name"], added["origin"], added["enabled"], added["off"]) == ("nightly", "command", True, None)
    assert TIME.fullmatch(added["next_slot"])
    assert added["next_slot"] <= added["begins_at"]
    (listed,) = folder.run("schedules", "--json").value
    assert listed == {**added, "last": None}
    assert folder.run("schedules", "list", "--json").value == [listed]
    assert "nightly" in folder.run("schedules").out
    coming = folder.run("schedules", "next", "nightly", "--count", "3", "--json").value
    assert [one["local"][11:16] for one in coming] == ["02:30"] * 3
    assert coming[0]["slot"] == added["next_slot"]
    paused = folder.run("schedules", "pause", "nightly", "--json").value
    assert (paused["enabled"], paused["off"], paused["begins_at"]) == (False, "paused", None)
    assert "paused" in folder.run("schedules").out
    assert folder.run("schedules", "next", "nightly").out == ""
    assert folder.run("schedules", "resume", "nightly", "--json").value["next_slot"] == added["next_slot"]
    assert folder.run("schedules", "remove", "nightly", "--yes", "--json").value["removed"]
    assert folder.run("schedules", "--json").value == []


def test_a_run_by_hand_obeys_the_rule_of_overlap(folder: Folder) -> None:
    """`fire` makes a job at once; while that waits a second one is skipped, and `history` shows both."""
    folder.run("schedules", "add", "nightly", *ADD, *INPUT)
    first = folder.run("schedules", "fire", "nightly", "--json").value
    second = folder.run("schedules", "fire", "nightly", "--json").value
    assert (first["outcome"], second["outcome"]) == ("fired", "skipped")
    assert first["job"] == second["job"]
    history = folder.run("schedules", "history", "nightly", "--json").value
    assert [one["outcome"] for one in history] == ["skipped", "fired"]
    assert first["job"] in folder.run("schedules", "history", "nightly").out
    assert folder.run("worker", "--until-idle").code == 0
    assert folder.run("show", first["job"], "--json").value["status"] == "done"


def test_a_worker_runs_what_is_due(folder: Folder) -> None:
    """A worker takes the file's schedules over when it starts, fires what is due, and runs the job."""
    (folder.path / "everstep.toml").write_text(
        '[schedules.nightly]\ngraph = "count"\ncron = "* * * * *"\noverlap = "skip"\ninput = {log = []}\n'
    )
    folder.run("schedules", "run", "--once")
    is_due(folder)
    with folder.worker() as worker:
        worker.until(lambda events: any(event["event"] == "done" for event in events))
    fired = [one for one in folder.run("schedules", "history", "nightly", "--json").value if one["outcome"] == "fired"]
    assert fired[-1]["job"] in {job["id"] for job in folder.run("jobs", "--json").value if job["status"] == "done"}


def test_a_process_of_its_own_fires_until_it_is_stopped(folder: Folder) -> None:
    """`schedules run` fires what becomes due while it runs, and ends in good order at SIGTERM; it runs no job."""
    folder.run("schedules", "add", "nightly", *ADD, "--cron", "* * * * *", *INPUT)
    running = forked.Started(["schedules", "run"], folder=folder.path, environment=environment(), with_errors=True)
    with closing(running), Store.open(folder.url) as store:
        try:
            is_due(folder)
            until(store.jobs, "the job of the schedule")
            running.terminate()
            told = running.communicate(timeout=PATIENCE_S)[1]
        finally:
            running.kill()
        assert running.returncode == 0
        assert "fired as job" in told
        assert [job.status for job in store.jobs()][-1] == "pending"


def test_due_slots_are_handled_once_by_hand(folder: Folder) -> None:
    """`run --once` handles what is due and ends; a second one fires nothing again."""
    folder.run("schedules", "add", "nightly", *ADD, "--cron", "* * * * *", *INPUT)
    is_due(folder)
    fired = [one["outcome"] for one in folder.run("schedules", "run", "--once", "--json").value]
    again = [one["outcome"] for one in folder.run("schedules", "run", "--once", "--json").value]
    assert [*fired, *again].count("fired") == 1
    assert len(folder.run("jobs", "--json").value) == 1


def test_doctor_tells_of_an_overdue_schedule(folder: Folder) -> None:
    """Its name, for how long, and what runs schedules."""
    folder.run("schedules", "add", "nightly", *ADD, *INPUT)
    with Store.open(folder.url) as store:
        late = store.clock.now_ms() - 7_200_000
        store.write(lambda c: c.execute(schedules.schedules.update().values(next_fire_at=late))).result()
    findings = folder.run("doctor", "--json").value["findings"]
    (found,) = (finding for finding in findings if finding["check"] == "schedules")
    assert "nightly" in found["detail"]
    assert "everstep worker" in found["advice"]


@pytest.mark.parametrize(
    ("change", "code", "kind"),
    [
        (("--cron", "nonsense"), 64, "schedule_invalid"),
        (("--timezone", "Mars"), 64, "schedule_invalid"),
        (("--jitter", "90000"), 64, "schedule_invalid"),
        (("--overlap", "both"), 64, "usage"),
        (("--graph", "nothing"), 66, "graph_not_found"),
        (("--end", "2027-01-01T00:00:00"), 64, "payload_invalid"),
        (("--input", '{"password": "correct horse"}'), 64, "secret_in_payload"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_bad_schedules_are_refused(folder: Folder, change: tuple[str, ...], code: int, kind: str) -> None:
    """What cannot be run is refused before there is a record."""
    is_refused(folder.run("schedules", "add", "nightly", *ADD, *change), code, kind)
    assert not (folder.path / "everstep.db").exists()


def test_what_is_not_there_or_not_ours_is_refused(folder: Folder) -> None:
    """A name that is taken, one that nobody has, no rule of overlap, and one that a file keeps."""
    folder.run("schedules", "add", "nightly", *ADD)
    is_refused(folder.run("schedules", "add", "nightly", *ADD), 65, "schedule_exists")
    is_refused(folder.run("schedules", "add", "a b", *ADD), 64, "payload_invalid")
    is_refused(folder.run("schedules", "add", "other", *ADD[:-2]), 64, "usage")
    for command in ("fire", "next", "history", "pause", "resume"):
        is_refused(folder.run("schedules", command, "other"), 66, "schedule_not_found")
    (folder.path / "everstep.toml").write_text(
        '[schedules.kept]\ngraph = "count"\ncron = "* * * * *"\noverlap = "skip"\n'
    )
    folder.run("schedules", "run", "--once")
    is_refused(folder.run("schedules", "remove", "kept", "--yes"), 65, "schedule_exists")
