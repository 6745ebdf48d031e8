"""The legs of a job, and what lies between them, by its changes of status."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from everstep.checkpoints import trace_rows
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.store import Store
from everstep.checkpoints.trace_rows import EvidenceRow, Move
from everstep.clock import rfc3339
from everstep.errors import LegNotFound

_WAITS = {
    "pending": "queued",
    "retry": "waits to try again",
    "review": "waits for a person",
    "failed": "failed, until it was retried",
}


@dataclass
class LegRow:
    """One attempt by one worker; times are UTC milliseconds.

    Attributes:
        number: Which leg of the job it is, from 1.
        worker: Who ran it.
        started_at: When it was claimed.
        ended_at: When it was settled, or its worker found to be gone; None while it runs.
        outcome: What became of the job then: `done`, `failed`, `review`, `retry`, `given back`, `gone`, or `running`.
        reason: In words.
        then: The status that the job had then; empty while it runs.
        apart: Whether its worker lived on and told of the end itself: what is gone is the process of the job alone.
    """

    number: int
    worker: str
    started_at: int
    ended_at: int | None = None
    outcome: str = "running"
    reason: str = ""
    then: str = ""
    apart: bool = False

    @property
    def is_tried_again(self) -> bool:
        """Whether it went wrong and the job went on, or goes on, by itself."""
        return self.outcome in ("retry", "given back") or (
            self.outcome == "gone" and self.then in ("running", "pending", "retry")
        )


@dataclass(frozen=True)
class WaitRow:
    """A time in which nobody ran the job; `until` is None while it lasts. UTC milliseconds."""

    name: str
    status: str
    since: int
    until: int | None
    reason: str


def leg_rows(store: Store, job: Job) -> list[LegRow]:
    """The legs of a job, the first first."""

    def read(connection: Connection) -> list[LegRow]:
        evidence = trace_rows.evidence_of(connection, job.id)
        return of_moves(job, trace_rows.moves(connection, job.id), evidence)[0]

    return store.read(read)


def find_leg(rows: Sequence[LegRow], job: Job, number: int | None) -> LegRow:
    """A leg by its number; the newest without one.

    Raises:
        LegNotFound: The job has no such leg.
    """
    found = [row for row in rows if number in (None, row.number)]
    if found:
        return found[-1]
    has = f"it has the legs {rows[0].number} to {rows[-1].number}" if rows else "it has not run yet"
    what = "leg" if number is None else f"leg {number}"
    raise LegNotFound(
        f"job {job.public_id} has no {what}: {has}", next_step=f"see: everstep trace {job.public_id}", job=job.public_id
    )


def of_moves(job: Job, moves: Sequence[Move], evidence: Sequence[EvidenceRow]) -> tuple[list[LegRow], list[WaitRow]]:
    """Legs and waits, both in order.

    Args:
        job: The job.
        moves: Its changes of status, oldest first.
        evidence: What was kept of its failures and deaths.
    """
    died = {row.claim_no for row in evidence if row.kind == "worker_death"}
    legs: list[LegRow] = []
    waits: list[WaitRow] = []
    before: Move | None = None
    for move in moves:
        running = legs[-1] if legs and legs[-1].ended_at is None else None
        if running is not None:
            is_dead = move.to == "running" or running.number in died
            outcome = "gone" if is_dead else "given back" if move.to == "pending" else move.to
            running.ended_at, running.outcome, running.reason = move.at, outcome, move.reason
            running.then = move.to
            running.apart = running.number in died and move.actor == running.worker
        elif before is not None and before.to in _WAITS:
            waits.append(_wait(before, move.at, legs))
        if move.to == "running":
            legs.append(LegRow(move.claim_no, move.actor, move.at))
        before = move
    if before is not None and before.to in ("pending", "retry", "review"):
        waits.append(_wait(before, None, legs, job))
    return legs, waits


def _wait(move: Move, until: int | None, legs: Sequence[LegRow], job: Job | None = None) -> WaitRow:
    """A wait that begins with a move; a reason that the leg before it has told is not told again."""
    reason = "" if legs and legs[-1].ended_at == move.at and legs[-1].reason == move.reason else move.reason
    if job is not None and move.to == "retry":
        reason = f"{reason}; next at {rfc3339(job.next_run_at)}".removeprefix("; ")
    return WaitRow(_WAITS[move.to], move.to, move.at, until, reason)
