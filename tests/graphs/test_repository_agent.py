"""The shipped agent on real git repositories: what it does, who is asked, and that nothing happens twice."""

from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessageChunk
from langgraph.types import Command

from everstep.errors import (
    BranchMoved,
    ChangeRejected,
    OperationUnfinished,
    VerificationFailed,
)
from everstep.graphs import repository_agent
from everstep.graphs.demo_repositories import make_repositories
from everstep.graphs.same_code import same_meaning
from tests.support.repositories import NEEDY, UNTIDY, Scripted, add_commit, calls, commits, content, git, make_remote
from tests.support.shipped_agent import agent, job, thread

pytestmark = pytest.mark.usefixtures("workspaces")

TIDY = {"shop/cart.py": b"def total(items):\n    return sum(items)\n", "shop/stock.py": b"LEFT = 3\n"}


def test_a_real_package_takes_more_than_forty_steps_and_one_commit(tmp_path: Path) -> None:
    """On the real source of an installed package: one file a step, the same code afterwards, one commit."""
    [demo] = make_repositories(tmp_path, ["pygments"])
    [before] = commits(demo.remote)
    graph = agent()
    result = graph.invoke(demo.payload, thread(), durability="sync")

    assert len(list(graph.get_state_history(thread()))) > 50
    assert result["outcome"] == "pushed"
    assert commits(demo.remote) == [result["commit"], before]
    changed = git(demo.remote, "diff", "--name-only", before, "main").split("\n")
    assert changed == result["files"] == list(demo.files)
    assert len(changed) == demo.payload.get("max_files")
    for path in changed:
        assert same_meaning(path, (demo.source / path).read_bytes(), content(demo.remote, path))
    said = [each for each in graph.get_state(thread()).values["messages"] if each.type == "ai"]
    assert max(len(each.tool_calls) for each in said) == 1


def test_what_is_pushed(remote: Path, workspaces: Path) -> None:
    """The untidy files are tidy, the others and all modes are as they were, and the working copy is gone."""
    (start,) = commits(remote)
    result = agent().invoke(job(remote), thread())
    assert result["files"] == NEEDY
    assert {path: content(remote, path) for path in TIDY} == TIDY
    assert git(remote, "diff", "--summary", start, "main") == ""
    assert git(remote, "log", "-1", "--format=%an %ae %s%n%b", "main").split("\n")[:2] == [
        "Everstep agent agent@everstep.invalid Tidy white space",
        "Everstep-Operation: tidy-whitespace",
    ]
    assert list(workspaces.iterdir()) == []
    assert "3 files" in result["summary"]


async def test_it_runs_async_and_streams(remote: Path) -> None:
    """The same graph runs with `astream`, and what the model says arrives in pieces."""
    pieces = [
        chunk
        async for chunk, _ in agent().astream(job(remote), thread(), stream_mode="messages")
        if isinstance(chunk, AIMessageChunk)
    ]
    assert len(pieces) > 40
    assert len(commits(remote)) == 2


def test_the_module_holds_a_graph_without_a_checkpointer(remote: Path) -> None:
    """`everstep.graphs.repository_agent:graph` is compiled, named, and leaves the checkpointer to the runtime."""
    graph = repository_agent.graph
    assert graph.checkpointer is None
    assert graph.invoke(job(remote))["outcome"] == "pushed"  # pyright: ignore


def test_nothing_to_do_is_a_success_without_a_commit(tmp_path: Path) -> None:
    """A tidy repository gets no commit, and the result says so."""
    remote = make_remote(tmp_path, {"a.py": b"x = 1\n"})
    result = agent().invoke(job(remote), thread())
    assert (result["outcome"], result["commit"], result["files"]) == ("nothing_to_do", None, [])
    assert len(commits(remote)) == 1


def test_a_second_job_on_the_thread_starts_afresh(remote: Path) -> None:
    """A thread that did one operation can do another; the second job knows nothing of the first."""
    graph = agent()
    graph.invoke(job(remote), thread())
    result = graph.invoke(job(remote, operation="double-quotes"), thread())
    assert result["files"] == ["tools/run.py"]
    assert len(commits(remote)) == 3
    assert len(graph.get_state(thread()).values["messages"]) < 15


def test_at_most_max_files_are_edited(remote: Path) -> None:
    """`max_files` bounds a job; another job does the rest."""
    assert agent().invoke(job(remote, max_files=2), thread())["files"] == NEEDY[:2]
    assert agent().invoke(job(remote, max_files=2), thread("two"))["files"] == NEEDY[2:]


@pytest.mark.parametrize("stop_before", ["prepare", "tools", "model", "accept"])
def test_a_lost_working_copy_is_made_again(remote: Path, workspaces: Path, stop_before: str) -> None:
    """Wherever the job stands, a working copy that vanished (another machine, a cleaned disk) costs nothing."""
    graph = agent(interrupt_before=[stop_before])
    feed: Any = job(remote)
    for _ in range(30):
        graph.invoke(feed, thread())
        feed = None
        for copy in workspaces.glob("*"):
            copy.rename(workspaces.parent / f"lost-{len(list(workspaces.parent.iterdir()))}")
        if not graph.get_state(thread()).next:
            break
    assert len(commits(remote)) == 2
    assert {path: content(remote, path) for path in TIDY} == TIDY


def test_a_damaged_working_copy_is_mended_before_it_is_verified(remote: Path, workspaces: Path) -> None:
    """An edit that a power failure took back is made again; what is committed is what the conversation says."""
    graph = agent(interrupt_before=["tools"])
    graph.invoke(job(remote), thread())
    while graph.get_state(thread()).values["messages"][-1].tool_calls[0]["name"] != "verify_changes":
        graph.invoke(None, thread())
    [copy] = workspaces.iterdir()
    (copy / "shop/cart.py").write_bytes(UNTIDY["shop/cart.py"])
    while graph.get_state(thread()).next:
        graph.invoke(None, thread())
    assert content(remote, "shop/cart.py") == TIDY["shop/cart.py"]


def test_what_was_verified_is_what_is_committed(remote: Path, workspaces: Path) -> None:
    """A change sneaked in after verification does not get into the commit."""
    graph = agent(interrupt_before=["tools"])
    graph.invoke(job(remote), thread())
    while graph.get_state(thread()).values["messages"][-1].tool_calls[0]["name"] != "commit_changes":
        graph.invoke(None, thread())
    [copy] = workspaces.iterdir()
    (copy / "shop/cart.py").write_text("import os\n")
    while graph.get_state(thread()).next:
        graph.invoke(None, thread())
    assert content(remote, "shop/cart.py") == TIDY["shop/cart.py"]


def high_risk_remote(tmp_path: Path) -> Path:
    """A repository with an untidy file under a high-risk path."""
    return make_remote(tmp_path, {**UNTIDY, "shop/auth/login.py": b"OPEN = False \n"})


def test_high_risk_paths_wait_for_a_person(tmp_path: Path) -> None:
    """A change under a high-risk path is shown before it is committed, and approved it goes through."""
    remote, graph = high_risk_remote(tmp_path), agent()
    paused = graph.invoke(job(remote), thread())
    asked = paused["__interrupt__"][0].value
    request = asked["action_requests"][0]
    assert request["args"]["high_risk"] == ["shop/auth/login.py"]
    assert "shop/cart.py" in request["args"]["files"]
    assert asked["review_configs"][0]["allowed_decisions"] == ["approve", "edit", "reject"]
    assert len(commits(remote)) == 1

    result = graph.invoke(Command(resume={"type": "approve"}), thread())
    assert len(result["files"]) == 4
    assert len(commits(remote)) == 2


def test_a_person_can_take_files_out(tmp_path: Path) -> None:
    """Edited to fewer files, the change is verified again and committed without the others, and asked for once."""
    remote, graph = high_risk_remote(tmp_path), agent()
    paused = graph.invoke(job(remote), thread())
    args = paused["__interrupt__"][0].value["action_requests"][0]["args"]
    kept = ["shop/cart.py", "shop/auth/login.py"]
    edited = {"type": "edit", "edited_action": {"name": "commit_changes", "args": {**args, "files": kept}}}
    result = graph.invoke(Command(resume=edited), thread())
    assert result["outcome"] == "pushed"
    assert sorted(result["files"]) == sorted(kept)
    assert content(remote, "shop/stock.py") == UNTIDY["shop/stock.py"]


def test_a_rejected_change_fails_the_job(tmp_path: Path) -> None:
    """A rejection ends the job with the person's reason; nothing is pushed."""
    remote, graph = high_risk_remote(tmp_path), agent()
    graph.invoke(job(remote), thread())
    with pytest.raises(ChangeRejected, match="not before the audit"):
        graph.invoke(Command(resume={"type": "reject", "message": "not before the audit"}), thread())
    assert len(commits(remote)) == 1


def test_a_payload_can_say_what_is_high_risk(tmp_path: Path) -> None:
    """Patterns in the payload take the place of the usual ones; an empty list asks nobody."""
    remote = high_risk_remote(tmp_path)
    assert "__interrupt__" in agent().invoke(job(remote, high_risk_paths=["shop/*.py"]), thread("mine"))
    assert agent().invoke(job(remote, high_risk_paths=[]), thread("none"))["outcome"] == "pushed"


def test_checks_of_the_payload_must_pass(remote: Path) -> None:
    """A check that fails stops the job with its output; nothing is committed or pushed."""
    with pytest.raises(OperationUnfinished, match="stock is missing"):
        agent().invoke(job(remote, checks=["""python3 -c 'raise SystemExit("stock is missing")'"""]), thread())
    assert len(commits(remote)) == 1


def test_checks_that_keep_failing_fail_verification(remote: Path) -> None:
    """A model that verifies again and again is stopped with the check's own error."""
    edits = [calls(("edit_file", {"path": path})) for path in NEEDY]
    model = Scripted(script=[calls(("list_files", {})), *edits, *(calls(("verify_changes", {})) for _ in range(9))])
    with pytest.raises(VerificationFailed, match="exited with 3"):
        agent(model).invoke(job(remote, checks=["python3 -c 'raise SystemExit(3)'"]), thread())


def test_a_check_that_changes_files_is_no_check(remote: Path) -> None:
    """What a check does to the repository's files is neither verified nor committed."""
    with pytest.raises(OperationUnfinished, match=r"a check changed files of the repository: shop/tidy\.py"):
        agent().invoke(job(remote, checks=["python3 -c \"open('shop/tidy.py', 'w')\""]), thread())
    assert len(commits(remote)) == 1


def test_a_branch_that_moved_is_left_alone(remote: Path, workspaces: Path) -> None:
    """Somebody else's commit during the job is never pushed over."""
    graph = agent(interrupt_after=["prepare"])
    graph.invoke(job(remote), thread())
    theirs = add_commit(remote)
    with pytest.raises(BranchMoved):
        graph.invoke(None, thread())
    assert commits(remote)[0] == theirs


def test_somebody_else_may_push_on_top(remote: Path) -> None:
    """A commit on top of ours, pushed before the job settled, does not make the job fail or push again."""
    graph = agent(interrupt_before=["accept"])
    graph.invoke(job(remote), thread())
    add_commit(remote)
    result = graph.invoke(None, thread())
    assert result["outcome"] == "pushed"
    assert len(commits(remote)) == 3


def test_a_push_whose_answer_was_lost_is_not_repeated(remote: Path) -> None:
    """A push that happened but was not recorded is found on the remote, even below somebody else's commit."""
    graph = agent(interrupt_before=["tools"])
    graph.invoke(job(remote), thread())
    while graph.get_state(thread()).values["messages"][-1].tool_calls[0]["name"] != "push_commit":
        graph.invoke(None, thread())
    before_push = graph.get_state(thread()).config
    graph.invoke(None, thread())
    add_commit(remote)
    graph.invoke(None, before_push)
    while graph.get_state(thread()).next:
        graph.invoke(None, thread())
    assert graph.get_state(thread()).values["outcome"] == "pushed"
    assert len(commits(remote)) == 3
