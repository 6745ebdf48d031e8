"""Deaths of workers: who is suspect, who is the culprit, what is counted; on both databases."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from sqlalchemy import update

from everstep.checkpoints import claims, deaths
from everstep.checkpoints.deaths import Death
from everstep.checkpoints.jobs import Job, LostClaim
from everstep.checkpoints.schema import agent_jobs
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock
from everstep.runtime.classify import Verdict
from everstep.runtime.settle import Outcome
from tests.support.record import begin_effect, claim, settled

pytestmark = pytest.mark.both_databases

LEASE = 1000


def held(store: Store, number: int, worker: str = "dead", **more: int) -> list[Job]:
    """So many jobs that a worker runs."""
    for _ in range(number):
        store.enqueue("graph", {"n": len(store.jobs())}, **more)
    return claim(store, worker, limit=number)


def counts(job: Job) -> tuple[int, int, int]:
    """Failures, deaths and suspicion of a job."""
    return job.failures, job.worker_deaths, job.suspect


def progress(store: Store, job: Job) -> None:
    """The job gets further."""
    now = store.clock.now_ms()
    store.write(lambda c: claims.advance(c, job.id, job.claim_no, now=now)).result()


def recorded(store: Store, job: Job, death: Death) -> Job:
    """The job after its worker noted how its process died."""
    now = store.clock.now_ms()
    return store.write(lambda c: deaths.record(c, job, death, now=now, actor="worker")).result()


def test_what_shared_a_dead_worker_is_suspect_and_burns_nothing(store: Store) -> None:
    """All jobs of a dead worker are freed at once, whoever takes one; no failure and no death is counted."""
    held(store, 3)
    assert len(claim(store, "next", dead_workers=["dead"])) == 1
    jobs = store.jobs()
    assert sorted(job.status for job in jobs) == ["pending", "pending", "running"]
    assert {counts(job) for job in jobs} == {(0, 0, 1)}
    kept = [detail["detail"] for job in jobs for detail in store.evidence(job)]
    assert [(death["worker"], death["beside"]) for death in kept] == [("dead", 2)] * 3
    assert len(claim(store, "next", limit=9)) == 2


def test_a_job_alone_in_its_worker_is_the_culprit(store: Store) -> None:
    """A death that can only be the job's own is counted, until `max_attempts` of them in a row; failures stay."""
    held(store, 1, max_attempts=2)
    (again,) = claim(store, "next", dead_workers=["dead"])
    assert counts(again) == (0, 1, 0)
    assert deaths.degree(again) == 1
    assert claim(store, "third", dead_workers=["next"]) == []
    (job,) = store.jobs()
    error = json.loads(job.error_json or "")
    assert (job.status, error["code"], error["deaths"]) == ("failed", "worker_died", 2)
    redriven = store.redrive(job.public_id)
    assert counts(redriven) == (0, 0, 1), "it runs apart, with a new count"


def test_progress_starts_a_new_count_of_deaths(store: Store) -> None:
    """A job that gets further between the deaths of its workers is not given up."""
    held(store, 1, max_attempts=2)
    workers = ["dead", "b", "c", "d"]
    for before, worker in pairwise(workers):
        (job,) = claim(store, worker, dead_workers=[before])
        assert counts(job) == (0, 1, 0)
        progress(store, job)


def test_a_failure_after_progress_forgets_the_deaths_before(store: Store) -> None:
    """Deaths and failures are each counted in a row; progress ends both rows."""
    held(store, 1)
    (job,) = claim(store, "b", dead_workers=["dead"])
    progress(store, job)
    error = Outcome("error", error=TimeoutError("x"), verdict=Verdict("retry", None, False, "why", "rule"))
    assert counts(settled(store, store.job_by_row(job.id), error)) == (1, 0, 0)


def test_a_worker_that_never_heard_of_its_claim_has_not_died(store: Store, clock: ManualClock) -> None:
    """A claim whose answer was lost ends with its lease; the worker that made it takes the job, and nothing counts."""
    held(store, 2, worker="living")
    clock.advance(300_001)
    again = claim(store, "living", limit=2)
    assert [counts(job) for job in again] == [(0, 0, 0), (0, 0, 0)]
    assert [job.claim_no for job in again] == [2, 2]


def test_a_restarted_machine_explains_a_death(store: Store) -> None:
    """What ran on a machine that lost its power is taken over as it is: nobody is suspect, nothing is counted."""
    held(store, 2)
    taken = claim(store, "next", limit=2, dead_workers=["dead"], rebooted=["dead"])
    assert [counts(job) for job in taken] == [(0, 0, 0)] * 2
    assert store.evidence(taken[0]) == []


def test_living_jobs_of_a_worker_are_left_to_it(store: Store, clock: ManualClock) -> None:
    """One job whose lease ran out frees no other job of its worker, whose leases it still keeps."""
    kept, lost = held(store, 2)
    clock.advance(LEASE - 1)
    now = clock.now_ms()
    store.write(lambda c: claims.heartbeat(c, now=now, worker="dead", lease_ms=LEASE, running=[kept.id])).result()
    clock.advance(1)
    (taken,) = claim(store, "next", limit=9)
    assert (taken.id, counts(taken)) == (lost.id, (0, 0, 1))
    assert store.job_by_row(kept.id) == kept.__class__(**{**kept.__dict__, "lease_until": now + LEASE})


def test_a_leg_that_ends_clears_its_job(store: Store) -> None:
    """A suspect whose leg ended, in whatever way, is none any more; one that is only given back is one still."""
    held(store, 3)
    first, second, third = claim(store, "next", limit=3, dead_workers=["dead"])
    assert counts(settled(store, first, Outcome("released"))) == (0, 0, 1)
    assert counts(settled(store, third, Outcome("parked"))) == (0, 0, 0)
    error = Outcome("error", error=TimeoutError("x"), verdict=Verdict("retry", None, False, "why", "rule"))
    assert counts(settled(store, second, error)) == (1, 0, 0)


def test_processes_of_one_worker_die_together(store: Store) -> None:
    """Isolated jobs whose worker died with them are suspects again, of the next degree; no death is their own."""
    jobs = held(store, 2, "dead")
    now = store.clock.now_ms()
    parts = [f"dead/{job.id}" for job in jobs]
    for job, part in zip(jobs, parts, strict=True):
        passed = {"holder": "dead", "to": part, "now": now, "lease_ms": LEASE}
        store.write(lambda c, job=job, passed=passed: claims.hand_over(c, job.id, job.claim_no, **passed)).result()
    taken = claim(store, "dead-too", limit=2, dead_workers=parts)
    assert [counts(job) for job in taken] == [(0, 0, 1)] * 2
    (alone,) = claim(store, "third", limit=2, dead_workers=["dead-too"])
    assert deaths.degree(alone) == deaths.ALONE
    assert claim(store, "third", limit=1, running=[alone.id]) == [], "it waits until nothing else runs"
    assert len(claim(store, "fourth", limit=1)) == 1


def test_a_suspect_waits_for_an_idle_worker_and_nothing_overtakes_it(store: Store) -> None:
    """Where suspects need the worker for themselves, the one whose turn it is goes next, and alone."""
    held(store, 2)
    other = store.enqueue("graph", {"n": "other"}, priority=0).job
    assert claim(store, "next", limit=9, running=[10**6], dead_workers=["dead"], alone_from=1) == []
    assert len(claim(store, "next", limit=9, alone_from=1)) == 1
    assert len(claim(store, "b", limit=9, alone_from=1)) == 1
    assert [job.id for job in claim(store, "c", limit=9, alone_from=1)] == [other.id]


def test_a_worker_notes_how_a_process_died(store: Store) -> None:
    """The evidence names signal, exit code, step and memory; the job goes on at once, and fails at the last death."""
    (job,) = held(store, 1, max_attempts=2)
    death = Death("worker", "was killed by SIGSEGV", signal="SIGSEGV", peak_memory_bytes=10**8)
    after = recorded(store, job, death)
    assert (after.status, counts(after), after.next_run_at) == ("pending", (0, 1, 0), store.clock.now_ms())
    with pytest.raises(LostClaim):
        recorded(store, job, death)
    (job,) = claim(store, "worker")
    failed = recorded(store, job, death)
    error = json.loads(failed.error_json or "")
    assert failed.status == "failed"
    expected = {"code": "worker_died", "signal": "SIGSEGV", "peak_memory_bytes": 10**8, "deaths": 2, "step": 0}
    assert {name: error.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("known", "advice"),
    [
        (
            {"how": "was killed by SIGKILL", "signal": "SIGKILL"},
            "find who sent SIGKILL: the kernel when memory is short",
        ),
        ({"how": "was killed by SIGSEGV", "signal": "SIGSEGV"}, "find the native code that ends in SIGSEGV"),
        ({"how": "was killed by SIGTERM", "signal": "SIGTERM"}, "find who sent SIGTERM; then"),
        ({"how": "gave no sign of life for 30 s", "signal": "SIGKILL"}, "find what ends or blocks the process; then"),
        ({"how": "was ended by KeyboardInterrupt (a.py:1 f)", "signal": "SIGINT"}, "raise an ordinary error there"),
        ({"how": "exited with code 9", "exit_code": 9}, "find what ends the process (os._exit"),
        ({}, "find what ends or blocks the process; then"),
    ],
    ids=["killed", "fault", "signal", "silent", "raised", "code", "unknown"],
)
def test_what_is_said_of_the_last_death(store: Store, known: dict[str, str], advice: str) -> None:
    """The error says once what died, how, where and which death it was, and where to look; history says the same."""
    (job,) = held(store, 1, max_attempts=1)
    progress(store, job)
    failed = recorded(store, job, Death("worker", **known))
    error, how = json.loads(failed.error_json or ""), known.get("how", "is gone")
    assert error["message"] == f"its process {how} at step {failed.step} (death 1 of 1 in a row without progress)"
    assert store.events(failed)[-1]["reason"] == error["message"]
    assert error["next_step"].startswith(advice)
    assert error["next_step"].endswith(f"then: everstep retry {job.public_id}")


def test_what_is_said_of_those_beside_it(store: Store) -> None:
    """One job beside another is one job; a worker that held but one is not called the job's process."""
    held(store, 2)
    claim(store, "next", limit=9, dead_workers=["dead"])
    reasons = [event["reason"] for job in store.jobs() for event in store.events(job)]
    assert any("with 1 other job: " in reason for reason in reasons), reasons
    alone = store.enqueue("graph", {"n": "alone"}, max_attempts=1).job
    claim(store, "gone", limit=1)
    claim(store, "next", limit=1, dead_workers=["gone"])
    error = json.loads(store.job(alone.public_id).error_json or "")
    assert error["message"].startswith("its worker is gone at step 0 (death 1 of 1")


def test_a_death_with_an_effect_in_doubt_asks_at_the_last(store: Store) -> None:
    """A culprit is only given up when nothing of it is in doubt; a person says first what became of its effect."""
    (job,) = held(store, 1, max_attempts=1)
    progress(store, job)
    begin_effect(store, job)
    assert recorded(store, job, Death("worker")).status == "review"


def test_a_cancelled_job_whose_process_died_ends(store: Store) -> None:
    """A request to cancel is met by the death of the process, without a count; for bystanders as well."""
    first, second = held(store, 2)
    store.cancel(first.public_id)
    store.cancel(second.public_id)
    assert claim(store, "next", limit=9, dead_workers=["dead"]) == []
    assert {job.status for job in store.jobs()} == {"failed"}
    assert {counts(job) for job in store.jobs()} == {(0, 0, 0)}


def test_a_claim_that_is_lost_cannot_be_handed_over(store: Store, clock: ManualClock) -> None:
    """A process that comes late gets no claim that was taken over meanwhile."""
    (job,) = held(store, 1)
    clock.advance(LEASE)
    claim(store, "other")
    late = {"holder": "dead", "to": "dead/1", "now": clock.now_ms(), "lease_ms": LEASE}
    with pytest.raises(LostClaim):
        store.write(lambda c: claims.hand_over(c, job.id, job.claim_no, **late)).result()
    assert store.job_by_row(job.id).leased_by == "other"


def test_many_workers_find_the_same_death_at_once(shared: Store) -> None:
    """Whoever comes first judges a dead worker's jobs together; those who come at the same time judge none alone."""
    held(shared, 8)
    start = threading.Barrier(4)

    def take(worker: str) -> None:
        with Store.open(shared.url) as own:
            start.wait()
            while claim(own, worker, limit=1, lease_ms=60_000, dead_workers=["dead"]):
                pass

    with ThreadPoolExecutor(4) as threads:
        for taken in [threads.submit(take, f"worker {number}") for number in range(4)]:
            taken.result()
    assert {job.status for job in shared.jobs()} == {"running"}
    assert {counts(job) for job in shared.jobs()} == {(0, 0, 1)}


def test_leases_that_end_a_moment_apart_are_judged_together(store: Store, clock: ManualClock) -> None:
    """A look between the two would take the second job for one that died alone."""
    first, second = held(store, 2)
    clock.advance(100)
    now = clock.now_ms()
    store.write(lambda c: claims.heartbeat(c, now=now, worker="dead", lease_ms=LEASE, running=[second.id])).result()
    clock.advance(LEASE - 100)
    assert claim(store, "next", limit=9) == []
    clock.advance(100)
    taken = claim(store, "next", limit=9)
    assert {job.id for job in taken} == {first.id, second.id}
    assert [counts(job) for job in taken] == [(0, 0, 1)] * 2


def test_a_suspect_that_must_run_alone_holds_up_others_for_ten_minutes(store: Store, clock: ManualClock) -> None:
    """A worker with a job of days keeps the suspect waiting, but not all that comes behind it."""
    (busy,) = held(store, 1)
    suspect = store.enqueue("graph", {"who": "suspect"}, priority=10).job
    store.write(lambda c: c.execute(update(agent_jobs).where(agent_jobs.c.id == suspect.id).values(suspect=2))).result()
    behind = store.enqueue("graph", {"who": "behind"}).job
    assert claim(store, "dead", running=[busy.id]) == []
    clock.advance(claims.HOLD_UP_MS)
    assert [job.id for job in claim(store, "dead", running=[busy.id])] == [behind.id]
