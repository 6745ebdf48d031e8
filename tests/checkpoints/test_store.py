"""`Store`: reads that never write nor wait, writes from many threads and processes, and a clean end."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from everstep.checkpoints.store import Store
from everstep.errors import StoreUnavailable
from tests.support.record import Gate, begin_running, fresh, in_processes
from tests.support.waiting import PATIENCE, Halt


def test_a_read_cannot_write(store: Store) -> None:
    """Connections for reading refuse every change, also LangGraph's."""
    statement = "DELETE FROM job_events"
    store.enqueue("graph", {})
    with pytest.raises(StoreUnavailable, match="read-only"):
        store.read(lambda connection: connection.exec_driver_sql(statement))
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        store.checkpoint_reader.connection.execute(statement)
    assert store.read(lambda c: c.exec_driver_sql("SELECT count(*) FROM job_events").scalar_one()) == 1


def test_a_read_does_not_wait_for_a_write(store: Store) -> None:
    """While a write is under way readers see the record as it was, at once."""
    halt = Halt()

    def slow(connection: Connection) -> None:
        connection.exec_driver_sql("UPDATE agent_jobs SET owner = 'changed'")
        halt.stand()

    job, _ = store.enqueue("graph", {})
    writing = store.write(slow)
    halt.wait_until_reached()
    assert store.job(job.public_id).owner == "default"
    halt.release()
    writing.result(PATIENCE)
    assert store.job(job.public_id).owner == "changed"


async def test_writing_does_not_block_the_event_loop(store: Store) -> None:
    """While the writer is busy the loop goes on; the awaited writes resolve when they are stored."""
    gate = Gate(store)
    writing = [
        asyncio.create_task(store.awrite(lambda c, n=number: c.exec_driver_sql(f"SELECT {n}").scalar_one()))
        for number in range(5)
    ]
    reading = await store.aread(lambda c: c.exec_driver_sql("SELECT 7").scalar_one())
    assert reading == 7
    assert not any(task.done() for task in writing)
    gate.open()
    assert await asyncio.gather(*writing) == [0, 1, 2, 3, 4]
    gate.done.result(PATIENCE)


async def test_a_write_whose_waiter_gave_up_in_the_queue_is_not_made(store: Store) -> None:
    """A task that is cancelled while its write waits takes the write back."""
    gate = Gate(store)
    done: list[int] = []
    waiting = asyncio.create_task(store.awrite(lambda _connection: done.append(1)))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    gate.open()
    gate.done.result(PATIENCE)
    await store.awrite(lambda _connection: None)
    assert done == []


def test_closing_twice_is_safe_and_final(tmp_path: Path) -> None:
    """A record can be closed twice; afterwards nothing more is written, and nothing of it stays open."""
    others = threading.enumerate()
    store = fresh(tmp_path)
    store.enqueue("graph", {})
    store.close()
    store.close()
    with pytest.raises(RuntimeError):
        store.enqueue("graph", {"n": 2})
    assert not [thread for thread in threading.enumerate() if thread not in others and "everstep" in thread.name]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["record.db"]


def test_jobs_are_listed_newest_first_and_by_status(store: Store) -> None:
    """The list has the newest jobs first, at most `limit`, and only of the wanted status."""
    for number in range(5):
        store.enqueue("graph", {"n": number})
    begin_running(store)
    assert [job.payload["n"] for job in store.jobs()] == [4, 3, 2, 1, 0]
    assert [job.payload["n"] for job in store.jobs(limit=2)] == [4, 3]
    assert [job.payload["n"] for job in store.jobs(status="running")] == [0]
    assert store.jobs(status="done") == []


def test_times_are_shown_in_utc(store: Store) -> None:
    """Events carry RFC 3339 times with `Z`, from the record's clock."""
    job, _ = store.enqueue("graph", {})
    assert store.events(job)[0]["at"] == "2027-01-15T08:00:00.000Z"


def _count(path: str, _number: int) -> None:
    with Store.open(f"sqlite:///{path}") as store:

        def add(connection: Connection) -> None:
            old = connection.exec_driver_sql("SELECT n FROM counter").scalar_one()
            connection.exec_driver_sql("UPDATE counter SET n = ?", (old + 1,))

        def work() -> None:
            for _ in range(25):
                store.write(add).result(60)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def test_reading_and_then_writing_never_goes_stale(tmp_path: Path) -> None:
    """Processes and threads that read a number and write it back, plus one, lose no update and never fail."""
    with fresh(tmp_path) as store:
        store.write(lambda c: c.exec_driver_sql("CREATE TABLE counter (n INTEGER)")).result()
        store.write(lambda c: c.exec_driver_sql("INSERT INTO counter VALUES (0)")).result()
        in_processes(_count, [(str(store.path), number) for number in range(4)])
        assert store.read(lambda c: c.exec_driver_sql("SELECT n FROM counter").scalar_one()) == 400


def test_the_log_of_writes_stays_bounded(store: Store) -> None:
    """After many writes the write-ahead log is cut back: it does not grow with the work."""
    for number in range(300):
        store.enqueue("graph", {"n": number, "text": "x" * 10_000})
    log = Path(f"{store.path}-wal").stat().st_size
    assert log < 16 * 2**20


def test_what_a_caller_may_not_know_is_not_in_an_error(store: Store) -> None:
    """Errors of the record name the file and the next step, and no SQL of ours."""
    with pytest.raises(StoreUnavailable) as refused:
        store.read(lambda c: c.exec_driver_sql("DELETE FROM agent_jobs"))
    told: dict[str, Any] = refused.value.as_dict()
    assert str(store.path) in told["message"]
    assert "DELETE" not in told["message"]
