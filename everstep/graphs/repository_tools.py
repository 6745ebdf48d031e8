"""The tools of the repository agent: list, read, edit one file, verify, commit, push.

Every tool may run again after a crash and comes to the same: an edit is computed from the base commit, not from what
the last try left; what is committed is the very tree that was verified (and approved, if it had to be); only the push
touches the outside, and it is an effect.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections import Counter
from typing import Annotated, Any, TypeAlias

from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, tool
from langgraph.prebuilt import ToolRuntime
from langgraph.types import Command

from everstep.errors import ChangeRejected, GitFailed, VerificationFailed
from everstep.graphs import conversation, repository_git, same_code
from everstep.graphs.codemods import OPERATIONS, CannotRewrite
from everstep.graphs.repository_job import RepositoryState, high_risk_patterns, max_files, owner, workspace
from everstep.graphs.same_code import same_meaning
from everstep.graphs.working_copy import Refused, WorkingCopy
from everstep.nodes.effect import effect
from everstep.nodes.high_risk import high_risk
from everstep.nodes.review import review
from everstep.nodes.verify import verify

MOST_VERIFICATIONS = 3
"""How often verification may fail before the job stops."""
_READ_LINES = 200
_READ_CHARACTERS = 8000
_OUTPUT_CHARACTERS = 1500
_NAMED = 5

Runtime: TypeAlias = ToolRuntime[Any, Any]
Answer: TypeAlias = Command[Any]


@tool
def list_files(runtime: Runtime) -> Answer:
    """List the files that need the operation and were not edited yet; edit exactly these."""
    state, copy = _opened(runtime)
    files, more = files_to_edit(state, copy)
    return _answer(runtime, {"operation": state["operation"], "files": files, "more": more})


@tool
def read_file(
    path: Annotated[str, "Path relative to the top of the repository, with forward slashes."],
    runtime: Runtime,
    first_line: Annotated[int, "Number of the first line to read, from 1."] = 1,
) -> Answer:
    """Read up to 200 lines of a file as it is now."""
    _, copy = _opened(runtime)
    try:
        lines = copy.read(path).decode().split("\n")
    except UnicodeDecodeError as error:
        raise Refused(f"{path} is not UTF-8 text") from error
    shown = "\n".join(lines[max(first_line, 1) - 1 :][:_READ_LINES])[:_READ_CHARACTERS]
    if "\0" in shown:
        raise Refused(f"{path} is a binary file")
    return _answer(runtime, {"path": path, "first_line": first_line, "lines_in_file": len(lines), "text": shown})


@tool
def edit_file(path: Annotated[str, "One of the listed files."], runtime: Runtime) -> Answer:
    """Carry out the operation on one file."""
    state, copy = _opened(runtime)
    before, after = _edit(state, copy, path)
    if before == after:
        raise Refused(f"{path} does not need the operation")
    if path not in conversation.listed(conversation.answered(state["messages"])):
        same = same_meaning(path, before, after)
        reason = "edit those" if same else "the operation would change what it means, or that cannot be told"
        raise Refused(f"{path} is not one of the listed files; {reason}")
    if copy.read(path) != after:
        copy.write(path, after)
    changed = Counter(after.split(b"\n")) - Counter(before.split(b"\n"))
    return _answer(runtime, {"path": path, "lines_changed": max(changed.total(), 1)})


@tool
def verify_changes(runtime: Runtime) -> Answer:
    """Check the edits: no white space errors, the same code as before, and the repository's own checks."""
    state, copy = _opened(runtime)
    calls, base = conversation.answered(state["messages"]), state["base_commit"]
    settled = {*conversation.edited(calls), *conversation.refused(calls), *state.get("dropped", [])}
    if missing := [path for path in conversation.listed(calls) if path not in settled]:
        raise Refused(f"{len(missing)} listed files are not edited yet: {_some(missing)}")
    mend(state, copy)
    changed = copy.changed(base)
    if not changed:
        raise Refused("nothing was changed, so there is nothing to verify")
    if strange := sorted(set(changed) - set(wanted(state))):
        raise Refused(f"something else than an edit changed {_some(strange)}")
    tree = copy.tree(base)
    commands = [
        "git diff --check " + base,
        f"{shlex.quote(sys.executable)} -I {shlex.quote(same_code.__file__)} {base}",
        *state.get("checks", []),
    ]
    outcome = verify(commands, cwd=copy.folder, check=False)
    if not outcome.passed:
        failed = outcome.results[-1]
        complaint = f"{failed.command!r} exited with {failed.exit_code}: {failed.output.strip()[-_OUTPUT_CHARACTERS:]}"
        if len(conversation.failures(calls, "verify_changes")) + 1 >= MOST_VERIFICATIONS:
            raise VerificationFailed(
                complaint, next_step=f"Look at {copy.folder}, then retry the job.", command=failed.command
            )
        raise Refused(complaint)
    if copy.tree(base) != tree:
        raise Refused(f"a check changed files of the repository: {_some(copy.changed_between(tree, copy.tree(base)))}")
    return _answer(runtime, {"verified_files": len(changed), "checks_passed": len(outcome.results)}, verified_tree=tree)


@tool
def commit_changes(
    message: Annotated[str, "The commit message; its first line says what changed."], runtime: Runtime
) -> Answer:
    """Commit what was verified. If high-risk paths changed, a person is asked first."""
    state, copy = _opened(runtime)
    base, tree = state["base_commit"], state.get("verified_tree")
    if tree is None:
        raise Refused("the changes are not verified; verify them first")
    _have_tree(state, copy, tree)
    files = copy.changed_between(base, tree)
    risky = high_risk(files, high_risk_patterns(state))
    if risky and tree != state.get("approved_tree"):
        decision = review(
            f"Commit {len(files)} files ({state['operation']}) to {state['branch']} of {state['repository']}? "
            f"{len(risky)} under high-risk paths: {_some(risky)}",
            action="commit_changes",
            args={"files": files, "high_risk": risky, "tree": tree},
            allow=("approve", "edit", "reject"),
        )
        kept = [path for path in files if path in decision.args.get("files", [])] if decision.approved else []
        if not kept:
            raise ChangeRejected(
                f"a person rejected the change: {decision.message or 'no reason given'}",
                next_step="Read the reason; submit another job if need be.",
            )
        if kept != files:
            return _drop(runtime, copy, [path for path in files if path not in kept])
    words = f"{message.strip() or OPERATIONS[state['operation']].subject}\n\nEverstep-Operation: {state['operation']}\n"
    commit = copy.commit(base, tree, words, state["started_at"])
    return _answer(runtime, {"commit": commit, "files": len(files)}, commit=commit, commit_message=words, files=files)


@tool
def push_commit(runtime: Runtime) -> Answer:
    """Push the commit to the branch it was made for."""
    state, copy = _opened(runtime)
    commit, base = state.get("commit"), state["base_commit"]
    if commit is None:
        raise Refused("there is no commit yet; commit first")
    if not copy.holds(commit):
        tree = state.get("verified_tree") or ""
        _have_tree(state, copy, tree)
        copy.commit(base, tree, state.get("commit_message", ""), state["started_at"])

    def remote_has(remote: str, branch: str, commit: str) -> str | None:
        now = repository_git.tip(remote, branch)
        return commit if now == commit or (now != base and copy.is_ancestor(commit, now)) else None

    @effect("git.push", probe=remote_has)
    def push(remote: str, branch: str, commit: str) -> str:
        if remote_has(remote, branch, commit) is None:
            repository_git.push(copy.folder, remote, branch, base, commit)
        return commit

    pushed = push(copy.remote, copy.branch, commit)
    return _answer(runtime, {"pushed": pushed, "branch": copy.branch})


TOOLS: tuple[BaseTool, ...] = (list_files, read_file, edit_file, verify_changes, commit_changes, push_commit)
"""Every tool, in the order a job uses them."""


def working_copy(state: RepositoryState, config: Any) -> WorkingCopy:
    """The job's working copy, wherever this machine has it; it may not be there."""
    thread_id = str(config.get("configurable", {}).get("thread_id", ""))
    remote = repository_git.address(state["repository"])
    return WorkingCopy(workspace(state, thread_id), owner(state, thread_id), remote, state["branch"])


def open_copy(state: RepositoryState, config: Any) -> WorkingCopy:
    """The job's working copy, made again with all edits so far when this machine does not have it."""
    copy = working_copy(state, config)
    if not copy.is_at(state["base_commit"]):
        copy.clone(state["base_commit"])
        mend(state, copy)
    return copy


def _opened(runtime: Runtime) -> tuple[RepositoryState, WorkingCopy]:
    state: RepositoryState = runtime.state
    return state, open_copy(state, runtime.config)


def files_to_edit(state: RepositoryState, copy: WorkingCopy) -> tuple[list[str], bool]:
    """The files that need the operation and are not edited yet, up to `max_files`, and whether there are more."""
    done = {*conversation.edited(conversation.answered(state["messages"])), *state.get("dropped", [])}
    room = max(max_files(state) - len(done), 0)
    found: list[str] = []
    for path in copy.files(state["base_commit"]):
        if path not in done and _needs_edit(state, copy, path):
            if len(found) == room:
                return found, True
            found.append(path)
    return found, False


def wanted(state: RepositoryState) -> list[str]:
    """The files that are to differ from the base commit: edited, and not dropped by a person."""
    dropped = set(state.get("dropped", []))
    return [path for path in conversation.edited(conversation.answered(state["messages"])) if path not in dropped]


def mend(state: RepositoryState, copy: WorkingCopy) -> None:
    """Have every edited file as its edit left it, and every dropped one as in the base commit."""
    for path in wanted(state):
        _, after = _edit(state, copy, path)
        if copy.read(path) != after:
            copy.write(path, after)
    for path in state.get("dropped", []):
        before = copy.original(state["base_commit"], path)
        if copy.read(path) != before:
            copy.write(path, before)


def _edit(state: RepositoryState, copy: WorkingCopy, path: str) -> tuple[bytes, bytes]:
    before = copy.original(state["base_commit"], path)
    try:
        after = OPERATIONS[state["operation"]].rewrite(path, before, state.get("license", ""))
    except CannotRewrite as error:
        raise Refused(f"{path} is left alone: {error}") from error
    return before, after


def _needs_edit(state: RepositoryState, copy: WorkingCopy, path: str) -> bool:
    operation = OPERATIONS[state["operation"]]
    try:
        before = copy.read(path) if operation.applies_to(path) else b""
        after = operation.rewrite(path, before, state.get("license", "")) if before else before
    except (Refused, CannotRewrite):
        return False
    return after != before and same_meaning(path, before, after)


def _have_tree(state: RepositoryState, copy: WorkingCopy, tree: str) -> None:
    if copy.holds(tree):
        return
    mend(state, copy)
    if copy.tree(state["base_commit"]) != tree:
        raise GitFailed(
            f"the working copy {copy.folder} was made again, but does not come to the verified state",
            next_step="Submit the operation again.",
            tree=tree,
        )


def _drop(runtime: Runtime, copy: WorkingCopy, paths: list[str]) -> Answer:
    state: RepositoryState = runtime.state
    dropped = [*state.get("dropped", []), *paths]
    mend(RepositoryState({**state, "dropped": dropped}), copy)
    approved = copy.tree(state["base_commit"])
    told = {"verify_again": True, "reason": f"a person took {len(paths)} files out of the change: {_some(paths)}"}
    return _answer(runtime, told, dropped=dropped, approved_tree=approved, verified_tree=None)


def _answer(runtime: Runtime, answer: dict[str, Any], **update: Any) -> Answer:
    call = runtime.tool_call_id or ""
    message = ToolMessage(
        json.dumps(answer, separators=(",", ":"), ensure_ascii=False), tool_call_id=call, id=f"{call}-result"
    )
    return Command(update={**update, "messages": [message]})


def _some(paths: list[str]) -> str:
    return ", ".join(paths[:_NAMED]) + (f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else "")
