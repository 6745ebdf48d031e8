"""Jobs: idempotent enqueue, claims and leases, cancel and redrive, and what a lost claim may not do."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import select

from everstep.checkpoints import claims, effects, jobs, submission
from everstep.checkpoints.jobs import ALLOWED, Job, LostClaim
from everstep.checkpoints.schema import STATUSES, agent_jobs, metadata
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock
from everstep.errors import (
    JobNotFound,
    JobStateConflict,
    KeyConflict,
    PayloadInvalid,
    ReviewAnswered,
    SecretInPayload,
)
from everstep.runtime.settle import Outcome
from tests.support.record import begin_effect, begin_running, claim, in_processes, settled

pytestmark = pytest.mark.both_databases

LEASE = 1000


def beat(store: Store, worker: str, *running: Job) -> dict[int, tuple[int, bool]]:
    """A heartbeat of a worker that runs these jobs."""
    return store.write(
        lambda c: claims.heartbeat(
            c, now=store.clock.now_ms(), worker=worker, lease_ms=LEASE, running=[job.id for job in running]
        )
    ).result()


def snapshot(store: Store) -> list[Any]:
    """Everything the record holds, to see whether anything changed."""
    tables = (*metadata.tables, *store.database.checkpoint_tables)
    return store.read(
        lambda c: [sorted(c.exec_driver_sql(f"SELECT * FROM {table}").fetchall(), key=repr) for table in tables]
    )


def moves(store: Store, job: Job) -> list[tuple[str | None, str]]:
    """The job's changes of status."""
    return [(event["from"], event["to"]) for event in store.events(job)]


# ---- enqueue


def test_the_same_input_is_the_same_job(store: Store) -> None:
    """One input enqueued twice is one job, created the first time only; key order and 1 against 1.0 do not matter."""
    job, created = store.enqueue("graph", {"a": 1, "b": [2]})
    again, created_again = store.enqueue("graph", {"b": [2], "a": 1.0})
    assert (created, created_again) == (True, False)
    assert job == again
    assert len(store.jobs()) == 1
    assert moves(store, job) == [(None, "pending")]


def test_graph_input_and_version_tell_jobs_apart(store: Store) -> None:
    """Another graph, input or workflow version is another job."""
    given = [("one", {"a": 1}, "1"), ("two", {"a": 1}, "1"), ("one", {"a": 2}, "1"), ("one", {"a": 1}, "2")]
    assert all(store.enqueue(graph, input, workflow_version=version).created for graph, input, version in given)
    assert not store.enqueue("one", {"a": 1}, workflow_version="2").created


def test_a_key_used_for_another_payload_shows_the_first_job(store: Store) -> None:
    """Same key and another input or graph is a conflict that names the job that has the key; nothing is stored."""
    first, _ = store.enqueue("graph", {"a": 1}, key="ticket-7")
    assert not store.enqueue("graph", {"a": 1}, key="ticket-7").created
    before = snapshot(store)
    for graph, payload in (("graph", {"a": 2}), ("other", {"a": 1})):
        with pytest.raises(KeyConflict, match=first.public_id) as conflict:
            store.enqueue(graph, payload, key="ticket-7")
        assert conflict.value.ids == {"key": "ticket-7", "job": first.public_id, "status": "pending"}
    assert snapshot(store) == before


@pytest.mark.parametrize(
    ("payload", "more"),
    [
        (None, {}),
        ({"a": float("nan")}, {}),
        ({1: 2}, {}),
        ({"a": 2**60}, {}),
        ({"a": {1, 2}}, {}),
        ({}, {"priority": 11}),
        ({}, {"priority": -1}),
        ({}, {"max_attempts": 0}),
    ],
)
def test_what_has_no_exact_form_or_range_is_refused(store: Store, payload: Any, more: dict[str, Any]) -> None:
    """No input, one without an exact JSON form and a parameter out of range are refused before anything is stored."""
    with pytest.raises(PayloadInvalid):
        store.enqueue("graph", payload, **more)
    assert store.jobs() == []


def test_a_credential_in_the_input_is_refused_by_path(store: Store) -> None:
    """An input with a password is refused by its path, without its value; the caller can insist."""
    with pytest.raises(SecretInPayload) as refused:
        store.enqueue("graph", {"login": {"password": "hunter2"}})
    assert refused.value.ids["paths"] == ["$.login.password"]
    assert "hunter2" not in str(refused.value)
    assert store.jobs() == []
    assert store.enqueue("graph", {"login": {"password": "hunter2"}}, allow_secret_keys=True).created


def _enqueue(path: str, results: str, number: int) -> None:
    with Store.open(f"sqlite:///{path}") as store:
        created = [store.enqueue("graph", {"n": n}, key=f"key {n}").created for n in range(25)]
    (Path(results) / str(number)).write_text(json.dumps(created))


def test_one_of_many_processes_creates_a_job(tmp_path: Path) -> None:
    """Of eight processes that enqueue the same keys at the same time exactly one is told True for each."""
    path = str(tmp_path / "record.db")
    Store.open(f"sqlite:///{path}").close()
    results = tmp_path / "results"
    results.mkdir()
    in_processes(_enqueue, [(path, str(results), number) for number in range(8)])
    told = [json.loads(file.read_text()) for file in results.iterdir()]
    assert [sum(created) for created in zip(*told, strict=True)] == [1] * 25
    with Store.open(f"sqlite:///{path}") as store:
        assert len(store.jobs()) == 25
        assert all(moves(store, job) == [(None, "pending")] for job in store.jobs())


def test_a_job_is_found_by_a_prefix_that_fits_one(store: Store) -> None:
    """A job is found by its id, by a unique beginning of it in any case, and not by one that fits several or none."""
    first, _ = store.enqueue("graph", {"n": 1})
    second, _ = store.enqueue("graph", {"n": 2})
    assert store.job(first.public_id.upper()) == first
    unique = next(n for n in range(36) if first.public_id[:n] != second.public_id[:n])
    assert store.job(first.public_id[:unique]) == first
    for wrong in ("", first.public_id[: unique - 1], "%", "_" * 36, "x", f"{first.public_id[:8]}0", "-", "\0", "é"):
        with pytest.raises(JobNotFound):
            store.job(wrong)


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
    assert moves(store, job) == [(None, "pending"), ("pending", "running")]


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
    assert "killed" in error["message"]
    assert moves(store, job)[-1] == ("running", "failed")


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


# ---- transitions


@pytest.mark.parametrize("start", STATUSES)
@pytest.mark.parametrize("to", STATUSES)
def test_only_the_allowed_transitions_exist(store: Store, start: str, to: str) -> None:
    """Each of the 36 changes of status is either allowed, and leaves an event, or refused, and leaves nothing."""
    store.enqueue("graph", {})
    (row,) = store.jobs()
    store.write(lambda c: c.execute(agent_jobs.update().values(status=start, claim_no=4))).result()
    job = store.job_by_row(row.id)
    before = snapshot(store)

    def change() -> Job:
        return store.write(lambda c: jobs.transition(c, job, to, now=7, actor="me", reason="why")).result()

    if to not in ALLOWED[start]:
        with pytest.raises(JobStateConflict, match=start):
            change()
        assert snapshot(store) == before
        return
    assert change().status == to
    event = store.events(job)[-1]
    assert (event["from"], event["to"], event["actor"], event["reason"]) == (start, to, "me", "why")


def test_what_is_allowed_is_what_the_states_mean() -> None:
    """Done is final, failed is left by a person only, review by an answer only, and only running jobs finish."""
    assert ALLOWED["done"] == frozenset()
    assert ALLOWED["failed"] == {"pending"}
    assert ALLOWED["review"] == {"pending", "failed"}
    assert [status for status in STATUSES if "done" in ALLOWED[status]] == ["running"]
    assert [status for status in STATUSES if "retry" in ALLOWED[status]] == ["running"]
    assert set(ALLOWED) == set(STATUSES)


def test_a_change_by_somebody_who_saw_an_older_job_is_refused(store: Store) -> None:
    """A transition compares status and claim number with what its caller saw, and changes nothing if they differ."""
    store.enqueue("graph", {})
    (seen,) = store.jobs()
    begin_running(store)
    before = snapshot(store)
    with pytest.raises(LostClaim):
        store.write(lambda c: jobs.transition(c, seen, "failed", now=0, actor="me", reason="")).result()
    assert snapshot(store) == before


def test_the_database_itself_refuses_a_status_it_does_not_know(store: Store) -> None:
    """A status outside the six is refused by a constraint, whoever writes it."""
    store.enqueue("graph", {})
    with pytest.raises((sqlite3.IntegrityError, psycopg.IntegrityError), match="ck_agent_jobs_status"):
        store.write(lambda c: c.exec_driver_sql("UPDATE agent_jobs SET status = 'lost'")).result()


# ---- cancel and redrive


@pytest.mark.parametrize("status", ["pending", "retry", "review"])
def test_a_job_nobody_runs_is_cancelled_at_once(store: Store, status: str) -> None:
    """Cancelling a job that waits ends it as failed with code cancelled, and closes its questions."""
    store.enqueue("graph", {})
    if status != "pending":
        begin_running(store)
        store.write(lambda c: c.execute(agent_jobs.update().values(status=status))).result()
    (job,) = store.jobs()
    after = store.cancel(job.public_id, by="ann")
    assert after.status == "failed"
    assert json.loads(after.error_json or "")["code"] == "cancelled"
    assert (store.events(job)[-1]["actor"], store.events(job)[-1]["to"]) == ("ann", "failed")


def test_a_running_job_is_cancelled_by_its_worker(store: Store) -> None:
    """Cancelling a running job is a request: it stays running until its worker acknowledges."""
    store.enqueue("graph", {})
    job = begin_running(store)
    asked = store.cancel(job.public_id)
    assert asked.status == "running"
    assert asked.cancel_requested_at is not None
    assert settled(store, job, Outcome("cancelled")).status == "failed"


@pytest.mark.parametrize("outcome", [Outcome("released"), Outcome("review"), Outcome("effect")])
def test_a_request_to_cancel_wins_over_a_pause(store: Store, outcome: Outcome) -> None:
    """A run that comes to a pause after its cancellation was requested ends as cancelled."""
    store.enqueue("graph", {})
    job = begin_running(store)
    store.cancel(job.public_id)
    assert settled(store, job, outcome).status == "failed"


def test_a_job_that_finished_first_is_done_though_its_cancellation_was_requested(store: Store) -> None:
    """A result that is there is kept: a request that came too late changes nothing."""
    store.enqueue("graph", {})
    job = begin_running(store)
    store.cancel(job.public_id)
    assert settled(store, job, Outcome("done", values={"x": 1})).status == "done"


def test_a_cancelled_job_whose_worker_died_ends_at_takeover(store: Store, clock: ManualClock) -> None:
    """If the worker dies before it acknowledges, whoever finds the expired lease ends the job; it never runs again."""
    store.enqueue("graph", {})
    job = begin_running(store)
    store.cancel(job.public_id)
    clock.advance(LEASE)
    assert claim(store, "b") == []
    assert store.job(job.public_id).status == "failed"


@pytest.mark.parametrize("decision", ["approve", "reject"])
def test_a_job_cancelled_in_mid_effect_waits_for_a_person_and_then_ends(store: Store, decision: str) -> None:
    """With an effect in flight a cancelled job goes to review; after the answer it has failed as cancelled."""
    store.enqueue("graph", {})
    job = begin_running(store)
    begin_effect(store, job)
    store.cancel(job.public_id)
    waiting = settled(store, job, Outcome("cancelled"))
    assert waiting.status == "review"
    assert [effect.state for effect in store.effects(job)] == ["unknown"]
    (review,) = store.reviews()
    assert review.kind == "effect"
    _, ended = store.answer(review.public_id, decision, value="ref" if decision == "approve" else None)
    assert ended.status == "failed"
    assert json.loads(ended.error_json or "")["code"] == "cancelled"
    (effect,) = store.effects(job)
    assert (effect.state, effect.value()) == (("confirmed", "ref") if decision == "approve" else ("rejected", None))
    assert store.reviews() == []


def test_a_cancelled_job_with_two_effects_in_flight_waits_for_both_answers(store: Store) -> None:
    """Each unknown effect of a cancelled job is asked about; the job ends with the last answer."""
    store.enqueue("graph", {})
    job = begin_running(store)
    begin_effect(store, job, "one")
    begin_effect(store, job, "two")
    store.cancel(job.public_id)
    settled(store, job, Outcome("cancelled"))
    first, second = store.reviews()
    assert store.answer(first.public_id, "reject")[1].status == "review"
    assert store.answer(second.public_id, "approve")[1].status == "failed"


def test_cancelling_twice_asks_once(store: Store) -> None:
    """A second request to cancel changes nothing: not the time of the first, nor the questions."""
    store.enqueue("graph", {})
    job = begin_running(store)
    begin_effect(store, job)
    store.cancel(job.public_id)
    settled(store, job, Outcome("cancelled"))
    before = store.job(job.public_id).cancel_requested_at
    assert store.cancel(job.public_id).status == "review"
    assert store.job(job.public_id).cancel_requested_at == before
    assert len(store.reviews()) == 1


@pytest.mark.parametrize("status", ["done", "failed"])
def test_a_job_that_ended_cannot_be_cancelled(store: Store, status: str) -> None:
    """Cancelling a job that has ended is refused and changes nothing."""
    store.enqueue("graph", {})
    job = begin_running(store)
    settled(store, job, Outcome("done", values={}) if status == "done" else Outcome("cancelled"))
    before = snapshot(store)
    with pytest.raises(JobStateConflict, match=status):
        store.cancel(job.public_id)
    assert snapshot(store) == before


def test_a_failed_job_that_is_redriven_gets_its_attempts_back(store: Store, clock: ManualClock) -> None:
    """Redriving a failed job makes it pending now, with its failures forgotten, and forgets the request to cancel."""
    store.enqueue("graph", {})
    job = begin_running(store)
    store.cancel(job.public_id)
    settled(store, job, Outcome("cancelled"))
    clock.advance(5)
    again = store.redrive(job.public_id, by="ann")
    assert (again.status, again.failures, again.cancel_requested_at, again.error_json) == ("pending", 0, None, None)
    assert [found.id for found in claim(store)] == [job.id]


def test_a_job_in_backoff_can_be_told_to_run_now(store: Store, clock: ManualClock) -> None:
    """Redriving a job that waits for its backoff makes it due at once, and does not give it attempts back."""
    store.enqueue("graph", {})
    begin_running(store)
    store.write(
        lambda c: c.execute(agent_jobs.update().values(status="retry", next_run_at=clock.now_ms() + 60_000))
    ).result()
    assert claim(store) == []
    (job,) = store.jobs()
    assert store.redrive(job.public_id).attempts == 1
    assert len(claim(store)) == 1


@pytest.mark.parametrize("status", ["pending", "running", "review", "done"])
def test_only_a_failed_or_waiting_job_is_redriven(store: Store, status: str) -> None:
    """Redriving is refused in the other states, and a job in review points to its questions."""
    store.enqueue("graph", {})
    store.write(lambda c: c.execute(agent_jobs.update().values(status=status))).result()
    (job,) = store.jobs()
    with pytest.raises(JobStateConflict) as refused:
        store.redrive(job.public_id)
    assert ("everstep review" in refused.value.next_step) == (status == "review")
    assert store.job(job.public_id) == job


def test_a_question_of_a_cancelled_job_cannot_be_answered(store: Store) -> None:
    """Once its job has ended a question is closed, and says so to whoever answers it."""
    from everstep.checkpoints.reviews import Question

    store.enqueue("graph", {})
    job = begin_running(store)
    settled(store, job, Outcome("review", questions=[Question("interrupt", "id", "go on?")]))
    (review,) = store.reviews()
    store.cancel(job.public_id)
    with pytest.raises(ReviewAnswered, match="closed"):
        store.answer(review.public_id, "approve")


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
