"""Acceptance on the command line: what `submit` and `everstep.toml` ask, and what `show` and `review` tell of it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.folder import Folder

GRAPH = """
from typing import Annotated, Any, TypedDict
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

class State(TypedDict, total=False):
    messages: Annotated[list[Any], add_messages]

def work(state):
    return {"messages": [{"role": "assistant", "content": "done"}]}

graph = StateGraph(State).add_node("work", work).add_edge(START, "work").add_edge("work", END)
"""


@pytest.fixture
def folder(tmp_path: Any) -> Folder:
    """A folder with an agent that always says it is done."""
    return Folder(tmp_path).write(agent=GRAPH).configure(agent="./agent.py:graph")


def submit(folder: Folder, *options: str) -> Any:
    """What `show --json` tells of the acceptance of a new job."""
    ran = folder.run("submit", "agent", "--input", '{"messages": []}', "--json", *options)
    assert ran.code == 0, ran.err
    return folder.run("show", ran.value["id"], "--json").value


def test_submit_says_what_a_job_must_pass(folder: Folder) -> None:
    """Every part of the policy has an option, and is stored with the job."""
    options = "--verify-in {place} --verify-timeout 5 --returns 1 --feedback notes --base abc --high-risk *.md".split()
    view = submit(folder, "--verify", "make test", "--verify", "make lint", "--high-risk", "db/**", *options)
    assert view["acceptance"] == {
        "policy": {
            "verify": ["make test", "make lint"],
            "workdir": "{place}",
            "timeout": 5.0,
            "returns": 1,
            "feedback": "notes",
            "high_risk": ["db/**", "*.md"],
            "base": "abc",
        },
        "returns": 0,
        "last": None,
    }


def test_options_stand_in_place_of_everstep_toml(folder: Folder) -> None:
    """The graph's acceptance is asked of each job; an option changes its part for one job and leaves the others."""
    (folder.path / "everstep.toml").write_text('[graphs.agent.acceptance]\nverify = ["make test"]\nreturns = 7\n')
    policy = submit(folder)["acceptance"]["policy"]
    assert (policy["verify"], policy["returns"], policy["high_risk"]) == (["make test"], 7, None)
    policy = submit(folder, "--returns", "0", "--no-high-risk", "--key", "other")["acceptance"]["policy"]
    assert (policy["verify"], policy["returns"], policy["high_risk"]) == (["make test"], 0, [])


def test_without_a_policy_nothing_is_asked(folder: Folder) -> None:
    """A job without an acceptance shows none."""
    assert submit(folder)["acceptance"] is None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--verify", ""], "empty"),
        (["--verify", "it's"], "cannot be split"),
        (["--verify", "curl -H 'Authorization: Bearer abcdefghij0123456789'"], "credential"),
        (["--verify", "true", "--returns", "-1"], "at least 0"),
        (["--verify", "true", "--verify-timeout", "0"], "timeout"),
        (["--verify", "true", "--verify-timeout", "nan"], "timeout"),
        (["--verify", "true", "--high-risk", "x"], "base"),
        (["--base", "x", "--high-risk", "x", "--no-high-risk"], "contradict"),
        (["--base", " "], "base is empty"),
        (["--returns", "1"], "nothing would be checked"),
        (["--no-high-risk"], "nothing would be checked"),
    ],
)
def test_a_policy_that_checks_nothing_or_cannot_be_kept_is_refused(
    folder: Folder, options: list[str], says: str
) -> None:
    """What is misspelled or contradictory is an error before there is a job, with what to do."""
    ran = folder.run("submit", "agent", "--input", "{}", "--json", *options)
    assert (ran.code, ran.error["code"]) == (64, "payload_invalid")
    assert says in ran.error["message"]
    assert "abcdefghij" not in ran.err
    assert not (folder.path / "everstep.db").exists()


def test_show_and_review_tell_what_came_out(folder: Folder) -> None:
    """People see the commands, how often the job went back and what came out, and answer from the same place."""
    view = submit(folder, "--verify", "sh -c 'echo broken; exit 1'", "--returns", "1")
    assert folder.run("worker", "--until-idle").code == 0
    shown = folder.run("show", view["id"])
    assert "acceptance sh -c 'echo broken; exit 1' (in .); given back 1 time" in shown.out
    assert "review  sh -c 'echo broken; exit 1' → 1" in shown.out
    (review,) = folder.run("review", "--json").value
    assert list(review["choices"]) == ["approve", "respond", "reject"]
    assert "not accepted" in folder.run("review").out
    assert folder.run("review", "respond", review["id"]).code == 64
    assert folder.run("review", "respond", review["id"], "--value", '"try harder"').code == 0
    assert folder.run("worker", "--until-idle").code == 0
    (review,) = folder.run("review", "--json").value
    assert folder.run("review", "approve", review["id"]).code == 0
    assert folder.run("worker", "--until-idle").code == 0
    after = folder.run("show", view["id"], "--json").value
    assert (after["status"], after["acceptance"]["returns"]) == ("done", 2)
    assert after["acceptance"]["last"]["detail"]["outcome"] == "accepted"
    assert [message["content"] for message in after["result"]["messages"]][3] == "try harder"
