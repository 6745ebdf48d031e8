"""Acceptance: what must pass before a job is done, what goes back to its graph, and what a person is asked."""

from __future__ import annotations

import json
import operator
import os
import signal
import threading
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.func import entrypoint
from langgraph.graph import START, StateGraph

from everstep import effect
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.policy import Acceptance, Budget, JobPolicy
from everstep.checkpoints.reviews import Review
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock
from everstep.errors import ReviewAnswered, ReviewAnswerInvalid
from everstep.runtime.worker import Worker
from tests.support.accepted import Agent, Talk, enqueue, outcomes, write
from tests.support.jobs import chain, moves, work
from tests.support.outside import happened, note
from tests.support.record import begin_effect, claim
from tests.support.repositories import git
from tests.support.waiting import PATIENCE, until

NOTHING = write()
FAILS = "sh -c 'echo run >> runs; echo still broken; exit 3'"
SECRET = "ghp_" + "a1" * 18


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the agent works."""
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.fixture
def repository(folder: Path) -> Path:
    """The same folder as a repository with one commit, tagged `start`."""
    write(README="start", auth__login_py="old", shop_py="old")(folder)
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=start")
    git(folder, "tag", "start")
    return folder


def asked(store: Store, job: Job) -> Review:
    """The one open review of the job."""
    (review,) = [found for found in store.reviews(job) if found.status == "open"]
    return review


def result(store: Store, job: Job) -> Any:
    """What the job ended with."""
    job = store.job(job.public_id)
    assert job.status == "done", f"{job.status}: {job.error_json}"
    return json.loads(job.result_json or "")


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


# ---- high-risk paths


@pytest.mark.both_databases
def test_a_change_of_high_risk_paths_needs_a_person(store: Store, repository: Path) -> None:
    """What passed is not done while no person has seen which delicate paths changed; approval ends it, unrepeated."""
    agent = Agent(write(auth__login_py="new", shop_py="new"))
    job = enqueue(store, repository, FAILS.replace("exit 3", "exit 0"), base="start")
    work(store, agent.graph)
    review = asked(store, job)
    told = {name: review.value[name] for name in ("code", "paths", "number_of_paths")}
    assert told == {"code": "high_risk_paths", "paths": ["auth/login.py"], "number_of_paths": 1}
    assert review.value["base"] == git(repository, "rev-parse", "start")
    assert len(review.value["digest"]) == 64
    store.answer(review.public_id, "approve")
    work(store, agent.graph)
    assert len(result(store, job)["messages"]) == 2
    assert happened(str(repository / "runs")) == ["run"]
    assert outcomes(store, job) == ["review", "accepted"]


def test_an_approval_is_for_what_was_seen(store: Store, repository: Path) -> None:
    """A high-risk file that changed after the question was asked is verified and asked about again."""
    agent = Agent(write(auth__login_py="new"))
    job = enqueue(store, repository, "test -e README", base="start")
    work(store, agent.graph)
    first = asked(store, job)
    write(auth__login_py="and newer")(repository)
    store.answer(first.public_id, "approve")
    work(store, agent.graph)
    second = asked(store, job)
    assert second.public_id != first.public_id
    assert second.value["digest"] != first.value["digest"]
    store.answer(second.public_id, "approve")
    work(store, agent.graph)
    assert result(store, job)
    assert len(agent.told) == 1


def test_a_rejected_change_has_failed_and_is_asked_about_again(store: Store, repository: Path) -> None:
    """Rejected, the job has failed with the paths; retried, the same change is a new question."""
    agent = Agent(write(auth__login_py="new"))
    job = enqueue(store, repository, base="start")
    work(store, agent.graph)
    store.answer(asked(store, job).public_id, "reject")
    error = json.loads(store.job(job.public_id).error_json or "")
    assert error["cause"]["paths"] == ["auth/login.py"]
    store.redrive(job.public_id)
    work(store, agent.graph)
    assert asked(store, job).value["code"] == "high_risk_paths"


def test_a_person_can_send_a_change_back(store: Store, repository: Path) -> None:
    """`respond` tells the agent to leave the path alone; when it did, the job is done."""
    agent = Agent(write(auth__login_py="new", shop_py="new"), write(auth__login_py="old"))
    job = enqueue(store, repository, base="start")
    work(store, agent.graph)
    store.answer(asked(store, job).public_id, "respond", value="leave auth alone")
    work(store, agent.graph)
    assert result(store, job)["messages"][2]["content"] == "leave auth alone"


@pytest.mark.parametrize(
    ("patterns", "status"), [(None, "review"), ((), "done"), (("*.md",), "done"), (("shop.*",), "review")]
)
def test_which_paths_are_high_risk_is_the_policys(
    store: Store, repository: Path, patterns: tuple[str, ...] | None, status: str
) -> None:
    """Own patterns stand in place of the defaults; an empty list says that none is."""
    job = enqueue(store, repository, base="start", high_risk=patterns)
    work(store, Agent(write(auth__login_py="new", shop_py="new")).graph)
    assert store.job(job.public_id).status == status


@pytest.mark.parametrize("base", ["no-such-revision", "0" * 40, "-x", "start"])
def test_what_nobody_can_tell_is_never_accepted_silently(store: Store, repository: Path, base: str) -> None:
    """An unknown base, or a folder that is no repository any more, is a question with what git said."""

    def breaks(folder: Path) -> None:
        if base == "start":
            (folder / ".git").rename(folder / "gone")

    job = enqueue(store, repository, "test -e README", base=base)
    work(store, Agent(breaks).graph)
    review = asked(store, job)
    assert review.value["code"] == "high_risk_unknown"
    assert review.value["why_unknown"]
    store.answer(review.public_id, "approve")
    work(store, Agent(breaks).graph)
    assert result(store, job)


def test_approval_of_a_failed_result_does_not_approve_paths_nobody_saw(store: Store, repository: Path) -> None:
    """The failure's review shows the high-risk paths; its approval covers these, and others are asked about."""
    agent = Agent(write(auth__login_py="new"))
    job = enqueue(store, repository, FAILS, base="start", returns=0)
    work(store, agent.graph)
    review = asked(store, job)
    assert (review.value["code"], review.value["paths"]) == ("acceptance_failed", ["auth/login.py"])
    write(Dockerfile="FROM scratch")(repository)
    store.answer(review.public_id, "approve")
    work(store, agent.graph)
    assert asked(store, job).value["paths"] == ["Dockerfile", "auth/login.py"]
    store.answer(asked(store, job).public_id, "approve")
    work(store, agent.graph)
    assert result(store, job)
    assert happened(str(repository / "runs")) == ["run"]


# ---- while commands run

WAITS = "sh -c 'echo $$ >> pids; while [ ! -e go ]; do sleep 0.05; done'"


class AtWork:
    """A worker in a thread of this process, whose job's command is running."""

    def __init__(self, store: Store, folder: Path, graph: Any, runs: int = 1, **options: Any) -> None:
        self.worker = Worker(store, {"graph": graph}, **options)
        self.thread = threading.Thread(target=self.worker.run, kwargs={"until_idle": True})
        self.folder, self.runs = folder, runs

    def __enter__(self) -> AtWork:
        self.thread.start()
        until(lambda: len(happened(str(self.folder / "pids"))) >= self.runs, "the command")
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.worker.drain()
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive(), "the worker did not end"

    def ended(self) -> bool:
        """Whether the last command's process is gone."""
        try:
            os.kill(int(happened(str(self.folder / "pids"))[-1]), 0)
        except ProcessLookupError:
            return True
        return False


def test_a_draining_worker_gives_the_job_back_and_the_commands_run_again(shared: Store, folder: Path) -> None:
    """Commands under way are stopped, the start is not counted, and the next worker runs them from the beginning."""
    agent = Agent(NOTHING)
    job = enqueue(shared, folder, WAITS)
    with AtWork(shared, folder, agent.graph) as first:
        first.worker.drain()
    assert first.ended()
    after = shared.job(job.public_id)
    assert (after.status, after.attempts, after.returns, outcomes(shared, job)) == ("pending", 0, 0, [])
    with AtWork(shared, folder, agent.graph, runs=2):
        (folder / "go").touch()
    assert result(shared, job)
    assert (len(agent.told), len(happened(str(folder / "pids")))) == (1, 2)


def test_a_cancelled_job_stops_its_commands(shared: Store, folder: Path) -> None:
    """Cancelling ends the command with its children, and the job is cancelled, not judged."""
    job = enqueue(shared, folder, WAITS)
    with AtWork(shared, folder, Agent(NOTHING).graph, lease=0.6) as running:
        shared.cancel(job.public_id)
    assert running.ended()
    after = shared.job(job.public_id)
    assert (after.status, json.loads(after.error_json or "")["code"]) == ("failed", "cancelled")
    assert outcomes(shared, job) == []


def test_a_command_longer_than_the_lease_keeps_the_claim(shared: Store, folder: Path) -> None:
    """Heartbeats go on while commands run, and the worker does other jobs."""
    job = enqueue(shared, folder, WAITS)
    with AtWork(shared, folder, Agent(NOTHING).graph, lease=0.4):
        other = shared.enqueue("graph", {"messages": [{"role": "user", "content": "b"}], "folder": str(folder)}).job
        until(lambda: shared.job(other.public_id).status == "done", "the other job")
        first = shared.job(job.public_id).lease_until or 0
        until(lambda: (shared.job(job.public_id).lease_until or 0) > first + 800, "the renewal of the lease")
        assert claim(shared, "another") == []
        (folder / "go").touch()
    assert result(shared, job)
    assert shared.job(job.public_id).claim_no == 1


@pytest.mark.both_databases
def test_the_judgement_of_a_lost_claim_changes_nothing(store: Store, clock: ManualClock, folder: Path) -> None:
    """A worker that lost the job while commands ran writes neither evidence nor feedback."""
    job = enqueue(store, folder, WAITS.replace("done'", "done; exit 1'"))
    with AtWork(store, folder, Agent(NOTHING).graph, lease=3600.0) as running:
        clock.advance(2 * 3600 * 1000)
        (taken,) = claim(store, "another", lease_ms=10**9)
        (folder / "go").touch()
        until(lambda: running.worker.lost_claims, "the loss")
        running.worker.drain()
    now = store.job_by_row(job.id)
    assert (now.claim_no, now.status, now.returns, now.input_applied) == (taken.claim_no, "running", 0, 1)
    assert outcomes(store, job) == []


def test_a_job_whose_worker_is_killed_during_a_command_is_verified_again(shared: Store, folder: Path) -> None:
    """Nothing is known of a verification that was cut short: the next worker runs the commands anew."""
    from tests.support.record import CONTEXT

    job = enqueue(shared, folder, "sh -c 'echo run >> runs; test -e killed || { touch killed; kill -9 $PPID; }'")
    process = CONTEXT.Process(target=_work_here, args=(shared.url,))
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == -signal.SIGKILL
    work(shared, Agent(NOTHING).graph)
    assert result(shared, job)
    assert happened(str(folder / "runs")) == ["run", "run"]
    assert outcomes(shared, job) == ["accepted"]


def _work_here(url: str) -> None:
    with Store.open(url) as store:
        Worker(store, {"graph": Agent(NOTHING).graph}).run(until_idle=True)
