"""Pages of the event log: bounded in rows and in bytes, however large what a graph emits is."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

import pytest
from sqlalchemy import Connection

from everstep.checkpoints import conversations, events, job_log, jobs, runs, stream_readers
from everstep.checkpoints.events import Emitted, Event
from everstep.checkpoints.job_log import START, Entry
from everstep.checkpoints.runs import Run, RunRequest
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock

pytestmark = pytest.mark.both_databases
THREAD = "0197a000-0000-7000-8000-000000000001"
LARGE = events.PAGE_BYTES // 3 + 1


@pytest.fixture
def run(store: Store) -> Run:
    """A run that has emitted: one event that is larger than a page, then ten of which three are more than one."""
    now = store.clock.now_ms()

    def begin(connection: Connection) -> Run:
        thread = conversations.ensure(connection, THREAD, owner="default", now=now)
        request = RunRequest(graph="graph", assistant_id="graph", input={})
        return runs.create(connection, request, thread_id=thread.thread_id, owner="default", now=now, actor="test")

    run = store.write(begin).result()
    emitted = [Emitted("custom", json.dumps("x" * size)) for size in (2 * events.PAGE_BYTES, *[LARGE] * 10)]
    store.write(
        lambda c: events.append(
            c, emitted, job_id=run.job_id, run_id=run.run_id, thread_id=run.thread_id, claim_no=1, now=now
        )
    ).result()
    return run


def pages(read: Callable[[int], list[Event]]) -> list[list[int]]:
    """The ids of all pages, one after another."""
    found: list[list[int]] = []
    while page := read(found[-1][-1] if found else 0):
        found.append([event.id for event in page])
    return found


def test_a_page_ends_with_the_event_that_fills_it(store: Store, run: Run) -> None:
    """Pages follow each other without a gap; none has more rows or more bytes than it may, but for its last event."""
    of_run = pages(lambda after: store.read(lambda c: events.of_run(c, run.run_id, after=after)))
    assert [len(page) for page in of_run] == [1, 3, 3, 3, 1]
    assert [number for page in of_run for number in page] == list(range(of_run[0][0], of_run[0][0] + 11))
    assert pages(lambda after: store.read(lambda c: events.of_thread(c, THREAD, after=after))) == of_run
    by_rows = pages(lambda after: store.read(lambda c: events.of_run(c, run.run_id, after=after, limit=2)))
    assert [len(page) for page in by_rows] == [1, 2, 2, 2, 2, 2]


def test_a_jobs_log_is_whole_in_pages_of_bytes(store: Store, run: Run) -> None:
    """A job's log is read to its end page by page: every event once, and its changes of status in their place."""
    job = store.read(lambda c: jobs.get(c, run.job_id))
    whole: list[Entry] = []
    while page := store.read(partial(job_log.read, job=job, after=whole[-1].place if whole else START)):
        assert sum(entry.name == "custom" for entry in page) <= 3
        whole += page
    assert [entry.name for entry in whole] == ["status", *["custom"] * 11]


def test_the_slowest_reader_counts_until_it_leaves_or_is_heard_of_no_more(
    store: Store, run: Run, clock: ManualClock
) -> None:
    """What an agent waits for is the least that any reader has taken; one without a sign of life counts no more."""

    def slowest() -> int | None:
        return store.read(lambda c: stream_readers.slowest(c, run.run_id, now=clock.now_ms()))

    def read_to(reader: str, seen: int) -> None:
        now, of = clock.now_ms(), (run.job_id, run.run_id)
        store.write(
            lambda c: stream_readers.read_to(c, reader, job_id=of[0], run_id=of[1], seen=seen, now=now)
        ).result()

    assert slowest() is None
    read_to("quick", 7)
    read_to("slow", 2)
    assert slowest() == 2
    read_to("slow", 5)
    assert slowest() == 5
    clock.advance(stream_readers.LEASE_MS - 1)
    read_to("quick", 8)
    clock.advance(2)
    assert slowest() == 8
    assert store.write(lambda c: stream_readers.forget(c, now=clock.now_ms())).result() == 1
    store.write(lambda c: stream_readers.leave(c, "quick")).result()
    assert slowest() is None
