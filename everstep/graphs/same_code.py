"""Whether an edit left the meaning of a file alone; also a check anyone can repeat in a working copy.

    python -I .../same_code.py BASE

compares every tracked file that differs from the commit BASE with what it was there, and exits with 1, naming the
files, if one of them no longer provably means the same. The repository's code is parsed and compiled, never run, and
nothing of it can be imported by mistake: the file stands alone on the standard library, so that Python can be
isolated (`-I`).
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any


def same_meaning(path: str, before: bytes, after: bytes) -> bool:
    """Whether two versions of a file provably mean the same to a machine.

    Python files must compile and parse to equal syntax trees; JSON and TOML files must hold equal data; a file that
    cannot be read so proves nothing. Other kinds are prose to a program and always pass.

    Args:
        path: The file's name; its suffix decides.
        before: What it held.
        after: What it holds.
    """
    read = _READERS.get(PurePosixPath(path).suffix)
    if read is None:
        return True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return read(before) == read(after)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False


def _syntax(source: bytes) -> str:
    tree = ast.parse(source)
    compile(tree, "<file>", "exec", dont_inherit=True)
    return ast.dump(tree)


def _json(data: bytes) -> Any:
    return json.loads(data, object_pairs_hook=list, parse_float=str, parse_int=str)


def _toml(data: bytes) -> Any:
    return tomllib.loads(data.decode())


_READERS: dict[str, Callable[[bytes], Any]] = {".py": _syntax, ".pyi": _syntax, ".json": _json, ".toml": _toml}


def altered(folder: Path, base: str) -> tuple[list[str], list[str]]:
    """The tracked files that differ from a commit, and those among them whose meaning may differ too.

    Args:
        folder: Top of a working copy.
        base: A commit of it.
    """
    listing = _git(folder, "diff", "--name-only", "--no-renames", "-z", base, "--")
    changed = [name for name in listing.decode(errors="surrogateescape").split("\0") if name]
    return changed, [name for name in changed if not _same(folder, base, name)]


def _same(folder: Path, base: str, name: str) -> bool:
    path = folder / name
    if path.is_symlink() or not path.is_file():
        return False
    return same_meaning(name, _git(folder, "cat-file", "blob", f"{base}:{name}"), path.read_bytes())


def _git(folder: Path, *arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=folder, check=True, stdout=subprocess.PIPE).stdout


def main() -> int:
    """Check the current folder; the exit code is 0 if all changed files mean the same."""
    if len(sys.argv) != 2:
        print("usage: same_code.py BASE", file=sys.stderr)
        return 64
    changed, doubtful = altered(Path.cwd(), sys.argv[1])
    for name in doubtful:
        print(f"not provably the same: {name}")
    print(f"{len(changed) - len(doubtful)} of {len(changed)} changed files mean the same as before")
    return 1 if doubtful else 0


if __name__ == "__main__":
    sys.exit(main())
