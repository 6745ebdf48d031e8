"""What the shipped agent refuses: payloads, repositories, workspaces, and what its model asks for."""

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage

from everstep.errors import (
    OperationUnfinished,
    PayloadInvalid,
    RepositoryInvalid,
)
from tests.support.repositories import NEEDY, UNTIDY, Scripted, calls, content, git, make_remote
from tests.support.shipped_agent import agent, job, thread, told

pytestmark = pytest.mark.usefixtures("workspaces")


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
    assert (mine / "shop/cart.py").read_bytes() == b"def total(items):\n    return sum(items)\n"
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
