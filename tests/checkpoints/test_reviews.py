"""Reviews: asked once, answered once, by id; the answer reaches the graph exactly, and the job moves on with it."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from everstep.checkpoints.reviews import Review
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock
from everstep.errors import ReviewAnswered, ReviewAnswerInvalid, ReviewNotFound
from tests.support.jobs import Log, beside, chain, result, run, work
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.both_databases


def ask(*questions: Any) -> Any:
    """A node that asks one thing after another."""

    def node(_state: Log) -> Log:
        return {"log": [interrupt(question) for question in questions]}

    return node


def only(store: Store) -> Review:
    """The only open review."""
    (review,) = store.reviews()
    return review


# ---- asking


def test_a_question_of_a_graph_becomes_a_review(store: Store) -> None:
    """`interrupt()` brings the job to review with what was asked, holding no worker and not counting as an attempt."""
    job = run(store, chain(ask({"question": "go on?", "n": 1})))
    review = only(store)
    assert job.status == "review"
    assert (job.attempts, job.leased_by, job.lease_until) == (1, None, None)
    assert (review.kind, review.status, review.value) == ("interrupt", "open", {"question": "go on?", "n": 1})
    assert review.job_id == job.id


def test_no_time_resumes_a_review(store: Store, clock: ManualClock) -> None:
    """A job in review does not move however much time passes and whoever looks for work."""
    graph = chain(ask("go on?"))
    job = run(store, graph)
    clock.advance(10 * 365 * 24 * 3600 * 1000)
    work(store, graph)
    assert store.job(job.public_id) == job


@pytest.mark.parametrize("value", [{1: float("nan")}, ("tuple", {2}), b"bytes", "\ud800", [None], 2**60])
def test_any_question_can_be_shown(store: Store, value: Any) -> None:
    """A question that has no exact JSON form is shown as near as can be, and can be answered."""
    graph = chain(ask(value))
    job = run(store, graph)
    assert job.status == "review", job.error_json
    json.dumps(only(store).value)
    store.answer(only(store).public_id, "respond", value="yes")
    work(store, graph)
    assert result(store, job) == ["yes"]


# ---- answering


@pytest.mark.parametrize("value", [None, {}, 0, "", False, [], 0.0, "yes", {"a": [None, {}]}])
@pytest.mark.parametrize("beside_another", [False, True])
def test_every_answer_arrives_exactly(store: Store, value: Any, beside_another: bool) -> None:
    """An answer is what `interrupt()` returns, also if it is None or empty, also in one of two branches that ask."""
    got: list[Any] = []

    def node(_state: Log) -> Log:
        got.append(interrupt("what?"))
        return {"log": [got[-1]]}

    graph = beside(node, ask("other?")) if beside_another else chain(node)
    job = run(store, graph)
    for review in store.reviews():
        store.answer(review.public_id, "respond", value=value if review.value == "what?" else "other")
    work(store, graph)
    assert result(store, job) == ([value, "other"] if beside_another else [value])
    assert type(got[-1]) is type(value)


def test_an_answer_without_a_value_is_yes_or_no(store: Store) -> None:
    """A plain question that is approved gets True, one that is rejected gets False, and the job goes on either way."""
    for decision, expected in (("approve", True), ("reject", False)):
        graph = chain(ask("go on?"))
        job = run(store, graph, {"log": [decision]})
        store.answer(only(store).public_id, decision)
        work(store, graph)
        assert result(store, job) == [decision, expected]


def test_questions_one_after_another_in_one_node(store: Store) -> None:
    """A node that asks three times gets each answer for its own question, equal or empty as they may be."""
    graph = chain(ask("one", "two", "three"))
    job = run(store, graph)
    for expected in ("one", "two", "three"):
        assert only(store).value == expected
        store.answer(only(store).public_id, "respond", value=None if expected == "two" else "same")
        work(store, graph)
    assert result(store, job) == ["same", None, "same"]
    assert [review.status for review in store.reviews(job)] == ["answered"] * 3


def test_the_same_question_in_a_loop_is_asked_each_time(store: Store) -> None:
    """A node that comes back and asks the same again gets a new review; no answer is used twice."""
    builder = StateGraph(Log)
    builder.add_node("ask", ask("again?"))
    builder.add_edge(START, "ask")
    builder.add_conditional_edges("ask", lambda state: "ask" if state["log"][-1] else "__end__")
    graph = builder.compile()
    job = run(store, graph)
    for answer in (True, True, False):
        store.answer(only(store).public_id, "respond", value=answer)
        work(store, graph)
    assert result(store, job) == [True, True, False]
    assert len(store.reviews(job)) == 3


@pytest.mark.parametrize("at_once", [True, False])
def test_branches_that_ask_at_the_same_time(store: Store, at_once: bool) -> None:
    """Two open questions can be answered together or one by one; each branch gets its own answer."""
    bodies: list[str] = []

    def node(name: str) -> Any:
        def asking(_state: Log) -> Log:
            bodies.append(name)
            return {"log": [f"{name} {interrupt(name)}"]}

        return asking

    graph = beside(node("left"), node("right"))
    job = run(store, graph)
    first, second = store.reviews()
    store.answer(second.public_id, "respond", value="2")
    if not at_once:
        work(store, graph)
        assert store.job(job.public_id).status == "review"
        assert [review.public_id for review in store.reviews()] == [first.public_id]
    store.answer(first.public_id, "respond", value="1")
    work(store, graph)
    assert result(store, job) == [f"{first.value} 1", f"{second.value} 2"]


def test_a_question_answered_while_the_job_works_on_another_answer(store: Store) -> None:
    """An answer given while the job is running is taken up when it comes to its pause; nothing is asked twice."""
    entered, go = threading.Event(), threading.Event()

    def working(_state: Log) -> Log:
        answer = interrupt("left")
        entered.set()
        assert go.wait(PATIENCE)
        return {"log": [f"left {answer}"]}

    graph = beside(working, ask("right"))
    job = run(store, graph)
    left, right = store.reviews()
    store.answer(left.public_id, "respond", value="1")
    worker = threading.Thread(target=work, args=(store, graph))
    worker.start()
    assert entered.wait(PATIENCE)
    _, running = store.answer(right.public_id, "respond", value="2")
    assert running.status == "running"
    go.set()
    worker.join(PATIENCE)
    assert result(store, job) == ["left 1", "2"]
    assert len(store.reviews(job)) == 2


def test_of_two_answers_at_once_one_wins(store: Store) -> None:
    """When two people answer the same review at the same moment one answer stands; the other is told which."""
    run(store, chain(ask("go on?")))
    review = only(store)
    barrier = threading.Barrier(8)
    lost: list[ReviewAnswered] = []
    won: list[int] = []

    def person(number: int) -> None:
        barrier.wait(PATIENCE)
        try:
            store.answer(review.public_id, "respond", value=number, by=f"person {number}")
        except ReviewAnswered as error:
            lost.append(error)
        else:
            won.append(number)

    people = [threading.Thread(target=person, args=(number,)) for number in range(8)]
    for each in people:
        each.start()
    for each in people:
        each.join(PATIENCE)
    (winner,) = won
    assert len(lost) == 7
    for error in lost:
        assert error.ids["first_answer"]["value"] == winner
        assert error.ids["first_answer"]["by"] == f"person {winner}"
        assert f"person {winner}" in str(error)
    assert json.loads(store.review(review.public_id).answer_json or "") == winner


def test_an_answer_moves_the_job_in_the_same_write(store: Store, clock: ManualClock) -> None:
    """The answered review and the pending job are one change; events tell who answered."""
    job = run(store, chain(ask("go on?")))
    clock.advance(5)
    review, after = store.answer(only(store).public_id, "approve", by="ann", reason="looks good")
    assert (review.status, review.decision, review.answered_by, review.reason) == (
        "answered",
        "approve",
        "ann",
        "looks good",
    )
    assert review.answered_at == clock.now_ms()
    assert (after.status, after.next_run_at) == ("pending", clock.now_ms())
    event = store.events(job)[-1]
    assert (event["from"], event["to"], event["actor"]) == ("review", "pending", "ann")


def test_an_invalid_answer_changes_nothing(store: Store) -> None:
    """A decision the review does not take leaves review and job as they are."""
    job = run(store, chain(ask("go on?")))
    for decision in ("respond", "edit", "accept", ""):
        with pytest.raises(ReviewAnswerInvalid):
            store.answer(only(store).public_id, decision)
    assert only(store).answer_json is None
    assert store.job(job.public_id) == job


def test_a_value_that_is_not_json_is_refused(store: Store) -> None:
    """An answer that cannot be stored is refused as one, and the review stays open."""
    run(store, chain(ask("go on?")))
    for value in (object(), {1, 2}, float("nan"), {"a": b"bytes"}):
        with pytest.raises(ReviewAnswerInvalid):
            store.answer(only(store).public_id, "respond", value=value)
    assert only(store).status == "open"


def nested(levels: int) -> Any:
    """A list in a list in a list, …."""
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, {"a": [2**70]}, nested(300), nested(5000)], ids=lambda _: "")
def test_an_answer_that_no_state_could_hold_is_refused(store: Store, value: Any) -> None:
    """The job would fail with it at each try: the answer is refused, and another one may be given."""
    graph = chain(ask("go on?"))
    job = run(store, graph)
    with pytest.raises(ReviewAnswerInvalid):
        store.answer(only(store).public_id, "respond", value=value)
    for reason, by in (("\ud800", "ann"), ("so", "\udc00")):
        with pytest.raises(ReviewAnswerInvalid):
            store.answer(only(store).public_id, "reject", reason=reason, by=by)
    store.answer(only(store).public_id, "respond", value=[2**64 - 1, nested(150)])
    work(store, graph)
    assert result(store, job)[0][0] == 2**64 - 1


def test_reviews_are_found_by_a_prefix_that_fits_one(store: Store) -> None:
    """A review is found by its id or a unique beginning of it; unknown ids say so."""
    run(store, chain(ask("go on?")))
    review = only(store)
    assert store.review(review.public_id[:8].upper()) == review
    for wrong in ("", "x", "%"):
        with pytest.raises(ReviewNotFound):
            store.review(wrong)
        with pytest.raises(ReviewNotFound):
            store.answer(wrong, "approve")


# ---- requests of LangChain's middleware and of Agent Inbox


def test_a_middleware_request_through_a_graph(store: Store) -> None:
    """A node that asks as LangChain's human-in-the-loop middleware does reads the decisions that middleware reads."""
    request = {
        "action_requests": [{"name": "delete", "args": {"path": "/a"}, "description": "?"}],
        "review_configs": [{"action_name": "delete", "allowed_decisions": ["approve", "edit"]}],
    }
    graph = chain(ask(request))
    job = run(store, graph)
    with pytest.raises(ReviewAnswerInvalid):
        store.answer(only(store).public_id, "reject")
    store.answer(only(store).public_id, "edit", value={"path": "/b"})
    work(store, graph)
    edited = {"type": "edit", "edited_action": {"name": "delete", "args": {"path": "/b"}}}
    assert result(store, job) == [{"decisions": [edited]}]


def test_an_inbox_request_through_a_graph(store: Store) -> None:
    """A node that asks as Agent Inbox expects reads its list of one response."""
    graph = chain(ask([{"action_request": {"action": "mail", "args": {}}, "config": {}}]))
    job = run(store, graph)
    store.answer(only(store).public_id, "reject", reason="not today")
    work(store, graph)
    assert result(store, job) == [[{"type": "ignore", "args": "not today"}]]


# ---- jobs that end, and come back


def test_questions_close_when_the_job_ends_and_open_when_it_comes_back(store: Store) -> None:
    """Cancelling closes a question; redriving the job asks it again, and then it can be answered."""
    graph = chain(ask("go on?"))
    job = run(store, graph)
    review = only(store)
    store.cancel(job.public_id)
    assert store.review(review.public_id).status == "closed"
    with pytest.raises(ReviewAnswered):
        store.answer(review.public_id, "approve")
    store.redrive(job.public_id)
    work(store, graph)
    assert store.job(job.public_id).status == "review"
    store.answer(only(store).public_id, "respond", value="yes")
    work(store, graph)
    assert result(store, job) == ["yes"]


def test_a_branch_that_asks_something_new_shows_it(store: Store) -> None:
    """If a branch, run again because of another's answer, words its question anew, the person sees the new one."""
    asked: list[int] = []

    def changing(_state: Log) -> Log:
        asked.append(1)
        return {"log": [interrupt(f"delete {len(asked)} files?")]}

    graph = beside(ask("other?"), changing)
    run(store, graph)
    other, files = store.reviews()
    assert files.value == "delete 1 files?"
    store.answer(other.public_id, "approve")
    work(store, graph)
    assert only(store).public_id == files.public_id
    assert only(store).value == f"delete {len(asked)} files?"


# ---- errors, breakpoints, changed graphs


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
    review = only(store)
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
    _, after = store.answer(only(store).public_id, "reject", reason="hopeless", by="ann")
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
        store.answer(only(store).public_id, "approve")
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
    assert (only(store).kind, only(store).value["next"]) == ("breakpoint", ["node_1"])
    assert ran == ["a"]
    with pytest.raises(ReviewAnswerInvalid):
        store.answer(only(store).public_id, "respond", value=1)
    store.answer(only(store).public_id, "approve")
    work(store, graph)
    assert result(store, job) == ["a", "b"]


def test_a_rejected_breakpoint_of_a_job_that_is_retried_is_asked_again(store: Store) -> None:
    """Rejecting a breakpoint fails the job; if it is redriven it stands there and asks again."""
    graph = chain(lambda _s: {"log": ["a"]}, lambda _s: {"log": ["b"]}, interrupt_before=["node_1"])
    job = run(store, graph)
    assert store.answer(only(store).public_id, "reject")[1].status == "failed"
    store.redrive(job.public_id)
    work(store, graph)
    assert store.job(job.public_id).status == "review"
    store.answer(only(store).public_id, "approve")
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
    asked: list[str] = []
    while store.reviews() and len(asked) < 5:
        asked.append(only(store).subject)
        store.answer(only(store).public_id, "approve")
        work(store, graph)
    assert len(asked) == len(set(asked)) == 2
    assert sorted(result(store, job)) == ["left a", "left b", "right a", "right b"]


def test_a_changed_graph_is_asked_about_with_its_difference(store: Store) -> None:
    """A job that began with another graph waits for a person, who sees what changed; approved, it goes on."""
    before = chain(ask("go on?"), lambda _s: {"log": ["old"]})
    job = run(store, before)
    store.answer(only(store).public_id, "respond", value="yes")
    after = chain(ask("go on?"), lambda _s: {"log": ["new"]}, lambda _s: {"log": ["more"]})
    work(store, after)
    review = only(store)
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
    store.answer(only(store).public_id, "approve")
    work(store, chain(lambda _s: ran.append(1) or {"log": []}, ask("go on?")))
    assert store.answer(only(store).public_id, "reject")[1].status == "failed"
    assert ran == []
    assert store.job(job.public_id).status == "failed"


def test_an_approval_is_for_the_change_that_was_shown(store: Store) -> None:
    """If the graph has changed once more by the time the job goes on, that change is asked about too."""
    first = chain(ask("go on?"))
    shown = chain(ask("go on?"), lambda _s: {"log": ["shown"]})
    other = chain(ask("go on?"), lambda _s: {"log": ["a"]}, lambda _s: {"log": ["never shown"]})
    job = run(store, first)
    store.answer(only(store).public_id, "respond", value="yes")
    work(store, shown)
    store.answer(only(store).public_id, "approve")
    work(store, other)
    assert store.job(job.public_id).status == "review"
    assert only(store).kind == "fingerprint"
    store.answer(only(store).public_id, "approve")
    work(store, other)
    assert result(store, job) == ["yes", "a", "never shown"]


def test_a_job_that_has_not_begun_takes_the_graph_as_it_is(store: Store) -> None:
    """Before anything of a job is stored a changed graph needs nobody's consent."""
    job, _ = store.enqueue("graph", {"log": []})
    work(store, chain(lambda _s: Command(update={"log": ["x"]})))
    assert result(store, job) == ["x"]
    assert store.reviews(job) == []
