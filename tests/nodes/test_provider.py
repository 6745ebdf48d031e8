"""Paid work as nodes ask for it, against the simulated provider over real sockets."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from everstep.checkpoints import effects, provider_task
from everstep.checkpoints.store import Store
from everstep.errors import OutsideJob
from everstep.nodes.provider import submit_task, submit_task_sync
from everstep.nodes.providers.registry import Providers
from everstep.runtime.worker import Worker
from examples.provider_simulator.server import Simulator, simulating
from tests.support.jobs import result, run, work
from tests.support.simulated import Kind, asking, simulated, task


@pytest.fixture
def simulator() -> Iterator[Simulator]:
    """A provider that can be made to fail."""
    with simulating() as simulator:
        yield simulator


def made(simulator: Simulator) -> int:
    """How many tasks were made at the provider, over all keys."""
    return sum(simulator.book.made.values())


@pytest.mark.parametrize("sync", [False, True])
def test_a_task_is_submitted_once_and_knows_its_providers_id(store: Store, simulator: Simulator, sync: bool) -> None:
    """A node's submission is one request with the task's own key; the graph sees no id of the provider's."""
    job = run(store, asking({"end": "never"}, sync=sync), providers=simulated(simulator.url))
    (seen,) = result(store, job)
    (there,) = simulator.book.tasks.values()
    row = task(store)
    assert (row.state, row.provider_task_id, row.provider_key) == ("pending", there.id, there.key)
    assert there.id not in str(seen)
    assert (seen["id"], seen["state"], seen["key"]) == (row.public_id, "pending", "film")
    assert row.next_poll_at is not None


@pytest.mark.parametrize("sync", [False, True])
def test_a_request_with_a_credential_is_refused(store: Store, simulator: Simulator, sync: bool) -> None:
    """The record keeps requests, and is no place for it: no task is made, and the error names the place alone."""
    secret = f"sk-proj-{'a1B2' * 12}"
    job = run(store, asking({"api_key": secret}, sync=sync), providers=simulated(simulator.url))
    error = store.job(job.public_id).error_json or ""
    assert '"secret_in_payload"' in error
    assert "$.simulate.api_key" in error
    assert secret not in error
    assert (store.read(provider_task.listed), made(simulator)) == ([], 0)


def test_outside_a_job_there_is_a_clear_error() -> None:
    """Paid work needs the record: a graph that runs by itself is told so."""
    with pytest.raises(OutsideJob, match="submit_task"):
        submit_task_sync("sim", {}, key="film")


async def test_outside_a_job_there_is_a_clear_error_async() -> None:
    """The async form says the same."""
    with pytest.raises(OutsideJob, match="submit_task"):
        await submit_task("sim", {}, key="film")


def test_an_answer_that_was_dropped_is_found_by_our_key(store: Store, simulator: Simulator) -> None:
    """The provider made the task and hung up: asked by our key it tells the id, and nothing is submitted again."""
    result(store, run(store, asking({"drop": "after", "end": "never"}), providers=simulated(simulator.url)))
    assert task(store).state == "pending"
    assert (made(simulator), sum(simulator.book.received.values())) == (1, 1)


def test_a_request_that_never_arrived_is_submitted_again(store: Store, simulator: Simulator) -> None:
    """The provider hung up before it made anything and does not know the key: the next attempt submits, once."""
    job = run(store, asking({"drop": "before", "end": "never"}), providers=simulated(simulator.url, timeout=1.0))
    result(store, job)
    assert (task(store).state, made(simulator)) == ("pending", 1)


def test_a_lost_answer_is_asked_for_with_the_same_key(store: Store) -> None:
    """Where keys are honoured the submission is repeated with the same key, which makes no second task."""
    with simulating(findable=False) as simulator:
        providers = simulated(simulator.url, "idempotent")
        job = run(store, asking({"drop": "after", "end": "never"}), providers=providers)
        result(store, job)
        assert (task(store).state, made(simulator)) == ("pending", 1)
        assert sum(simulator.book.received.values()) == 2


def test_what_nobody_can_tell_is_for_a_person_who_knows_the_id(store: Store) -> None:
    """Neither key nor query: the task is unknown and nothing is submitted again; a person's id brings it on."""
    with simulating(findable=False, idempotent=False) as simulator:
        graph, providers = asking({"drop": "after", "end": "never"}), simulated(simulator.url, "neither")
        job = run(store, graph, providers=providers)
        assert (store.job(job.public_id).status, task(store).state) == ("review", "submission_unknown")
        (there,) = simulator.book.tasks.values()
        (review,) = store.reviews()
        store.answer(review.public_id, "approve", value=there.id)
        work(store, graph, providers=providers)
        result(store, job)
        assert (task(store).state, task(store).provider_task_id) == ("pending", there.id)
        assert made(simulator) == 1


def test_what_a_person_says_was_not_accepted_is_submitted_again(store: Store) -> None:
    """Neither key nor query, and the person found nothing there: then, and only then, it is submitted once more."""
    with simulating(findable=False, idempotent=False) as simulator:
        graph, providers = asking({"drop": "before", "end": "never"}), simulated(simulator.url, "neither")
        job = run(store, graph, providers=providers)
        assert (task(store).state, made(simulator)) == ("submission_unknown", 0)
        (review,) = store.reviews()
        store.answer(review.public_id, "reject")
        provider, submit, states = providers.get("sim"), providers.get("sim").submit, list[str]()

        async def noted(request: Any, *, key: str) -> Any:
            states.append(task(store).state)
            return await submit(request, key=key)

        provider.submit = noted  # type: ignore[method-assign]
        work(store, graph, providers=providers)
        result(store, job)
        assert (states, task(store).state, made(simulator)) == (["submitting"], "pending", 1)


def test_a_webhook_that_tells_the_id_settles_a_lost_answer(store: Store) -> None:
    """What a message told meanwhile is taken before a person is asked."""
    from everstep.checkpoints import provider_events
    from everstep.checkpoints.provider_status import ProviderEvent, ProviderStatus

    with simulating(findable=False, idempotent=False) as simulator:
        graph, providers = asking({"drop": "after", "end": "never"}), simulated(simulator.url, "neither")
        job = run(store, graph, providers=providers)
        (there,) = simulator.book.tasks.values()
        event = ProviderEvent("evt_1", ProviderStatus("pending", there.id), there.id, there.key)
        store.write(lambda c: provider_events.take(c, "sim", event, now=store.clock.now_ms())).result()
        (review,) = store.reviews()
        store.answer(review.public_id, "reject")
        work(store, graph, providers=providers)
        result(store, job)
        assert (task(store).state, made(simulator)) == ("pending", 1)


@pytest.mark.parametrize("kind", ["findable", "idempotent"])
def test_a_conflict_over_what_was_not_taken_is_submitted_again(store: Store, simulator: Simulator, kind: Kind) -> None:
    """HTTP 409, and the provider does not have it: the next attempt submits it, once, and no person is asked."""
    graph = asking({"status": 409, "end": "never"})
    job = run(store, graph, providers=simulated(simulator.url, kind, timeout=1.0))
    result(store, job)
    assert (task(store).state, made(simulator), store.reviews()) == ("pending", 1, [])


def test_a_conflict_over_what_was_taken_is_asked_for_by_our_key(store: Store, simulator: Simulator) -> None:
    """HTTP 409 for ever, as to a key that came before: the task is found, also where the key is honoured."""
    providers = simulated(simulator.url, "idempotent")
    providers.get("sim").findable = True
    graph = asking({"status": 409, "status_times": 99, "status_made": True, "end": "never"})
    result(store, run(store, graph, providers=providers))
    assert (task(store).state, made(simulator), store.reviews()) == ("pending", 1, [])


def test_a_conflict_that_nobody_can_be_asked_about_is_for_a_person(store: Store) -> None:
    """HTTP 409, and neither key nor query: the task is unknown, and a person says what became of it."""
    with simulating(findable=False, idempotent=False) as simulator:
        job = run(store, asking({"status": 409, "end": "never"}), providers=simulated(simulator.url, "neither"))
        assert (store.job(job.public_id).status, task(store).state) == ("review", "submission_unknown")
        assert [review.kind for review in store.reviews()] == ["effect"]


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_provider_is_asked_again_later(store: Store, simulator: Simulator, status: int) -> None:
    """429 and 503 say that nothing was taken: the task is created again, and the job's retries go on."""
    states: list[str] = []
    graph = asking({"status": status, "status_times": 1, "retry_after": "7", "end": "never"})
    job, _ = store.enqueue("graph", {"log": []})
    work(
        store,
        graph,
        lambda event, _: states.append(task(store).state) if event in ("retry", "pending") else None,
        providers=simulated(simulator.url, "neither"),
    )
    result(store, job)
    assert states[:1] == ["created"]
    assert (task(store).state, made(simulator)) == ("pending", 1)


def test_a_provider_that_is_away_has_taken_nothing(store: Store) -> None:
    """A refused connection proves that nothing was submitted: the task is created again."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    store.enqueue("graph", {"log": []})
    providers = simulated(f"http://127.0.0.1:{port}", "neither")

    def told(event: str, _job: Any) -> None:
        if event == "retry":
            worker.drain()

    worker = Worker(store, {"graph": asking()}, listener=told, providers=providers)
    worker.run()
    assert task(store).state == "created"


def test_a_500_is_no_proof(store: Store, simulator: Simulator) -> None:
    """The provider failed after it made the task: it is found by its key, and not made again."""
    plan = {"status": 500, "status_times": 1, "status_made": True, "end": "never"}
    result(store, run(store, asking(plan), providers=simulated(simulator.url)))
    assert (task(store).state, made(simulator)) == ("pending", 1)


@pytest.mark.parametrize("status", [400, 401, 404, 422])
def test_a_refused_request_is_a_task_that_failed(store: Store, simulator: Simulator, status: int) -> None:
    """A request that is refused for good ends the task, not the job, and the reason is there."""
    job = run(store, asking({"status": status, "status_times": 9}), providers=simulated(simulator.url))
    (seen,) = result(store, job)
    assert seen["state"] == "failed"
    assert seen["error"]["status"] == status
    assert "as it was told to" in seen["error"]["message"]
    assert (task(store).settled_by, made(simulator)) == ("submit", 0)


def test_a_slow_answer_is_waited_for_only_so_long(store: Store, simulator: Simulator) -> None:
    """An answer that comes too late is lost, and the task is found."""
    plan = {"answer_after": 1.0, "end": "never"}
    job = run(store, asking(plan), providers=simulated(simulator.url, timeout=0.3))
    result(store, job)
    assert (task(store).state, made(simulator)) == ("pending", 1)


def test_one_that_is_not_there_yet_is_looked_for_until_it_could_not_come_any_more(store: Store) -> None:
    """A task that shows up late after a lost answer is found: that it is not there at once is no proof."""
    with simulating() as simulator:
        providers = simulated(simulator.url, timeout=0.3, settle=20.0)
        provider, asked = providers.get("sim"), []
        find = provider.find

        async def late(key: str) -> Any:
            asked.append(key)
            return None if len(asked) < 3 else await find(key)

        provider.find = late  # type: ignore[method-assign]
        result(store, run(store, asking({"drop": "after", "end": "never"}), providers=providers))
        assert (len(asked), made(simulator)) == (3, 1)


def test_an_unknown_provider_is_named(store: Store) -> None:
    """A job that asks for a provider nobody configured waits for a person, who is told the name."""
    job = run(store, asking(), providers=Providers())
    found = store.job(job.public_id)
    assert found.status == "review"
    assert "there is no provider 'sim'" in str(store.reviews()[0].value)


def test_two_jobs_with_one_key_submit_once(store: Store, simulator: Simulator) -> None:
    """The second job gets the first one's task."""
    graph, providers = asking({"end": "never"}), simulated(simulator.url)
    first = run(store, graph, providers=providers)
    second, _ = store.enqueue("graph", {"log": []}, key="another")
    work(store, graph, providers=providers)
    assert result(store, first)[0]["id"] == result(store, second)[0]["id"]
    assert made(simulator) == 1


def test_a_cancelled_call_still_notes_what_the_provider_answered(store: Store, simulator: Simulator) -> None:
    """The answer came after the job was cancelled: the task is known, so it is observed, and can be cancelled there."""
    job, _ = store.enqueue("graph", {"log": []})
    graph = asking({"answer_after": 2.0, "end": "never"})
    providers = simulated(simulator.url)
    provider, submit = providers.get("sim"), providers.get("sim").submit

    async def submit_and_be_cancelled(request: Any, *, key: str) -> Any:
        store.cancel(job.public_id)
        return await submit(request, key=key)

    provider.submit = submit_and_be_cancelled  # type: ignore[method-assign]
    work(store, graph, providers=providers)
    assert store.job(job.public_id).status == "failed"
    assert task(store).provider_task_id == next(iter(simulator.book.tasks))


def test_the_effect_is_settled_with_the_task(store: Store, simulator: Simulator) -> None:
    """What the record's ledger of effects says of a submission is what the task says."""
    job = run(store, asking({"drop": "after", "end": "never"}), providers=simulated(simulator.url))
    (effect,) = store.read(lambda connection: effects.of_job(connection, job.id))
    assert (effect.name, effect.state, effect.settled_by) == ("provider.submit", "confirmed", "probe")
    assert effect.value() == task(store).provider_task_id
