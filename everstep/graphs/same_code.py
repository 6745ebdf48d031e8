"""A check anyone can repeat: `python -m everstep.graphs.same_code BASE` in a working copy, after an operation.

It compares every tracked file that differs from the commit BASE with what it was there, and exits 1, naming the files, if one of them no
longer provably means the same (`everstep.graphs.codemods.same_meaning`). It never runs the repository's code.
"""

from __future__ import annotations

import sys
from pathlib import Path

from everstep.graphs.codemods import same_meaning
from everstep.graphs.repository_git import git, run


def altered(folder: Path, base: str) -> tuple[list[str], list[str]]:
    """The tracked files that differ from a commit, and those among them whose meaning may differ too.

    Args:
        folder: Top of a working copy.
        base: A commit of it.
    """
    names = git("diff", "--name-only", "--no-renames", "-z", base, "--", cwd=folder).split("\0")
    changed = [name for name in names if name]
    doubtful = [name for name in changed if not _same(folder, base, name)]
    return changed, doubtful


def _same(folder: Path, base: str, name: str) -> bool:
    path = folder / name
    if path.is_symlink() or not path.is_file():
        return False
    return same_meaning(name, run("cat-file", "blob", f"{base}:{name}", cwd=folder), path.read_bytes())


def main() -> int:
    """Run the check on the current folder; the exit code is 0 if all changed files mean the same."""
    if len(sys.argv) != 2:
        print("usage: python -m everstep.graphs.same_code BASE", file=sys.stderr)
        return 64
    changed, doubtful = altered(Path.cwd(), sys.argv[1])
    for name in doubtful:
        print(f"not provably the same: {name}")
    print(f"{len(changed) - len(doubtful)} of {len(changed)} changed files mean the same as before")
    return 1 if doubtful else 0


if __name__ == "__main__":
    sys.exit(main())
