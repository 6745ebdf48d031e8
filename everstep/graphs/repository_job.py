"""What a job of the repository agent is given, what it keeps while it runs, and what it hands back."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Required, TypedDict, cast

from langchain_core.messages import AnyMessage
from langgraph.graph.message import add_messages

from everstep.errors import PayloadInvalid
from everstep.graphs.codemods import OPERATIONS, Operation
from everstep.nodes.high_risk import HIGH_RISK_PATHS

DEFAULT_MAX_FILES = 24
"""Files a job edits at most, unless its payload says otherwise: about 60 steps."""
MOST_FILES = 2000
"""The largest `max_files` a payload may ask for."""
WORKSPACES = "EVERSTEP_WORKSPACES"
"""Environment variable: the folder that holds working copies; `everstep/workspaces` in the user's cache folder when
not set."""

_LICENSE = re.compile(r"[A-Za-z0-9.+()-]+(?: [A-Za-z0-9.+()-]+)*")


class RepositoryJob(TypedDict, total=False):
    """The payload of a job.

    Attributes:
        repository: Path or URL of the remote repository. Required.
        branch: The branch to change. Required.
        operation: A name in `everstep.graphs.codemods.OPERATIONS`. Required.
        workspace: Folder for the working copy; by default one that is always the same for the job.
        max_files: How many files to edit at most.
        checks: Commands that must pass in the working copy before anything is committed.
        high_risk_paths: Patterns (`everstep.nodes.high_risk`) whose change needs a person; an empty list asks for none.
        license: SPDX expression for the operation that adds licence identifiers.
        model: `provider:name` of a chat model; by default `EVERSTEP_MODEL`, else the offline policy.
        announce: File of an outbox (`everstep.graphs.outbox`) that is told of the pushed commit; nobody by default.
    """

    repository: Required[str]
    branch: Required[str]
    operation: Required[str]
    workspace: str | None
    max_files: int
    checks: list[str]
    high_risk_paths: list[str] | None
    license: str
    model: str | None
    announce: str | None


class RepositoryResult(TypedDict, total=False):
    """What a finished job hands back.

    Attributes:
        outcome: `pushed`, or `nothing_to_do` when no file needed the operation.
        commit: The commit the branch got, None if there was nothing to do.
        files: Paths the commit changes.
        summary: What the model said at the end.
    """

    outcome: Literal["pushed", "nothing_to_do"]
    commit: str | None
    files: list[str]
    summary: str


class RepositoryState(RepositoryJob, RepositoryResult, total=False):
    """What is kept between the steps.

    Attributes:
        messages: The conversation; the one account of what was done.
        base_commit: The commit the working copy starts from.
        started_at: When the job prepared its working copy, seconds since the Unix epoch; the commit's date.
        verified_tree: The git tree that passed verification; only it can be committed.
        approved_tree: The git tree a person approved.
        dropped: Paths a person took out of the change.
        commit_message: The message the commit was made with.
    """

    messages: Required[Annotated[list[AnyMessage], add_messages]]
    base_commit: Required[str]
    started_at: Required[int]
    verified_tree: str | None
    approved_tree: str | None
    dropped: list[str]
    commit_message: str


def validate(job: RepositoryJob) -> Operation:
    """Refuse a payload that cannot be carried out.

    Returns:
        The operation it names.

    Raises:
        PayloadInvalid: A field is missing, of the wrong type or out of range.
    """
    given = cast("dict[str, Any]", job)
    for name in ("repository", "branch", "operation"):
        _expect(isinstance(given.get(name), str) and given[name] != "", name, "a text that is not empty")
    operation = OPERATIONS.get(given["operation"])
    _expect(operation is not None, "operation", f"one of {', '.join(OPERATIONS)}")
    for name in ("workspace", "model", "announce"):
        _expect(isinstance(given.get(name), str | None), name, "a text")
    count = given.get("max_files", DEFAULT_MAX_FILES)
    _expect(type(count) is int and 1 <= count <= MOST_FILES, "max_files", f"a whole number from 1 to {MOST_FILES}")
    for name in ("checks", "high_risk_paths"):
        entries: Any = given.get(name) or []
        _expect(
            isinstance(entries, list) and all(isinstance(entry, str) and entry for entry in cast("list[Any]", entries)),
            name,
            "a list of texts",
        )
    license_id = given.get("license", "")
    _expect(
        isinstance(license_id, str) and (not license_id or _LICENSE.fullmatch(license_id) is not None),
        "license",
        "an SPDX expression",
    )
    assert operation is not None
    _expect(bool(license_id) or not operation.needs_license, "license", f"given, since {operation.name} needs one")
    return operation


def _expect(holds: bool, field: str, wanted: str) -> None:
    if not holds:
        raise PayloadInvalid(
            f"the payload's field {field} must be {wanted}", next_step="See docs/shipped-agent.md.", path=f"$.{field}"
        )


def max_files(job: RepositoryJob) -> int:
    """How many files the job edits at most."""
    return job.get("max_files", DEFAULT_MAX_FILES)


def high_risk_patterns(job: RepositoryJob) -> tuple[str, ...]:
    """The patterns whose change needs a person; Everstep's own when the payload does not say."""
    given = job.get("high_risk_paths")
    return HIGH_RISK_PATHS if given is None else tuple(given)


def owner(job: RepositoryJob, thread_id: str) -> str:
    """A digest that tells the job's working copy from others: equal for every attempt of one job, on every machine."""
    parts = (thread_id, job["repository"], job["branch"], job["operation"])
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


def workspace(job: RepositoryJob, thread_id: str) -> Path:
    """Where the job's working copy is: the payload's folder, or the same default at every attempt on this machine."""
    if given := job.get("workspace"):
        return Path(given).expanduser().absolute()
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    root = Path(os.environ.get(WORKSPACES) or Path(cache) / "everstep" / "workspaces")
    name = re.sub(r"[^\w.-]+", "-", Path(job["repository"]).name.removesuffix(".git")).strip(".-") or "repository"
    return root.expanduser().absolute() / f"{name}-{owner(job, thread_id)}"
