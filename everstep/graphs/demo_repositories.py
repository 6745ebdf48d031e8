"""Real repositories to try the shipped agent on: the source of installed packages, each with a bare remote beside it.

Nothing is downloaded and nothing is made up. The files are those the package's own record lists, so what an operation
finds in them is what is really there. Commits have a fixed author and date, so the same package gives the same commit
everywhere.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath

from everstep.errors import RepositoryInvalid
from everstep.graphs.codemods import OPERATIONS, CannotRewrite, Operation
from everstep.graphs.repository_git import git
from everstep.graphs.repository_job import DEFAULT_MAX_FILES, RepositoryJob
from everstep.graphs.same_code import same_meaning
from everstep.graphs.working_copy import MAX_BYTES
from everstep.nodes.high_risk import high_risk

DEMO_PACKAGES = ("langgraph", "pydantic", "pygments", "rich", "sqlalchemy")
"""Packages Everstep itself runs on, with enough files that some operation applies to."""

_SAMPLE = 60
"""How many files are looked at before an operation is taken to apply to none; a whole package takes seconds."""
_NOT_SOURCE = frozenset({".pyc", ".pyd", ".so"})
_AUTHOR = {
    f"GIT_{role}_{what}": value
    for role in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "Everstep demo"), ("EMAIL", "demo@everstep.invalid"), ("DATE", "1700000000 +0000"))
}
_LICENSES = {
    "MIT License": "MIT",
    "Apache Software License": "Apache-2.0",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}


@dataclass(frozen=True)
class DemoRepository:
    """A package's source as a repository, and the job to run on it.

    Attributes:
        package: Name of the distribution.
        version: Its version.
        source: The repository with a working copy.
        remote: The bare repository the job works on.
        payload: What to submit.
        files: The files the job will edit, in its order.
        high_risk: Those of them under high-risk paths; if there are any, the job asks a person before it commits.
    """

    package: str
    version: str
    source: Path
    remote: Path
    payload: RepositoryJob
    files: tuple[str, ...]
    high_risk: tuple[str, ...]


def make_repositories(
    folder: Path, packages: Sequence[str] = DEMO_PACKAGES, *, max_files: int = DEFAULT_MAX_FILES
) -> list[DemoRepository]:
    """Make a repository and a bare remote of each package.

    Args:
        folder: Where they go, as `<package>` and `<package>.git`; it is made if missing.
        packages: Names of installed distributions.
        max_files: How many files each job edits at most.

    Raises:
        RepositoryInvalid: A package is not installed, there is nothing an operation applies to, or its folder is taken.
    """
    return [_make(folder.absolute(), package, max_files) for package in packages]


def _make(folder: Path, package: str, max_files: int) -> DemoRepository:
    try:
        distribution = importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError as error:
        raise RepositoryInvalid(
            f"the package {package} is not installed", next_step="Name an installed one.", package=package
        ) from error
    source, remote = folder / package, folder / f"{package}.git"
    if taken := [place for place in (source, remote) if place.exists()]:
        raise RepositoryInvalid(
            f"{taken[0]} is there already", next_step="Give a folder without it.", path=str(taken[0])
        )
    files = _files(distribution)
    license_id = _license(distribution)
    operation, needy = _operation(files, license_id, max_files)
    if not needy:
        raise RepositoryInvalid(
            f"no operation applies to any file of {package}", next_step="Name another package.", package=package
        )
    _commit(source, files, f"{package} {distribution.version}, as installed")
    git("clone", "--quiet", "--bare", "--", str(source), str(remote))
    payload = RepositoryJob(repository=str(remote), branch="main", operation=operation.name, max_files=max_files)
    if operation.needs_license:
        payload["license"] = license_id
    return DemoRepository(package, distribution.version, source, remote, payload, tuple(needy), tuple(high_risk(needy)))


def _files(distribution: importlib.metadata.Distribution) -> dict[str, bytes]:
    """The package's files by path, as its record lists them: no metadata, no scripts, nothing compiled."""
    found: dict[str, bytes] = {}
    for entry in distribution.files or ():
        place = Path(str(distribution.locate_file(entry)))
        skipped = {"..", "__pycache__"} & set(entry.parts) or entry.parts[0].endswith((".dist-info", ".data"))
        if not skipped and entry.suffix not in _NOT_SOURCE and place.is_file():
            found[entry.as_posix()] = place.read_bytes()
    return dict(sorted(found.items(), key=lambda item: item[0].encode()))


def _license(distribution: importlib.metadata.Distribution) -> str:
    """The package's licence as an SPDX expression, "" when its metadata does not say so clearly."""
    fields = distribution.metadata
    stated = next((fields[name] for name in ("License-Expression", "License") if name in fields), "")
    if re.fullmatch(r"MIT|0BSD|ISC|(?:Apache|MPL|PSF|BSD|LGPL|GPL)-[\w.-]+(?: (?:AND|OR) [\w.-]+)*", stated):
        return stated
    names = {
        _LICENSES.get(line.split(" :: ")[-1])
        for line in distribution.metadata.get_all("Classifier") or ()
        if line.startswith("License ::")
    }
    return names.pop() or "" if len(names) == 1 else ""


def _operation(files: Mapping[str, bytes], license_id: str, enough: int) -> tuple[Operation, list[str]]:
    """The first operation that applies to enough files, else the one that applies to most; and so many of the files."""
    best: tuple[Operation, list[str]] = (next(iter(OPERATIONS.values())), [])
    for operation in OPERATIONS.values():
        if operation.needs_license and not license_id:
            continue
        sample = islice(files.items(), _SAMPLE)
        if not any(_applies(operation, path, data, license_id) for path, data in sample):
            continue
        needy = (path for path, data in files.items() if _applies(operation, path, data, license_id))
        best = max(best, (operation, list(islice(needy, enough))), key=lambda pair: len(pair[1]))
        if len(best[1]) >= enough:
            break
    return best


def _applies(operation: Operation, path: str, data: bytes, license_id: str) -> bool:
    if not operation.applies_to(path) or len(data) > MAX_BYTES:
        return False
    try:
        changed = operation.rewrite(path, data, license_id)
    except CannotRewrite:
        return False
    return changed != data and same_meaning(path, data, changed)


def _commit(source: Path, files: Mapping[str, bytes], message: str) -> None:
    for path, data in files.items():
        place = source / PurePosixPath(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    git("init", "--quiet", "--initial-branch=main", cwd=source)
    git("add", "--all", "--force", cwd=source)
    git("commit", "--quiet", "-m", message, cwd=source, environment=_AUTHOR)
