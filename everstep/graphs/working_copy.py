"""A job's working copy of a repository: made once, mended after a crash, and never trusted beyond its own folder.

What a crash can leave behind is harmless by construction. A half-made clone has another name; a file is replaced in
one step; git's index is never written, so there is no stale lock; a tree or a commit is an object named by its
content, so making it again is making the same.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from pathlib import Path

from langchain_core.tools import ToolException

from everstep.errors import EverstepError, GitFailed, RepositoryInvalid
from everstep.graphs.repository_git import REMOTE_TIMEOUT, git, run

MAX_BYTES = 1_000_000
"""The largest file the agent reads or edits."""
AUTHOR = ("Everstep agent", "agent@everstep.invalid")
"""Name and address commits are made with; the same on every machine, so that the commit is."""

_OWNER, _BASE = "everstep.owner", "everstep.base"
_FETCH = ("fetch", "--quiet", "--no-tags", "--no-write-fetch-head")


class Refused(ToolException):
    """A tool will not do what the model asked; the model reads the message and goes on."""


class WorkingCopy:
    """A clone of one branch at one commit, with what the job changed since.

    Args:
        folder: Where it is.
        owner: Which job it belongs to (`repository_job.owner`).
        remote: Address of the remote repository.
        branch: The branch.
    """

    def __init__(self, folder: Path, owner: str, remote: str, branch: str) -> None:
        self.folder = folder
        self.owner = owner
        self.remote = remote
        self.branch = branch

    def prepare(self, tip: str) -> None:
        """Have a clean copy of the branch at its tip; what a crashed attempt left is used or replaced.

        Raises:
            RepositoryInvalid: The folder holds something that is not this job's.
        """
        if not self.is_at(tip) or self.changed(tip):
            self.remove()
            self._clone(tip)

    def is_at(self, base: str) -> bool:
        """Whether the copy is complete, this job's, and starts from this commit."""
        return self._settings() == {_OWNER: self.owner, _BASE: base}

    def remove(self) -> None:
        """Delete the copy and what crashed attempts to make it left.

        Raises:
            RepositoryInvalid: The folder holds something that is not this job's.
        """
        if self.folder.is_symlink() or (self.folder.exists() and not self._is_ours()):
            raise RepositoryInvalid(
                f"the working folder {self.folder} holds something else than this job's working copy",
                next_step="Name another folder as the payload's workspace, or none.",
                workspace=str(self.folder),
            )
        if self.folder.exists():
            # Renamed first: half a folder under its own name could no longer be told to be ours.
            self.folder.rename(self._partial() / self.folder.name)
        for leftover in self.folder.parent.glob(f"{self.folder.name}.partial-*"):
            shutil.rmtree(leftover, ignore_errors=True)

    def clone(self, base: str) -> None:
        """Make the copy at a commit that may no longer be the branch's tip, unless it is there already."""
        if not self.is_at(base):
            self.remove()
            self._clone(base)

    def _is_ours(self) -> bool:
        if not self.folder.is_dir():
            return False
        return not any(self.folder.iterdir()) or self._settings().get(_OWNER) == self.owner

    def _settings(self) -> dict[str, str]:
        # Asked for the file by name, git cannot fall back to a repository that encloses the folder.
        file = self.folder / ".git" / "config"
        if not file.is_file():
            return {}
        told = git("config", "--file", str(file), "--get-regexp", r"^everstep\.", accept=(0, 1))
        return dict(line.split(" ", 1) for line in told.splitlines())

    def _clone(self, base: str) -> None:
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            partial = self._partial()
        except OSError as error:
            raise RepositoryInvalid(
                f"the working folder {self.folder} cannot be made: {error.strerror}",
                next_step="Name a folder that can be written as the payload's workspace, or set EVERSTEP_WORKSPACES.",
                workspace=str(self.folder),
            ) from error
        try:
            git("init", "--quiet", cwd=partial)
            # The working copy holds the repository's bytes as they are, whatever its attributes say about line ends
            # or filters.
            (partial / ".git" / "info" / "attributes").write_text("* -text -filter -ident -working-tree-encoding\n")
            for name, value in ((_OWNER, self.owner), (_BASE, base), ("core.whitespace", "cr-at-eol")):
                git("config", name, value, cwd=partial)
            self._fetch(partial, base)
            git("checkout", "--quiet", "--detach", base, cwd=partial)
            try:
                partial.rename(self.folder)
            except OSError:
                if not self.is_at(base):
                    raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _partial(self) -> Path:
        return Path(tempfile.mkdtemp(prefix=f"{self.folder.name}.partial-", dir=self.folder.parent))

    def _fetch(self, into: Path, base: str) -> None:
        try:
            git(*_FETCH, "--depth=1", "--", self.remote, base, cwd=into, timeout=REMOTE_TIMEOUT)
        except (GitFailed, RepositoryInvalid):  # a server that hands out the tips of branches only
            self._fetch_branch(into)

    def _fetch_branch(self, into: Path) -> None:
        git(*_FETCH, "--", self.remote, f"refs/heads/{self.branch}", cwd=into, timeout=REMOTE_TIMEOUT)

    def files(self, base: str) -> list[str]:
        """Paths of the regular files of a commit: no symbolic links, no submodules, no names that are not Unicode."""
        entries = git("ls-tree", "-r", "-z", "--full-tree", base, cwd=self.folder).split("\0")
        return [
            path
            for kind, _, path in (entry.partition("\t") for entry in entries)
            if kind.startswith("100") and path.isprintable()
        ]

    def read(self, path: str) -> bytes:
        """What a tracked file holds.

        Raises:
            Refused: The path leads out of the copy, or to no regular file, or to a file that is too long.
        """
        return self._locate(path).read_bytes()

    def write(self, path: str, data: bytes) -> None:
        """Replace what a file holds, in one step and keeping its mode.

        Raises:
            Refused: As for `read`.
        """
        target = self._locate(path)
        # Inside .git the half-written file is on the same file system and cannot be taken for a file of the repository.
        handle, temporary = tempfile.mkstemp(prefix="everstep-", dir=self.folder / ".git")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).chmod(stat.S_IMODE(target.stat().st_mode))
            Path(temporary).replace(target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise

    def _locate(self, path: str) -> Path:
        parts = path.split("/")
        if not path or path.startswith("/") or "\\" in path or "\0" in path or not {"", ".", ".."}.isdisjoint(parts):
            raise Refused(
                f"{path!r} is not a path inside the repository; give it relative to the top, with forward slashes"
            )
        if any(part.lower().rstrip(" .") == ".git" for part in parts):
            raise Refused(f"{path} is git's own; it is not for editing")
        place = self.folder
        try:
            for part in parts:
                place = place / part
                if place.is_symlink():
                    raise Refused(f"{path} is or goes through a symbolic link; those are left alone")
            status = place.lstat()
        except (OSError, ValueError) as error:
            raise Refused(f"there is no file {path}") from error
        if not stat.S_ISREG(status.st_mode):
            raise Refused(f"{path} is not a file")
        if status.st_size > MAX_BYTES:
            raise Refused(f"{path} has {status.st_size} bytes; files over {MAX_BYTES} are left alone")
        return place

    def changed(self, base: str) -> list[str]:
        """Paths of the tracked files that differ from a commit."""
        return _paths(git("diff", "--name-only", "--no-renames", "-z", base, "--", cwd=self.folder))

    def changed_between(self, base: str, tree: str) -> list[str]:
        """Paths that differ between a commit and a tree."""
        return _paths(git("diff", "--name-only", "--no-renames", "-z", base, tree, "--", cwd=self.folder))

    def original(self, base: str, path: str) -> bytes:
        """What a file holds in a commit.

        Raises:
            Refused: As for `read`, or the commit has no such file.
        """
        self._locate(path)
        try:
            return run("cat-file", "blob", f"{base}:{path}", cwd=self.folder)
        except EverstepError as error:
            raise Refused(f"{path} is not tracked by git; only tracked files are edited") from error

    def tree(self, base: str) -> str:
        """The git tree of a commit with the copy's changes to tracked files; the object is stored."""
        handle, index = tempfile.mkstemp(prefix="everstep-index-", dir=self.folder / ".git")
        os.close(handle)
        environment = {"GIT_INDEX_FILE": index}
        try:
            git("read-tree", base, cwd=self.folder, environment=environment)
            names = "".join(f"{path}\0" for path in self.changed(base)).encode(errors="surrogateescape")
            git("update-index", "--remove", "-z", "--stdin", cwd=self.folder, environment=environment, stdin=names)
            return git("write-tree", cwd=self.folder, environment=environment).strip()
        finally:
            Path(index).unlink(missing_ok=True)
            Path(f"{index}.lock").unlink(missing_ok=True)

    def commit(self, base: str, tree: str, message: str, seconds: int) -> str:
        """Make the commit object; the same arguments make the same commit.

        Args:
            base: Its parent.
            tree: Its contents.
            message: Its message.
            seconds: Its date, since the Unix epoch.
        """
        name, mail = AUTHOR
        date = f"{seconds} +0000"
        environment = {
            "GIT_AUTHOR_NAME": name, "GIT_AUTHOR_EMAIL": mail, "GIT_AUTHOR_DATE": date,
            "GIT_COMMITTER_NAME": name, "GIT_COMMITTER_EMAIL": mail, "GIT_COMMITTER_DATE": date,
        }  # fmt: skip
        return git(
            "commit-tree", tree, "-p", base, cwd=self.folder, environment=environment, stdin=message.encode()
        ).strip()

    def holds(self, digest: str) -> bool:
        """Whether the copy has this git object."""
        try:
            git("cat-file", "-e", digest, cwd=self.folder)
        except EverstepError:
            return False
        return True

    def is_ancestor(self, commit: str, later: str) -> bool:
        """Whether the remote's branch, now at `later`, was built on a commit of ours."""
        if not self.holds(later):
            self._fetch_branch(self.folder)
        try:
            git("merge-base", "--is-ancestor", commit, later, cwd=self.folder)
        except GitFailed:
            return False
        return True


def _paths(listing: str) -> list[str]:
    return [path for path in listing.split("\0") if path]
