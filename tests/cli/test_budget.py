"""`everstep budget`, and budgets of `submit`, `show` and `review`: with the real command and a real worker."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from everstep.checkpoints.store import Store
from tests.cli.folder import Folder, is_refused

MODELS = Path(__file__).parents[1] / "support" / "models.py"
AGENT = """
import operator
from typing import Annotated, TypedDict

from langgraph.graph import END, START, StateGraph

from models import MeteredModel


class State(TypedDict, total=False):
    seen: Annotated[list[int], operator.add]


def step(state):
    MeteredModel().invoke("go on?")
    return {"seen": [len(state.get("seen", []))]}


graph = StateGraph(State).add_node("step", step).add_edge(START, "step")
graph.add_conditional_edges("step", lambda state: "step" if len(state["seen"]) < 4 else END)
agent = graph.compile()
"""
PRICES = '[prices."metered-1"]\ninput = 100.0\noutput = 1000.0\n'
"""A call of 80 and 20 tokens costs 0.028 US dollars."""


@pytest.fixture
def agents(tmp_path: Path) -> Folder:
    """A folder with an agent that calls a model in each of four steps."""
    shutil.copy(MODELS, tmp_path / "models.py")
    return Folder(tmp_path).write(agent=AGENT).configure(agent="./agent.py:agent")


def configure(folder: Folder, text: str) -> None:
    """Write the folder's `everstep.toml`."""
    (folder.path / "everstep.toml").write_text(text)


def work(folder: Folder) -> None:
    """Run a worker until only a person could go on, one job after another."""
    ran = folder.run("worker", "--until-idle", "--concurrency", "1", "--json")
    assert ran.code == 0, ran


def limits(folder: Folder, job: str) -> dict[str, Any]:
    """The limits of a job."""
    return folder.json("budget", job)["limits"]


def test_a_budget_is_spent_shown_and_raised(agents: Folder) -> None:
    """A job stops for its budget with exit code 2, `budget` shows it, raising it answers, and the job goes on."""
    configure(agents, PRICES)
    job = agents.submit("agent", "--budget-tokens", "150", "--budget-cost", "5")
    assert agents.json("budget", job) == {
        "id": job,
        "status": "pending",
        "parent": None,
        "limits": {"tokens": 150, "cost": 5.0},
        "used": {"steps": 0, "seconds": 0.0, "tokens": 0, "cost": 0.0},
        "remaining": {"tokens": 150, "cost": 5.0},
        "ancestors": [],
        "answered": [],
        "waiting": [],
    }
    work(agents)
    assert agents.run("submit", "agent", "--input", "{}", "--wait").code == 2
    spent = agents.json("budget", job)
    assert (spent["status"], spent["used"]["tokens"], spent["used"]["cost"]) == ("review", 200, 0.056)
    assert spent["remaining"] == {"tokens": 0, "cost": 4.944}
    shown = agents.run("budget", job).out
    assert "tokens   200 of 150 used, 0 left" in shown
    assert "cost     0.056 of 5 used, 4.944 left" in shown
    assert "tokens   200 of 150 used, 0 left" in agents.run("show", job).out
    assert agents.json("show", job)["budget"] == {name: spent[name] for name in ("limits", "used", "remaining")}
    assert "The tokens that this job may use are used up" in agents.run("review").out
    raised = agents.json("budget", job, "--tokens", "1000")
    (answered,) = raised["answered"]
    assert (raised["status"], raised["limits"], answered["job"]) == ("pending", {"tokens": 1000, "cost": 5.0}, job)
    work(agents)
    assert agents.json("show", job)["result"] == {"seen": [0, 1, 2, 3]}


def test_a_budget_comes_from_the_file_and_an_option_overrides_one_limit(agents: Folder) -> None:
    """`[graphs.NAME.budget]` applies at submit; --budget-… takes the place of that one limit."""
    configure(agents, "[graphs.agent.budget]\nsteps = 10\nseconds = 60\n")
    plain, other = agents.submit("agent"), agents.submit("agent", "--key", "other", "--budget-steps", "2")
    assert limits(agents, plain) == {"steps": 10, "seconds": 60}
    assert limits(agents, other) == {"steps": 2, "seconds": 60}


def test_a_review_may_raise_the_budget(agents: Folder) -> None:
    """Approving without raising is refused with the command that would; with a value it raises and goes on."""
    job = agents.submit("agent", "--budget-steps", "1")
    work(agents)
    (review,) = agents.json("review")
    assert (review["kind"], review["value"]["code"], review["value"]["limit"]) == ("budget", "budget_exceeded", "steps")
    refused = agents.run("review", "approve", review["id"])
    is_refused(refused, 64, "review_answer_invalid")
    assert f"everstep budget {job} --steps N" in refused.err
    is_refused(agents.run("review", "approve", review["id"], "--value", "[]"), 64, "review_answer_invalid")
    answered = agents.json("review", "approve", review["id"], "--value", '{"steps": 100}')
    assert answered["job_status"] == "pending"
    work(agents)
    assert agents.json("show", job)["status"] == "done"


def test_children_show_whose_budget_binds_them(agents: Folder) -> None:
    """`submit --parent` makes a child: its use is its parent's too, and what is left of the parent's binds it."""
    parent = agents.submit("agent", "--budget-tokens", "500")
    child = agents.submit("agent", "--key", "child", "--parent", parent)
    work(agents)
    view = agents.json("budget", child)
    assert (view["parent"], view["limits"], view["status"]) == (parent, {}, "review")
    (above,) = view["ancestors"]
    assert (above["id"], above["limits"], above["remaining"]) == (parent, {"tokens": 500}, {"tokens": 0})
    assert f"child of {parent}" in agents.run("budget", child).out
    assert f"parent     {parent}" in agents.run("show", child).out
    assert {job["id"]: job["parent"] for job in agents.json("jobs")} == {parent: None, child: parent}
    raised = agents.json("budget", parent, "--tokens", "none")
    assert (raised["limits"], [one["job"] for one in raised["answered"]]) == ({}, [child])
    is_refused(agents.run("submit", "agent", "--input", "{}", "--parent", "0000"), 66, "job_not_found")


def test_a_parents_budget_tells_which_children_wait_for_it(agents: Folder) -> None:
    """`budget PARENT` counts and names the children it holds in review, with the command; so it does when raised."""
    parent = agents.submit("agent", "--budget-tokens", "100")
    children = [agents.submit("agent", "--key", f"child {number}", "--parent", parent) for number in range(2)]
    work(agents)
    command = f"everstep budget {parent} --tokens N"
    waiting = agents.json("budget", parent)["waiting"]
    assert [(one["job"], one["code"], one["next_step"]) for one in waiting] == [
        (job, "budget_exceeded", f"raise it: {command}") for job in (parent, *children)
    ]
    assert {one["review"] for one in waiting} == {review["id"] for review in agents.json("review")}
    shown = agents.run("budget", parent).out
    assert f"waits    3 in review: {parent}, {children[0]}, {children[1]}\n         raise it: {command}\n" in shown
    too_little = agents.json("budget", parent, "--tokens", "99")
    assert (too_little["answered"], too_little["waiting"]) == ([], waiting)
    assert agents.json("budget", children[1], "--steps", "1")["waiting"] == waiting[2:]
    enough = agents.json("budget", parent, "--tokens", "100000")
    assert ({one["job"] for one in enough["answered"]}, enough["waiting"]) == ({parent, *children}, [])
    assert "waits" not in agents.run("budget", parent).out


def test_what_is_no_limit_is_refused(folder: Folder) -> None:
    """A limit that is no number above 0 is wrong usage, for `budget` and for `submit`; nothing is changed."""
    with Store.open(folder.url) as store:
        job = store.enqueue("count", {}).job.public_id
    wrong = (("tokens", "0"), ("tokens", "1.5"), ("steps", "-1"), ("cost", "nan"), ("seconds", "inf"), ("cost", "soon"))
    commands = [("budget", job, f"--{name}", value) for name, value in wrong]
    commands += [("submit", "count", "--input", "{}", f"--budget-{name}", value) for name, value in wrong[:2]]
    commands += [("submit", "count", "--input", "{}", "--budget-tokens", "none")]
    for ran in folder.all(*commands):
        is_refused(ran, 64, "usage")
    is_refused(folder.run("budget", "0000"), 66, "job_not_found")
    assert limits(folder, job) == {}
    assert len(folder.json("jobs")) == 1
