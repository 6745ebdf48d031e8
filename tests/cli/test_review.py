"""`everstep review`: the questions, and their answers, each given once."""

from __future__ import annotations

from typing import Any

import pytest

from everstep.checkpoints.store import Store
from tests.cli.conftest import Prepared, with_graphs
from tests.cli.folder import Folder, is_refused
from tests.cli.test_jobs import REVIEW, has_shape

PLAIN: dict[tuple[str, ...], Any] = {
    ("approve",): True,
    ("reject",): False,
    ("approve", "--value", "null"): None,
    ("respond", "--value", "0"): 0,
    ("edit", "--value", '""'): "",
    ("reject", "--value", "{}"): {},
}
"""Answers to a plain `interrupt()`, and what it returns."""


def reviews(folder: Folder) -> dict[str, str]:
    """The ids of the open reviews, by the graph that asks."""
    with Store.open(folder.url) as store:
        return {store.job_by_row(review.job_id).graph: review.public_id for review in store.reviews()}


def test_the_open_reviews_have_exactly_the_promised_fields(prepared: Prepared) -> None:
    """`review --json`, like `review list`, has every open review: its kind, what is asked, the answers it takes."""
    found, listed = prepared.folder.all_json(("review",), ("review", "list"))
    assert found == listed
    for review in found:
        has_shape(review, REVIEW)
        assert (review["status"], review["answer"]) == ("open", None)
    by_job = {review["job"]: review for review in found}
    kinds = {graph: by_job[prepared.jobs[graph]]["kind"] for graph in ("ask", "tool", "broken", "lost", "stop")}
    assert kinds == {"ask": "interrupt", "tool": "interrupt", "broken": "error", "lost": "effect", "stop": "breakpoint"}
    assert by_job[prepared.jobs["ask"]]["value"] == {"question": "How many?"}
    assert set(by_job[prepared.jobs["tool"]]["choices"]) == {"approve", "edit", "reject"}
    lines = prepared.folder.run("review").out.splitlines()
    assert [line.split()[0] for line in lines] == [review["id"] for review in found]
    assert any("KeyError" in line for line in lines)


def test_show_lists_the_answers_to_type(prepared: Prepared) -> None:
    """`review show` tells what is asked and, for each answer it takes, the command that gives it."""
    review = reviews(prepared.folder)["tool"]
    assert prepared.folder.json("review", "show", review)["id"] == review
    shown = prepared.folder.run("review", "show", review).out
    for decision in ("approve", "edit", "reject"):
        assert f"everstep review {decision} {review}" in shown
    assert "review respond" not in shown


def test_options_may_stand_on_either_side_of_the_subcommand(prepared: Prepared, folder: Folder) -> None:
    """--store and --json count before and after the subcommand of `review`; the later --store wins."""
    record = prepared.folder.url
    review = reviews(prepared.folder)["ask"]
    before = folder.run("review", "--store", record, "--json", "show", review)
    after = folder.run("review", "show", review, "--store", record, "--json")
    both = folder.run("review", "--store", "sqlite:///none.db", "show", review, "--store", record, "--json")
    around = folder.run("review", "--store", record, "show", review, "--json", EVERSTEP_STORE="sqlite:///none.db")
    assert before.value == after.value == both.value == around.value
    assert not (folder.path / "none.db").exists()


def test_answers_reach_the_graphs(copied: Prepared) -> None:
    """Each answer, given by the command, is what the graph goes on with, the job's error and effect included."""
    asked = reviews(copied.folder)
    answers = {
        "ask": ("respond", "--value", '{"how many": [0, null, ""]}', "--reason", "counted", "--by", "ada"),
        "tool": ("edit", "--value", '{"path": "b"}'),
        "broken": ("reject", "--reason", "not worth it"),
        "lost": ("approve", "--value", '{"receipt": 17}'),
        "stop": ("approve",),
    }
    for graph, answered in zip(
        answers,
        copied.folder.all_json(
            *(("review", decision, asked[graph], *options) for graph, (decision, *options) in answers.items())
        ),
        strict=True,
    ):
        decision = answers[graph][0]
        job_status = answered.pop("job_status")
        has_shape(answered, REVIEW)
        assert (answered["status"], answered["answer"]["decision"]) == ("answered", decision)
        assert job_status == ("failed" if graph == "broken" else "pending")
    shown, still_open, *_ = copied.folder.all_json(
        ("review", "show", asked["ask"]),
        ("review",),
        ("cancel", copied.jobs["away"]),
        ("cancel", copied.jobs["slow"]),
    )
    first = shown["answer"]
    assert (first["value"], first["reason"], first["by"]) == ({"how many": [0, None, ""]}, "counted", "ada")
    assert still_open == []
    with copied.folder.worker() as worker:
        ended = worker.until_settled(*(copied.jobs[graph] for graph in ("ask", "tool", "lost", "stop")))
    assert set(ended.values()) == {"done"}
    jobs = {job["graph"]: job for job in copied.folder.json("jobs")}
    assert jobs["ask"]["result"]["seen"] == [{"how many": [0, None, ""]}]
    assert jobs["tool"]["result"]["seen"] == [["edit", {"path": "b"}, None]]
    assert jobs["lost"]["result"]["n"] == {"receipt": 17}
    assert jobs["stop"]["result"] == {"n": 1, "seen": []}
    assert (jobs["broken"]["status"], jobs["broken"]["error"]["code"]) == ("failed", "rejected")
    assert "not worth it" in jobs["broken"]["error"]["message"]


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Any]:
    """What jobs of one graph went on with, by the answer they were given."""
    folder = with_graphs(tmp_path_factory.mktemp("answers"))
    with Store.open(folder.url) as store:
        jobs = [store.enqueue("ask", {"n": number}).job.public_id for number in range(len(PLAIN))]
    assert folder.run("worker", "--until-idle").code == 0
    asked = {review["job"]: review["id"] for review in folder.json("review")}
    for ran in folder.all(
        *(("review", decision, asked[job], *options) for job, (decision, *options) in zip(jobs, PLAIN, strict=True))
    ):
        assert ran.code == 0, ran
    assert folder.run("worker", "--until-idle").code == 0
    results = {job["id"]: job["result"]["seen"] for job in folder.json("jobs")}
    return {answer: results[job] for job, answer in zip(jobs, PLAIN, strict=True)}


@pytest.mark.parametrize("answer", PLAIN, ids=" ".join)
def test_a_plain_interrupt_gets_exactly_the_value(answer: tuple[str, ...], resumed: dict[Any, Any]) -> None:
    """`interrupt()` returns the --value as it is, however empty; without one approve is true and reject is false."""
    (value,) = resumed[answer]
    assert (type(value), value) == (type(PLAIN[answer]), PLAIN[answer])


def test_a_review_is_answered_once(copied: Prepared) -> None:
    """A second answer, of whatever kind, exits 65, shows the first one, and changes nothing."""
    review = reviews(copied.folder)["ask"]
    first = copied.folder.json("review", "respond", review, "--value", "14", "--reason", "counted", "--by", "ada")
    second = copied.folder.run("review", "reject", review, "--by", "bob")
    is_refused(second, 65, "review_answered")
    for part in ("ada", "respond", "14", "counted"):
        assert part in second.err
    error = copied.folder.run("review", "respond", review, "--value", "15", "--json").error
    assert (error["code"], error["review"]) == ("review_answered", review)
    assert error["first_answer"] == first["answer"]
    assert copied.folder.json("review", "show", review)["answer"] == first["answer"]


def test_wrong_answers_change_nothing(prepared: Prepared) -> None:
    """An answer a review does not take, a missing or wrong value, and an unknown id are refused; all stay open."""
    asked = reviews(prepared.folder)
    refused = {
        ("respond", asked["tool"], "--value", "1"): (64, "review_answer_invalid"),
        ("edit", asked["tool"]): (64, "review_answer_invalid"),
        ("edit", asked["tool"], "--value", "[1]"): (64, "review_answer_invalid"),
        ("edit", asked["ask"]): (64, "review_answer_invalid"),
        ("respond", asked["ask"]): (64, "review_answer_invalid"),
        ("edit", asked["lost"], "--value", "{}"): (64, "review_answer_invalid"),
        ("respond", asked["broken"], "--value", "1"): (64, "review_answer_invalid"),
        ("edit", asked["stop"], "--value", "{}"): (64, "review_answer_invalid"),
        ("approve", asked["ask"], "--value", "{broken"): (64, "payload_invalid"),
        ("approve", asked["ask"], "--value", "9007199254740993"): (64, "payload_invalid"),
        ("approve", asked["ask"][:4]): (66, "review_not_found"),
        ("approve", "f00"): (66, "review_not_found"),
        ("show", ""): (66, "review_not_found"),
        ("approve",): (64, "usage"),
        ("maybe", asked["ask"]): (64, "usage"),
    }
    for ran, (code, error) in zip(
        prepared.folder.all(*(("review", *arguments) for arguments in refused)), refused.values(), strict=True
    ):
        is_refused(ran, code, error)
    assert reviews(prepared.folder) == asked
