"""Reviews: asked once, answered once, by id; the answer reaches the graph exactly, and the job moves on with it."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

from everstep.checkpoints.store import Store
from everstep.clock import ManualClock
from everstep.errors import ReviewAnswered, ReviewAnswerInvalid, ReviewNotFound
from tests.support.jobs import Log, beside, chain, result, run, work
from tests.support.questions import ask, asked
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.both_databases


# ---- asking


def test_a_question_of_a_graph_becomes_a_review(store: Store) -> None:
    """`interrupt()` brings the job to review with what was asked, holding no worker and not counting as an attempt."""
    job = run(store, chain(ask({"question": "go on?", "n": 1})))
    review = asked(store)
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
    json.dumps(asked(store).value)
    store.answer(asked(store).public_id, "respond", value="yes")
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
        store.answer(asked(store).public_id, decision)
        work(store, graph)
        assert result(store, job) == [decision, expected]


def test_questions_one_after_another_in_one_node(store: Store) -> None:
    """A node that asks three times gets each answer for its own question, equal or empty as they may be."""
    graph = chain(ask("one", "two", "three"))
    job = run(store, graph)
    for expected in ("one", "two", "three"):
        assert asked(store).value == expected
        store.answer(asked(store).public_id, "respond", value=None if expected == "two" else "same")
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
        store.answer(asked(store).public_id, "respond", value=answer)
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
    review = asked(store)
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
    review, after = store.answer(asked(store).public_id, "approve", by="ann", reason="looks good")
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
            store.answer(asked(store).public_id, decision)
    assert asked(store).answer_json is None
    assert store.job(job.public_id) == job


def test_a_value_that_is_not_json_is_refused(store: Store) -> None:
    """An answer that cannot be stored is refused as one, and the review stays open."""
    run(store, chain(ask("go on?")))
    for value in (object(), {1, 2}, float("nan"), {"a": b"bytes"}):
        with pytest.raises(ReviewAnswerInvalid):
            store.answer(asked(store).public_id, "respond", value=value)
    assert asked(store).status == "open"


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
        store.answer(asked(store).public_id, "respond", value=value)
    for reason, by in (("\ud800", "ann"), ("so", "\udc00")):
        with pytest.raises(ReviewAnswerInvalid):
            store.answer(asked(store).public_id, "reject", reason=reason, by=by)
    store.answer(asked(store).public_id, "respond", value=[2**64 - 1, nested(150)])
    work(store, graph)
    assert result(store, job)[0][0] == 2**64 - 1


def test_reviews_are_found_by_a_prefix_that_fits_one(store: Store) -> None:
    """A review is found by its id or a unique beginning of it; unknown ids say so."""
    run(store, chain(ask("go on?")))
    review = asked(store)
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
        store.answer(asked(store).public_id, "reject")
    store.answer(asked(store).public_id, "edit", value={"path": "/b"})
    work(store, graph)
    edited = {"type": "edit", "edited_action": {"name": "delete", "args": {"path": "/b"}}}
    assert result(store, job) == [{"decisions": [edited]}]


def test_an_inbox_request_through_a_graph(store: Store) -> None:
    """A node that asks as Agent Inbox expects reads its list of one response."""
    graph = chain(ask([{"action_request": {"action": "mail", "args": {}}, "config": {}}]))
    job = run(store, graph)
    store.answer(asked(store).public_id, "reject", reason="not today")
    work(store, graph)
    assert result(store, job) == [[{"type": "ignore", "args": "not today"}]]


# ---- jobs that end, and come back


def test_questions_close_when_the_job_ends_and_open_when_it_comes_back(store: Store) -> None:
    """Cancelling closes a question; redriving the job asks it again, and then it can be answered."""
    graph = chain(ask("go on?"))
    job = run(store, graph)
    review = asked(store)
    store.cancel(job.public_id)
    assert store.review(review.public_id).status == "closed"
    with pytest.raises(ReviewAnswered):
        store.answer(review.public_id, "approve")
    store.redrive(job.public_id)
    work(store, graph)
    assert store.job(job.public_id).status == "review"
    store.answer(asked(store).public_id, "respond", value="yes")
    work(store, graph)
    assert result(store, job) == ["yes"]


def test_a_branch_that_asks_something_new_shows_it(store: Store) -> None:
    """If a branch, run again because of another's answer, words its question anew, the person sees the new one."""
    runs: list[int] = []

    def changing(_state: Log) -> Log:
        runs.append(1)
        return {"log": [interrupt(f"delete {len(runs)} files?")]}

    graph = beside(ask("other?"), changing)
    run(store, graph)
    other, files = store.reviews()
    assert files.value == "delete 1 files?"
    store.answer(other.public_id, "approve")
    work(store, graph)
    assert asked(store).public_id == files.public_id
    assert asked(store).value == f"delete {len(runs)} files?"
