"""Workers that are killed in the middle of a submission, each at a real process's real point."""

from __future__ import annotations

import pytest

from everstep.checkpoints import provider_events
from everstep.checkpoints.provider_status import ProviderEvent, ProviderStatus
from everstep.checkpoints.store import Store
from everstep.clock import SystemClock
from examples.provider_simulator.plans import Plan
from examples.provider_simulator.server import simulating
from tests.support.jobs import result
from tests.support.simulated import Kind, task, work_until_killed

BEFORE = "effect.intended:provider.submit"
AFTER = "provider.submitted:sim"
NOTED = "effect.called:provider.submit"
CONFIRMED = "effect.confirmed:provider.submit"


def begin(store: Store) -> None:
    """Enqueue the job."""
    store.enqueue("graph", {"log": []})


@pytest.mark.parametrize("crash_at", [BEFORE, AFTER, NOTED, CONFIRMED])
@pytest.mark.parametrize("kind", ["findable", "idempotent"])
def test_a_killed_worker_submits_once(shared: Store, kind: Kind, crash_at: str) -> None:
    """Found by our key, or repeated with it: the provider has one task, wherever the first worker died."""
    with simulating(findable=kind == "findable", idempotent=kind == "idempotent") as simulator:
        simulator.book.default = Plan(end="never")
        begin(shared)
        assert work_until_killed(shared.url, simulator.url, kind, crash_at)
        assert not work_until_killed(shared.url, simulator.url, kind, "nowhere")
        (job,) = shared.jobs()
        (seen,) = result(shared, job)
        (there,) = simulator.book.tasks.values()
        assert (seen["state"], task(shared).state, task(shared).provider_task_id) == ("pending", "pending", there.id)
        assert sum(simulator.book.made.values()) == 1


@pytest.mark.parametrize(("crash_at", "made"), [(BEFORE, 0), (AFTER, 1)])
@pytest.mark.parametrize("decision", ["approve", "reject"])
def test_where_nobody_can_tell_a_person_does(shared: Store, crash_at: str, made: int, decision: str) -> None:
    """Neither key nor query: the killed worker's task is unknown until a person names its id, or says it is not there.

    A person who says that it is not there though it is makes a second one; nobody else does.
    """
    with simulating(findable=False, idempotent=False) as simulator:
        simulator.book.default = Plan(end="never")
        begin(shared)
        assert work_until_killed(shared.url, simulator.url, "neither", crash_at)
        assert not work_until_killed(shared.url, simulator.url, "neither", "nowhere")
        assert (task(shared).state, sum(simulator.book.made.values())) == ("submission_unknown", made)
        (review,) = shared.reviews()
        told = next((one.id for one in simulator.book.tasks.values()), "gen_by_telephone")
        shared.answer(review.public_id, decision, **({"value": told} if decision == "approve" else {}))
        assert not work_until_killed(shared.url, simulator.url, "neither", "nowhere")
        (job,) = shared.jobs()
        result(shared, job)
        assert task(shared).state == "pending"
        if decision == "approve":
            assert (task(shared).provider_task_id, sum(simulator.book.made.values())) == (told, made)
        else:
            assert sum(simulator.book.made.values()) == made + 1


@pytest.mark.parametrize("kind", ["findable", "idempotent", "neither"])
def test_one_that_was_noted_needs_nobody(shared: Store, kind: Kind) -> None:
    """The id was noted before the worker died: the task is known, whatever the provider can be asked."""
    with simulating(findable=False, idempotent=False) as simulator:
        simulator.book.default = Plan(end="never")
        begin(shared)
        assert work_until_killed(shared.url, simulator.url, kind, NOTED)
        assert not work_until_killed(shared.url, simulator.url, kind, "nowhere")
        (job,) = shared.jobs()
        result(shared, job)
        assert sum(simulator.book.received.values()) == 1


@pytest.mark.parametrize("kind", ["neither", "idempotent"])
def test_a_message_that_came_while_nobody_lived_is_believed(shared: Store, kind: Kind) -> None:
    """Killed after the provider took it; a message with our key came meanwhile: nobody is asked, nothing repeated."""
    with simulating(findable=False, idempotent=False) as simulator:
        simulator.book.default = Plan(end="never")
        begin(shared)
        assert work_until_killed(shared.url, simulator.url, kind, AFTER)
        (there,) = simulator.book.tasks.values()
        status = ProviderStatus("succeeded", there.id, result={"url": "https://example.org/film"})
        event = ProviderEvent("evt_1", status, there.id, there.key)
        now = SystemClock().now_ms()
        shared.write(lambda connection: provider_events.take(connection, "sim", event, now=now)).result()
        assert not work_until_killed(shared.url, simulator.url, kind, "nowhere")
        (job,) = shared.jobs()
        (seen,) = result(shared, job)
        assert (seen["state"], seen["result"]) == ("succeeded", {"url": "https://example.org/film"})
        assert sum(simulator.book.received.values()) == 1
