"""Pages of jobs and reviews, and a job's log: whatever comes meanwhile, nothing is missed and nothing comes twice."""

from __future__ import annotations

from typing import Any

import pytest

from everstep.checkpoints import job_log, job_pages, jobs, reviews
from everstep.checkpoints.job_log import START, Place
from everstep.checkpoints.job_pages import JobFilter
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.reviews import Question
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock
from tests.support.record import claim

pytestmark = pytest.mark.both_databases


def made(store: Store, number: int, **more: Any) -> Job:
    """A job of its own."""
    return store.enqueue("graph", {"number": number}, **more).job


def pages(store: Store, wanted: JobFilter, limit: int) -> list[list[int]]:
    """Every page of a list: the numbers of its jobs."""
    found: list[list[int]] = []
    behind: int | None = None
    while True:
        page = store.read(lambda c, behind=behind: job_pages.jobs(c, wanted, behind=behind, limit=limit))
        found.append([job.payload["number"] for job in page.items])
        if page.following is None:
            return found
        behind = page.following


def test_pages_go_from_the_newest_job_to_the_first(store: Store) -> None:
    """The last page says that it is, also when it is full."""
    for number in range(4):
        made(store, number)
    assert pages(store, JobFilter(), 3) == [[3, 2, 1], [0]]
    assert pages(store, JobFilter(), 2) == [[3, 2], [1, 0]]


def test_what_is_made_meanwhile_shifts_no_page(store: Store) -> None:
    """A page begins behind a job, not behind a number of jobs."""
    for number in range(3):
        made(store, number)
    first = store.read(lambda c: job_pages.jobs(c, JobFilter(), behind=None, limit=2))
    made(store, 3)
    second = store.read(lambda c: job_pages.jobs(c, JobFilter(), behind=first.following, limit=2))
    assert [job.payload["number"] for job in (*first.items, *second.items)] == [2, 1, 0]


def test_filters_leave_what_fits_all_of_them(store: Store, clock: ManualClock) -> None:
    """State, graph, owner, thread, key, parent and the time it was made."""
    parent = made(store, 0, owner="anna")
    clock.advance(1000)
    child = made(store, 1, owner="anna", parent=parent.public_id, key="the key")
    store.cancel(made(store, 2, owner="ben").public_id)
    for wanted, numbers in (
        (JobFilter(owner="anna"), [1, 0]),
        (JobFilter(statuses=["failed", "done"]), [2]),
        (JobFilter(graph="another"), []),
        (JobFilter(thread_id=child.thread_id), [1]),
        (JobFilter(key="the key"), [1]),
        (JobFilter(parent_id=parent.id), [1]),
        (JobFilter(since=clock.now_ms()), [2, 1]),
        (JobFilter(until=clock.now_ms(), owner="anna"), [0]),
    ):
        assert pages(store, wanted, 10) == [numbers], wanted


def test_reviews_come_oldest_first_each_with_its_job(store: Store, clock: ManualClock) -> None:
    """Those of one owner, of one job, of a kind, and only the open ones if so wanted."""
    of = {name: made(store, number, owner=name) for number, name in enumerate(("anna", "ben"))}
    asked = [Question("interrupt", "first", 1), Question("policy", "second", {"a": 1})]
    for job in of.values():
        store.write(lambda c, job=job: reviews.open_all(c, job, asked, now=clock.now_ms())).result()
    first = store.reviews(of["anna"])[0]
    store.write(lambda c: reviews.close_all(c, of["ben"].id, now=clock.now_ms())).result()

    def found(**more: Any) -> list[tuple[str, str]]:
        wanted = {"owner": None, "status": None, "kind": None, "job_id": None, "behind": None, "limit": 10, **more}
        page = store.read(lambda c: job_pages.reviews(c, **wanted))
        return [(review.subject, job) for review, job in page.items]

    anna, ben = of["anna"].public_id, of["ben"].public_id
    assert found() == [("first", anna), ("second", anna), ("first", ben), ("second", ben)]
    assert found(status="open") == found(owner="anna") == [("first", anna), ("second", anna)]
    assert found(kind="policy") == [("second", anna), ("second", ben)]
    assert found(job_id=of["ben"].id) == [("first", ben), ("second", ben)]
    assert found(behind=first.id, limit=1) == [("second", anna)]


def test_a_job_is_read_on_from_any_place_of_its_log(store: Store) -> None:
    """Whoever names the last place they saw gets all behind it, once."""
    job = made(store, 0)
    claim(store)
    store.write(lambda c: jobs.transition(c, jobs.get(c, job.id), "retry", now=1, actor="a", reason="later")).result()

    def read(after: Place = START, limit: int = 10) -> list[Any]:
        return store.read(lambda c: job_log.read(c, job, after, limit=limit))

    whole = read()
    assert [entry.data["to"] for entry in whole] == ["pending", "running", "retry"]
    assert [read(entry.place) for entry in whole] == [whole[1:], whole[2:], []]
    assert read(limit=2) == whole[:2]
    newest = store.read(lambda c: job_log.newest(c, [job.id, job.id + 1000]))
    assert newest == {job.id: whole[-1].place.status}


def test_a_place_is_read_back_as_it_was_written() -> None:
    """None at all is the start, and what is no place is told from it."""
    assert job_log.place_of(str(Place(12, 345))) == Place(12, 345)
    assert job_log.place_of(None) == job_log.place_of("") == START
    assert [job_log.place_of(given) for given in ("12", "1-", "-1", "a-b", "1-2-3")] == [None] * 5
