"""Claims and leases: which job is whose, until when, and what a lost claim may not do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from everstep.checkpoints import claims, effects, jobs, submission
from everstep.checkpoints.jobs import Job, LostClaim
from everstep.checkpoints.schema import agent_jobs
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock
from everstep.runtime.settle import Outcome
from tests.support.record import begin_effect, begin_running, changes_of_status, claim, in_processes, settled, snapshot

pytestmark = pytest.mark.both_databases

LEASE = 1000


def beat(store: Store, worker: str, *running: Job) -> dict[int, tuple[int, bool]]:
    """A heartbeat of a worker that runs these jobs."""
    return store.write(
        lambda c: claims.heartbeat(
            c, now=store.clock.now_ms(), worker=worker, lease_ms=LEASE, running=[job.id for job in running]
        )
    ).result()


# ---- claim and lease


def test_the_most_urgent_then_the_longest_due_is_claimed_first(store: Store, clock: ManualClock) -> None:
    """Jobs are claimed by priority, then by the time they became due, then in the order they came."""
    for name, priority in (("late", 5), ("later", 5), ("low", 0), ("high", 10)):
        store.enqueue("graph", {"name": name}, priority=priority)
        clock.advance(10)
    store.enqueue("graph", {"name": "urgent"}, priority=10)
    order = [job.payload["name"] for _ in range(5) for job in claim(store)]
    assert order == ["high", "urgent", "late", "later", "low"]
    assert claim(store) == []


def test_a_claim_counts_the_start_and_holds_the_job(store: Store, clock: ManualClock) -> None:
    """A claim names the worker, sets the lease, counts the attempt before anything runs, and keeps others off."""
    store.enqueue("graph", {})
    (job,) = claim(store, "a", lease_ms=LEASE)
    assert (job.status, job.leased_by, job.attempts, job.claim_no) == ("running", "a", 1, 1)
    assert job.lease_until == clock.now_ms() + LEASE
    clock.advance(LEASE - 1)
    assert claim(store, "b") == []
    assert changes_of_status(store, job) == [(None, "pending"), ("pending", "running")]


def test_an_expired_lease_is_taken_over_by_a_new_claim(store: Store, clock: ManualClock) -> None:
    """At the moment its lease ends a job can be taken over; the claim number and the attempts grow."""
    store.enqueue("graph", {})
    claim(store, "a", lease_ms=LEASE)
    clock.advance(LEASE)
    (job,) = claim(store, "b", lease_ms=LEASE)
    assert (job.leased_by, job.attempts, job.claim_no) == ("b", 2, 2)
    assert "taken over from a" in store.events(job)[-1]["reason"]


def test_the_jobs_of_a_dead_worker_need_not_wait(store: Store) -> None:
    """A lease whose worker is proven dead is taken over at once; another worker's is not."""
    for number in range(2):
        store.enqueue("graph", {"n": number})
    (first,), (second,) = claim(store, "dead"), claim(store, "alive")
    assert [job.id for job in claim(store, "b", limit=5, dead_workers=["dead"])] == [first.id]
    assert store.job_by_row(second.id).leased_by == "alive"


def test_a_worker_does_not_take_over_from_itself(store: Store, clock: ManualClock) -> None:
    """A worker that was asleep longer than its lease does not claim what it still runs; it extends it."""
    store.enqueue("graph", {})
    (job,) = claim(store, "a")
    clock.advance(10 * LEASE)
    assert claim(store, "a", running=[job.id]) == []
    assert beat(store, "a", job) == {job.id: (1, False)}
    assert claim(store, "b") == []


def test_what_is_settled_but_not_over_hides_nothing(store: Store) -> None:
    """A job that is ready again while its run is not over is passed over, and what is behind it is claimed."""
    for number in range(4):
        store.enqueue("graph", {"n": number})
    runs = claim(store, "a", limit=2)
    for job in runs:
        settled(store, job, Outcome("released"))
    running = [job.id for job in runs]
    assert [job.id for job in claim(store, "a", running=running)] == [running[-1] + 1]
    assert [job.id for job in claim(store, "a", running=running, limit=5)] == [running[-1] + 2]


def test_only_jobs_of_known_graphs_are_claimed(store: Store) -> None:
    """A worker leaves jobs of graphs it does not have for others."""
    store.enqueue("known", {})
    store.enqueue("unknown", {})
    assert [job.graph for job in claim(store, limit=9, graphs=["known"])] == ["known"]
    assert claim(store, limit=9, graphs=[]) == []


def test_a_worker_that_dies_on_the_last_attempt_fails_the_job_with_evidence(store: Store, clock: ManualClock) -> None:
    """A job whose worker vanished on its last allowed attempt goes to failed, and tells worker, step and attempt."""
    store.enqueue("graph", {}, max_attempts=2)
    for number in range(2):
        claim(store, f"killed {number}")
        clock.advance(LEASE)
    assert claim(store, "next") == []
    (job,) = store.jobs()
    error = json.loads(job.error_json or "")
    assert job.status == "failed"
    assert job.leased_by is None
    assert error["code"] == "worker_died"
    assert error["attempt"] == 2
    assert error["worker"] == "killed 1"
    assert changes_of_status(store, job)[-1] == ("running", "failed")


def test_a_late_heartbeat_keeps_a_job_that_nobody_took_over(store: Store, clock: ManualClock) -> None:
    """A lease that ran out may be extended by its holder while nobody has the job; who comes then finds nothing."""
    store.enqueue("graph", {})
    job = begin_running(store, "slow", lease_ms=LEASE)
    clock.advance(10 * LEASE)
    assert beat(store, "slow", job) == {job.id: (job.claim_no, False)}
    assert claim(store, "other") == []
    held = store.job_by_row(job.id)
    assert (held.claim_no, held.leased_by, held.lease_until) == (job.claim_no, "slow", clock.now_ms() + LEASE)
    assert settled(store, job, Outcome("released")).status == "pending"


def test_a_late_heartbeat_brings_nothing_back_that_was_taken_over(store: Store, clock: ManualClock) -> None:
    """A beat that comes after the takeover, also by a worker of the same id, extends no claim but the new one."""
    store.enqueue("graph", {})
    job = begin_running(store, "slow", lease_ms=LEASE)
    clock.advance(10 * LEASE)
    (taken,) = claim(store, "other", lease_ms=LEASE)
    clock.advance(LEASE // 2)
    assert beat(store, "slow", job) == {}
    assert store.job_by_row(job.id) == taken
    with pytest.raises(LostClaim):
        settled(store, job, Outcome("released"))
    clock.advance(10 * LEASE)
    (again,) = claim(store, "slow", lease_ms=LEASE)
    assert beat(store, "slow", job) == {job.id: (again.claim_no, False)}
    with pytest.raises(LostClaim):
        settled(store, job, Outcome("released"))


def test_several_jobs_change_at_once_or_none_does(store: Store, clock: ManualClock) -> None:
    """Each of several jobs gets what it is given, whatever is in it, and its event; if one is lost, none is changed."""
    for number in range(4):
        store.enqueue("graph", {"number": number})
    held = sorted(claim(store, "a", limit=4), key=lambda job: job.id)
    results = ["null", '{"text": "quote \\" and \\\\ and \\u0000 %s :x"}', '"ü 漢 🙂"', "12345678901234567890"]
    reasons = ["finished", "it's", 'he said "no"\n%(x)s', "{}"]

    def change(connection: Any, jobs_held: list[Job]) -> None:
        given = zip(jobs_held, results, reasons, strict=True)
        every = [jobs.Move(job, "done", reason, {"result_json": text}) for job, text, reason in given]
        jobs.transition_all(connection, every, now=clock.now_ms(), actor="a")

    lost = [*held[:3], replace(held[3], claim_no=7)]
    before = snapshot(store)
    with pytest.raises(LostClaim):
        store.carry_out(lambda connection: change(connection, lost))
    assert snapshot(store) == before
    store.carry_out(lambda connection: change(connection, held))
    after = [store.job(job.public_id) for job in held]
    assert [(job.status, job.result_json, job.leased_by, job.lease_until) for job in after] == [
        ("done", text, None, None) for text in results
    ]
    events = [store.events(job)[-1] for job in held]
    assert [(event["from"], event["to"], event["reason"]) for event in events] == [
        ("running", "done", reason) for reason in reasons
    ]


def test_a_heartbeat_extends_what_runs_and_reports_what_is_lost(store: Store, clock: ManualClock) -> None:
    """A beat extends the leases of the jobs a worker runs, reports cancellation requests, and leaves out lost jobs."""
    for number in range(3):
        store.enqueue("graph", {"n": number})
    kept, wished, lost = claim(store, "a", limit=3)
    store.cancel(wished.public_id)
    store.write(
        lambda c: jobs.transition(c, lost, "running", now=0, actor="b", reason="", claim_no=2, leased_by="b")
    ).result()
    clock.advance(LEASE // 2)
    assert beat(store, "a", kept, wished, lost) == {kept.id: (1, False), wished.id: (1, True)}
    assert store.job_by_row(kept.id).lease_until == clock.now_ms() + LEASE


def test_a_job_nobody_runs_any_more_is_not_kept_alive(store: Store, clock: ManualClock) -> None:
    """The lease of a job that its worker could not settle, and no longer runs, expires though the worker lives."""
    store.enqueue("graph", {"n": 1})
    store.enqueue("graph", {"n": 2})
    dropped, kept = claim(store, "a", limit=2)
    clock.advance(LEASE // 2)
    assert beat(store, "a", kept) == {kept.id: (1, False)}
    clock.advance(LEASE // 2)
    assert [job.id for job in claim(store, "b", limit=5)] == [dropped.id]


# ---- a claim that was lost


def test_a_stale_claim_changes_nothing(store: Store, clock: ManualClock) -> None:
    """After a takeover every write of the first worker raises LostClaim, and the record stays as it was."""
    store.enqueue("graph", {})
    zombie = begin_running(store, "a")
    intended, _ = begin_effect(store, zombie)
    clock.advance(LEASE)
    begin_running(store, "b")
    before = snapshot(store)
    now = clock.now_ms()
    late = {
        "advance": lambda c: claims.advance(c, zombie.id, zombie.claim_no, now=now, step=9),
        "fence": lambda c: claims.fence(c, zombie.id, zombie.claim_no),
        "confirm": lambda c: effects.confirm(
            c, intended, claim_no=zombie.claim_no, result=("json", "1"), settled_by="call", now=now
        ),
        "reject": lambda c: effects.reject(
            c, intended, claim_no=zombie.claim_no, settled_by="call", error=None, now=now
        ),
        "fail_to_know": lambda c: effects.fail_to_know(c, intended, claim_no=zombie.claim_no, error="", now=now),
        "call_again": lambda c: effects.call_again(c, intended, claim_no=zombie.claim_no, now=now),
        "begin": lambda c: effects.begin(
            c,
            job_id=zombie.id,
            claim_no=zombie.claim_no,
            key="new",
            name="push",
            arguments_digest="",
            arguments_json="{}",
            now=now,
        ),
        "transition": lambda c: jobs.transition(c, zombie, "done", now=now, actor="a", reason=""),
    }
    for name, operation in late.items():
        with pytest.raises(LostClaim):
            store.write(operation).result()
        assert snapshot(store) == before, name
    for outcome in (Outcome("done", values={}), Outcome("released"), Outcome("cancelled"), Outcome("review")):
        with pytest.raises(LostClaim):
            settled(store, zombie, outcome)
        assert snapshot(store) == before, outcome.kind
    assert beat(store, "a", zombie) == {}


def test_a_settled_claim_changes_nothing(store: Store) -> None:
    """After its job was settled a claim writes nothing more, though nobody else has claimed the job."""
    store.enqueue("graph", {})
    job = begin_running(store)
    settled(store, job, Outcome("done", values={"x": 1}))
    before = snapshot(store)
    with pytest.raises(LostClaim):
        store.write(lambda c: claims.advance(c, job.id, job.claim_no, now=0)).result()
    with pytest.raises(LostClaim):
        settled(store, job, Outcome("done", values={"x": 2}))
    with pytest.raises(LostClaim):
        begin_effect(store, job)
    assert snapshot(store) == before


# ---- many at once


def _claim_all(path: str, results: str, number: int) -> None:
    with Store.open(f"sqlite:///{path}") as store:
        mine: list[int] = []
        while True:
            now = store.clock.now_ms()
            got = store.write(
                lambda c, now=now: claims.claim(c, now=now, worker=f"worker {number}", lease_ms=10**9, limit=3)
            ).result()
            if not got:
                break
            mine += [job.id for job in got]
    (Path(results) / str(number)).write_text(json.dumps(mine))


def test_no_job_is_claimed_twice_and_none_is_lost(tmp_path: Path) -> None:
    """Eight processes empty a queue of 2,000 jobs together: each job is claimed by one of them, once."""
    path = str(tmp_path / "record.db")
    results = tmp_path / "results"
    results.mkdir()
    count = 2000
    with Store.open(f"sqlite:///{path}") as store:
        now = store.clock.now_ms()
        for first in range(0, count, 500):
            store.write(
                lambda c, first=first: [
                    submission.enqueue(
                        c,
                        now=now,
                        graph="graph",
                        payload_json="{}",
                        payload_digest="d",
                        key=str(number),
                        workflow_version="1",
                        priority=number % 11,
                        max_attempts=3,
                        owner="default",
                    )
                    for number in range(first, first + 500)
                ]
            ).result()
    in_processes(_claim_all, [(path, str(results), number) for number in range(8)])
    claimed = [job for file in results.iterdir() for job in json.loads(file.read_text())]
    assert sorted(claimed) == list(range(1, count + 1))
    with Store.open(f"sqlite:///{path}") as store:
        rows = store.read(
            lambda c: c.execute(select(agent_jobs.c.claim_no, agent_jobs.c.attempts, agent_jobs.c.status)).all()
        )
        assert set(map(tuple, rows)) == {(1, 1, "running")}
