"""Reviews that no node asked for: errors, breakpoints, and graphs that changed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import Command

from everstep.checkpoints.store import Store
from everstep.errors import ReviewAnswerInvalid
from tests.support.jobs import Log, chain, result, run, work
from tests.support.questions import ask, asked

pytestmark = pytest.mark.both_databases


class Broken(RuntimeError):
    """Nobody knows what it means."""


def test_an_error_review_approved_tries_again(store: Store) -> None:
    """An error nobody can classify asks a person; approved, the job goes on from its last checkpoint."""
    bodies: list[str] = []

    def first(_state: Log) -> Log:
        bodies.append("first")
        return {"log": ["first"]}

    def second(_state: Log) -> Log:
        bodies.append("second")
        if bodies.count("second") == 1:
            raise Broken("what now?")
        return {"log": ["second"]}

    graph = chain(first, second)
    job = run(store, graph)
    review = asked(store)
    assert (job.status, review.kind) == ("review", "error")
    assert "what now?" in review.value["message"]
    assert json.loads(job.error_json or "")["type"].endswith("Broken")
    store.answer(review.public_id, "approve")
    work(store, graph)
    assert result(store, job) == ["first", "second"]
    assert bodies == ["first", "second", "second"]
    assert store.job(job.public_id).error_json is None


def test_an_error_review_rejected_fails_the_job(store: Store) -> None:
    """Rejected, the job has failed, and its evidence names the person and keeps the error."""

    def node(_state: Log) -> Log:
        raise Broken("what now?")

    job = run(store, chain(node))
    _, after = store.answer(asked(store).public_id, "reject", reason="hopeless", by="ann")
    error = json.loads(after.error_json or "")
    assert after.status == "failed"
    assert error["code"] == "rejected"
    assert "ann" in error["message"]
    assert "hopeless" in error["message"]
    assert "what now?" in error["cause"]["message"]
    assert [kept["kind"] for kept in store.evidence(job)] == ["error"]


def test_an_error_that_comes_again_is_asked_again(store: Store) -> None:
    """Each failure is a question of its own: an approval is not remembered for the next one."""

    def node(_state: Log) -> Log:
        raise Broken("what now?")

    graph = chain(node)
    job = run(store, graph)
    for _ in range(3):
        store.answer(asked(store).public_id, "approve")
        work(store, graph)
    assert store.job(job.public_id).status == "review"
    assert [review.status for review in store.reviews(job)] == ["answered"] * 3 + ["open"]


@pytest.mark.parametrize("static", [{"interrupt_before": ["node_1"]}, {"interrupt_after": ["node_0"]}])
def test_a_breakpoint_waits_for_its_approval(store: Store, static: dict[str, Any]) -> None:
    """A static breakpoint is a review that names what comes next; only its approval lets the job through."""
    ran: list[str] = []

    def node(name: str) -> Any:
        def body(_state: Log) -> Log:
            ran.append(name)
            return {"log": [name]}

        return body

    graph = chain(node("a"), node("b"), **static)
    job = run(store, graph)
    assert (asked(store).kind, asked(store).value["next"]) == ("breakpoint", ["node_1"])
    assert ran == ["a"]
    with pytest.raises(ReviewAnswerInvalid):
        store.answer(asked(store).public_id, "respond", value=1)
    store.answer(asked(store).public_id, "approve")
    work(store, graph)
    assert result(store, job) == ["a", "b"]


def test_a_rejected_breakpoint_of_a_job_that_is_retried_is_asked_again(store: Store) -> None:
    """Rejecting a breakpoint fails the job; if it is redriven it stands there and asks again."""
    graph = chain(lambda _s: {"log": ["a"]}, lambda _s: {"log": ["b"]}, interrupt_before=["node_1"])
    job = run(store, graph)
    assert store.answer(asked(store).public_id, "reject")[1].status == "failed"
    store.redrive(job.public_id)
    work(store, graph)
    assert store.job(job.public_id).status == "review"
    store.answer(asked(store).public_id, "approve")
    work(store, graph)
    assert result(store, job) == ["a", "b"]


def test_breakpoints_of_two_subgraphs_at_once_are_approved_one_after_the_other(store: Store) -> None:
    """Two branches that stand at a breakpoint each need an approval each; the first is not asked for again."""

    def subgraph(name: str) -> Any:
        return chain(lambda _s: {"log": [f"{name} a"]}, lambda _s: {"log": [f"{name} b"]}, interrupt_before=["node_1"])

    builder = StateGraph(Log)
    for name in ("left", "right"):
        builder.add_node(name, subgraph(name))
        builder.add_edge(START, name)
    graph = builder.compile()
    job = run(store, graph)
    subjects: list[str] = []
    while store.reviews() and len(subjects) < 5:
        subjects.append(asked(store).subject)
        store.answer(asked(store).public_id, "approve")
        work(store, graph)
    assert len(subjects) == len(set(subjects)) == 2
    assert sorted(result(store, job)) == ["left a", "left b", "right a", "right b"]


def test_a_changed_graph_is_asked_about_with_its_difference(store: Store) -> None:
    """A job that began with another graph waits for a person, who sees what changed; approved, it goes on."""
    before = chain(ask("go on?"), lambda _s: {"log": ["old"]})
    job = run(store, before)
    store.answer(asked(store).public_id, "respond", value="yes")
    after = chain(ask("go on?"), lambda _s: {"log": ["new"]}, lambda _s: {"log": ["more"]})
    work(store, after)
    review = asked(store)
    assert store.job(job.public_id).status == "review"
    assert review.kind == "fingerprint"
    assert any("node_2" in line for line in review.value["changes"])
    store.answer(review.public_id, "approve")
    work(store, after)
    assert result(store, job) == ["yes", "new", "more"]


def test_a_changed_graph_that_is_rejected_fails_the_job(store: Store) -> None:
    """Rejected, the job has failed; nothing of the new graph ran."""
    ran: list[int] = []
    job = run(store, chain(ask("go on?")))
    store.answer(asked(store).public_id, "approve")
    work(store, chain(lambda _s: ran.append(1) or {"log": []}, ask("go on?")))
    assert store.answer(asked(store).public_id, "reject")[1].status == "failed"
    assert ran == []
    assert store.job(job.public_id).status == "failed"


def test_an_approval_is_for_the_change_that_was_shown(store: Store) -> None:
    """If the graph has changed once more by the time the job goes on, that change is asked about too."""
    first = chain(ask("go on?"))
    shown = chain(ask("go on?"), lambda _s: {"log": ["shown"]})
    other = chain(ask("go on?"), lambda _s: {"log": ["a"]}, lambda _s: {"log": ["never shown"]})
    job = run(store, first)
    store.answer(asked(store).public_id, "respond", value="yes")
    work(store, shown)
    store.answer(asked(store).public_id, "approve")
    work(store, other)
    assert store.job(job.public_id).status == "review"
    assert asked(store).kind == "fingerprint"
    store.answer(asked(store).public_id, "approve")
    work(store, other)
    assert result(store, job) == ["yes", "a", "never shown"]


def test_a_job_that_has_not_begun_takes_the_graph_as_it_is(store: Store) -> None:
    """Before anything of a job is stored a changed graph needs nobody's consent."""
    job, _ = store.enqueue("graph", {"log": []})
    work(store, chain(lambda _s: Command(update={"log": ["x"]})))
    assert result(store, job) == ["x"]
    assert store.reviews(job) == []
