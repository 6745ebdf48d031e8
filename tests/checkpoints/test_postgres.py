"""What only a record in PostgreSQL has: a server that may be away, row locks, wake-ups, one clock for many hosts."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection

from everstep.checkpoints import claims, job_statements, jobs
from everstep.checkpoints.postgres import DatabaseClock, Postgres
from everstep.checkpoints.store import Store
from everstep.errors import (
    PayloadInvalid,
    StoreCorrupt,
    StoreNotFound,
    StoreTooNew,
    StoreUnavailable,
    StoreUrlInvalid,
)
from everstep.runtime.worker import Worker
from tests.support.jobs import chain, result, wakes
from tests.support.postgres import empty_database, fresh_postgres
from tests.support.record import claim, in_processes
from tests.support.waiting import PATIENCE, until

TEN_MINUTES_NS = 600 * 1_000_000_000


@pytest.fixture
def empty() -> Iterator[str]:
    """The URL of a database with nothing in it."""
    with empty_database() as url:
        yield url


@pytest.fixture
def store() -> Iterator[Store]:
    """A record, with the server's clock."""
    with fresh_postgres() as store:
        yield store


@pytest.fixture
def beside(store: Store) -> Iterator[Store]:
    """The same record, opened as by another process."""
    with Store.open(store.url) as other:
        yield other


def execute(url: str, statement: str) -> None:
    """Run a statement as an administrator would."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement)  # type: ignore[arg-type]


def cut_off(store: Store) -> None:
    """End every session in the record's database, as a restart of the server does."""
    others = "datname = current_database() AND pid <> pg_backend_pid()"
    execute(store.url, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}")


# ---- opening


def _open(url: str) -> None:
    Store.open(url).close()


def test_processes_that_open_a_new_record_at_once_make_one(empty: str) -> None:
    """Of several processes that find an empty database one migrates it; the others wait and find it done."""
    in_processes(_open, [(empty,)] * 4)
    with Store.open(empty, create=False) as store:
        assert store.missing_tables() == []
        assert store.enqueue("graph", {}).created


def test_what_only_looks_makes_no_record(empty: str) -> None:
    """Without leave to create, an empty database is no record, and stays empty."""
    with pytest.raises(StoreNotFound, match="no record"):
        Store.open(empty, create=False)
    with psycopg.connect(empty) as connection:
        assert connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone() == (0,)


def test_a_database_of_another_program_is_left_alone(empty: str) -> None:
    """Tables of our names that we did not make, or another program's migrations, are refused."""
    execute(empty, "CREATE TABLE reviews (stars integer)")
    with pytest.raises(StoreCorrupt, match="another program"):
        Store.open(empty)
    execute(empty, "DROP TABLE reviews; CREATE TABLE alembic_version (version_num text)")
    execute(empty, "INSERT INTO alembic_version VALUES ('ab12cd34')")
    with pytest.raises(StoreCorrupt, match="another program"):
        Store.open(empty)


def test_a_newer_record_is_refused(store: Store) -> None:
    """A record that a newer Everstep migrated is not touched by this one."""
    execute(store.url, "UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(StoreTooNew, match="9999"):
        Store.open(store.url)


def test_a_server_that_does_not_answer_is_an_error_in_bounded_time() -> None:
    """Nobody listens: the error names the server, without the password, and what to look at."""
    with pytest.raises(StoreUnavailable, match=r"me@127\.0\.0\.1:1/") as refused:
        Store.open("postgresql://me:hunter2@127.0.0.1:1/everstep")
    assert "hunter2" not in str(refused.value)
    assert Postgres("postgresql://host/db")._given["connect_timeout"] == "5"  # pyright: ignore[reportPrivateUsage]
    assert Postgres("postgresql://host/db?connect_timeout=1")._given["connect_timeout"] == "1"  # pyright: ignore[reportPrivateUsage]


def test_a_server_that_says_nothing_is_an_error_in_bounded_time() -> None:
    """Something takes the connection and never answers, as behind a network that swallows: the wait is bounded too."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(StoreUnavailable, match=place) as refused:
            Store.open(f"postgresql://me:hunter2@{place}/everstep?connect_timeout=2")
    assert "hunter2" not in str(refused.value)


def test_records_in_schemas_of_one_database_know_nothing_of_each_other(empty: str) -> None:
    """With a search path of its own in the URL's options, each record has its tables, jobs, workers and threads."""
    execute(empty, "CREATE SCHEMA one; CREATE SCHEMA two")
    urls = [f"{empty}&options=-csearch_path%3D{name}" for name in ("one", "two")]
    with Store.open(urls[0]) as one, Store.open(urls[1]) as two:
        assert (one.missing_tables(), two.missing_tables()) == ([], [])
        job, _ = one.enqueue("graph", {"log": [1]})
        Worker(two, {"graph": chain(lambda _s: {"log": ["two"]})}).run(until_idle=True)
        assert (two.jobs(), one.job(job.public_id).status) == ([], "pending")
        Worker(one, {"graph": chain(lambda _s: {"log": ["one"]})}).run(until_idle=True)
        assert result(one, job) == [1, "one"]
        saver: Any = one.saver_class(one)
        assert saver.get_tuple({"configurable": {"thread_id": job.thread_id}}) is not None
        assert one.read(one.database.size) > two.read(two.database.size) > 0
    with psycopg.connect(empty) as connection:
        assert connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone() == (0,)


def test_a_record_in_postgres_is_no_file(store: Store) -> None:
    """What needs a file says so."""
    with pytest.raises(StoreUrlInvalid, match="is no file"):
        _ = store.path


# ---- the server goes away


def test_a_connection_that_was_lost_while_idle_is_made_anew(store: Store) -> None:
    """After a restart of the server reads, writes and checkpoints go on without a new `Store`, and no write fails."""
    store.enqueue("graph", {"log": []})
    cut_off(store)
    assert store.enqueue("graph", {"log": [2]}).created
    assert len(store.jobs()) == 2
    Worker(store, {"graph": chain(lambda _s: {"log": ["a"]})}).run(until_idle=True)
    cut_off(store)
    (job, *_) = store.jobs()
    saver: Any = store.saver_class(store)
    assert saver.get_tuple({"configurable": {"thread_id": job.thread_id}}) is not None
    assert [job.status for job in store.jobs()] == ["done", "done"]


def test_a_connection_that_is_lost_at_the_commit_is_an_outage(store: Store) -> None:
    """Nobody knows then whether the write happened: it is not made again, and the next one connects anew."""
    calls: list[int] = []

    def operation(connection: Any) -> None:
        calls.append(1)
        connection.exec_driver_sql("SELECT 1")
        cut_off(store)

    with pytest.raises(StoreUnavailable):
        store.write(operation).result()
    assert len(calls) == 1
    assert store.enqueue("graph", {"log": []}).created


def test_a_connection_that_is_lost_again_is_an_outage(store: Store) -> None:
    """A write that loses its connection is made once more, not without end."""
    calls: list[int] = []

    def operation(connection: Any) -> None:
        calls.append(1)
        connection.exec_driver_sql("SELECT 1")
        cut_off(store)
        connection.exec_driver_sql("SELECT 1")

    with pytest.raises(StoreUnavailable):
        store.write(operation).result()
    assert len(calls) == 2
    assert store.enqueue("graph", {"log": []}).created


def test_a_read_cannot_write(store: Store) -> None:
    """Connections for reading refuse to write."""
    with pytest.raises(StoreUnavailable, match="read-only"):
        store.read(lambda c: c.exec_driver_sql("DELETE FROM agent_jobs"))


def test_a_text_that_cannot_be_stored_is_named_as_such(store: Store) -> None:
    """PostgreSQL has no NUL characters in texts; the error says that, and the record goes on."""
    with pytest.raises(PayloadInvalid, match="NUL"):
        store.enqueue("graph", {}, key="a\x00b")
    assert store.enqueue("graph", {"text": "a\x00b"}).job.payload == {"text": "a\x00b"}


# ---- several hosts


def test_a_claim_does_not_wait_for_jobs_another_is_claiming(store: Store, beside: Store) -> None:
    """Jobs that another transaction holds are skipped, not waited for."""
    for number in range(3):
        store.enqueue("graph", {"n": number})
    held, go_on = threading.Event(), threading.Event()

    def slowly(connection: Connection) -> list[jobs.Job]:
        found = claims.claim(connection, now=store.clock.now_ms(), worker="a", lease_ms=60_000, limit=2)
        held.set()
        assert go_on.wait(PATIENCE)
        return found

    claiming = store.write(slowly)
    assert held.wait(PATIENCE)
    others = claim(beside, "b", lease_ms=60_000, limit=3)
    go_on.set()
    assert [job.payload["n"] for job in others] == [2]
    assert [job.payload["n"] for job in claiming.result(PATIENCE)] == [0, 1]


def test_no_job_is_taken_over_between_the_check_of_its_claim_and_the_commit(store: Store, beside: Store) -> None:
    """While a write that found its claim valid is not committed, the job's lease may end, but nobody gets the job."""
    store.enqueue("graph", {})
    (job,) = claim(store, "a", lease_ms=-1)
    held, go_on = threading.Event(), threading.Event()

    def write(connection: Connection) -> None:
        claims.fence(connection, job.id, job.claim_no)
        held.set()
        assert go_on.wait(PATIENCE)

    writing = store.write(write)
    assert held.wait(PATIENCE)
    assert claim(beside, "b") == []
    go_on.set()
    writing.result(PATIENCE)
    assert [taken.id for taken in claim(beside, "b")] == [job.id]


def test_transactions_that_block_each_other_are_run_again(store: Store, beside: Store) -> None:
    """Two writers that lock the same jobs in opposite orders both succeed: the server ends one, and it is repeated."""
    ids = [store.enqueue("graph", {"n": number}).job.id for number in range(2)]
    both_hold_one = threading.Barrier(2)
    tries: list[str] = []

    def locking(name: str, order: list[int]) -> Callable[[Connection], str]:
        def operation(connection: Connection) -> str:
            jobs.lock(connection, order[0])
            if tries.count(name) == 0:
                tries.append(name)
                both_hold_one.wait(PATIENCE)
            else:
                tries.append(name)
            jobs.lock(connection, order[1])
            return name

        return operation

    futures: list[Future[str]] = [store.write(locking("a", ids)), beside.write(locking("b", ids[::-1]))]
    assert [future.result(PATIENCE) for future in futures] == ["a", "b"]
    assert len(tries) == 3


def test_a_new_job_wakes_an_idle_worker(store: Store, beside: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that would not look for an hour starts a job at once that another process enqueued."""
    monkeypatch.setattr(Postgres, "poll_s", 3600.0)
    wakes(store, beside)


@pytest.mark.parametrize("wrong_ns", [TEN_MINUTES_NS, -TEN_MINUTES_NS], ids=["ahead", "behind"])
def test_a_wrong_clock_of_a_worker_decides_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch, wrong_ns: int
) -> None:
    """A host whose clock is ten minutes off takes over no live lease, and leaves no job due in the future."""
    store.enqueue("graph", {"n": 1})
    (job,) = claim(store, "a", lease_ms=300_000)
    right = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: right() + wrong_ns)
    with Store.open(store.url) as host:
        assert claim(host, "b") == []
        host.enqueue("graph", {"n": 2})
        assert [other.payload["n"] for other in claim(host, "b")] == [2]
        assert abs(host.clock.now_ms() - right() // 1_000_000) < 60_000
    assert store.job_by_row(job.id).claim_no == job.claim_no


def test_the_servers_clock_is_asked_again_and_goes_on_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two looks the monotonic clock carries it; a server that is away does not stop it."""
    monotonic = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: monotonic)
    answers: list[int | Exception] = [5_000, psycopg.OperationalError("away"), 90_000]
    asked = threading.Semaphore(0)

    def ask() -> int:
        asked.release()
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    clock = DatabaseClock(ask)
    assert asked.acquire(timeout=PATIENCE)
    monotonic += 2.5
    assert clock.now_ms() == 7_500
    monotonic += 40
    assert clock.now_ms() == 47_500
    assert asked.acquire(timeout=PATIENCE)
    until(lambda: clock.now_ms() and not answers, "the second look")
    until(lambda: clock.now_ms() == 90_000, "what the server said")


def test_a_claim_does_not_read_all_that_waits(store: Store) -> None:
    """Also while the server has no statistics of how many jobs wait, the first come from an index, not from a sort."""
    store.enqueue("graph", {})
    claim(store, "a")
    alike = "payload_digest, payload_json, graph, workflow_version, priority, max_attempts, next_run_at, created_at"
    names = f"public_id, idempotency_key, thread_id, status, updated_at, due_rank, {alike}"
    each = f"SELECT n, n, n, 'pending', n, n, {alike} FROM agent_jobs, generate_series(1, 2000) AS n"
    execute(store.url, f"INSERT INTO agent_jobs ({names}) {each}")
    start = job_statements.start_first(None, 1)._forms["postgresql"]  # pyright: ignore[reportPrivateUsage]
    now = store.clock.now_ms()
    values = start.parameters({"now": now, "leased_by": "a", "lease_until": now, "reason": "claimed", "mine": "{}"})

    def plan(connection: Connection) -> str:
        rows = connection.connection.driver_connection.execute(f"EXPLAIN {start.sql}", values)  # type: ignore[union-attr]
        return "\n".join(str(row[0]) for row in rows)

    told = store.write(plan).result(PATIENCE)
    assert told.count("Index Scan using idx_agent_jobs_rank") >= 2, told  # of what is pending, and of what is retried
    assert "Seq Scan on agent_jobs" not in told, told  # those that are started are few, and found by their ids
