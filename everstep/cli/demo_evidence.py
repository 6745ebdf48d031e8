"""What the demo can prove from outside: git, the outbox, the journal of node starts, and the table of checkpoints."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everstep.checkpoints.jobs import Job
    from everstep.checkpoints.reviews import Review
    from everstep.checkpoints.store import Store
    from everstep.graphs.demo_repositories import DemoRepository


@dataclass(frozen=True)
class Committed:
    """What was durable when a worker was killed.

    Attributes:
        steps: The last committed step of each thread.
        journal_lines: How many node starts were in the journal by then.
    """

    steps: dict[str, int]
    journal_lines: int


@dataclass(frozen=True)
class JobEvidence:
    """One job, seen from outside; `effects` and `reviews` are told in words."""

    job: str
    package: str
    status: str
    steps: int
    legs: int
    attempts: int
    new_commits: int
    files_changed: int
    effects: str
    effects_confirmed: bool
    reviews: str


def commits(remote: Path) -> list[str]:
    """The commits on the branch of a bare repository, newest first."""
    from everstep.graphs.repository_git import git

    return git("rev-list", "main", cwd=remote).split()


def committed_steps(record: Path) -> Committed:
    """The last committed step of each thread, read from LangGraph's table without any code of ours."""
    steps: dict[str, int] = {}
    with closing(sqlite3.connect(record)) as connection:
        for thread, metadata in connection.execute("SELECT thread_id, metadata FROM checkpoints"):
            steps[thread] = max(steps.get(thread, -1), json.loads(metadata).get("step", -1))
    return Committed(steps, len(_journal(record.with_name("journal"))))


def ran_again(journal: Path, committed: list[Committed]) -> list[dict[str, Any]]:
    """Node starts, after a kill, of steps that had been committed before it."""
    lines = _journal(journal)
    return [
        line
        for kill in committed
        for line in lines[kill.journal_lines :]
        if line["step"] <= kill.steps.get(line["thread"], -1)
    ]


def _journal(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def outbox_lines(outbox: Path) -> list[str]:
    """What the message gateway sent."""
    from everstep.graphs.outbox import sent

    return sent(outbox)


def decide(review: Review, outbox: Path) -> tuple[str, Any, str]:
    """What a careful person answers, after a look outside: decision, value and reason."""
    if review.kind != "effect":
        return "approve", None, "the demo's person read the change"
    message = review.value["arguments"]["message"]
    if message in outbox_lines(outbox):
        return "approve", len(message), "the message is in the outbox"
    return "reject", None, "the message is not in the outbox"


def of_job(store: Store, job: Job, repository: DemoRepository, before: list[str]) -> JobEvidence:
    """One job: steps from the checkpoints, commits and files from git, effects and reviews from the ledger."""
    from everstep.graphs.repository_git import git

    steps = committed_steps(store.path).steps[job.thread_id]
    new = [commit for commit in commits(repository.remote) if commit not in before]
    changed = git("diff", "--name-only", before[0], "main", cwd=repository.remote).split()
    effects = store.effects(job)
    reviews = store.reviews(job)
    return JobEvidence(
        job=job.public_id,
        package=repository.package,
        status=job.status,
        steps=steps,
        legs=job.claim_no,
        attempts=job.attempts,
        new_commits=len(new),
        files_changed=len(changed),
        effects="\n".join(f"{effect.name} by {effect.settled_by}" for effect in effects),
        effects_confirmed=all(effect.state == "confirmed" for effect in effects),
        reviews="\n".join(f"{review.kind}: {review.decision}" for review in reviews) or "-",
    )
