"""Effects that a person must approve: asked with their exact arguments, called once for each yes."""

from __future__ import annotations

import asyncio
import functools
import json
import threading
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, RetryPolicy, interrupt

from everstep import ApprovalRejected, EffectRejected, effect, review
from everstep.checkpoints import approvals, reviews
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.reviews import Review
from everstep.checkpoints.store import Store
from everstep.errors import EffectInvalid, ReviewAnswered, ReviewAnswerInvalid
from tests.support.jobs import Log, beside, chain, result, run, work

pytestmark = pytest.mark.both_databases


def paying(world: list[Any], **options: Any) -> Any:
    """An effect that needs an approval."""

    @effect("payment.send", approval=lambda to, amount: f"Pay {amount} to {to}?", **options)
    def pay(to: str, amount: int) -> str:
        world.append((to, amount))
        return f"paid {amount} to {to}"

    return pay


def asked(store: Store) -> Review:
    """The one open question."""
    (review,) = store.reviews()
    return review


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


def say(store: Store, decision: str, **more: Any) -> None:
    """Answer the one open question."""
    store.answer(asked(store).public_id, decision, **more)


def resume(store: Store, value: Any) -> None:
    """Answer it as a client of LangGraph's API does."""
    now, review = store.clock.now_ms(), asked(store)
    store.write(lambda connection: reviews.answer_for_client(connection, review, value, by="client", now=now)).result()


def uses(store: Store, job: Job) -> list[tuple[str, str]]:
    """What the job's approvals are used for: the effect and the state, oldest first."""
    rows = [row.id for row in store.reviews(job)]
    found = store.read(lambda connection: approvals.uses(connection, rows))
    return [(found[row].action, found[row].state) for row in rows if row in found]


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


def test_other_arguments_are_asked_about_anew(store: Store, world: list[Any]) -> None:
    """A yes is for the arguments that were shown; a node that comes with others asks anew and says why."""
    pay, amounts = paying(world), [7]
    graph = chain(lambda _s: {"log": [pay("ann", amounts[-1])]})
    job = run(store, graph)
    amounts.append(70)
    say(store, "approve")
    work(store, graph)
    assert world == []
    assert asked(store).value["note"] == "asked anew: an earlier answer was given for other arguments (amount)"
    say(store, "approve")
    work(store, graph)
    assert (world, uses(store, job)) == ([("ann", 70)], [("payment.send", "consumed")])


def test_a_yes_to_the_first_arguments_still_counts_when_they_come_back(store: Store, world: list[Any]) -> None:
    """What was approved stays approved, for just that, as long as it was not used."""
    pay, amounts = paying(world), [7]
    graph = chain(lambda _s: {"log": [pay("ann", amounts[-1])]})
    run(store, graph)
    say(store, "approve")
    amounts.append(70)
    work(store, graph)
    amounts.append(7)
    say(store, "reject")
    work(store, graph)
    assert world == [("ann", 7)]


def test_a_graph_that_changed_is_asked_about_anew(store: Store, world: list[Any]) -> None:
    """A yes was given for the graph as it was; once that has another shape, it counts for nothing."""
    pay = paying(world)

    def node(_state: Log) -> Log:
        return {"log": [pay("ann", 7)]}

    job = run(store, chain(node))
    say(store, "approve")
    changed = chain(node, lambda _s: {"log": ["more"]})
    work(store, changed)
    assert asked(store).kind == "fingerprint"
    say(store, "approve")
    work(store, changed)
    assert world == []
    assert asked(store).value["note"] == "asked anew: an earlier answer was given for the graph before it changed"
    say(store, "approve")
    work(store, changed)
    assert (world, result(store, job)) == ([("ann", 7)], ["paid 7 to ann", "more"])


def test_equal_calls_need_a_yes_each(store: Store, world: list[Any]) -> None:
    """The second of two equal calls asks for itself; a no to the first is none to the second."""
    pay = paying(world)

    def node(_state: Log) -> Log:
        log = list[Any]()
        for _ in range(3):
            try:
                log.append(pay("ann", 7))
            except ApprovalRejected:
                log.append("no")
        return {"log": log}

    graph = chain(node)
    job = run(store, graph)
    for decision in ("approve", "reject", "approve"):
        say(store, decision)
        work(store, graph)
    assert result(store, job) == ["paid 7 to ann", "no", "paid 7 to ann"]
    assert uses(store, job) == [("payment.send", "consumed")] * 2


def test_branches_ask_at_the_same_time_and_each_has_its_own_yes(store: Store, world: list[Any]) -> None:
    """Two calls of a fan-out, even equal ones, wait beside one another; each is called after its own answer."""
    pay = paying(world)
    graph = beside(lambda _s: {"log": [pay("ann", 7)]}, lambda _s: {"log": [pay("ann", 7)]})
    job = run(store, graph)
    first, second = store.reviews()
    store.answer(second.public_id, "approve")
    work(store, graph)
    assert (world, [one.public_id for one in store.reviews()]) == ([("ann", 7)], [first.public_id])
    store.answer(first.public_id, "edit", value={"to": "bob", "amount": 7})
    work(store, graph)
    assert world == [("ann", 7), ("bob", 7)]
    assert sorted(result(store, job)) == ["paid 7 to ann", "paid 7 to bob"]


def test_what_surely_did_not_happen_gives_the_yes_back(store: Store, world: list[Any]) -> None:
    """An attempt that the world refused used nothing up: the next attempt at the same call needs no new answer."""
    refusals = [ConnectionRefusedError(), EffectRejected("busy")]

    @effect("payment.send", approval=True)
    def pay(amount: int) -> str:
        if refusals:
            raise refusals.pop()
        world.append(amount)
        return "paid"

    def node(_state: Log) -> Log:
        try:
            return {"log": [pay(7)]}
        except EffectRejected:
            assert uses(store, store.jobs()[0]) == []
            return {"log": [pay(7)]}

    graph = chain(node)
    job = run(store, graph)
    say(store, "approve")
    work(store, graph)
    assert (world, result(store, job), uses(store, job)) == ([7], ["paid"], [("payment.send", "consumed")])


@pytest.mark.parametrize("happened", [True, False])
def test_an_effect_that_may_have_happened_keeps_its_yes_until_a_person_says(
    store: Store, world: list[Any], happened: bool
) -> None:
    """While nobody can say, the yes is reserved; then it is consumed, or serves the same call once more."""

    @effect("payment.send", approval=True)
    def pay(amount: int) -> str:
        world.append(amount)
        if len(world) == 1:
            raise TimeoutError
        return "paid"

    graph = chain(lambda _s: {"log": [pay(7)]})
    job = run(store, graph)
    say(store, "approve")
    work(store, graph)
    assert (asked(store).kind, uses(store, job)) == ("effect", [("payment.send", "reserved")])
    say(store, *(("approve",) if happened else ("reject",)), **({"value": "seen"} if happened else {}))
    assert uses(store, job) == ([("payment.send", "consumed")] if happened else [])
    work(store, graph)
    assert (world, result(store, job)) == (([7], ["seen"]) if happened else ([7, 7], ["paid"]))
    assert uses(store, job) == [("payment.send", "consumed")]


def test_a_probe_is_asked_about_the_edited_arguments(store: Store, world: list[Any]) -> None:
    """What may have happened is what was called: the call as the person edited it."""

    def find(amount: int) -> str | None:
        return f"found {amount}" if amount in world else None

    @effect("payment.send", approval=True, probe=find)
    def pay(amount: int) -> str:
        world.append(amount)
        raise TimeoutError

    graph = chain(lambda _s: {"log": [pay(7)]})
    job = run(store, graph)
    say(store, "edit", value={"amount": 5})
    work(store, graph)
    assert (world, result(store, job), uses(store, job)) == ([5], ["found 5"], [("payment.send", "consumed")])


def test_a_call_again_in_a_graph_that_changed_needs_a_new_yes(store: Store, world: list[Any]) -> None:
    """The provider honours the key, so it could be called again; but for a graph of another shape nobody said so."""

    @effect("payment.send", approval=True, idempotent=True)
    def pay(amount: int) -> str:
        world.append(amount)
        if len(world) == 1:
            raise KeyError
        return "paid"

    def node(_state: Log) -> Log:
        return {"log": [pay(7)]}

    job = run(store, chain(node))
    say(store, "approve")
    work(store, chain(node))
    assert asked(store).kind == "error"
    changed = chain(node, lambda _s: {"log": ["more"]})
    for kind in ("error", "fingerprint"):
        assert asked(store).kind == kind
        say(store, "approve")
        work(store, changed)
    assert "before it changed" in asked(store).value["note"]
    assert (world, uses(store, job)) == ([7], [("payment.send", "reserved")])
    say(store, "approve")
    work(store, changed)
    assert (world, result(store, job)) == ([7, 7], ["paid", "more"])
    assert uses(store, job) == [("payment.send", "consumed")] * 2


def test_a_business_key_does_not_widen_an_approval(store: Store, world: list[Any]) -> None:
    """The key makes it one call a job; the yes is for the arguments all the same."""
    pay, amounts = paying(world, key=lambda to, amount: to), [7]
    graph = chain(lambda _s: {"log": [pay("ann", amounts[-1])]})
    job = run(store, graph)
    say(store, "approve")
    amounts.append(70)
    work(store, graph)
    assert (world, asked(store).value["action_requests"][0]["args"]["amount"]) == ([], 70)
    say(store, "approve")
    work(store, graph)
    assert (world, result(store, job)) == ([("ann", 70)], ["paid 70 to ann"])


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


def test_questions_of_the_node_and_of_its_effects_do_not_mix(store: Store, world: list[Any]) -> None:
    """`review` and `interrupt` before, between and after such effects each get their own answer."""
    pay = paying(world)

    def node(_state: Log) -> Log:
        log: list[Any] = [review("first?").type, pay("ann", 1), interrupt("second?"), pay("bob", 2)]
        return {"log": [*log, review("third?").type]}

    graph = chain(node)
    job = run(store, graph)
    for decision, more in (
        ("reject", {}),
        ("approve", {}),
        ("respond", {"value": "two"}),
        ("approve", {}),
        ("reject", {}),
    ):
        say(store, decision, **more)
        work(store, graph)
    assert result(store, job) == ["reject", "paid 1 to ann", "two", "paid 2 to bob", "reject"]
    assert world == [("ann", 1), ("bob", 2)]


def test_it_works_in_a_subgraph_and_behind_a_retry_policy(store: Store, world: list[Any]) -> None:
    """LangGraph tries the node again by itself: the same call uses its own yes, once."""
    failures = [ConnectionResetError()]

    @effect("payment.send", approval=True)
    def pay(amount: int) -> str:
        world.append(amount)
        return "paid"

    def node(_state: Log) -> Log:
        log = [pay(7), pay(7)]
        if failures:
            raise failures.pop()
        return {"log": log}

    policy = RetryPolicy(initial_interval=0.01, jitter=False)
    graph = chain(chain(node, node_options={"retry_policy": policy}))
    job = run(store, graph)
    for _ in range(2):
        say(store, "approve")
        work(store, graph)
    assert (world, result(store, job)) == ([7, 7], ["paid", "paid"])
    assert not failures


@pytest.mark.parametrize("together", [False, True])
def test_async_effects_ask_as_well(store: Store, world: list[Any], together: bool) -> None:
    """One after the other or at once in one node: each call has its own yes."""

    @effect("payment.send", approval=True)
    async def pay(amount: int) -> str:
        world.append(amount)
        await asyncio.sleep(0)
        return f"paid {amount}"

    async def node(_state: Log) -> Log:
        if together:
            return {"log": list(await asyncio.gather(pay(1), pay(2)))}
        return {"log": [await pay(1), await pay(2)]}

    graph = chain(node)
    job = run(store, graph)
    for _ in range(2):
        say(store, "approve")
        work(store, graph)
    assert (sorted(world), result(store, job)) == ([1, 2], ["paid 1", "paid 2"])


def test_inside_another_effect_nothing_can_be_asked(store: Store, world: list[Any]) -> None:
    """The outer effect would be called again for the answer: that is refused before the inner one is called."""
    pay = paying(world)

    @effect("order.close")
    def close() -> str:
        return pay("ann", 7)

    job = run(store, chain(lambda _s: {"log": [close()]}))
    assert world == []
    assert store.job(job.public_id).status == "review"
    assert any(
        "inside another effect" in text for text in [asked(store).value_json, store.job(job.public_id).error_json or ""]
    )


def test_the_question_may_be_worded_by_a_function_or_a_text(store: Store, world: list[Any]) -> None:
    """True asks by the effect's name; a text is asked as it is."""
    for number, (wording, text) in enumerate(
        ((True, "Let it happen?"), ("Really?", "Really?"), (lambda: "Now?", "Now?"))
    ):
        do = effect("it", approval=wording)(functools.partial(world.append, 1))
        job = run(store, chain(lambda _s, do=do: {"log": [do()]}), {"log": [number]})
        (row,) = store.reviews(job)
        assert row.value["action_requests"][0]["description"] == text
    assert world == []


def test_without_a_job_it_asks_as_langgraph_does(world: list[Any]) -> None:
    """In a graph that runs by itself an interrupt asks; a call by hand is the person's own."""
    pay = paying(world)
    graph = chain(lambda _s: {"log": [pay("ann", 7)]}, checkpointer=InMemorySaver())
    thread: Any = {"configurable": {"thread_id": "1"}}
    (asks,) = graph.invoke({"log": []}, thread)["__interrupt__"]
    assert asks.value["action_requests"][0]["args"] == {"to": "ann", "amount": 7}
    assert world == []
    edit = {"type": "edit", "edited_action": {"name": "payment.send", "args": {"to": "bob", "amount": 7}}}
    assert graph.invoke(Command(resume={"decisions": [edit]}), thread)["log"] == ["paid 7 to bob"]
    assert pay("eve", 1) == "paid 1 to eve"
    thread["configurable"]["thread_id"] = "2"
    graph.invoke({"log": []}, thread)
    with pytest.raises(ApprovalRejected):
        graph.invoke(Command(resume={"type": "reject"}), thread)
    assert world == [("bob", 7), ("eve", 1)]


def test_a_thread_of_its_own_does_not_get_around_the_question(store: Store, world: list[Any]) -> None:
    """Where jobs run, a call that nothing ties to its job is refused rather than made."""
    pay, errors = paying(world), list[Any]()

    def call() -> None:
        try:
            pay("ann", 7)
        except EffectInvalid as error:
            errors.append(error)

    def node(_state: Log) -> Log:
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        return {"log": ["over"]}

    job = run(store, chain(node))
    assert (world, len(errors), result(store, job)) == ([], 1, ["over"])


def test_a_question_that_is_no_longer_asked_is_closed(store: Store, world: list[Any]) -> None:
    """A branch that comes with other arguments, run again for another's answer, leaves no stale question open."""
    pay, amounts = paying(world), [7]
    graph = beside(lambda _s: {"log": [pay("ann", amounts[-1])]}, lambda _s: {"log": [review("beside?").type]})
    job = run(store, graph)
    stale = next(one for one in store.reviews() if "approval" in one.value)
    amounts.append(70)
    store.answer(next(one for one in store.reviews() if one != stale).public_id, "approve")
    work(store, graph)
    assert asked(store).value["action_requests"][0]["args"]["amount"] == 70
    with pytest.raises(ReviewAnswered, match="asks something else now"):
        store.answer(stale.public_id, "approve")
    say(store, "approve")
    amounts.append(7)  # asked about once more: the same question, open again
    work(store, graph)
    assert (asked(store).public_id, world) == (stale.public_id, [])
    say(store, "approve")
    work(store, graph)
    assert (world, store.job(job.public_id).status) == ([("ann", 7)], "done")
