"""What becomes of a job's paid tasks when a person ends it: withdrawn, cancelled or left alone, and the job ends."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from everstep.checkpoints import cancelled_tasks, provider_task, waits
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock
from everstep.errors import EffectRejected, ProviderTaskConflict
from everstep.nodes.provider import submit_task
from everstep.nodes.providers.interface import Submitted
from everstep.nodes.providers.registry import Providers
from everstep.runtime import task_care
from tests.support.jobs import Log, beside, chain, run, work
from tests.support.paid import PRICE, QUOTE, Scripted, again, entries, grant, task_of
from tests.support.record import claim
from tests.support.simulated import task

pytestmark = pytest.mark.both_databases


async def ask(_state: Log) -> Log:
    """Submit a film."""
    return {"log": [await submit_task("films", {"prompt": "film"}, key="film", quote=QUOTE)]}


def losing() -> Providers:
    """A provider whose answers to submissions are lost."""
    provider = Scripted()

    async def submit(request: Any, *, key: str) -> Submitted:
        raise ConnectionResetError(f"{key} is lost with {request}")

    provider.submit = submit  # type: ignore[method-assign]
    return Providers.of(provider)


def test_all_that_was_not_submitted_is_given_back(store: Store) -> None:
    """However many tasks a job has."""
    job, _ = store.enqueue("graph", {"log": []})
    tasks = [task_of(store, f"film-{number}", to="created", job=job.public_id) for number in range(101)]
    store.cancel(job.public_id)
    assert {again(store, one).state for one in tasks} == {"failed"}
    assert entries(store, tasks[0]) == [("charge", -PRICE), ("refund", PRICE)]


def test_a_job_can_be_ended_though_a_person_gave_the_wrong_id(store: Store) -> None:
    """The id is another task's: that is evidence; the task stays unknown and is not given back, and the job ends."""
    grant(store, "default")
    other = task_of(store, "other", to="pending", owner="default", provider_id="film-1")
    providers = losing()
    job = run(store, chain(ask), providers=providers)
    (review,) = store.reviews()
    store.answer(review.public_id, "approve", value="film-1")
    work(store, chain(ask), providers=providers)
    store.cancel(job.public_id)
    assert store.job(job.public_id).status == "failed"
    (mine,) = [one for one in store.read(provider_task.listed) if one.id != other.id]
    assert (mine.state, entries(store, mine)) == ("submission_unknown", [("charge", -PRICE)])
    assert any(one["detail"].get("what") == "id_of_another" for one in store.evidence(job))


def test_an_id_that_is_another_tasks_is_evidence_though_the_submission_fails(store: Store) -> None:
    """The provider answers a submission with an id it gave before: the job asks a person, who finds out why, once."""
    grant(store, "default")
    other = task_of(store, "other", to="pending", owner="default", provider_id="at-film")
    job = run(store, chain(ask), providers=Providers.of(Scripted()))
    assert store.job(job.public_id).status == "review"
    (kept,) = [one["detail"] for one in store.evidence(job) if one["detail"].get("what") == "id_of_another"]
    assert (kept["other"], kept["source"]) == (other.public_id, "submit")
    (review,) = store.reviews()
    store.answer(review.public_id, "approve")
    work(store, chain(ask), providers=Providers.of(Scripted()))
    assert [one["detail"].get("what") for one in store.evidence(job)].count("id_of_another") == 1


def test_a_refusal_that_its_node_did_not_come_to_note_is_noted(store: Store) -> None:
    """What the submission's effect knows is told to the task before its job ends: it was refused, so it is refunded."""
    grant(store, "default")
    job = run(store, chain(ask), providers=losing())
    store.cancel(job.public_id)
    assert store.job(job.public_id).status == "review", "whether it was submitted is asked first"
    (review,) = store.reviews()
    store.answer(review.public_id, "approve", value={"refused": {"message": "too dark"}})
    assert store.job(job.public_id).status == "failed"
    assert (task(store).state, task(store).error) == ("failed", {"message": "too dark"})
    assert entries(store, task(store)) == [("charge", -PRICE), ("refund", PRICE)]


def test_a_task_that_another_job_waits_for_goes_on_between_its_windows(store: Store, clock: ManualClock) -> None:
    """Its last wait is over and the next one not begun: it lives, and is about to ask again."""
    mine, _ = store.enqueue("graph", {"log": []}, key="mine")
    one = task_of(store, to="pending", job=mine.public_id)
    store.cancel(mine.public_id)
    store.enqueue("graph", {"log": []}, key="another")
    (other,) = claim(store)

    def observe() -> str:
        held: dict[str, Any] = {"job_id": other.id, "claim_no": other.claim_no, "key": "k", "signal": one.signal}
        now = clock.now_ms()
        return store.write(lambda c: waits.begin(c, **held, node=None, until_at=now + 1000, now=now)).result().state

    def is_to_be_cancelled() -> bool:
        return store.read(lambda connection: cancelled_tasks.is_to_be_cancelled(connection, one))

    assert is_to_be_cancelled()
    assert observe() == "open"
    clock.advance(2000)
    assert observe() == "over"
    assert not is_to_be_cancelled()


def test_what_is_on_its_way_cannot_be_withdrawn(store: Store) -> None:
    """Two branches submit with one key; the first is surely refused as the second one's request is sent."""
    grant(store, "default")
    provider, gave_up, tries, refused = Scripted(), asyncio.Event(), list[str](), list[str]()

    async def submit(request: Any, *, key: str) -> Submitted:
        del request
        tries.append(key)
        if len(tries) == 1:
            await asyncio.sleep(0.05)  # the other branch opens the task meanwhile
            raise EffectRejected("no room")
        await gave_up.wait()
        try:
            await task_care.cancel(store, Providers.of(provider), task(store), by="anna")
        except ProviderTaskConflict:
            refused.append(task(store).state)
        return Submitted("film-1")

    async def careless(state: Log) -> Log:
        try:
            return await ask(state)
        except EffectRejected:
            gave_up.set()
            return {"log": []}

    provider.submit = submit  # type: ignore[method-assign]
    run(store, beside(careless, careless), providers=Providers.of(provider))
    assert len(tries) == 2
    assert refused in (["submitting"], ["submission_unknown"])
    assert (task(store).state, entries(store, task(store))) == ("pending", [("charge", -PRICE)])


def test_what_was_lost_is_found_after_its_job_was_cancelled(store: Store) -> None:
    """`link` answers the question and ends the job; the task has its id, is asked for at once, and then cancelled."""
    grant(store, "default")
    job = run(store, chain(ask), providers=losing())
    store.cancel(job.public_id)
    now, lost = store.clock.now_ms(), task(store)
    link = partial(task_care.link, task=lost, provider_task_id="film-1", now=now, by="anna")
    linked = store.write(link).result()
    assert (linked.state, linked.provider_task_id, linked.next_poll_at) == ("pending", "film-1", now)
    assert store.job(job.public_id).status == "failed"
    assert [one.status for one in store.reviews()] == []
    assert store.read(lambda connection: cancelled_tasks.is_to_be_cancelled(connection, linked))
    with pytest.raises(ProviderTaskConflict, match="nobody asks"):
        store.write(link).result()
