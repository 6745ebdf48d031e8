"""Which paths of a working copy differ from a revision, whatever the one who changed them did to hide it.

Committed, staged, in the files or untracked: all count, a renamed file under both names. The working copy's own index
is not asked about its files, since `update-index --assume-unchanged` or a sparse checkout would hide them; excludes
outside the tree (`.git/info/exclude`, the user's) hide nothing, and a `.gitignore` only as long as none was changed.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from everstep.checkpoints.jobs import loose_digest
from everstep.errors import EverstepError, RepositoryInvalid
from everstep.graphs.repository_git import run

_LIST = ("--no-renames", "--no-ext-diff", "--ignore-submodules=none", "-z")
_PLAIN = ("-c", "core.sparseCheckout=false", "-c", "core.ignoreCase=false")
_CHUNK = 1 << 20


@dataclass(frozen=True)
class ChangedPaths:
    """What differs from `base`.

    Attributes:
        root: The working copy's top folder.
        base: The commit's id.
        paths: From the top, with forward slashes, sorted; what is no UTF-8 has replacement characters.
    """

    root: Path
    base: str
    paths: tuple[str, ...]
    _recorded: Mapping[str, list[str]]
    _names: Mapping[str, bytes]

    def digest(self, paths: Iterable[str]) -> str:
        """SHA-256 of how these paths differ: in the commits, in the index and in the files."""
        state = [[path, self._recorded.get(path, []), _content(self.root, self._names[path])] for path in sorted(paths)]
        return loose_digest([self.base, state])


def changed_paths(folder: Path, base: str) -> ChangedPaths:
    """The paths of the working copy a folder is in that differ from a revision.

    Args:
        folder: The working copy, or a folder in it; all of it is looked at.
        base: The revision. Only the full id of a commit names the same whatever is done to the repository.

    Raises:
        EverstepError: It is no working copy, or has no such revision.
        OSError: It cannot be read.
    """
    root = _top(folder)
    commit = _git(root, "rev-parse", "--verify", "--end-of-options", f"{base}^{{commit}}").decode().strip()
    recorded: dict[bytes, list[str]] = {}
    for compared in [["--cached", commit], *([[commit, "HEAD"]] if _has_head(root) else [])]:
        for path, how in _raw(_git(root, "diff", "--raw", "--no-abbrev", *_LIST, *compared)):
            recorded.setdefault(path, []).append(how)
    with tempfile.TemporaryDirectory() as elsewhere:
        fresh = {"GIT_INDEX_FILE": str(Path(elsewhere) / "index")}
        _git(root, "read-tree", commit, environment=fresh)
        found = {*recorded, *_names(_git(root, "diff", "--name-only", *_LIST, environment=fresh))}
        others = ("ls-files", "--others", "-z")
        found |= _untracked(root, _git(root, *others, "--exclude-per-directory=.gitignore", environment=fresh))
        if any(path.rpartition(b"/")[2] == b".gitignore" for path in found):
            found |= _untracked(root, _git(root, *others, environment=fresh))
    names = {path.decode(errors="replace"): path for path in sorted(found)}
    return ChangedPaths(
        root,
        commit,
        tuple(sorted(names)),
        {path.decode(errors="replace"): how for path, how in recorded.items()},
        names,
    )


def _top(folder: Path) -> Path:
    root = Path(os.fsdecode(_git(folder, "rev-parse", "--show-toplevel").rstrip(b"\n")))
    if not folder.resolve().is_relative_to(root.resolve()):  # core.worktree may say anything
        raise RepositoryInvalid(
            f"the repository at {folder} has its files in {root}", next_step="unset core.worktree, or look by hand"
        )
    return root


def _git(folder: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> bytes:
    plain = {"GIT_NO_REPLACE_OBJECTS": "1", **(environment or {})}
    return run(*_PLAIN, *arguments, cwd=folder, environment=plain)


def _has_head(root: Path) -> bool:
    try:
        return bool(_git(root, "rev-parse", "--verify", "--quiet", "HEAD"))
    except EverstepError:
        return False


def _names(listed: bytes) -> Iterator[bytes]:
    return (name for name in listed.split(b"\0") if name)


def _raw(listed: bytes) -> Iterator[tuple[bytes, str]]:
    """Path, and modes, blobs and kind of change, of each entry of `--raw -z`."""
    entries = iter(_names(listed))
    for how in entries:
        yield next(entries), how.decode()


def _untracked(root: Path, listed: bytes) -> set[bytes]:
    """The listed files; of a repository inside this one, of which git lists the folder alone, the files in it."""
    found: set[bytes] = set()
    for name in _names(listed):
        if not name.endswith(b"/"):
            found.add(name)
            continue
        found.add(name.rstrip(b"/"))
        top = os.fsencode(root)
        for folder, folders, files in os.walk(os.path.join(top, name)):
            folders[:] = [inner for inner in folders if inner != b".git"]
            found |= {os.path.relpath(os.path.join(folder, file), top) for file in files}
    return found


def _content(root: Path, name: bytes) -> list[str]:
    """What a path is now: its kind and the SHA-256 of what it holds."""
    path = os.path.join(os.fsencode(root), name)
    try:
        mode = os.lstat(path).st_mode
        if stat.S_ISLNK(mode):
            return ["link", os.fsdecode(os.readlink(path))]
        if not stat.S_ISREG(mode):
            return [f"{stat.S_IFMT(mode):o}"]
        content = hashlib.sha256()
        with open(path, "rb") as file:
            while chunk := file.read(_CHUNK):
                content.update(chunk)
        return ["executable" if mode & 0o100 else "file", content.hexdigest()]
    except OSError as error:
        return [f"unreadable: {error.strerror}"]
