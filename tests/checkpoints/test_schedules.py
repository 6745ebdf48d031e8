"""Schedules: a slot and its job at once, missed slots, overlap, clocks that are set, and schedules of a file."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, select

from everstep.checkpoints import conversations, retention, runs, schedules, slots
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.policy import JobPolicy
from everstep.checkpoints.runs import RunRequest
from everstep.checkpoints.schedule import Definition, JobOptions, Schedule
from everstep.checkpoints.schema import schedule_slots
from everstep.checkpoints.slots import Slot
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock, rfc3339
from everstep.errors import PayloadInvalid, ScheduleExists, ScheduleInvalid, ScheduleNotFound, SecretInPayload
from everstep.runtime.classify import classify
from everstep.runtime.settle import Outcome
from tests.support.record import begin_running, claim, in_processes, settled

pytestmark = pytest.mark.both_databases

MINUTE_MS = 60_000
DAY_MS = 86_400_000
EACH_MINUTE = Definition("graph", "* * * * *", "queue")


def add(store: Store, definition: Definition = EACH_MINUTE, name: str = "nightly", **more: Any) -> Schedule:
    """A schedule that begins now."""
    definition.check()
    make = partial(schedules.create, definition=definition, now=store.clock.now_ms(), origin="command", name=name)
    return store.write(partial(make, **more)).result()


def fire(store: Store, schedule: Schedule, policy: JobPolicy | None = None) -> list[Slot]:
    """Handle what is due, as a scheduler does."""
    due = partial(slots.fire_due, schedule_id=schedule.id, now=store.clock.now_ms(), actor="test")
    return store.write(partial(due, policy_of=lambda _graph: policy or JobPolicy())).result()


def now_is(store: Store) -> Schedule:
    """The schedule as it is."""
    return store.read(partial(schedules.find, given="nightly"))


def to_next(store: Store, clock: ManualClock, later: int = 0) -> None:
    """Move the clock to where the schedule begins next."""
    clock.advance((now_is(store).next_fire_at or 0) - clock.now_ms() + later)


def outcomes(handled: list[Slot]) -> list[str]:
    """What became of the slots."""
    return [slot.outcome for slot in handled]


def failed(store: Store) -> Job:
    """The next job, after it ran and failed for good."""
    error = ValueError("no")
    (job,) = claim(store)
    return settled(store, job, Outcome("error", verdict=classify(error), error=error))


def test_a_slot_is_a_job_with_its_input(store: Store, clock: ManualClock) -> None:
    """When its time has come a schedule makes a job with its input, its options and the graph's policy; not before."""
    definition = Definition(
        "graph", "*/5 * * * *", "skip", input={"a": 1}, job=JobOptions(priority=8, max_attempts=7, slot_field="until")
    )
    schedule = add(store, definition, owner="alice")
    assert fire(store, schedule) == []
    to_next(store, clock, -1)
    assert fire(store, schedule) == []
    clock.advance(1)
    (slot,) = fire(store, schedule, JobPolicy(services=("api.example.com",)))
    (job,) = store.jobs()
    assert (slot.outcome, slot.at, slot.job) == ("fired", clock.now_ms(), job.public_id)
    assert json.loads(job.payload_json) == {"a": 1, "until": rfc3339(slot.at)}
    assert (job.owner, job.priority, job.max_attempts, job.status) == ("alice", 8, 7, "pending")
    assert [service.name for service in store.services()] == ["api.example.com"]
    assert (now_is(store).next_slot_at or 0) - slot.at == 5 * MINUTE_MS
    assert fire(store, schedule) == []


def test_a_job_that_cannot_be_noted_is_not_made(store: Store, clock: ManualClock) -> None:
    """The slot's row and its job are one transaction: if it fails at its end there is neither, and the slot waits."""
    schedule = add(store)
    to_next(store, clock)

    def broken(connection: Connection) -> None:
        slots.fire_due(connection, schedule.id, now=clock.now_ms(), actor="test", policy_of=lambda _graph: JobPolicy())
        raise OSError("the machine dies here")

    with pytest.raises(OSError, match="dies here"):
        store.write(broken).result()
    assert store.jobs() == []
    assert store.read(partial(slots.history, schedule=schedule, limit=9)) == []
    assert outcomes(fire(store, schedule)) == ["fired"]


def race(url: str, schedule_id: int, now: int) -> None:
    """Fire as a scheduler in a process of its own."""
    with Store.open(url) as store:
        due = partial(slots.fire_due, schedule_id=schedule_id, now=now, actor="test")
        store.write(partial(due, policy_of=lambda _graph: JobPolicy())).result()


def test_of_several_schedulers_one_fires(store: Store, clock: ManualClock) -> None:
    """Four processes fire the same slots at once: each slot has one job."""
    schedule = add(store, replace(EACH_MINUTE, missed="all"))
    clock.advance(10 * MINUTE_MS)
    in_processes(race, [(store.url, schedule.id, clock.now_ms())] * 4)
    assert len(store.jobs()) == 10
    handled = store.read(partial(slots.history, schedule=schedule, limit=99))
    assert outcomes(handled) == ["fired"] * 10
    assert len({slot.job for slot in handled}) == 10


# ---- missed slots


@pytest.mark.parametrize(
    ("missed", "expected"),
    [("skip", ["missed"] * 5), ("latest", ["missed"] * 4 + ["fired"]), ("all", ["fired"] * 5)],
)
def test_slots_at_which_nobody_was_there(store: Store, clock: ManualClock, missed: Any, expected: list[str]) -> None:
    """After a time without schedulers none of its slots runs, the latest, or all, in their order; each is noted."""
    schedule = add(store, replace(EACH_MINUTE, cron="0 * * * *", missed=missed))
    to_next(store, clock)
    clock.advance(4 * 60 * MINUTE_MS + 61_000)
    handled = fire(store, schedule)
    assert outcomes(handled) == expected
    assert [slot.at for slot in handled] == sorted(slot.at for slot in handled)
    assert len(store.jobs()) == expected.count("fired")
    assert handled[-1].late_ms == 61_000
    assert (now_is(store).next_slot_at or 0) > clock.now_ms()


def test_a_slot_handled_within_a_minute_is_not_missed(store: Store, clock: ManualClock) -> None:
    """With `skip` a slot may be a little late; of several that are due at once only the last can be in time."""
    schedule = add(store, replace(EACH_MINUTE, missed="skip"))
    to_next(store, clock, 59_999)
    assert outcomes(fire(store, schedule)) == ["fired"]
    clock.advance(5 * MINUTE_MS)
    assert outcomes(fire(store, schedule)) == ["missed"] * 4 + ["fired"]


def test_no_more_than_a_hundred_slots_are_made_up_for(store: Store, clock: ManualClock) -> None:
    """After a year without schedulers the last hundred slots run; one row tells of all before them."""
    schedule = add(store, replace(EACH_MINUTE, missed="all"))
    first = schedule.next_slot_at
    clock.advance(365 * DAY_MS)
    handled = fire(store, schedule)
    assert outcomes(handled) == ["missed"] + ["fired"] * slots.MOST_CAUGHT_UP
    assert handled[0].at == first
    assert handled[0].detail == {"up_to": rfc3339(handled[1].at - 1)}
    assert len(store.jobs()) == slots.MOST_CAUGHT_UP


def test_jitter_delays_the_run_and_not_the_slot(store: Store, clock: ManualClock) -> None:
    """A run begins up to the jitter after its slot, which stays a whole minute; lateness counts from there."""
    schedule = add(store, replace(EACH_MINUTE, cron="0 * * * *", jitter_s=600))
    waits: list[int] = []
    for _ in range(5):
        to_next(store, clock, -1)
        assert fire(store, schedule) == []
        clock.advance(1)
        (slot,) = fire(store, schedule)
        waits.append(clock.now_ms() - slot.at)
        assert slot.late_ms == 0
    assert len(set(waits)) > 1
    assert all(0 <= wait <= 600_000 for wait in waits)


def test_after_its_end_a_schedule_has_no_slots(store: Store, clock: ManualClock) -> None:
    """The last slot is at the end at the latest; one that was missed before the end is made up for."""
    ends_at = (clock.now_ms() // MINUTE_MS + 3) * MINUTE_MS
    schedule = add(store, replace(EACH_MINUTE, ends_at=ends_at, missed="all"))
    clock.advance(10 * MINUTE_MS)
    handled = fire(store, schedule)
    assert handled[-1].at == ends_at
    assert len(handled) == 3
    assert now_is(store).next_slot_at is None
    assert slots.coming(now_is(store), now=clock.now_ms(), count=3) == []


# ---- overlap


def test_skip_runs_nothing_beside_an_unfinished_run(store: Store, clock: ManualClock) -> None:
    """While a run waits, runs or is in review its schedule's slots are skipped, with the reason; after it they run."""
    schedule = add(store, replace(EACH_MINUTE, overlap="skip"))
    to_next(store, clock)
    (first,) = fire(store, schedule)
    to_next(store, clock)
    (second,) = fire(store, schedule)
    assert (second.outcome, second.job, second.detail["because"]) == (
        "skipped",
        first.job,
        f"job {first.job} is pending",
    )
    job = begin_running(store, lease_ms=DAY_MS)
    to_next(store, clock)
    assert outcomes(fire(store, schedule)) == ["skipped"]
    settled(store, job, Outcome("done"))
    to_next(store, clock)
    assert outcomes(fire(store, schedule)) == ["fired"]
    assert len(store.jobs()) == 2


def test_queue_makes_runs_that_wait_for_each_other(store: Store, clock: ManualClock) -> None:
    """Each slot is a job; those of one schedule have one concurrency key, unless the graph's policy has its own."""
    schedule = add(store)
    for _ in range(3):
        to_next(store, clock)
        assert outcomes(fire(store, schedule)) == ["fired"]
    assert {job.concurrency_key for job in store.jobs()} == {f"schedule/{schedule.public_id}"}


def test_resume_lets_a_failed_run_go_on(store: Store, clock: ManualClock) -> None:
    """A run that failed is redriven by the next slot in place of a new one; after it is done the next is new."""
    schedule = add(store, replace(EACH_MINUTE, overlap="resume"))
    to_next(store, clock)
    (first,) = fire(store, schedule)
    failed(store)
    to_next(store, clock)
    (second,) = fire(store, schedule)
    assert (second.outcome, second.job) == ("resumed", first.job)
    assert store.job(first.job or "").status == "pending"
    settled(store, begin_running(store), Outcome("done"))
    to_next(store, clock)
    assert outcomes(fire(store, schedule)) == ["fired"]
    assert len(store.jobs()) == 2


def test_resume_begins_anew_where_a_client_went_on_with_the_thread(store: Store, clock: ManualClock) -> None:
    """A failed run whose thread a client went on with cannot be gone back to: the next slot is a new one."""
    schedule = add(store, replace(EACH_MINUTE, overlap="resume"))
    to_next(store, clock)
    fire(store, schedule)
    job = failed(store)
    now = clock.now_ms()

    def go_on(connection: Connection) -> None:
        conversations.ensure(connection, job.thread_id, owner="default", now=now)
        request = RunRequest("other", "A", input={})
        runs.create(connection, request, thread_id=job.thread_id, owner="default", now=now, actor="http")

    store.write(go_on).result()
    to_next(store, clock)
    (slot,) = fire(store, schedule)
    assert (slot.outcome, slot.detail["given_up"]) == ("fired", job.public_id)


@pytest.mark.parametrize("state", ["pending", "running", "retry", "review"])
def test_resume_leaves_a_run_that_needs_no_push(store: Store, clock: ManualClock, state: str) -> None:
    """One that waits, runs, is in backoff or waits for a person is left alone, and the slot noted."""
    schedule = add(store, replace(EACH_MINUTE, overlap="resume"))
    to_next(store, clock)
    (first,) = fire(store, schedule)
    if state != "pending":
        job = begin_running(store, lease_ms=DAY_MS)
    if state in ("retry", "review"):
        error = ConnectionRefusedError() if state == "retry" else KeyError("x")
        settled(store, job, Outcome("error", verdict=classify(error), error=error))
    before = store.job(first.job or "")
    assert before.status == state
    to_next(store, clock)
    (second,) = fire(store, schedule)
    assert (second.outcome, second.job) == ("skipped", first.job)
    assert store.job(first.job or "") == before


def test_resume_does_not_undo_what_a_person_ended(store: Store, clock: ManualClock) -> None:
    """A run that was cancelled stays so: the next slot is a new run."""
    schedule = add(store, replace(EACH_MINUTE, overlap="resume"))
    to_next(store, clock)
    (first,) = fire(store, schedule)
    store.cancel(first.job or "")
    to_next(store, clock)
    (second,) = fire(store, schedule)
    assert second.outcome == "fired"
    assert second.job != first.job


def test_a_run_that_is_resumed_in_vain_does_not_block_its_schedule(store: Store, clock: ManualClock) -> None:
    """After three resumptions that stored nothing more a new run starts, and the slot says which was given up."""
    schedule = add(store, replace(EACH_MINUTE, overlap="resume"))
    to_next(store, clock)
    (first,) = fire(store, schedule)
    for _ in range(slots.MOST_IN_VAIN):
        failed(store)
        to_next(store, clock)
        assert outcomes(fire(store, schedule)) == ["resumed"]
    failed(store)
    to_next(store, clock)
    (last,) = fire(store, schedule)
    assert (last.outcome, last.detail) == ("fired", {"given_up": first.job})
    assert store.job(first.job or "").status == "failed"


def test_a_job_that_is_refused_costs_its_slot_alone(store: Store, clock: ManualClock) -> None:
    """If no job can be made (its key is another's, say) the slot is noted as failed with the error; the next runs."""
    schedule = add(store)
    to_next(store, clock)
    store.enqueue("other", {}, key=f"schedule/{schedule.public_id}/{clock.now_ms()}")
    (slot,) = fire(store, schedule)
    assert (slot.outcome, slot.job, slot.detail["error"]["code"]) == ("failed", None, "key_conflict")
    to_next(store, clock)
    assert outcomes(fire(store, schedule)) == ["fired"]


# ---- by hand, off, and clocks


def test_a_run_by_hand_is_beside_the_slots(store: Store, clock: ManualClock) -> None:
    """It runs at once, also at the very moment of a slot, twice in a millisecond, and while the schedule is paused."""
    schedule = add(store)
    to_next(store, clock)
    by_hand = partial(slots.fire_now, now=clock.now_ms(), actor="alice", policy_of=lambda _graph: JobPolicy())
    fired = [store.write(lambda c: by_hand(c, schedules.locked(c, "nightly"))).result() for _ in range(2)]
    assert outcomes(fired) == ["fired", "fired"]
    assert outcomes(fire(store, schedule)) == ["fired"]
    assert len(store.jobs()) == 3
    assert fired[0].detail == {"by_hand": True, "by": "alice"}


def test_what_a_schedule_misses_while_paused_is_not_made_up_for(store: Store, clock: ManualClock) -> None:
    """Paused it has no next slot; resumed its next slot is the first from then on."""
    schedule = add(store, replace(EACH_MINUTE, missed="all"))
    switch = partial(schedules.switch, now=clock.now_ms())
    store.write(lambda c: switch(c, schedules.locked(c, "nightly"), on=False)).result()
    clock.advance(10 * MINUTE_MS)
    assert fire(store, schedule) == []
    assert (now_is(store).enabled, now_is(store).off, now_is(store).next_slot_at) == (False, "paused", None)
    switch = partial(schedules.switch, now=clock.now_ms())
    store.write(lambda c: switch(c, schedules.locked(c, "nightly"), on=True)).result()
    assert fire(store, schedule) == []
    assert clock.now_ms() < (now_is(store).next_slot_at or 0) <= clock.now_ms() + MINUTE_MS


def set_back(store: Store) -> list[Schedule]:
    """What a scheduler does when it starts, or sees that the clock was set back."""
    return store.write(partial(slots.set_back, now=store.clock.now_ms())).result()


def test_a_clock_that_is_set_back_repeats_no_slot(store: Store, clock: ManualClock) -> None:
    """Slots that were handled stay handled; the first after them runs in its time."""
    schedule = add(store, replace(EACH_MINUTE, missed="all"))
    clock.advance(10 * MINUTE_MS)
    assert len(fire(store, schedule)) == 10
    clock.advance(-7 * MINUTE_MS)
    assert set_back(store) == []
    for _ in range(9):
        fire(store, schedule)
        clock.advance(MINUTE_MS)
    assert len(store.jobs()) == 11
    assert len({slot.at for slot in store.read(partial(slots.history, schedule=schedule, limit=99))}) == 11


def test_a_wrong_clock_silences_no_schedule(store: Store, clock: ManualClock) -> None:
    """A clock that was a year ahead took the schedule there; once it is right the schedule goes on from now."""
    schedule = add(store)
    clock.advance(365 * DAY_MS)
    fire(store, schedule)
    clock.advance(-365 * DAY_MS)
    assert [moved.name for moved in set_back(store)] == ["nightly"]
    to_next(store, clock)
    assert outcomes(fire(store, schedule)) == ["fired"]
    assert set_back(store) == []


# ---- making, finding, removing


def test_a_name_is_used_once(store: Store) -> None:
    """A second schedule of a name is refused, and the first is as it was."""
    before = add(store)
    with pytest.raises(ScheduleExists):
        add(store, replace(EACH_MINUTE, cron="0 0 * * *"))
    assert now_is(store) == before


def test_a_schedule_is_found_by_name_or_id(store: Store) -> None:
    """By its name, its id, or a beginning of the id that fits one only."""
    schedule = add(store)
    for given in ("nightly", schedule.public_id, schedule.public_id[:30]):
        assert store.read(partial(schedules.find, given=given)) == schedule
    for given in ("other", "", "%"):
        with pytest.raises(ScheduleNotFound):
            store.read(partial(schedules.find, given=given))


def test_a_removed_schedule_leaves_its_jobs(store: Store, clock: ManualClock) -> None:
    """It goes with the history of its slots; its jobs stay and run."""
    schedule = add(store)
    to_next(store, clock)
    fire(store, schedule)
    store.write(lambda c: schedules.remove(c, schedules.locked(c, "nightly"))).result()
    assert fire(store, schedule) == []
    assert [job.status for job in store.jobs()] == ["pending"]


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"cron": "61 * * * *"}, ScheduleInvalid),
        ({"timezone": "Mars"}, ScheduleInvalid),
        ({"overlap": "both"}, ScheduleInvalid),
        ({"missed": "some"}, ScheduleInvalid),
        ({"jitter_s": -1}, ScheduleInvalid),
        ({"jitter_s": 60}, ScheduleInvalid),
        ({"job": JobOptions(priority=11)}, ScheduleInvalid),
        ({"job": JobOptions(max_attempts=0)}, ScheduleInvalid),
        ({"job": JobOptions(slot_field="at"), "input": []}, ScheduleInvalid),
        ({"input": None}, PayloadInvalid),
        ({"input": {"n": 2**60}}, PayloadInvalid),
        ({"input": {"password": "correct horse"}}, SecretInPayload),
    ],
)
def test_what_cannot_be_used_is_refused(change: dict[str, Any], kind: type[Exception]) -> None:
    """Each part is looked at before it is stored; a jitter must be shorter than the time between slots."""
    with pytest.raises(kind):
        replace(EACH_MINUTE, **change).check()


# ---- those of a file


def take_over(store: Store, origin: str = "file:a", **sections: Definition) -> list[tuple[str, str]]:
    """What a start with a file that has these schedules does."""
    given = {name: ("default", True, definition) for name, definition in sections.items()}
    return store.write(partial(schedules.take_over, sections=given, origin=origin, now=store.clock.now_ms())).result()


def test_a_file_is_taken_over(store: Store, clock: ManualClock) -> None:
    """What is new is made, what changed is changed, what is gone is off, what comes back is on; once is enough."""
    assert take_over(store, nightly=EACH_MINUTE, other=EACH_MINUTE) == [("nightly", "added"), ("other", "added")]
    assert take_over(store, nightly=EACH_MINUTE, other=EACH_MINUTE) == []
    changed = replace(EACH_MINUTE, cron="0 0 * * *")
    assert take_over(store, nightly=changed) == [("nightly", "changed"), ("other", "removed")]
    assert now_is(store).definition == changed
    assert (now_is(store).next_slot_at or 0) % DAY_MS == 0
    assert take_over(store, nightly=changed) == []
    assert take_over(store, nightly=changed, other=EACH_MINUTE) == [("other", "changed")]
    assert store.read(partial(schedules.find, given="other")).enabled


def test_a_restart_makes_up_for_what_the_file_missed(store: Store, clock: ManualClock) -> None:
    """Taking over the same times again, or with another input, forgets no slot that is due."""
    take_over(store, nightly=EACH_MINUTE)
    clock.advance(3 * MINUTE_MS)
    take_over(store, nightly=replace(EACH_MINUTE, input={"b": 2}))
    assert outcomes(fire(store, now_is(store))) == ["missed", "missed", "fired"]


def test_a_schedule_a_person_paused_stays_paused(store: Store, clock: ManualClock) -> None:
    """A restart with the file does not switch it on, and says so; a change in the file is taken over all the same."""
    take_over(store, nightly=EACH_MINUTE)
    now = clock.now_ms()
    store.write(lambda c: schedules.switch(c, schedules.locked(c, "nightly"), on=False, now=now)).result()
    assert take_over(store, nightly=EACH_MINUTE) == [("nightly", "paused")]
    changed = replace(EACH_MINUTE, input={"b": 2})
    assert take_over(store, nightly=changed) == [("nightly", "paused"), ("nightly", "changed")]
    assert (now_is(store).enabled, now_is(store).definition.input) == (False, {"b": 2})


def test_another_file_leaves_ours_alone(store: Store) -> None:
    """A start with another file switches off what that file had, not ours; a name that both have is the last one's."""
    take_over(store, nightly=EACH_MINUTE)
    assert take_over(store, "file:b", other=EACH_MINUTE) == [("other", "added")]
    assert now_is(store).enabled
    assert take_over(store, "file:b", nightly=EACH_MINUTE) == [("nightly", "taken over"), ("other", "removed")]
    assert take_over(store, "file:a") == []


def test_retention_takes_old_slots(store: Store, clock: ManualClock) -> None:
    """A slot goes with its job, one without a job after as long as a done job is kept; none runs again."""
    schedule = add(store, replace(EACH_MINUTE, overlap="skip"))
    clock.advance(3 * MINUTE_MS)
    fire(store, schedule)
    settled(store, begin_running(store), Outcome("done"))
    clock.advance(31 * DAY_MS)
    store.prune(retention.Rules())
    assert store.read(lambda c: c.execute(select(schedule_slots)).all()) == []
    assert outcomes(fire(store, schedule))[-1] == "fired"
    assert len(store.jobs()) == 1
