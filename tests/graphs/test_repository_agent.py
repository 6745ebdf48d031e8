"""The shipped agent on real git repositories: what it does, what it refuses, and that nothing happens twice."""

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from everstep.errors import (
    BranchMoved,
    ChangeRejected,
    OperationUnfinished,
    PayloadInvalid,
    RepositoryInvalid,
    VerificationFailed,
)
from everstep.graphs import repository_agent
from everstep.graphs.demo_repositories import make_repositories
from everstep.graphs.repository_job import WORKSPACES
from everstep.graphs.same_code import same_meaning
from tests.support.repositories import NEEDY, UNTIDY, Scripted, add_commit, calls, commits, content, git, make_remote

TIDY = {"shop/cart.py": b"def total(items):\n    return sum(items)\n", "shop/stock.py": b"LEFT = 3\n"}


@pytest.fixture(autouse=True)
def workspaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the test's own for working copies."""
    folder = tmp_path / "workspaces"
    monkeypatch.setenv(WORKSPACES, str(folder))
    monkeypatch.delenv("EVERSTEP_MODEL", raising=False)
    return folder


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    """A bare repository with three untidy files."""
    return make_remote(tmp_path)


def job(remote: Path, **more: Any) -> Any:
    """A payload for the repository."""
    return {"repository": str(remote), "branch": "main", "operation": "tidy-whitespace", **more}


def agent(model: Scripted | None = None, **compile_with: Any) -> Any:
    """The agent with a checkpointer."""
    return repository_agent.build_graph(model).compile(checkpointer=InMemorySaver(), **compile_with)


def thread(name: str = "one") -> Any:
    """A thread of the agent."""
    return {"configurable": {"thread_id": name}}


def told(graph: Any, config: Any) -> list[ToolMessage]:
    """What the tools answered."""
    return [each for each in graph.get_state(config).values["messages"] if isinstance(each, ToolMessage)]


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


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"repository": ""}, "repository"),
        ({"branch": 7}, "branch"),
        ({"operation": "rm -rf"}, "operation"),
        ({"max_files": 0}, "max_files"),
        ({"max_files": True}, "max_files"),
        ({"checks": "make test"}, "checks"),
        ({"high_risk_paths": [1]}, "high_risk_paths"),
        ({"operation": "add-license-identifiers"}, "license"),
        ({"license": "MIT\nimport os"}, "license"),
        ({"workspace": 3}, "workspace"),
    ],
)
def test_a_payload_that_makes_no_sense_is_refused(remote: Path, change: dict[str, Any], field: str) -> None:
    """A missing, mistyped or unknown value is named before anything is done."""
    with pytest.raises(PayloadInvalid) as caught:
        agent().invoke({**job(remote), **change}, thread())
    assert caught.value.ids["path"] == f"$.{field}"


def test_a_repository_or_branch_that_is_not_there_is_invalid_input(tmp_path: Path, remote: Path) -> None:
    """No such repository, no such branch, an empty one, an option or credentials in the address: invalid input."""
    git(tmp_path, "init", "--quiet", "--bare", "empty.git")
    (tmp_path / "folder").mkdir()
    for repository, branch in [
        (str(tmp_path / "nothing.git"), "main"),
        (str(remote), "gone"),
        (str(remote), "--upload-pack=touch pwned"),
        (str(remote), "a b"),
        (str(tmp_path / "empty.git"), "main"),
        (str(tmp_path / "folder"), "main"),
        ("--upload-pack=touch pwned", "main"),
        ("ext::sh -c true", "main"),
        ("https://somebody:hunter2@example.invalid/x.git", "main"),
    ]:
        with pytest.raises(RepositoryInvalid) as caught:
            agent().invoke({**job(remote), "repository": repository, "branch": branch}, thread())
        assert isinstance(caught.value, ValueError)
        assert "hunter2" not in str(caught.value)


def test_a_workspace_of_the_users_is_never_touched(tmp_path: Path, remote: Path) -> None:
    """A folder that holds something else is refused and left as it is; a link to a folder as well."""
    taken = tmp_path / "mine"
    taken.mkdir()
    (taken / "thesis.txt").write_text("years of work")
    link = tmp_path / "link"
    link.symlink_to(taken)
    for workspace in (taken, link):
        with pytest.raises(RepositoryInvalid, match="holds something else"):
            agent().invoke(job(remote, workspace=str(workspace)), thread())
    assert os.listdir(taken) == ["thesis.txt"]


def test_the_payload_can_name_the_workspace(tmp_path: Path, remote: Path) -> None:
    """A named folder is used, and refused to another job while the first needs it; afterwards it is gone."""
    mine = tmp_path / "copies" / "mine"
    graph = agent(interrupt_before=["accept"])
    graph.invoke(job(remote, workspace=str(mine)), thread())
    assert (mine / "shop/cart.py").read_bytes() == TIDY["shop/cart.py"]
    with pytest.raises(RepositoryInvalid, match="holds something else"):
        agent().invoke(job(remote, workspace=str(mine)), thread("other"))
    graph.invoke(None, thread())
    assert not mine.exists()


def test_nothing_of_the_repository_is_run(tmp_path: Path, workspaces: Path) -> None:
    """Modules of the repository that shadow Python's are not imported, and its line end attributes have no effect."""
    sprung = tmp_path / "sprung"
    trap = f"open({str(sprung)!r}, 'w').close() \n".encode()
    files = dict.fromkeys(("ast.py", "json.py", "subprocess.py", "sitecustomize.py", "everstep/__init__.py"), trap)
    remote = make_remote(tmp_path, {**files, "tidy.py": b"x = 1\n", ".gitattributes": b"*.py eol=crlf\n"})
    graph = agent()
    result = graph.invoke(job(remote), thread())
    assert len(result["files"]) == 5
    assert [each.content for each in told(graph, thread()) if each.status == "error"] == []
    assert content(remote, "ast.py") == trap.rstrip(b" \n") + b"\n"
    assert not sprung.exists()


REFUSALS = [
    ("../../etc/passwd", "not a path inside"),
    ("/etc/passwd", "not a path inside"),
    ("shop/../../x", "not a path inside"),
    ("shop\\cart.py", "not a path inside"),
    ("shop//cart.py", "not a path inside"),
    ("", "not a path inside"),
    (".git/config", "git's own"),
    (".GIT/config", "git's own"),
    ("link.py", "symbolic link"),
    ("out/secret.py", "symbolic link"),
    ("shop", "is not a file"),
    ("shop/nothing.py", "no file"),
    ("a\0b", "not a path inside"),
    ("x" * 5000, "no file"),
]


@pytest.mark.parametrize("tool", ["edit_file", "read_file"])
def test_a_model_cannot_leave_the_working_copy(tmp_path: Path, tool: str) -> None:
    """Paths that lead out, into git's own folder, through links or to nothing are refused with the reason."""
    (tmp_path / "secret.py").write_text("KEY = 1 \n")
    remote = make_remote(tmp_path, UNTIDY, {"link.py": "shop/cart.py", "out": str(tmp_path)})
    script = [calls((tool, {"path": path})) for path, _ in REFUSALS]
    graph = agent(Scripted(script=[*script, AIMessage("I give up")]))
    with pytest.raises(OperationUnfinished):
        graph.invoke(job(remote), thread())
    answers = told(graph, thread())
    assert [each.status for each in answers] == ["error"] * len(REFUSALS)
    for answer, (path, reason) in zip(answers, REFUSALS, strict=True):
        assert reason in str(answer.content), path
    assert (tmp_path / "secret.py").read_text() == "KEY = 1 \n"


def test_files_that_are_not_for_editing_are_refused(tmp_path: Path) -> None:
    """Binary, undecodable, huge, generated, unparsable, tidy and unlisted files are left alone, with the reason."""
    files = {
        "binary.py": b"x = '\0' \n",
        "latin.py": "é = 1 \n".encode("latin-1"),
        "huge.py": b"x = 1 \n" * 200_000,
        "made.py": b"# Generated, do not edit\nx = 1 \n",
        "old.py": b"print 'x' \n",
        "notes.md": b"a line  \nbreak\n",
        "tidy.py": b"x = 1\n",
        "b.py": b"x = 1 \n",
        "a.py": b"x = 1 \n",
    }
    graph = agent(
        Scripted(
            script=[
                calls(("list_files", {})),
                *(calls(("edit_file", {"path": path})) for path in files),
                calls(("read_file", {"path": "latin.py"})),
                calls(("read_file", {"path": "binary.py"})),
                calls(("read_file", {"path": "huge.py", "first_line": 199_999})),
                calls(("read_file", {"path": "b.py"})),
                AIMessage("I give up"),
            ]
        )
    )
    with pytest.raises(OperationUnfinished):
        graph.invoke(job(make_remote(tmp_path, files), max_files=1), thread())
    answers = [str(each.content) for each in told(graph, thread())]
    assert '"files":["a.py"]' in answers[0]
    for answer, reason in zip(
        answers[1:],
        [
            "binary",
            "not UTF-8",
            "1400000 bytes",
            "generated",
            "change what it means",
            "handles",
            "does not need",
            "not one of the listed",
            '"lines_changed":1',
            "not UTF-8",
            "binary",
            "1400000 bytes",
            '"text":"x = 1 \\n"',
        ],
        strict=True,
    ):
        assert reason in answer


def test_a_model_that_calls_wrongly_is_told_and_goes_on(remote: Path) -> None:
    """Unknown tools, wrong arguments and steps out of order are answered with an error, and the job is still done."""
    graph = agent(
        Scripted(
            script=[
                calls(("format_disk", {})),
                calls(("edit_file", {"file": "shop/cart.py"})),
                calls(("verify_changes", {})),
                calls(("commit_changes", {"message": "x"})),
                calls(("push_commit", {})),
                calls(("list_files", {})),
                calls(("verify_changes", {})),
                *(calls(("edit_file", {"path": path})) for path in NEEDY),
                calls(("commit_changes", {"message": "x"})),
                calls(("verify_changes", {})),
                calls(("commit_changes", {"message": "Tidy up\n\nThoroughly."})),
                calls(("push_commit", {})),
                AIMessage("done"),
            ]
        )
    )
    assert graph.invoke(job(remote), thread())["outcome"] == "pushed"
    errors = [str(each.content) for each in told(graph, thread()) if each.status == "error"]
    assert len(errors) == 7
    assert "format_disk" in errors[0]
    assert git(remote, "log", "-1", "--format=%B", "main").startswith("Tidy up\n\nThoroughly.\n\nEverstep-Operation")


def test_several_calls_in_one_message_are_a_step_each(remote: Path) -> None:
    """A model that asks for many things at once gets them one step, and one checkpoint, at a time."""
    script = [
        calls(("list_files", {})),
        calls(*(("edit_file", {"path": path}) for path in NEEDY), ("verify_changes", {})),
        calls(("commit_changes", {"message": "Tidy"}), ("push_commit", {})),
        AIMessage("done"),
    ]
    graph = agent(Scripted(script=script))
    assert graph.invoke(job(remote), thread())["outcome"] == "pushed"
    history = list(graph.get_state_history(thread()))
    answered = [
        sum(isinstance(m, ToolMessage) for m in state.values.get("messages", [])) for state in reversed(history)
    ]
    assert max(later - earlier for earlier, later in pairwise(answered)) == 1


def test_a_model_that_stops_early_is_reminded_and_then_not_believed(remote: Path) -> None:
    """Saying that it is done does not make it so: two reminders, then the job stops with what is missing."""
    graph = agent(Scripted(script=[AIMessage("All done!")]))
    with pytest.raises(OperationUnfinished, match=r"files need the operation, such as shop/cart\.py.*All done!"):
        graph.invoke(job(remote), thread())
    reminders = [each for each in graph.get_state(thread()).values["messages"] if each.name == "reminder"]
    assert len(reminders) == 2


def test_a_reminder_can_be_enough(remote: Path) -> None:
    """A model that pauses to ask is told to go on, and the job is done."""
    rest = [calls(("edit_file", {"path": path})) for path in NEEDY]
    script = [
        calls(("list_files", {})),
        *rest,
        AIMessage("Shall I go on?"),
        calls(("verify_changes", {})),
        calls(("commit_changes", {"message": "Tidy"})),
        calls(("push_commit", {})),
        AIMessage("done"),
    ]
    assert agent(Scripted(script=script)).invoke(job(remote), thread())["summary"] == "done"


def test_results_of_tools_are_short(tmp_path: Path) -> None:
    """The conversation grows by little a step, whatever the files and checks hold."""
    files = {f"package/module_{number}.py": b"x = 1 \n" * 2_000 for number in range(12)}
    remote = make_remote(tmp_path, files)
    graph = agent()
    noisy = "python3 -c \"print('x' * 100000); raise SystemExit(1)\""
    with pytest.raises(OperationUnfinished):
        graph.invoke(job(remote, checks=[noisy]), thread())
    assert max(len(str(each.content)) for each in told(graph, thread())) < 2000
