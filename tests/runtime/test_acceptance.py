"""Acceptance: what must pass before a job is done, what goes back to its graph, and what a person is asked."""

from __future__ import annotations

import json
import operator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.func import entrypoint
from langgraph.graph import START, StateGraph

from everstep import effect
from everstep.checkpoints.policy import Acceptance, Budget, JobPolicy
from everstep.checkpoints.store import Store
from everstep.errors import ReviewAnswered, ReviewAnswerInvalid
from tests.support.accepted import FAILS, NOTHING, Agent, Talk, asked, enqueue, outcomes, result, write
from tests.support.jobs import chain, moves, work
from tests.support.outside import happened, note
from tests.support.record import begin_effect

SECRET = "ghp_" + "a1" * 18


# ---- passing, and going back


@pytest.mark.both_databases
def test_a_job_whose_commands_pass_is_done_with_the_evidence(store: Store, folder: Path) -> None:
    """Commands run in the folder the final state names, and what ran and came out is kept with a digest."""
    job = enqueue(store, folder, "cat made", "test -s made")
    work(store, Agent(write(made="good")).graph)
    assert result(store, job)["messages"][-1]["content"] == "done, 1"
    (kept,) = store.evidence(job)
    detail = kept["detail"]
    assert (kept["kind"], detail["outcome"], detail["passed"]) == ("acceptance", "accepted", True)
    assert detail["workdir"] == str(folder)
    assert [(row["command"], row["exit_code"], row["output"]) for row in detail["results"]] == [
        ("cat made", 0, "good"),
        ("test -s made", 0, ""),
    ]
    assert len(detail["digest"]) == 64
    job = store.job(job.public_id)
    assert (job.returns, job.attempts, moves(store, job)) == (0, 1, ["pending", "running", "done"])
    assert job.result_digest


@pytest.mark.both_databases
def test_a_failing_command_goes_back_to_the_graph_with_its_output(store: Store, folder: Path) -> None:
    """The agent's claim is not completion: it is told what failed, once, in the state it had, and works on."""
    agent = Agent(write(made="bad"), write(made="good"))
    job = enqueue(store, folder, "grep good made", "cat made")
    work(store, agent.graph)
    said = [message["content"] for message in result(store, job)["messages"]]
    assert (said[0], said[1], said[3]) == ("build it", "done, 1", "done, 2")
    assert "`grep good made` exited with 1" in said[2]
    assert len(said) == 4
    assert [len(told) for told in agent.told] == [1, 2]
    job = store.job(job.public_id)
    assert (job.returns, job.attempts, job.failures) == (1, 1, 0)
    assert moves(store, job) == ["pending", "running", "pending", "running", "done"]
    assert "back to the graph (return 1 of 2)" in store.events(job)[2]["reason"]
    assert outcomes(store, job) == ["returned", "accepted"]


def test_the_feedback_tells_the_last_part_of_the_output(store: Store, folder: Path) -> None:
    """The agent gets the end of a long output, where tools say what is wrong."""
    agent = Agent(NOTHING)
    job = enqueue(store, folder, "sh -c 'seq 100000; echo the end; exit 1'", returns=1)
    work(store, agent.graph)
    feedback = agent.told[1][1]
    assert "the end" in feedback
    assert len(feedback) < 5000
    assert len(asked(store, job).value["output"]) <= 8192


class Notes(TypedDict, total=False):
    note: str
    notes: Annotated[list[str], operator.add]
    seen: Annotated[list[Any], operator.add]


@pytest.mark.parametrize("channel", ["note", "notes"])
def test_any_channel_can_take_the_feedback(store: Store, folder: Path, channel: str) -> None:
    """A channel other than `messages` gets the text: as it is, or as a list of it where the channel holds a list."""
    graph = chain(lambda state: {"seen": [state.get("note"), list(state.get("notes", []))]}, schema=Notes)
    acceptance = Acceptance(
        verify=("sh -c 'test -e once || { touch once; echo broken; exit 1; }'",), workdir=str(folder)
    )
    acceptance = Acceptance.of({**acceptance.as_dict(), "feedback": channel})
    job = store.enqueue("graph", {"seen": []}, policy=JobPolicy(acceptance=acceptance)).job
    work(store, graph)
    note_, notes = result(store, job)["seen"][2:]
    text = note_ if channel == "note" else "".join(notes)
    assert "broken" in text
    assert store.job(job.public_id).returns == 1


def without_messages() -> Any:
    """A graph whose input has no `messages`, although its state has."""

    class Given(TypedDict, total=False):
        folder: str

    builder = StateGraph(Talk, input_schema=Given)
    builder.add_node("node", lambda _s: {"messages": [{"role": "assistant", "content": "done"}]})
    builder.add_edge(START, "node")
    return builder.compile()


@entrypoint()
def workflow(given: dict[str, Any]) -> dict[str, Any]:
    """A workflow of the functional API: its input is no set of channels."""
    return given


@pytest.mark.parametrize("graph", [without_messages, lambda: workflow], ids=["input schema", "functional"])
def test_a_graph_that_cannot_take_feedback_goes_straight_to_a_person(store: Store, folder: Path, graph: Any) -> None:
    """Without a channel for the output nothing is returned, the review says why, and `respond` is not offered."""
    job = enqueue(store, folder, FAILS)
    work(store, graph())
    review = asked(store, job)
    assert "no channel 'messages'" in review.value["why"]
    assert review.value["returns"] == 0
    with pytest.raises(ReviewAnswerInvalid):
        store.answer(review.public_id, "respond", value="try again")
    store.answer(review.public_id, "approve")
    work(store, graph())
    assert result(store, job)["folder"] == str(folder)
    assert happened(str(folder / "runs")) == ["run"]


# ---- a person


@pytest.mark.both_databases
def test_used_up_returns_are_a_persons_matter_and_approval_ends_the_job(store: Store, folder: Path) -> None:
    """After the last return a person is asked, with the output; approved, the result is taken; nothing runs again."""
    agent = Agent(NOTHING)
    job = enqueue(store, folder, FAILS, returns=2)
    work(store, agent.graph)
    review = asked(store, job)
    assert review.kind == "policy"
    told = {name: review.value[name] for name in ("code", "command", "exit_code", "output", "returns")}
    assert told == {
        "code": "acceptance_failed",
        "command": FAILS,
        "exit_code": 3,
        "output": "still broken\n",
        "returns": 2,
    }
    assert len(agent.told) == 3
    store.answer(review.public_id, "approve", by="ann")
    work(store, agent.graph)
    assert len(result(store, job)["messages"]) == 6
    assert (len(agent.told), happened(str(folder / "runs"))) == (3, ["run"] * 3)
    assert outcomes(store, job) == ["returned", "returned", "review", "accepted"]
    assert store.events(job)[-1]["reason"] == f"accepted by review {review.public_id}"
    assert store.job(job.public_id).attempts == 1


@pytest.mark.both_databases
def test_a_rejected_result_has_failed_and_a_retry_asks_again(store: Store, folder: Path) -> None:
    """The failed job keeps what failed; retried after all, it is verified and asked about anew, not round and round."""
    agent = Agent(NOTHING)
    job = enqueue(store, folder, FAILS, returns=0)
    work(store, agent.graph)
    store.answer(asked(store, job).public_id, "reject", reason="no", by="ann")
    error = json.loads(store.job(job.public_id).error_json or "")
    assert (store.job(job.public_id).status, error["code"]) == ("failed", "rejected")
    assert (error["cause"]["code"], error["cause"]["output"]) == ("acceptance_failed", "still broken\n")
    store.redrive(job.public_id)
    work(store, agent.graph)
    assert asked(store, job).value["exit_code"] == 3
    assert len(agent.told) == 1
    store.answer(asked(store, job).public_id, "approve")
    work(store, agent.graph)
    assert result(store, job)


@pytest.mark.both_databases
@pytest.mark.parametrize("how", [{"value": "use the other door"}, {"reason": "use the other door"}])
def test_a_persons_words_go_back_to_the_graph(store: Store, folder: Path, how: dict[str, str]) -> None:
    """`respond` feeds the words as the output was fed, once, and the result is verified again."""
    agent = Agent(NOTHING, write(made="good"))
    job = enqueue(store, folder, "test -e made", returns=0)
    work(store, agent.graph)
    review = asked(store, job)
    _, job = store.answer(review.public_id, "respond", **how)
    assert (job.status, job.returns, job.input_applied, job.attempts) == ("pending", 1, 0, 0)
    work(store, agent.graph)
    assert agent.told == [["build it"], ["build it", "use the other door"]]
    assert len(result(store, job)["messages"]) == 4
    with pytest.raises(ReviewAnswered):
        store.answer(review.public_id, "respond", value="again")


@pytest.mark.parametrize("value", [None, "", "  ", 7, {"text": "x"}])
def test_a_response_needs_words(store: Store, folder: Path, value: Any) -> None:
    """Without a text there is nothing to give back: refused, and the review stays open."""
    job = enqueue(store, folder, FAILS, returns=0)
    work(store, Agent(NOTHING).graph)
    with pytest.raises(ReviewAnswerInvalid, match="words"):
        store.answer(asked(store, job).public_id, "respond", value=value)
    assert store.job(job.public_id).input_applied == 1
    assert asked(store, job)


def test_the_same_words_can_be_given_twice(store: Store, folder: Path) -> None:
    """Each round is a run of its own to LangGraph, also with an input equal to the last."""
    agent = Agent(NOTHING)
    job = enqueue(store, folder, FAILS, returns=0)
    for _ in range(2):
        work(store, agent.graph)
        store.answer(asked(store, job).public_id, "respond", value="again")
    work(store, agent.graph)
    assert agent.told[-1] == ["build it", "again", "again"]


def test_a_folder_the_state_does_not_name_is_a_persons_matter(store: Store, folder: Path) -> None:
    """A name that the final state lacks is a mistake of the policy: the graph is not bothered with it."""
    agent = Agent(NOTHING)
    job = enqueue(store, folder, FAILS, workdir="{folder}/{checkout}")
    work(store, agent.graph)
    assert "{checkout}" in asked(store, job).value["why"]
    assert len(agent.told) == 1
    store.answer(asked(store, job).public_id, "approve")
    work(store, agent.graph)
    assert result(store, job)


def test_a_folder_that_is_missing_cannot_pass(store: Store, folder: Path) -> None:
    """Commands that cannot even start have failed."""
    job = enqueue(store, folder, "true", workdir="{folder}/missing", returns=0)
    work(store, Agent(NOTHING).graph)
    assert asked(store, job).value["exit_code"] == 127


def test_credentials_do_not_get_into_the_record(store: Store, folder: Path) -> None:
    """What a command prints by mistake is found in no evidence, review, feedback or error."""
    agent = Agent(write(leak=SECRET))
    job = enqueue(store, folder, "sh -c 'cat leak; exit 1'", returns=1)
    work(store, agent.graph)
    store.answer(asked(store, job).public_id, "reject")
    job = store.job(job.public_id)
    kept = json.dumps([store.evidence(job), [review.value for review in store.reviews(job)], job.error_json])
    assert "***" in kept
    assert SECRET not in kept + (job.next_input_json or "") + "".join(agent.told[1])


# ---- effects, and graphs that changed


def test_effects_of_the_next_round_are_their_own(store: Store, folder: Path) -> None:
    """The same call in the next round is another effect; one with a business key is the same, and is not repeated."""
    world = str(folder / "world")

    @effect("world.same")
    def same(line: str) -> str:
        note(world, line)
        return line

    @effect("world.keyed", key="only once")
    def keyed(line: str) -> str:
        note(world, f"keyed {line}")
        return line

    def node(state: Talk) -> Talk:
        return {"messages": [{"role": "assistant", "content": same("x") + keyed("x")}]}

    job = enqueue(store, folder, "sh -c 'test $(grep -c ^x$ world) = 2'")
    work(store, chain(node, schema=Talk))
    assert len(result(store, job)["messages"]) == 4
    assert happened(world) == ["x", "keyed x", "x"]
    assert len({found.key for found in store.effects(job)}) == 3


@pytest.mark.both_databases
def test_nothing_is_judged_while_an_effect_is_in_doubt(store: Store, folder: Path) -> None:
    """A person says what became of the effect first; then the commands run."""

    def node(state: Talk) -> Talk:
        begin_effect(store, store.jobs()[0])  # as of an earlier leg, whose code asked for it
        return {"messages": [{"role": "assistant", "content": "done"}]}

    job = enqueue(store, folder, FAILS, returns=0)
    work(store, chain(node, schema=Talk))
    review = asked(store, job)
    assert (review.kind, outcomes(store, job), happened(str(folder / "runs"))) == ("effect", [], [])
    store.answer(review.public_id, "approve", value="arrived")
    work(store, chain(node, schema=Talk))
    assert (asked(store, job).kind, happened(str(folder / "runs"))) == ("policy", ["run"])


def test_a_budget_that_ends_with_the_last_step_does_not_keep_a_job_from_its_acceptance(
    store: Store, folder: Path
) -> None:
    """A graph that finished uses nothing more: it is verified, and given back it waits for the budget to be raised."""
    agent = Agent(NOTHING, write(made="good"))
    acceptance = Acceptance(verify=("test -e made",), workdir=str(folder))
    given = {"messages": [{"role": "user", "content": "build it"}], "folder": str(folder)}
    job = store.enqueue("graph", given, policy=JobPolicy(budget=Budget(steps=1), acceptance=acceptance)).job
    work(store, agent.graph)
    assert (outcomes(store, job), asked(store, job).kind, len(agent.told)) == (["returned"], "budget", 1)
    store.answer(asked(store, job).public_id, "approve", value={"steps": 20})
    work(store, agent.graph)
    assert result(store, job)
    assert (agent.told[1][0], len(agent.told[1]), len(agent.told)) == ("build it", 2, 2)


@pytest.mark.both_databases
def test_a_graph_that_changed_before_it_is_fed_again_is_asked_about(store: Store, folder: Path) -> None:
    """Feedback for a graph that is no longer the one that finished waits for a person, and is fed once then."""
    job = enqueue(store, folder, "test -e made", returns=0)
    work(store, Agent(NOTHING).graph)
    store.answer(asked(store, job).public_id, "respond", value="go on")
    told: list[int] = []

    def other(state: Talk) -> Talk:
        told.append(len(state["messages"]))
        write(made="good")(folder)
        return {"messages": [{"role": "assistant", "content": "other"}]}

    changed = chain(lambda _s: {"messages": []}, other, schema=Talk)
    work(store, changed)
    assert (asked(store, job).kind, told) == ("fingerprint", [])
    store.answer(asked(store, job).public_id, "approve")
    work(store, changed)
    assert [message["content"] for message in result(store, job)["messages"]][2:] == ["go on", "other"]
    assert told == [3]
