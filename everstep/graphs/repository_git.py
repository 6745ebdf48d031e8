"""Git as a subprocess: one way to call it, and its words turned into errors with a type.

Git tells what went wrong in text only. This is the one place that reads that text (under `LC_ALL=C`), so that the
runtime can go by type.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from everstep.errors import (
    BranchMoved,
    EverstepError,
    GitFailed,
    RemoteDenied,
    RemoteUnavailable,
    RepositoryInvalid,
)

LOCAL_TIMEOUT = 120.0
"""Seconds a command on the working copy may take."""
REMOTE_TIMEOUT = 600.0
"""Seconds a command that talks to the remote may take."""

# Whatever the surrounding process or the user's configuration says, jobs run the same way everywhere: no hooks, no
# prompts, no signing, no background maintenance.
_SETTINGS = (
    f"core.hooksPath={os.devnull}",
    "core.autocrlf=false",
    "core.fsmonitor=false",
    "core.quotePath=false",
    "advice.detachedHead=false",
    "commit.gpgSign=false",
    "push.gpgSign=false",
    "gc.auto=0",
    "maintenance.auto=false",
)
_FOREIGN = (
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_DIR",
    "GIT_INDEX_FILE",
    "GIT_NAMESPACE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_WORK_TREE",
)
_ABSENT = re.compile(
    r"does not appear to be a git repository|repository '.*' not found|repository not found|does not exist"
    r"|no such file or directory|couldn't find remote ref|not found in upstream|could not be found"
    r"|transport '.*' not allowed|unable to find remote helper",
    re.IGNORECASE,
)
_DENIED = re.compile(
    r"authentication failed|could not read (?:username|password)|permission denied|access denied|dubious ownership"
    r"|host key verification failed|returned error: 40[13]|permission to .* denied",
    re.IGNORECASE,
)
_UNREACHABLE = re.compile(
    r"could not resolve|couldn't resolve|connection (?:refused|reset|timed out|closed)|timed out|failed to connect"
    r"|couldn't connect|network is unreachable|no route to host|the remote end hung up|early eof|unexpected disconnect"
    r"|returned error: (?:429|5\d\d)|temporary failure",
    re.IGNORECASE,
)
_SCP_LIKE = re.compile(r"(?:[\w.-]+@)?[\w.-]+:(?!//)")


def git(
    *arguments: str,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    timeout: float = LOCAL_TIMEOUT,
    accept: Sequence[int] = (0,),
) -> str:
    """Run git and return what it printed.

    Args:
        arguments: The command and its arguments; never a shell line.
        cwd: Where to run.
        environment: Variables to add.
        stdin: What to feed it.
        timeout: Seconds until it and its children are killed.
        accept: Exit codes that are not an error.

    Raises:
        RepositoryInvalid: No such repository or branch.
        RemoteDenied: Access was refused.
        RemoteUnavailable: The remote could not be reached or took too long.
        GitFailed: Anything else.
    """
    return run(*arguments, cwd=cwd, environment=environment, stdin=stdin, timeout=timeout, accept=accept).decode(
        errors="surrogateescape"
    )


def run(
    *arguments: str,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    timeout: float = LOCAL_TIMEOUT,
    accept: Sequence[int] = (0,),
) -> bytes:
    """As `git`, but the raw bytes."""
    command = ["git", *(part for setting in _SETTINGS for part in ("-c", setting)), *arguments]
    variables = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
    variables |= {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", **(environment or {})}
    try:
        process = subprocess.Popen(
            command, cwd=cwd, env=variables, stdin=-1, stdout=-1, stderr=-1, start_new_session=True
        )
    except FileNotFoundError as error:
        raise GitFailed(
            f"git could not be started: {error.strerror}", next_step="Install git and put it on the PATH."
        ) from error
    try:
        output, complaint = process.communicate(stdin, timeout)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise RemoteUnavailable(
                f"git {arguments[0]} took longer than {timeout:g} s", next_step="Look at the remote and the network."
            ) from error
        raise
    if process.returncode in accept:
        return output
    raise _explain(
        arguments[0], process.returncode, complaint.decode(errors="replace") or output.decode(errors="replace")
    )


def _explain(command: str, exit_code: int, complaint: str) -> EverstepError:
    words = " ".join(
        line.removeprefix("fatal: ").removeprefix("error: ") for line in complaint.split("\n") if line.strip()
    )[:600]
    message = f"git {command} said: {words}"
    if _DENIED.search(words):
        return RemoteDenied(
            message, next_step="Give git the credentials it needs (credential helper, ssh agent), then retry the job."
        )
    if _UNREACHABLE.search(words):
        return RemoteUnavailable(message, next_step="It is tried again later; look at the network if it lasts.")
    if _ABSENT.search(words):
        return RepositoryInvalid(message, next_step="Check the repository's address and the branch.")
    return GitFailed(
        f"{message} (exit code {exit_code})", next_step="Run the command by hand in the working folder to see more."
    )


def address(repository: str) -> str:
    """The repository's address in a form that means the same from any folder.

    Raises:
        RepositoryInvalid: It is empty, looks like an option, holds credentials, or is a local path with nothing there.
    """
    if not repository or repository.startswith("-") or "\0" in repository or "\n" in repository:
        raise RepositoryInvalid(f"{repository!r} is no address of a repository", next_step="Give a path or a URL.")
    if re.match(r"https?://[^/]*@", repository):
        raise RepositoryInvalid(
            "the repository's address holds a user name or password",
            next_step="Leave them out and let git's credential helper supply them.",
        )
    if "://" in repository:
        return repository
    path = Path(repository).expanduser().absolute()
    if path.exists():
        return str(path)
    if _SCP_LIKE.match(repository):
        return repository
    raise RepositoryInvalid(f"there is no repository at {path}", next_step="Check the path.", repository=repository)


def tip(remote: str, branch: str) -> str:
    """The commit a branch of the remote points at.

    Raises:
        RepositoryInvalid: There is no such repository or branch.
    """
    try:
        git("check-ref-format", f"refs/heads/{branch}")
    except (GitFailed, ValueError) as error:
        raise RepositoryInvalid(
            f"{branch!r} is no name of a branch", next_step="Give the short name, such as main."
        ) from error
    found = git("ls-remote", "--", remote, f"refs/heads/{branch}", timeout=REMOTE_TIMEOUT)
    for line in found.splitlines():
        commit, _, reference = line.partition("\t")
        if reference == f"refs/heads/{branch}":
            return commit
    raise RepositoryInvalid(
        f"the repository {remote} has no branch {branch}",
        next_step="Check the branch; an empty repository has none.",
        branch=branch,
    )


def push(folder: Path, remote: str, branch: str, base: str, commit: str) -> None:
    """Move a branch of the remote from one commit to another, or change nothing.

    Args:
        folder: A repository that holds the commit.
        remote: The remote's address.
        branch: The branch there.
        base: The commit the branch must point at now.
        commit: The commit it shall point at.

    Raises:
        BranchMoved: The branch points elsewhere.
        RemoteDenied: The remote refuses the push (protected branch, hook, checked-out branch).
    """
    reference = f"refs/heads/{branch}"
    told = git(
        "push", "--porcelain", f"--force-with-lease={reference}:{base}", "--", remote, f"{commit}:{reference}",
        cwd=folder, timeout=REMOTE_TIMEOUT, accept=(0, 1),
    )  # fmt: skip
    refusal = next((line.split("\t")[-1] for line in told.splitlines() if line.startswith("!")), None)
    if refusal is None:
        if "Done" not in told:
            raise GitFailed(
                f"git push did not say that it is done: {told.strip()!r}", next_step="Look at the branch on the remote."
            )
        return
    if "remote rejected" in refusal or "remote failure" in refusal:
        raise RemoteDenied(
            f"the remote refused the push to {branch}: {refusal}",
            next_step="Allow the push, then retry the job.",
            branch=branch,
        )
    raise BranchMoved(
        f"{branch} no longer points at {base[:12]}: {refusal}",
        next_step="Submit the operation again, on the new state of the branch.",
        branch=branch,
    )
