"""What a provider, or a person, answers to a submission that is not as it should be."""

from __future__ import annotations

from typing import Any

import pytest

from everstep.checkpoints.job import PARKED
from everstep.checkpoints.provider_status import ProviderStatus
from everstep.checkpoints.store import Store
from everstep.errors import ReviewAnswerInvalid
from everstep.nodes.provider import observe_task, submit_task
from everstep.nodes.providers.interface import Submitted
from everstep.nodes.providers.registry import Providers
from tests.support.jobs import Log, chain, result, run, work
from tests.support.paid import PRICE, QUOTE, Scripted, entries, grant
from tests.support.simulated import task

pytestmark = pytest.mark.both_databases


async def ask(_state: Log) -> Log:
    """Submit a film."""
    return {"log": [await submit_task("films", {"prompt": "film"}, key="film", quote=QUOTE)]}


def films(answer: Any) -> Providers:
    """A provider that answers to a submission as it is told to."""
    provider = Scripted()

    async def submit(request: Any, *, key: str) -> Submitted:
        del request, key
        if isinstance(answer, Exception):
            raise answer
        return answer()

    provider.submit = submit  # type: ignore[method-assign]
    return Providers.of(provider)


def test_an_end_in_the_answer_is_the_tasks_whatever_id_it_calls(store: Store) -> None:
    """The answer's own id of the work may be of another kind than the one it is asked for by."""
    grant(store, "default")
    done = ProviderStatus("succeeded", "internal-7", result={"url": "https://example.org"})
    job = run(store, chain(ask), providers=films(lambda: Submitted("film-1", done)))
    (seen,) = result(store, job)
    assert (seen["state"], seen["result"], task(store).provider_task_id) == ("succeeded", done.result, "film-1")
    assert store.evidence(job) == []


@pytest.mark.parametrize("odd", ["", "a\0b", "a\ud800b"], ids=["empty", "nul", "half"])
def test_an_answer_with_an_id_that_is_none_leaves_it_unknown(store: Store, odd: str) -> None:
    """The provider took it and told no id that could be kept: a person finds out, nothing is submitted or refunded."""
    grant(store, "default")
    job = run(store, chain(ask), providers=films(lambda: Submitted(odd)))
    assert (store.job(job.public_id).status, task(store).state) == ("review", "submission_unknown")
    assert entries(store, task(store)) == [("charge", -PRICE)]
    (review,) = store.reviews()
    assert review.kind == "effect"


@pytest.mark.parametrize(
    ("said", "known"),
    [
        (17, "17"),
        ({"provider_task_id": 17}, "17"),
        ({"provider_task_id": "film-1"}, "film-1"),
        ({"id": "film-1"}, None),
        ({"provider_task_id": ""}, None),
        ("a\0b", None),
        (True, None),
    ],
)
def test_what_a_person_says_of_an_unknown_submission(store: Store, said: Any, known: str | None) -> None:
    """An id, as text or number, alone or by name; an approval that tells none is refused, and the question stays."""
    grant(store, "default")
    providers = films(ConnectionResetError("lost"))
    run(store, chain(ask), providers=providers)
    (review,) = store.reviews()
    if known is not None:
        store.answer(review.public_id, "approve", value=said)
        work(store, chain(ask), providers=providers)
        assert (task(store).state, task(store).provider_task_id) == ("pending", known)
        return
    with pytest.raises(ReviewAnswerInvalid, match="under which id"):
        store.answer(review.public_id, "approve", value=said)
    work(store, chain(ask), providers=providers)
    assert store.reviews() == [review]
    assert (task(store).state, task(store).provider_task_id) == ("submission_unknown", None)
    assert entries(store, task(store)) == [("charge", -PRICE)]


def test_who_waits_for_a_task_that_a_person_has_to_find_keeps_no_worker_busy(store: Store) -> None:
    """A worker that works until it is idle ends: the other job asks a person, and this one waits for that."""
    grant(store, "default")

    async def watch(state: Log) -> Log:
        return {"log": [await observe_task((state.get("log") or [])[0])]}

    graph, providers = chain(ask, watch), films(ConnectionResetError("lost"))
    first = run(store, graph, providers=providers)
    second, _ = store.enqueue("graph", {"log": []}, key="another")
    work(store, graph, providers=providers)
    assert (store.job(first.public_id).status, store.job(second.public_id).status) == ("review", "pending")
    assert store.job(second.public_id).next_run_at == PARKED
