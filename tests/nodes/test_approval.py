"""Effects that a person must approve: asked with their exact arguments, called once for each yes."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from everstep import ApprovalRejected, effect, review
from everstep.checkpoints import reviews
from everstep.checkpoints.store import Store
from everstep.errors import ReviewAnswerInvalid
from tests.support.approving import paying, say, uses
from tests.support.jobs import Log, chain, result, run, work
from tests.support.questions import asked

pytestmark = pytest.mark.both_databases


def test_nothing_is_called_before_the_yes_and_it_is_called_once_after_it(store: Store, world: list[Any]) -> None:
    """The question holds the exact arguments; the yes lets the effect happen once, also when the node runs again."""
    pay = paying(world)
    graph = chain(lambda _s: {"log": [pay("ann", 7), pay("bob", 8)]})
    job = run(store, graph)
    assert (job.status, world) == ("review", [])
    value = asked(store).value
    assert value["action_requests"] == [
        {"name": "payment.send", "args": {"to": "ann", "amount": 7}, "description": "Pay 7 to ann?"}
    ]
    store.answer(asked(store).public_id, "approve")
    work(store, graph)
    assert world == [("ann", 7)]
    assert "note" not in asked(store).value
    store.answer(asked(store).public_id, "approve")
    work(store, graph)
    assert world == [("ann", 7), ("bob", 8)]
    assert result(store, job) == ["paid 7 to ann", "paid 8 to bob"]


def resume(store: Store, value: Any) -> None:
    """Answer it as a client of LangGraph's API does."""
    now, review = store.clock.now_ms(), asked(store)
    store.write(lambda connection: reviews.answer_for_client(connection, review, value, by="client", now=now)).result()


@pytest.mark.parametrize(
    ("decision", "given", "words"),
    [("reject", {"reason": "too much"}, "too much"), ("reject", {}, None), ("respond", {"value": "half"}, "half")],
    ids=str,
)
def test_a_no_calls_nothing_and_is_an_error_that_the_node_can_catch(
    store: Store, world: list[Any], decision: str, given: Any, words: str | None
) -> None:
    """`reject` and `respond` raise with the person's words, in every replay alike."""
    pay = paying(world)

    def node(_state: Log) -> Log:
        try:
            pay("ann", 7)
        except ApprovalRejected as error:
            return {"log": [error.decision, error.words, review("and now?").type]}
        return {"log": []}

    graph = chain(node)
    job = run(store, graph)
    say(store, decision, **given)
    work(store, graph)
    say(store, "approve")
    work(store, graph)
    assert result(store, job) == [decision, words, "approve"]
    assert (world, uses(store, job)) == ([], [])


def test_a_no_that_no_node_catches_fails_the_job(store: Store, world: list[Any]) -> None:
    """The job has failed with the person's words; trying it again does not ask again."""
    pay = paying(world)
    graph = chain(lambda _s: {"log": [pay("ann", 7)]})
    job = run(store, graph)
    say(store, "reject", reason="not her")
    for _ in range(2):
        work(store, graph)
        job = store.job(job.public_id)
        error = json.loads(job.error_json or "{}")
        assert (job.status, error["code"]) == ("failed", "approval_rejected")
        assert error["words"] == "not her"
        assert "not her" not in error["message"]  # spans and logs tell that
        store.redrive(job.public_id)
    assert world == []


def test_the_edited_arguments_are_what_is_called(store: Store, world: list[Any]) -> None:
    """An edit is the approval of what it holds, read by the parameters' types; the rest stays as the node gave it."""

    @effect("payment.send", approval=True)
    def pay(to: str, amount: Decimal, *, tags: tuple[str, ...] = (), due: date | None = None) -> str:
        world.append((to, amount, tags, due))
        return f"{amount}"

    graph = chain(lambda _s: {"log": [pay("ann", Decimal("7.50"), tags=("a", "b"))]})
    job = run(store, graph)
    assert asked(store).value["action_requests"][0]["args"] == {
        "to": "ann",
        "amount": "7.50",
        "tags": ["a", "b"],
        "due": None,
    }
    say(store, "edit", value={"to": "ann", "amount": "5.25", "tags": ["a", "b"], "due": "2026-12-01"})
    work(store, graph)
    assert world == [("ann", Decimal("5.25"), ("a", "b"), date(2026, 12, 1))]
    assert result(store, job) == ["5.25"]
    (row,) = store.effects(job)
    assert json.loads(row.arguments_json)["amount"] == "5.25"


@pytest.mark.parametrize(
    "value", [{"to": "ann"}, {"to": "ann", "amount": 7, "more": 1}, {"name": "other", "args": {"to": "a", "amount": 1}}]
)
def test_an_edit_that_is_not_of_this_call_is_refused_at_the_door(store: Store, world: list[Any], value: Any) -> None:
    """An argument too few or too many, or another action: the answer is refused, and the question stays open."""
    run(store, chain(lambda _s: {"log": [paying(world)("ann", 7)]}))
    for given in (value, {"decisions": [{"type": "edit", "edited_action": {"name": "payment.send", **value}}]}):
        with pytest.raises(ReviewAnswerInvalid):
            say(store, "edit", value=given)
    assert asked(store).status == "open"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("yes", "was no decision"),
        ({}, "was no decision"),
        (None, "was no decision"),
        ({"decisions": [{"type": "approve"}] * 2}, "was no decision"),
        ({"decisions": [{"type": "approve"}], "argument_digest": "0" * 64}, "other arguments"),
        ({"decisions": [{"type": "edit", "edited_action": {"name": "payment.send", "args": {"to": "x"}}}]}, "amount"),
        ({"decisions": [{"type": "edit", "edited_action": {"name": "x", "args": {}}}]}, "of this action"),
        ([{"type": "edit", "args": {"action": "payment.send", "args": {"to": "x", "amount": "many"}}}], "amount"),
        ({"decisions": [{"type": "edit"}]}, "of this action"),
    ],
)
def test_what_a_client_says_that_is_no_answer_is_asked_anew(
    store: Store, world: list[Any], value: Any, why: str
) -> None:
    """An answer that cannot be acted on approves nothing: the same question comes again, with the reason."""
    pay = paying(world)
    graph = chain(lambda _s: {"log": [pay("ann", 7)]})
    job = run(store, graph)
    resume(store, value)
    work(store, graph)
    assert world == []
    assert asked(store).value["note"].startswith("asked anew: ")
    assert why in asked(store).value["note"]
    resume(store, {"decisions": [{"type": "approve"}]})
    work(store, graph)
    assert (world, result(store, job)) == ([("ann", 7)], ["paid 7 to ann"])


@pytest.mark.parametrize(
    ("value", "called"),
    [
        (True, [("ann", 7)]),
        ({"decisions": [{"type": "approve"}]}, [("ann", 7)]),
        ([{"type": "accept", "args": None}], [("ann", 7)]),
        ([{"type": "edit", "args": {"action": "payment.send", "args": {"to": "bob", "amount": 1}}}], [("bob", 1)]),
        ({"type": "edit", "edited_action": {"name": "payment.send", "args": {"to": "bob", "amount": 1}}}, [("bob", 1)]),
        (False, []),
        ([{"type": "ignore", "args": None}], []),
        ([{"type": "response", "args": "no"}], []),
    ],
)
def test_what_a_client_says_is_understood_in_each_form(
    store: Store, world: list[Any], value: Any, called: list[Any]
) -> None:
    """True and false, the decisions of LangChain's middleware and those of Agent Inbox."""
    pay = paying(world)
    graph = chain(lambda _s: {"log": [pay("ann", 7)]})
    job = run(store, graph)
    resume(store, value)
    work(store, graph)
    assert world == called
    assert store.job(job.public_id).status == ("done" if called else "failed")


def test_a_credential_is_not_shown_and_cannot_be_edited(store: Store, world: list[Any]) -> None:
    """What looks like a credential is blacked out in the question, and is still what the function is called with."""

    @effect("mail.send", approval=True)
    def send(to: str, password: str) -> str:
        world.append((to, password))
        return "sent"

    graph = chain(lambda _s: {"log": [send("ann", "hunter2-hunter2")]})
    run(store, graph)
    assert "hunter2" not in asked(store).value_json
    assert asked(store).value["review_configs"][0]["allowed_decisions"] == ["approve", "respond", "reject"]
    with pytest.raises(ReviewAnswerInvalid):
        say(store, "edit", value={"to": "bob"})
    say(store, "approve")
    work(store, graph)
    assert world == [("ann", "hunter2-hunter2")]
