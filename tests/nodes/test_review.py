"""`review` inside a node: what the person is shown, and the Decision the node gets."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from everstep import Decision, review
from everstep.checkpoints import reviews
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.store import Store
from everstep.errors import ReviewAnswerInvalid
from tests.support.jobs import Log, beside, chain, run, work

FILES = {"paths": ["/a", "/b"]}


def asking(**more: Any) -> Any:
    """A node that asks whether to delete two files, and keeps the decision."""

    def node(_state: Log) -> Log:
        decision = review("delete 2 files?", action="delete_files", args=FILES, **more)
        return {"log": [{**dataclasses.asdict(decision), "approved": decision.approved}]}

    return node


def decided(store: Store, job: Job) -> dict[str, Any]:
    """The decision the node got."""
    job = store.job(job.public_id)
    assert job.status == "done", f"{job.status}: {job.error_json}"
    return json.loads(job.result_json or "")["log"][0]


def test_the_person_sees_the_question_the_action_and_its_arguments(store: Store) -> None:
    """The review has the form that Agent Inbox and LangChain's middleware read, with a digest of the arguments."""
    run(store, chain(asking(allow=("approve", "reject"))))
    (row,) = store.reviews()
    assert row.value["action_requests"] == [{"name": "delete_files", "args": FILES, "description": "delete 2 files?"}]
    assert row.value["review_configs"] == [{"action_name": "delete_files", "allowed_decisions": ["approve", "reject"]}]
    assert len(row.value["argument_digest"]) == 64


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (("approve", {}), ("approve", FILES, None, True)),
        (("edit", {"value": {"paths": []}}), ("edit", {"paths": []}, None, True)),
        (("respond", {"value": "look at /a first"}), ("respond", FILES, "look at /a first", False)),
        (("respond", {"reason": "later"}), ("respond", FILES, "later", False)),
        (("reject", {"reason": "too many"}), ("reject", FILES, "too many", False)),
        (("reject", {}), ("reject", FILES, None, False)),
    ],
    ids=str,
)
def test_each_decision_reaches_the_node(store: Store, answer: Any, expected: Any) -> None:
    """Approve and edit say to act and with what; respond and reject carry the person's words."""
    graph = chain(asking())
    job = run(store, graph)
    store.answer(store.reviews()[0].public_id, answer[0], **answer[1])
    work(store, graph)
    got = decided(store, job)
    assert (got["type"], got["args"], got["message"], got["approved"]) == expected


def test_a_decision_that_is_not_offered_is_refused(store: Store) -> None:
    """Only the allowed decisions can be given; after a refused one the review is still open."""
    graph = chain(asking(allow=("approve", "reject")))
    job = run(store, graph)
    for decision, value in (("edit", {"paths": []}), ("respond", "hm")):
        with pytest.raises(ReviewAnswerInvalid):
            store.answer(store.reviews()[0].public_id, decision, value=value)
    store.answer(store.reviews()[0].public_id, "approve")
    work(store, graph)
    assert decided(store, job)["type"] == "approve"


def test_an_approval_is_only_for_the_arguments_that_were_shown(store: Store) -> None:
    """A node that asks for other arguments by the time it gets the answer asks anew; only the new answer counts."""
    done: list[Any] = []
    paths = ["/a"]

    def node(_state: Log) -> Log:
        decision = review("delete?", action="delete", args={"paths": list(paths)})
        done.append((decision.type, decision.args["paths"]))
        return {"log": [decision.type, review("sure?").type]}

    graph = chain(node)
    job = run(store, graph)
    paths.append("/etc")
    store.answer(store.reviews()[0].public_id, "approve")
    work(store, graph)
    assert done == []
    (again,) = store.reviews()
    assert again.value["action_requests"][0]["args"] == {"paths": ["/a", "/etc"]}
    assert "asked anew" in again.value["note"]
    store.answer(again.public_id, "reject")
    work(store, graph)
    assert done == [("reject", ["/a", "/etc"])]
    store.answer(store.reviews()[0].public_id, "approve")
    work(store, graph)
    assert json.loads(store.job(job.public_id).result_json or "")["log"] == ["reject", "approve"]


def test_two_reviews_in_one_node_and_two_at_once(store: Store) -> None:
    """Reviews follow one another in a node, and stand beside one another in branches, each with its own answer."""

    def twice(_state: Log) -> Log:
        first = review("first?", args={"n": 1})
        second = review("second?", args={"n": 2})
        return {"log": [first.type, second.type]}

    graph = beside(twice, lambda _s: {"log": [review("beside?", args={"n": 3}).type]})
    job = run(store, graph)
    decisions = {"first?": "approve", "second?": "reject", "beside?": "respond"}
    asked: list[str] = []
    while reviews := store.reviews():
        for row in reviews:
            question = row.value["action_requests"][0]["description"]
            asked.append(question)
            decision = decisions[question]
            store.answer(row.public_id, decision, **({"value": "hm"} if decision == "respond" else {}))
        work(store, graph)
    assert sorted(asked) == sorted(decisions)
    assert json.loads(store.job(job.public_id).result_json or "")["log"] == ["approve", "reject", "respond"]


@pytest.mark.parametrize(
    "resume",
    [
        {"decisions": [{"type": "approve"}]},
        {"type": "approve"},
        [{"type": "approve"}],
    ],
)
def test_without_everstep_it_is_an_interrupt_that_other_clients_answer(resume: Any) -> None:
    """Plain LangGraph with its own saver: the decisions of the middleware's clients are understood without a digest."""
    got: list[Decision] = []

    def node(_state: Log) -> Log:
        got.append(review("go on?", args={"n": 1}))
        return {"log": []}

    graph = chain(node, checkpointer=InMemorySaver())
    thread: Any = {"configurable": {"thread_id": "1"}}
    graph.invoke({"log": []}, thread)
    graph.invoke(Command(resume=resume), thread)
    assert got == [Decision("approve", {"n": 1}, None)]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("yes", "no decision"),
        ({}, "no decision"),
        ([], "no decision"),
        ({"decisions": "approve"}, "no decision"),
        ({"decisions": [{"type": "perhaps"}]}, "no decision"),
        ({"decisions": [{"type": "respond", "message": "hm"}]}, "not offered"),
        ({"decisions": [{"type": "edit", "edited_action": {"name": "delete_files", "args": 7}}]}, "without arguments"),
        ({"decisions": [{"type": "edit", "edited_action": {"name": "format", "args": {}}}]}, "of this action"),
        ({"decisions": [{"type": "approve"}], "argument_digest": "other"}, "other arguments"),
    ],
    ids=str,
)
def test_what_a_client_says_that_decides_nothing_is_asked_anew(store: Store, answer: Any, why: str) -> None:
    """What LangGraph's clients resume with is not checked at the door: the node neither fails nor acts on it."""
    graph = chain(asking(allow=("approve", "edit", "reject")))
    job = run(store, graph)
    for given in (answer, [{"type": "ignore", "args": "no"}]):
        review, now = store.reviews()[0], store.clock.now_ms()
        store.write(lambda c, r=review, g=given, n=now: reviews.answer_for_client(c, r, g, by="client", now=n)).result()
        work(store, graph)
        if given is answer:
            assert why in store.reviews()[0].value["note"]
    assert (decided(store, job)["type"], decided(store, job)["message"]) == ("reject", "no")


def test_a_value_that_an_approval_would_not_use_is_refused(store: Store) -> None:
    """Whoever approves with changed arguments means an edit: the answer is refused instead of dropped."""
    run(store, chain(asking()))
    with pytest.raises(ReviewAnswerInvalid, match="edit"):
        store.answer(store.reviews()[0].public_id, "approve", value={"paths": []})
    assert store.reviews()[0].status == "open"
