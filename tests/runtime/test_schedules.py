"""The scheduler: when it looks, what it tells, and that it fires by itself; with a record whose clock a test moves."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from everstep.checkpoints import health, schedules
from everstep.checkpoints.schedule import Definition, Schedule
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock
from everstep.errors import ConfigInvalid
from everstep.graphs.policies import Policies, read_policies
from everstep.observability import metric_names
from everstep.observability.measures import Measures
from everstep.observability.metric_names import Metric
from everstep.runtime.schedules import LOOK_EVERY_S, Scheduler, fire
from tests.support.waiting import until

MINUTE_MS = 60_000
TOML = """
[schedules.nightly]
graph = "agent"
cron = "30 2 * * *"
timezone = "Europe/Berlin"
overlap = "resume"
missed = "all"
jitter = 300
input = {day = "today"}
slot_field = "until"
end = 2027-06-01T00:00:00+02:00
owner = "alice"
priority = 8
max_attempts = 7
workflow_version = "2"
"""


class Counted(Measures):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Metric, float, tuple[str, ...]]] = []

    def add(self, metric: Metric, value: float = 1.0, *labels: str) -> None:
        self.told.append((metric, value, labels))


def add(store: Store, **changes: Any) -> Schedule:
    """A schedule of each minute."""
    definition = Definition(**{"graph": "agent", "cron": "* * * * *", "overlap": "skip", **changes})
    make = partial(schedules.create, definition=definition, now=store.clock.now_ms(), origin="command", name="each")
    return store.write(make).result()


def test_it_waits_until_the_next_slot(store: Store, clock: ManualClock) -> None:
    """It sleeps to the very millisecond of the next slot, but no longer than until the next look."""
    scheduler = Scheduler(store)
    assert scheduler.wait_s(clock.now_ms()) == LOOK_EVERY_S
    due = add(store).next_fire_at or 0
    assert scheduler.wait_s(clock.now_ms()) == LOOK_EVERY_S
    assert scheduler.wait_s(due - 250) == 0.25
    assert scheduler.wait_s(due) == 0
    assert scheduler.wait_s(due + 9_000) == 0


def test_slots_are_measured_and_told(store: Store, clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    """Each slot counts by what came of it, with how late it was; the log names schedule, slot and job."""
    caplog.set_level(logging.INFO, "everstep.schedules")
    measures = Counted()
    scheduler = Scheduler(store, measures=measures)
    add(store)
    clock.advance(2 * MINUTE_MS + 1_500)
    assert [slot.outcome for slot in scheduler.look()] == ["missed", "fired"]
    clock.advance(MINUTE_MS)
    scheduler.look()
    assert [(labels, value) for metric, value, labels in measures.told if metric is metric_names.SCHEDULE_SLOTS] == [
        (("missed",), 1),
        (("fired",), 1),
        (("skipped",), 1),
    ]
    assert [value for metric, value, _ in measures.told if metric is metric_names.SCHEDULE_LATENESS] == [1.5, 1.5]
    (job,) = store.jobs()
    assert f"fired as job {job.public_id}" in caplog.text
    assert f"job {job.public_id} is pending" in caplog.text


def test_it_fires_by_itself_and_stops(shared: Store) -> None:
    """Started, it handles what is due without being asked; stopped, it handles nothing more."""
    schedule = add(shared)
    due = shared.clock.now_ms() - MINUTE_MS

    def is_due(connection: Any) -> None:
        slots = {"next_slot_at": due // MINUTE_MS * MINUTE_MS, "next_fire_at": due // MINUTE_MS * MINUTE_MS}
        connection.execute(schedules.schedules.update().values(**slots))

    shared.write(is_due).result()
    scheduler = Scheduler(shared)
    scheduler.start()
    until(lambda: shared.jobs(), "the job of the schedule")
    scheduler.stop()
    assert schedule.id
    assert Scheduler(shared).stop() is None  # one that never started


def test_a_record_that_is_away_is_told_once(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """A look that fails is a warning, the next ones are not; the thread lives."""
    caplog.set_level(logging.DEBUG, "everstep.schedules")
    scheduler = Scheduler(store)
    store.close()
    scheduler.start()
    until(lambda: caplog.text.count("schedules wait") >= 2, "a second try")
    scheduler.stop()
    assert [record.levelno for record in caplog.records if "wait" in record.message][:2] == [
        logging.WARNING,
        logging.DEBUG,
    ]


def test_a_clock_set_back_is_seen(store: Store, clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    """A scheduler whose clock goes back by itself brings schedules of the future back to now."""
    scheduler = Scheduler(store)
    add(store)
    clock.advance(365 * 86_400_000)
    scheduler.look()
    clock.advance(-365 * 86_400_000)
    scheduler.look()
    assert "the clock was set back" in caplog.text
    assert (store.read(schedules.next_fire) or 0) <= clock.now_ms() + 2 * MINUTE_MS


def test_a_schedule_nobody_runs_is_overdue(store: Store, clock: ManualClock) -> None:
    """A minute after its time it is part of the record's health, until somebody handles it."""
    due = add(store).next_fire_at or 0
    clock.advance(due + MINUTE_MS - 1 - clock.now_ms())
    assert health.examine(store).overdue == ()
    clock.advance(2)
    found = health.examine(store)
    assert (found.overdue, found.overdue_ms) == (("each",), MINUTE_MS + 1)
    Scheduler(store).look()
    assert health.examine(store).overdue == ()


def test_by_hand_is_told_who(store: Store) -> None:
    """A run by hand names the person in its slot."""
    add(store)
    schedule, slot = fire(store, "each", Policies(), actor="alice")
    assert (schedule.name, slot.outcome, slot.detail["by"]) == ("each", "fired", "alice")


# ---- everstep.toml


def written(folder: Path, toml: str) -> Path:
    """A folder with this `everstep.toml`; its `langgraph.json`."""
    (folder / "everstep.toml").write_text(toml)
    return folder / "langgraph.json"


def test_a_schedule_of_the_file_is_what_it_says(store: Store, tmp_path: Path) -> None:
    """Every field of `[schedules.NAME]` arrives in the record; starting again changes nothing."""
    config = written(tmp_path, TOML)
    scheduler = Scheduler(store, read_policies(config, ["agent"]))
    assert scheduler.take_over(config) == [("nightly", "added")]
    assert scheduler.take_over(config) == []
    (schedule,) = store.read(schedules.every)
    definition = schedule.definition
    assert (schedule.owner, schedule.origin) == ("alice", f"file:{tmp_path / 'everstep.toml'}")
    assert (definition.graph, definition.cron, definition.timezone) == ("agent", "30 2 * * *", "Europe/Berlin")
    assert (definition.overlap, definition.missed, definition.jitter_s) == ("resume", "all", 300)
    assert (definition.input, definition.ends_at) == ({"day": "today"}, 1_811_800_800_000)
    job = definition.job
    assert (job.priority, job.max_attempts, job.workflow_version, job.slot_field) == (8, 7, "2", "until")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (('graph = "agent"', 'graph = "agnet"'), "schedules.nightly.graph: langgraph.json has no such graph"),
        (('overlap = "resume"\n', ""), "schedules.nightly.overlap"),
        (('"resume"', '"both"'), "schedules.nightly.overlap"),
        (("30 2", "61 2"), "schedules.nightly: the cron expression"),
        (("Europe/Berlin", "Europe/Atlantis"), "schedules.nightly: there is no time zone"),
        (("+02:00", ""), "schedules.nightly.end"),
        (('day = "today"', "day = 2027-01-01"), "schedules.nightly: "),
        (('day = "today"', 'password = "correct horse"'), "schedules.nightly: "),
        (("priority", "priorty"), "schedules.nightly.priorty"),
        (("[schedules.nightly]", '[schedules."a b"]'), "schedules.a b"),
    ],
    ids=lambda value: str(value[1]) if isinstance(value, tuple) else None,
)
def test_what_the_file_gets_wrong_is_named(tmp_path: Path, change: tuple[str, str], told: str) -> None:
    """A schedule that cannot be run as it is written is refused at start, with its place; a time without offset too."""
    config = written(tmp_path, TOML.replace(*change))
    with pytest.raises(ConfigInvalid) as refused:
        read_policies(config, ["agent"])
    assert told in refused.value.message
