"""The shipped graph for paid generations: what is charged, submitted, kept and presented, and what is refused."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
from langgraph.graph import START, StateGraph

from everstep.checkpoints import ledger, paid_view, provider_tasks
from everstep.checkpoints.job import Job
from everstep.checkpoints.store import Store
from everstep.cli.paid import paid_lines
from everstep.graphs.generation import graph
from everstep.graphs.generation_job import Generation, GenerationState
from everstep.graphs.loader import GraphCatalogue
from everstep.nodes.artefacts import FOLDER_VARIABLE
from everstep.runtime.observation import Observation
from everstep.runtime.worker import Worker
from everstep.server.app import create_app
from tests.support.native import asking
from tests.support.prices import price_list
from tests.support.studio import MADE, Studio, balance, granted, providers_with
from tests.support.waiting import until

DIGEST = hashlib.sha256(MADE).hexdigest()
ASKED = {"provider": "studio", "model": "clip-1", "prompt": "after 2", "duration": 4}
PRICE = 40


class Outer(Generation, total=False):
    """What a graph around it is given."""

    colour: str


class Shop:
    """A record with credit, the studio, and a worker when it is wanted."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store = store
        self.studio = Studio()
        self.providers = providers_with(self.studio, price_list(folder))
        granted(store)

    def job(self, **changes: Any) -> Job:
        """A job that was submitted."""
        return self.store.enqueue("generation", {**ASKED, **changes}).job

    def work(self) -> None:
        """Work, and ask the provider, until only a person could go on."""
        Worker(self.store, {"generation": graph}, providers=self.providers).run(until_idle=True)

    def run(self, **changes: Any) -> Job:
        """A job, as it ended."""
        job = self.job(**changes)
        self.work()
        return self.store.job(job.public_id)

    def result(self, job: Job) -> Any:
        """What a job came to."""
        job = self.store.job(job.public_id)
        assert job.status == "done", job.error_json
        return self.view(job)["result"]

    def view(self, job: Job) -> Any:
        """A job as it is shown."""
        from everstep.checkpoints import job_view

        job = self.store.job(job.public_id)
        return {**job_view.of(job), "paid": self.store.read(lambda connection: paid_view.of(connection, job))}

    def submissions(self) -> int:
        """How often the provider took something."""
        return sum(len(requests) for requests in self.studio.submitted.values())


def asked_until(shop: Shop, settled: Callable[[], bool]) -> None:
    """Ask the provider until that is so."""

    async def asking() -> None:
        observation = Observation(shop.store, shop.providers)
        while not settled():
            await observation.until_asked()

    asyncio.run(asyncio.wait_for(asking(), 60))


@pytest.fixture
def shop(shared: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """A shop whose artefacts go to the folder `kept`."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "kept"))
    yield Shop(shared, tmp_path)
    assert shared.read(ledger.mismatches) == []


def test_a_generation_is_charged_submitted_kept_and_presented(shop: Shop, tmp_path: Path) -> None:
    """Once; the provider is told what was left out, and the file is there by its digest."""
    job = shop.run(options={"audio": True})
    result = shop.result(job)
    (artefact,) = result["artefacts"]
    assert (result["outcome"], result["price"], result["charged"], result["refunded"]) == (
        "succeeded",
        "0.50 EUR",
        50,
        0,
    )
    assert (tmp_path / "kept" / artefact["file"]).read_bytes() == MADE
    assert artefact["sha256"] == DIGEST
    assert balance(shop.store) == 950
    ((request,),) = shop.studio.submitted.values()
    whole = {"model": "clip-1", "prompt": "after 2", "duration": 4, "resolution": "720p", "outputs": 1}
    assert request == {**whole, "options": {"audio": True}}


def test_the_users_view_is_rebuilt_from_the_record(shop: Shop) -> None:
    """Request, stage, price, what was charged, artefacts, and nothing of the provider's."""
    job = shop.job()
    assert shop.view(job)["paid"] is None
    shop.work()
    shown = shop.view(job)
    paid = shown["paid"]
    (task,) = paid["tasks"]
    assert (paid["stage"], paid["charged"], paid["refunded"], paid["currency"]) == ("done", PRICE, 0, "EUR")
    assert (paid["price"]["text"], paid["price"]["version"]) == ("0.40 EUR", "2026-11")
    assert paid["request"]["prompt"] == "after 2"
    assert (task["state"], task["progress"], task["generation"]) == ("succeeded", 100, 1)
    assert [artefact["sha256"] for artefact in paid["artefacts"]] == [DIGEST]
    assert "task-of-" not in str(shown)
    assert "secret-of-the-provider" not in str(shown)
    place = {"configurable": {"thread_id": job.thread_id}}
    saved = [state.checkpoint["channel_values"] for state in shop.store.saver_class(shop.store).list(place)]
    assert any(state.get("task") == task["id"] for state in saved)
    assert "secret-of-the-provider" not in str(saved)


async def test_show_and_http_tell_the_same_view(shop: Shop) -> None:
    """A reload of a page, another device and the command line see one and the same."""
    job = await asyncio.to_thread(shop.run)
    paid = shop.view(job)["paid"]
    app = create_app(shop.store, GraphCatalogue.from_graphs({"generation": graph}), providers=shop.providers)
    async with asking(app) as client:
        shown = (await client.get(f"/everstep/jobs/{job.public_id}")).json()
        effects = (await client.get(f"/everstep/jobs/{job.public_id}/effects")).text
    assert shown["paid"] == paid
    assert "provider.submit" in effects
    assert "task-of-" not in effects
    lines = list(paid_lines(paid))
    (task,) = paid["tasks"]
    assert lines[0] == "paid       done; charged 0.40 EUR, refunded 0.00 EUR"
    assert lines[2:] == [
        f"task       {task['id']}  succeeded, 100 % at studio, generation 1",
        f"artefact   {paid['artefacts'][0]['file']}",
    ]


def test_a_failure_is_refunded_and_can_be_tried_again(shop: Shop) -> None:
    """The job is done and says so; generation 2 is a new job that is charged anew, and refused before a failure."""
    first = shop.run(prompt="fail")
    result = shop.result(first)
    assert (result["outcome"], result["charged"], result["refunded"]) == ("failed", PRICE, PRICE)
    assert result["message"] == "the provider could not do it; 0.40 EUR came back"
    assert "generation 2" in result["next_step"]
    assert balance(shop.store) == 1000
    again = shop.run(prompt="fail", generation=2)
    assert shop.result(again)["refunded"] == PRICE
    assert (shop.submissions(), balance(shop.store)) == (2, 1000)
    early = shop.run(prompt="after 1", generation=2)
    assert (early.status, shop.view(early)["error"]["code"]) == ("failed", "generation_refused")


def test_what_the_provider_refuses_is_a_failure_that_is_refunded(shop: Shop) -> None:
    """Nothing was made, nothing stays charged."""
    result = shop.result(shop.run(prompt="refuse"))
    assert (result["outcome"], result["refunded"], balance(shop.store)) == ("failed", PRICE, 1000)


def test_two_jobs_of_one_submission_are_one_task(shop: Shop) -> None:
    """The second pays and submits nothing, and presents the same."""
    jobs = [shop.job(client_price=PRICE), shop.job(client_price=PRICE + 1)]
    shop.work()
    results = [shop.result(job) for job in jobs]
    assert results[0]["artefacts"] == results[1]["artefacts"] != []
    assert (shop.submissions(), balance(shop.store)) == (1, 1000 - PRICE)
    assert [len(shop.view(job)["paid"]["tasks"]) for job in jobs] == [1, 1]


def test_the_clients_price_counts_nothing(shop: Shop) -> None:
    """One that is not the real one is noted as evidence and in the state, and the real one is charged."""
    right, wrong = shop.run(client_price=PRICE), shop.run(client_price=1, prompt="after 1")
    mismatch = {"client_price": 1, "amount": PRICE, "currency": "EUR", "version": "2026-11"}
    noted = [(row["kind"], row["detail"]) for row in shop.store.evidence(wrong)]
    assert noted == [("price", mismatch)]
    assert shop.store.evidence(right) == []
    assert balance(shop.store) == 1000 - 2 * PRICE


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"duration": 3}, "options_invalid"),
    ({"model": "clip-2"}, "options_invalid"),
    ({"provider": "studios"}, "provider_not_found"),
    ({"prompt": " "}, "payload_invalid"),
    ({"generation": 0}, "payload_invalid"),
    ({"window_s": "1"}, "payload_invalid"),
    ({"window_s": 0.001}, "payload_invalid"),
    ({"submission_key": ""}, "payload_invalid"),
    ({"submission_key": "k" * 201}, "payload_invalid"),
    ({"client_price": "40"}, "payload_invalid"),
    ({"client_price": 0.4}, "payload_invalid"),
    ({"client_price": -1}, "payload_invalid"),
    ({"client_price": True}, "payload_invalid"),
]


@pytest.mark.parametrize(("change", "code"), REFUSED)
def test_what_cannot_be_carried_out_ends_before_it_is_charged(shop: Shop, change: dict[str, Any], code: str) -> None:
    """The job has failed and says why, or asks for a provider; nothing was charged or submitted."""
    job = shop.run(**change)
    status = "review" if code == "provider_not_found" else "failed"
    assert (job.status, shop.view(job)["error"]["code"]) == (status, code)
    assert (shop.submissions(), balance(shop.store)) == (0, 1000)


def test_a_field_that_is_none_is_refused_by_its_name(shop: Shop) -> None:
    """It would be ignored, and something else be paid for; the nearest field is named. Limits are told, too."""
    error = shop.view(shop.run(generaton=2, output=4, colour="red"))["error"]
    assert error["code"] == "payload_invalid"
    told = ("generaton (did you mean generation?)", "output (did you mean outputs?)", "colour")
    assert all(one in error["message"] for one in told)
    assert "1 to 200 characters" in shop.view(shop.run(submission_key="k" * 201))["error"]["message"]
    assert (shop.submissions(), balance(shop.store)) == (0, 1000)


def test_inside_another_graph_only_that_graph_knows_what_it_was_given(shop: Shop) -> None:
    """The job's input is the other graph's, and may have any fields."""
    outer = StateGraph(GenerationState, input_schema=Outer).add_node("inner", graph).add_edge(START, "inner").compile()
    job = shop.store.enqueue("outer", {**ASKED, "colour": "red"}).job
    Worker(shop.store, {"outer": outer}, providers=shop.providers).run(until_idle=True)
    assert shop.store.job(job.public_id).status == "done", shop.store.job(job.public_id).error_json
    assert (shop.submissions(), balance(shop.store)) == (1, 1000 - PRICE)


def test_without_credit_nothing_is_submitted(shop: Shop) -> None:
    """The job has failed with the balance and the price; with more credit it goes on where it stopped."""
    job = shop.run(outputs=4, duration=10, resolution="1080p", options={"audio": True})
    assert shop.result(job)["charged"] == 750
    job = shop.run(outputs=4, duration=10)
    error = shop.view(job)["error"]
    assert (job.status, error["code"]) == ("failed", "insufficient_credit")
    assert error["next_step"].endswith(f"--key KEY; then: everstep retry {job.public_id}")
    assert "2.50 EUR; the price is 4.00 EUR" in error["message"]
    assert (shop.submissions(), balance(shop.store)) == (1, 250)
    assert shop.store.read(lambda connection: provider_tasks.listed(connection, job=job.public_id)) == []


def test_a_person_is_asked_when_it_takes_too_long(shop: Shop) -> None:
    """Windows end and begin again; after give_up_after_s a person says whether to go on, and then it is cancelled."""
    job = shop.run(prompt="never", window_s=0.01, give_up_after_s=0.05)
    assert (job.status, shop.view(job)["paid"]["stage"]) == ("review", "asking")
    (question,) = [review for review in shop.store.reviews(job) if review.status == "open"]
    shop.store.answer(question.public_id, decision="approve")
    shop.work()
    (question,) = [review for review in shop.store.reviews(job) if review.status == "open"]
    shop.store.answer(question.public_id, decision="reject", reason="no more")
    shop.work()
    result = shop.result(job)
    assert (result["outcome"], result["refunded"]) == ("failed", PRICE)
    assert (shop.submissions(), balance(shop.store)) == (1, 1000)


def test_what_cannot_be_cancelled_is_given_up_and_settled_later(shop: Shop) -> None:
    """The job is done; the task goes on, and is refunded if it fails."""
    shop.studio.cancels = False
    job = shop.run(prompt="never", window_s=0.01, give_up_after_s=0.02)
    (question,) = [review for review in shop.store.reviews(job) if review.status == "open"]
    shop.store.answer(question.public_id, decision="reject", reason="no more")
    shop.work()
    assert shop.result(job)["outcome"] == "given_up"
    assert balance(shop.store) == 1000 - PRICE
    shop.studio.cancelled |= set(shop.studio.submitted)  # it fails at last

    asked_until(shop, lambda: balance(shop.store) == 1000)
    assert shop.view(job)["paid"]["refunded"] == PRICE


@pytest.mark.parametrize("cancels", [True, False])
def test_a_cancelled_jobs_task_is_cancelled_and_settled_as_what_it_is(shop: Shop, cancels: bool) -> None:
    """The provider is asked once to end it; what it could not end, and made, stays paid."""
    shop.studio.cancels = cancels
    waiting = shop.run(prompt="never", window_s=0.01, give_up_after_s=0.02)
    shop.store.cancel(waiting.public_id)
    job = shop.store.job(waiting.public_id)
    assert (job.status, balance(shop.store)) == ("failed", 1000 - PRICE)
    assert shop.view(job)["paid"]["stage"] == "cancelling"
    (task,) = shop.store.read(provider_tasks.listed)
    asked_until(shop, lambda: any(row["kind"] == "provider" for row in shop.store.evidence(job)))
    if cancels:
        asked_until(shop, lambda: balance(shop.store) == 1000)
        assert shop.view(job)["paid"]["tasks"][0]["state"] == "failed"
        assert shop.view(job)["paid"]["stage"] == "failed"
    else:
        (request,) = next(iter(shop.studio.submitted.values()))
        cast("dict[str, Any]", request)["prompt"] = "after 1"
        asked_until(shop, lambda: shop.store.read(provider_tasks.listed)[0].is_final)
        assert (shop.view(job)["paid"]["tasks"][0]["state"], balance(shop.store)) == ("succeeded", 1000 - PRICE)
    asked = [row["detail"] for row in shop.store.evidence(job) if row["kind"] == "provider"]
    assert [(one["what"], one["supported"], one["task"]) for one in asked] == [
        ("cancel_asked", cancels, task.public_id)
    ]


def test_what_was_never_submitted_is_refunded_when_its_job_is_cancelled(shop: Shop) -> None:
    """A job in backoff whose provider takes nothing; the withdrawn task can be tried again as generation 2."""
    job = shop.job(prompt="busy")
    worker = Worker(shop.store, {"generation": graph}, providers=shop.providers, randomness=Random(0))
    thread = threading.Thread(target=worker.run)
    thread.start()
    until(lambda: shop.store.job(job.public_id).status in ("retry", "review"), "the provider's refusal")
    worker.drain()
    thread.join()
    assert (balance(shop.store), shop.view(job)["paid"]["tasks"][0]["state"]) == (1000 - PRICE, "created")
    shop.store.cancel(job.public_id)
    assert (balance(shop.store), shop.view(job)["paid"]["tasks"][0]["state"]) == (1000, "failed")
    assert shop.submissions() == 0


def test_a_task_that_another_job_waits_for_is_not_cancelled(shop: Shop) -> None:
    """The one that submitted it is; the other goes on to its end."""
    first, second = shop.job(prompt="never"), shop.job(prompt="never", client_price=1)
    worker = Worker(shop.store, {"generation": graph}, providers=shop.providers)
    thread = threading.Thread(target=worker.run)
    thread.start()
    until(lambda: all(shop.store.waits(shop.store.job(job.public_id)) for job in (first, second)), "both waits")
    (task,) = shop.store.read(provider_tasks.listed)
    submitter = next(job for job in (first, second) if job.public_id == task.job)
    other = second if submitter is first else first
    shop.store.cancel(submitter.public_id)
    polls = task.polls
    until(lambda: shop.store.read(provider_tasks.listed)[0].polls > polls + 2, "further questions")
    assert shop.studio.cancelled == set()
    (request,) = next(iter(shop.studio.submitted.values()))
    cast("dict[str, Any]", request)["prompt"] = "after 1"
    until(lambda: shop.store.job(other.public_id).status == "done", "the other's end")
    worker.drain()
    thread.join()
    assert shop.result(other)["outcome"] == "succeeded"


def test_an_answer_at_once_needs_no_waiting(shop: Shop) -> None:
    """A provider that has it at once is not asked again."""
    assert shop.result(shop.run(prompt="at once"))["outcome"] == "succeeded"
    assert shop.studio.asked == {}
