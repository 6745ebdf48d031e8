"""The health of a record: what is counted, what counts as stuck, and the same numbers as metrics; on both databases."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import Connection, insert, update

from everstep.checkpoints import deliveries, effects, health, trigger_events
from everstep.checkpoints.admission import Limits
from everstep.checkpoints.health import Health, examine, first_event_since
from everstep.checkpoints.jobs import Job, transition
from everstep.checkpoints.metrics import exposition
from everstep.checkpoints.policy import JobPolicy
from everstep.checkpoints.reviews import Question
from everstep.checkpoints.schema import agent_jobs, job_events, services, span_destinations
from everstep.checkpoints.sqlite import raw_connection
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock
from everstep.runtime.classify import classify
from everstep.runtime.settle import Outcome
from tests.support.record import begin_effect, begin_running, claim, settled

pytestmark = pytest.mark.both_databases

MINUTE_MS = 60_000


def heartbeat(store: Store, job: Job, lease_ms: int) -> None:
    """Extend the job's lease as its worker does, which is no sign of progress."""
    until = store.clock.now_ms() + lease_ms
    extend = update(agent_jobs).where(agent_jobs.c.id == job.id).values(lease_until=until)
    store.write(lambda connection: connection.execute(extend)).result()


def move(store: Store, job: Job, to: str, **changes: object) -> Job:
    """Move a job, now."""
    now = store.clock.now_ms()
    return store.write(lambda c: transition(c, job, to, now=now, actor="test", reason="test", **changes)).result()


def test_an_empty_record_is_healthy(store: Store, database: str) -> None:
    """Nothing waits, nothing is old, all six states are there with 0, and the size is that of the tables."""
    found = examine(store)
    assert found.jobs == {"pending": 0, "running": 0, "retry": 0, "review": 0, "done": 0, "failed": 0}
    assert (found.due, found.oldest_due_ms, found.oldest_due_job) == (0, None, None)
    assert (found.open_reviews, found.oldest_review_ms, found.unknown_effects) == (0, None, 0)
    assert (found.retries_last_hour, found.lease_expiries_last_hour) == (0, 0)
    assert found.services == {"open": 0, "closed": 0}
    assert found.size > 10_000
    assert (found.log_size is None) == (database == "postgres")
    assert found.at == store.clock.now_ms()


def test_what_may_not_start_is_told_apart(store: Store, clock: ManualClock) -> None:
    """A due job is held while its service is out, its key is taken, or its graph has no place; others are not."""
    for number, policy in enumerate([JobPolicy(services=("api",)), JobPolicy(concurrency_key="shop")]):
        store.enqueue("graph", {"n": number}, policy=policy)
    store.enqueue("other", {"n": 2}, policy=JobPolicy(concurrency_key="shop"))
    clock.advance(MINUTE_MS)
    last, _ = store.enqueue("other", {"n": 3})
    found = examine(store)
    assert (found.due, found.held, found.oldest_free_ms) == (4, 0, MINUTE_MS)
    assert found.oldest_free_job == found.oldest_due_job
    close = update(services).where(services.c.name == "api").values(gate="closed", opens_at=clock.now_ms() + 1)
    store.write(lambda connection: connection.execute(close)).result()
    (running,) = claim(store)
    assert running.concurrency_key == "shop"
    found = examine(store)
    assert (found.due, found.held, found.oldest_due_ms) == (3, 2, MINUTE_MS)
    assert (found.oldest_free_ms, found.oldest_free_job) == (0, last.public_id)
    found = examine(store, Limits(graphs={"graph": 1, "other": 0}))
    assert (found.due, found.held, found.oldest_free_ms, found.oldest_free_job) == (3, 3, None, None)


def test_the_oldest_job_that_is_due_is_named_with_its_age(store: Store, clock: ManualClock) -> None:
    """A job in backoff whose time has come is due as well; one whose time has not is not."""
    first, _ = store.enqueue("graph", {"n": 1})
    (job,) = claim(store)
    move(store, job, "retry", next_run_at=clock.now_ms() + 10 * MINUTE_MS)
    clock.advance(2 * MINUTE_MS)
    second, _ = store.enqueue("graph", {"n": 2})
    clock.advance(3 * MINUTE_MS)
    found = examine(store)
    assert (found.due, found.oldest_due_job, found.oldest_due_ms) == (1, second.public_id, 3 * MINUTE_MS)
    (taken,) = claim(store)
    assert taken.id == second.id
    clock.advance(25 * MINUTE_MS)
    found = examine(store)
    assert (found.due, found.oldest_due_job, found.oldest_due_ms) == (1, first.public_id, 20 * MINUTE_MS)


def test_leases_tell_who_works_and_who_is_gone(store: Store, clock: ManualClock) -> None:
    """Workers with a living lease are counted once each; running jobs whose lease has run out are named."""
    jobs = [store.enqueue("graph", {"n": number}).job for number in range(4)]
    claim(store, "a", lease_ms=10 * MINUTE_MS, limit=2)
    claim(store, "b", lease_ms=10 * MINUTE_MS)
    claim(store, "c", lease_ms=MINUTE_MS)
    assert examine(store).busy_workers == 3
    clock.advance(MINUTE_MS)
    found = examine(store)
    assert (found.busy_workers, found.expired_leases, found.expired_jobs) == (2, 1, (jobs[3].public_id,))
    assert found.lease_expiries_last_hour == 0
    claim(store, "d")
    found = examine(store)
    assert (found.expired_leases, found.lease_expiries_last_hour) == (0, 1)


@pytest.mark.parametrize(("lease_ms", "stuck_after"), [(5 * MINUTE_MS, 60), (10 * MINUTE_MS, 100)])
def test_a_job_is_stuck_that_stores_nothing_for_an_hour_or_ten_leases(
    store: Store, clock: ManualClock, lease_ms: int, stuck_after: int
) -> None:
    """Its lease lives, so nobody takes it over; a step or an effect that is stored starts the time anew."""
    store.enqueue("graph", {})
    job = begin_running(store, lease_ms=lease_ms)
    clock.advance((stuck_after - 1) * MINUTE_MS)
    heartbeat(store, job, lease_ms)
    assert examine(store).stuck == 0
    clock.advance(MINUTE_MS)
    heartbeat(store, job, lease_ms)
    found = examine(store)
    assert (found.stuck, found.stuck_jobs, found.expired_leases) == (1, (job.public_id,), 0)
    effect, _ = begin_effect(store, job)
    now = clock.now_ms()
    store.write(
        lambda c: effects.confirm(c, effect, claim_no=job.claim_no, result=("json", "1"), settled_by="call", now=now)
    ).result()
    assert examine(store).stuck == 0
    clock.advance(stuck_after * MINUTE_MS + lease_ms)
    found = examine(store)
    assert (found.stuck, found.expired_leases) == (0, 1)


def test_questions_and_effects_in_doubt_are_counted(store: Store, clock: ManualClock) -> None:
    """Open reviews with the age of the oldest, and the effects of unfinished jobs that nobody knows of."""
    store.enqueue("graph", {"n": 1})
    store.enqueue("graph", {"n": 2})
    asking = begin_running(store)
    settled(store, asking, Outcome("review", questions=[Question("interrupt", "a", "?")]))
    clock.advance(5 * MINUTE_MS)
    doubting = begin_running(store)
    effect, _ = begin_effect(store, doubting)
    settled(store, doubting, Outcome("effect", effect_key=effect.key))
    clock.advance(MINUTE_MS)
    found = examine(store)
    assert (found.open_reviews, found.oldest_review_ms, found.unknown_effects) == (2, 6 * MINUTE_MS, 1)
    for review in store.reviews():
        store.answer(review.public_id, "reject")
    found = examine(store)
    assert (found.open_reviews, found.oldest_review_ms, found.unknown_effects) == (0, None, 0)


def test_retries_and_vanished_workers_of_the_last_hour_are_counted(store: Store, clock: ManualClock) -> None:
    """What is older than an hour counts no more, and a job that is given up for its dead workers counts."""
    retry = Outcome("error", error=TimeoutError("slow"), verdict=classify(TimeoutError("slow")))
    for number, recent in enumerate((1, 2, 2)):
        store.enqueue("graph", {"n": number})
        assert settled(store, begin_running(store), retry).status == "retry"
        clock.advance(25 * MINUTE_MS)
        found = examine(store)
        assert (found.retries_last_hour, found.jobs["retry"]) == (recent, number + 1)
        store.write(lambda c: c.execute(update(agent_jobs).values(next_run_at=clock.now_ms() + 10**9))).result()
    clock.advance(20 * MINUTE_MS)
    assert examine(store).retries_last_hour == 1
    store.enqueue("graph", {"n": "poison"}, max_attempts=1)
    (job,) = claim(store)
    clock.advance(MINUTE_MS)
    assert claim(store, "another") == []
    assert store.job_by_row(job.id).status == "failed"
    assert examine(store).lease_expiries_last_hour == 1
    clock.advance(health.HOUR_MS)
    assert examine(store).lease_expiries_last_hour == 0


def test_jobs_of_a_worker_that_died_count_each(store: Store, clock: ManualClock) -> None:
    """Of a worker that vanished with several jobs each counts once, also one that waits now to run apart."""
    for number in range(3):
        store.enqueue("graph", {"n": number})
    assert len(claim(store, "host:boot:ns:1:1:a", limit=3)) == 3
    clock.advance(MINUTE_MS)
    claim(store, "host:boot:ns:2:1:b", limit=3, dead_workers=["host:boot:ns:1:1:a"])
    assert examine(store).lease_expiries_last_hour == 3


def test_the_last_hours_events_are_found_among_many(store: Store, clock: ManualClock) -> None:
    """Whatever gaps their numbers have, the first event that is new enough is found."""
    job, _ = store.enqueue("graph", {})
    now = clock.now_ms()

    def event(number: int, at: int) -> dict[str, Any]:
        return {
            "id": number,
            "job_id": job.id,
            "to_status": "retry",
            "claim_no": 0,
            "at": at,
            "actor": "",
            "reason": "",
        }

    rows = [event(10 + 7 * number, now + number) for number in range(200)]
    store.write(lambda c: c.execute(insert(job_events), rows)).result()

    def first(connection: Connection, at: int) -> int:
        found = first_event_since(connection, at)
        newer = [row["id"] for row in rows if row["at"] >= at]
        assert all(number >= found for number in newer)
        return sum(row["id"] >= found for row in rows) - len(newer)

    for at in (now - 5, now + 1, now + 57, now + 199, now + 200):
        assert store.read(lambda connection, at=at: first(connection, at)) == 0


def test_a_log_that_cannot_shrink_is_measured(shared: Store, database: str) -> None:
    """While a reader keeps an old snapshot SQLite's log grows, and the size says so."""
    if database == "postgres":
        assert examine(shared).log_size is None
        return
    with closing(raw_connection(shared.path)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM agent_jobs").fetchone()
        before = examine(shared)
        for number in range(5):
            shared.enqueue("graph", {"text": "x" * 100_000, "n": number})
        after = examine(shared)
    assert (after.log_size or 0) - (before.log_size or 0) > 500_000
    assert after.size - before.size >= (after.log_size or 0) - (before.log_size or 0)


# ---- metrics


def samples(text: str) -> Iterator[tuple[str, float]]:
    """The samples of a text in Prometheus' format, each of a metric that was described before it."""
    described = ""
    for line in text.splitlines():
        if line.startswith("#"):
            assert re.fullmatch(r"# (HELP|TYPE) everstep_[a-z_]+ .+", line), line
            described = line.split()[2]
            continue
        found = re.fullmatch(r'(everstep_[a-z_]+)((?:\{[a-z]+="[a-z]+"\})?) ([0-9]+(?:\.[0-9]+)?)', line)
        assert found is not None, line
        assert found[1] == described
        yield found[1] + found[2], float(found[3])


def test_metrics_have_their_names_and_values(store: Store, clock: ManualClock, database: str) -> None:
    """Each number of the health is one sample with a fixed name; labels have few values, and never an id."""
    now = clock.now_ms()
    for number in range(3):
        store.enqueue("graph", {"n": number})
    settled(store, begin_running(store), Outcome("done", values={}))
    begin_running(store, lease_ms=MINUTE_MS)
    store.write(
        lambda c: c.execute(
            insert(services),
            [
                {"name": name, "gate": gate, "closed_at": now if gate == "closed" else None, "updated_at": now}
                for name, gate in (("api", "closed"), ("other", "closed"), ("well", "open"))
            ],
        )
    ).result()
    telling = {"name": "traces", "delivered": 5, "dropped": 2, "failing_since": now, "updated_at": now}
    store.write(lambda c: c.execute(insert(span_destinations), telling)).result()
    clock.advance(1500)
    text = exposition(examine(store))
    assert text.endswith("\n")
    found = dict(samples(text))
    sizes = {"everstep_record_bytes": found.pop("everstep_record_bytes")}
    if database == "sqlite":
        sizes["everstep_wal_bytes"] = found.pop("everstep_wal_bytes")
    assert all(size > 0 for size in sizes.values())
    assert found == {
        'everstep_jobs{state="pending"}': 1,
        'everstep_jobs{state="running"}': 1,
        'everstep_jobs{state="retry"}': 0,
        'everstep_jobs{state="review"}': 0,
        'everstep_jobs{state="done"}': 1,
        'everstep_jobs{state="failed"}': 0,
        "everstep_due_jobs": 1,
        "everstep_held_jobs": 0,
        "everstep_oldest_due_seconds": 1.5,
        "everstep_busy_workers": 1,
        "everstep_expired_leases": 0,
        "everstep_stuck_jobs": 0,
        'everstep_effects{state="intended"}': 0,
        'everstep_effects{state="confirmed"}': 0,
        'everstep_effects{state="rejected"}': 0,
        'everstep_effects{state="unknown"}': 0,
        "everstep_unknown_effects": 0,
        "everstep_open_reviews": 0,
        "everstep_oldest_review_seconds": 0,
        "everstep_attempts_last_hour": 2,
        "everstep_retries_last_hour": 0,
        "everstep_reviews_last_hour": 0,
        "everstep_done_last_hour": 1,
        "everstep_dead_letters_last_hour": 0,
        "everstep_lease_expiries_last_hour": 0,
        'everstep_services{gate="open"}': 1,
        'everstep_services{gate="closed"}': 2,
        'everstep_service_outage_seconds{service="api"}': 1.5,
        'everstep_service_outage_seconds{service="other"}': 1.5,
        'everstep_service_outage_seconds{service="well"}': 0,
        'everstep_spans_waiting{destination="traces"}': 0,
        'everstep_spans_delivered_total{destination="traces"}': 5,
        'everstep_spans_dropped_total{destination="traces"}': 2,
        'everstep_spans_failing_seconds{destination="traces"}': 1.5,
        "everstep_overdue_schedules": 0,
        "everstep_oldest_provider_task_seconds": 0,
        "everstep_unpolled_provider_tasks": 0,
        "everstep_parked_provider_events": 0,
        "everstep_oldest_parked_event_seconds": 0,
        'everstep_webhooks{state="pending"}': 0,
        'everstep_webhooks{state="dead"}': 0,
    }
    assert text.count("# TYPE") == text.count("# HELP") == len({name.split("{")[0] for name in found}) + len(sizes)


def test_the_look_names_few_jobs(store: Store, clock: ManualClock) -> None:
    """However many jobs lost their worker, their number is exact and only a few are named."""
    for number in range(health.NAMED + 3):
        store.enqueue("graph", {"n": number})
    claim(store, limit=100)
    clock.advance(MINUTE_MS)
    found: Health = examine(store)
    assert (found.expired_leases, len(found.expired_jobs)) == (health.NAMED + 3, health.NAMED)


def test_a_look_changes_nothing(store: Store, tmp_path: Path) -> None:
    """It only reads."""
    store.enqueue("graph", {})
    before = store.commits
    examine(store)
    assert store.commits == before


def test_the_last_hour_is_told_by_where_jobs_came(store: Store, clock: ManualClock) -> None:
    """Attempts, jobs that were done, that asked, and that failed for good, each counted; effects by their state."""
    ends = [Outcome("done", values={}), Outcome("review", questions=[Question("interrupt", "a", "?")])]
    wrong = ValueError("wrong")
    ends.append(Outcome("error", error=wrong, verdict=classify(wrong)))
    for number, end in enumerate(ends):
        store.enqueue("graph", {"n": number})
        job = begin_running(store)
        if end.kind == "review":
            begin_effect(store, job)
        settled(store, job, end)
    found = examine(store)
    hour = (found.attempts_last_hour, found.done_last_hour, found.reviews_last_hour, found.dead_letters_last_hour)
    assert hour == (3, 1, 1, 1)
    assert found.effects == {"intended": 1, "confirmed": 0, "rejected": 0, "unknown": 0}
    clock.advance(health.HOUR_MS)
    found = examine(store)
    assert (found.attempts_last_hour, found.done_last_hour, found.dead_letters_last_hour) == (0, 0, 0)


def test_services_beyond_a_hundred_are_told_together(store: Store, clock: ManualClock) -> None:
    """Of ten thousand services the first hundred have a sample each, the longest outage of the others one."""
    now = clock.now_ms()
    rows = [
        {"name": f"s{number}", "gate": "closed", "closed_at": now - number, "updated_at": now}
        for number in range(10_000)
    ]
    store.write(lambda c: c.execute(insert(services), rows)).result()
    told = [line for line in exposition(examine(store)).splitlines() if line.startswith("everstep_service_outage")]
    assert len(told) == 101
    assert told[99:] == [
        'everstep_service_outage_seconds{service="s99"} 0.099',
        'everstep_service_outage_seconds{service="other"} 9.999',
    ]


def test_odd_names_are_escaped(store: Store, clock: ManualClock) -> None:
    """A name with a quote, a backslash or a line break is one label that a parser reads back."""
    now = clock.now_ms()
    name = 'a"b\\c\nd'
    store.write(lambda c: c.execute(insert(services), {"name": name, "gate": "open", "updated_at": now})).result()
    families = {family.name: family for family in text_string_to_metric_families(exposition(examine(store)))}
    (sample,) = families["everstep_service_outage_seconds"].samples
    assert sample.labels == {"service": name}


def test_webhooks_and_events_are_told(store: Store, clock: ManualClock) -> None:
    """Messages that wait or were given up, events of the last hour by source, and how long their jobs waited."""
    job, _ = store.enqueue("graph", {"n": 1}, webhook="https://example.org/hook")
    kept = {"trigger": "t", "headers": {}, "body": {}, "occurred_at": None}

    def begin(connection: Any) -> None:
        deliveries.queue(connection, job, "https://example.org", {}, now=clock.now_ms())
        for number, source in enumerate(("http", "http", "mail")):
            event, _ = trigger_events.store(connection, **kept, source=source, key=str(number), now=clock.now_ms())
            if source == "http":
                trigger_events.started(connection, event, job.id, claim_no=0, now=clock.now_ms())

    store.write(begin).result()
    clock.advance(2500)
    claim(store)
    lines = exposition(examine(store)).splitlines()
    for line in (
        'everstep_webhooks{state="pending"} 1',
        'everstep_trigger_events_last_hour{source="http",state="started"} 2',
        'everstep_trigger_events_last_hour{source="mail",state="stored"} 1',
        'everstep_trigger_start_mean_last_hour_seconds{source="http"} 2.5',
        'everstep_trigger_start_longest_last_hour_seconds{source="http"} 2.5',
    ):
        assert line in lines
