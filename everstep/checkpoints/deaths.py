"""Deaths of workers: which jobs are suspects, which one is the culprit, and when it has killed often enough.

A death is no failure of the jobs a worker ran, so deaths are counted apart (`worker_deaths`). What shared a worker that
died is suspect, and runs in a process of its own until a leg of it has ended; what dies there is the culprit. Every
function runs inside a write transaction it is given.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, insert, or_, select

from everstep.checkpoints.jobs import Job, LostClaim, end, fail, job_of, lock, transition
from everstep.checkpoints.schema import agent_jobs, evidence
from everstep.counts import counted
from everstep.errors import WorkerDied

LEASE_EXPIRED, DIED, REBOOTED = "lease expired", "worker died", "its machine was started anew"
Told = Callable[[Connection, Job, str, bool], None]


def nobody(connection: Connection, job: Job, how: str, goes_on: bool) -> None:
    """Nobody needs to be told."""
    del connection, job, how, goes_on


ENDED_BY = "was ended by"
"""How a process ended whose node raised what ends Python, in words; that follows."""
FAULTS = frozenset({"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT"})
"""Signals by which a fault of the process itself ends it; Python then writes where it was (`faulthandler`)."""
ALONE = 2
"""A suspect of this degree runs with nothing beside it in its worker: a process of its own did not clear it."""


@dataclass(frozen=True)
class Death:
    """How the process of a job ended, as far as anybody knows.

    Attributes:
        worker: Id of the worker, or of the process it started for the job.
        how: In words: `was killed by SIGSEGV`, `exited with code 9`, `was ended by SystemExit: …`, `is gone`.
        signal: The signal that killed it.
        exit_code: The code it exited with.
        peak_memory_bytes: The most memory it had at once.
        beside: How many other jobs it held.
    """

    worker: str
    how: str = "is gone"
    signal: str | None = None
    exit_code: int | None = None
    peak_memory_bytes: int | None = None
    beside: int = 0


def process_of(worker: str) -> str:
    """The worker process that a holder of a claim belongs to: itself, or for `WORKER/…` the one that started it."""
    return worker.partition("/")[0]


def degree(job: Job) -> int:
    """How far a job must be kept from others.

    Returns:
        0: It is no suspect. 1: It runs in a process of its own. `ALONE`: With nothing beside it in its worker either.
    """
    return min(job.suspect, ALONE) or int(job.worker_deaths > 0)


@dataclass(frozen=True)
class Judgement:
    """What comes of a job whose worker is gone.

    Attributes:
        count: The columns to set when it goes on; None if it does not.
        given_back: Row ids of the other jobs that the worker held, which were given back as suspects.
    """

    count: dict[str, int] | None
    given_back: frozenset[int] = frozenset()


def judge(
    connection: Connection,
    job: Job,
    dead: Collection[str],
    rebooted: Collection[str],
    *,
    now: int,
    actor: str,
    told: Told = nobody,
) -> Judgement:
    """Judge a job whose worker is gone, and with it the others that it held, as far as they are lost, too.

    A worker that finds a claim of its own, which it does not run, never heard that it was made: nobody died.

    Args:
        connection: The write transaction.
        job: The job as that worker held it.
        dead: Workers proven dead.
        rebooted: Those whose machine was started anew since.
        now: UTC milliseconds.
        actor: The worker that found it.
        told: Told of each leg that ends here: the job as its worker held it, how the worker ended, in words, and
            whether the job goes on without a person.
    """
    if job.leased_by == actor and job.cancel_requested_at is None:
        told(connection, job, LEASE_EXPIRED, True)
        return Judgement({})
    others = [] if job.leased_by in rebooted else _others(connection, job)
    death = Death(job.leased_by or "", beside=len(others))
    lost = [other for other in others if other.leased_by in dead or (other.lease_until or 0) <= now]
    for other in lost:
        _suspect(connection, other, death, now, actor)
    count: dict[str, int] | None = {}
    if job.cancel_requested_at is not None:
        end(connection, job, now=now, actor=actor)
        count = None
    elif others:
        count = another_death(job, alone=False)
        _keep(connection, job, death, count, now)
    elif job.leased_by not in rebooted:
        count = _counted(connection, job, death, now, actor)
    for held in (job, *lost):
        how = REBOOTED if held.leased_by in rebooted else DIED if held.leased_by in dead else LEASE_EXPIRED
        goes_on = count is not None if held is job else held.cancel_requested_at is None
        told(connection, held, how, goes_on)
    return Judgement(count, frozenset(other.id for other in lost))


def is_unripe(connection: Connection, job: Job, dead: Collection[str], *, now: int, patience_ms: int) -> bool:
    """Whether another job's lease of the same worker ends in a moment: then all it held are judged together.

    It is waited for at most so long after this job's own lease has ended.

    Args:
        connection: The write transaction.
        job: The job as that worker held it.
        dead: Workers proven dead.
        now: UTC milliseconds.
        patience_ms: How long a moment is, milliseconds.
    """
    if job.leased_by in dead or now - (job.lease_until or 0) >= patience_ms:
        return False
    left = [(other.lease_until or 0) - now for other in _others(connection, job) if other.leased_by not in dead]
    return any(0 < milliseconds < patience_ms for milliseconds in left)


def another_death(job: Job, *, alone: bool) -> dict[str, int]:
    """The columns to set when a process that held this job died; progress since the last one starts a new count.

    Args:
        job: The job.
        alone: Whether it held no other: then the death is this job's own.
    """
    stuck = job.progress <= job.progress_at_failure
    known, suspect = (job.worker_deaths, job.suspect) if stuck else (0, 0)
    count = {"worker_deaths": known + alone, "suspect": suspect + (not alone)}
    return {**count, "failures": job.failures if stuck else 0, "progress_at_failure": job.progress}


def _others(connection: Connection, job: Job) -> list[Job]:
    """The other jobs that the same worker holds, itself or in processes it started; locked, lowest id first."""
    process = process_of(job.leased_by or "")
    query = select(agent_jobs).where(
        agent_jobs.c.status == "running",
        agent_jobs.c.id != job.id,
        or_(agent_jobs.c.leased_by == process, agent_jobs.c.leased_by.startswith(f"{process}/", autoescape=True)),
    )
    return [job_of(row) for row in connection.execute(query.order_by(agent_jobs.c.id).with_for_update()).mappings()]


def _suspect(connection: Connection, job: Job, death: Death, now: int, actor: str) -> None:
    """Give a job that a dead worker held beside others back, to run apart from them."""
    if job.cancel_requested_at is not None:
        end(connection, job, now=now, actor=actor)
        return
    count = another_death(job, alone=False)
    _keep(connection, job, death, count, now)
    others = counted(death.beside, "other job")
    reason = f"its worker {job.leased_by} {death.how}, with {others}: it runs apart from now on"
    transition(connection, job, "pending", now=now, actor=actor, reason=reason, next_run_at=now, **count)


def _counted(
    connection: Connection, job: Job, death: Death, now: int, actor: str, whose: str = "worker"
) -> dict[str, int] | None:
    """Count a death that is the job's own; None if it was one too many, and the job has failed.

    Args:
        connection: The write transaction.
        job: The job.
        death: What is known of the death.
        now: UTC milliseconds.
        actor: Who tells of it.
        whose: What died: its `worker`, or the `process` that ran it alone.
    """
    count = another_death(job, alone=True)
    known = _keep(connection, job, death, count, now)
    deaths = count["worker_deaths"]
    if deaths < job.max_attempts:
        return count
    told = f"{_told(job, death, whose)} (death {deaths} of {job.max_attempts} in a row without progress)"
    error = {
        "code": WorkerDied.code,
        "message": told,
        **known,
        "attempt": job.attempts,
        "next_step": f"{_advice(death)}; then: everstep retry {job.public_id}",
    }
    kept = {**count, "suspect": max(count["suspect"], 1)}  # also a redriven one runs apart
    fail(connection, job, now=now, actor=actor, reason=told, error_json=json.dumps(error), **kept)
    return None


def _told(job: Job, death: Death, whose: str) -> str:
    """What died, how and where, in words."""
    return f"its {whose} {death.how} at step {job.step}" + (f", node {job.node}" if job.node else "")


def _advice(death: Death) -> str:
    """Where to look for what ended the process."""
    was_killed = death.signal is not None and death.how == killed_by(death.signal)
    if death.how.startswith(ENDED_BY):
        return "raise an ordinary error there instead"
    if was_killed and death.signal == "SIGKILL":
        return (
            "find who sent SIGKILL: the kernel when memory is short (its log tells; evidence has the process' peak),"
            " a supervisor, or a person"
        )
    if was_killed and death.signal in FAULTS:
        return f"find the native code that ends in {death.signal}: the worker's stderr has the places in Python"
    if was_killed:
        return f"find who sent {death.signal}"
    if death.exit_code is not None:
        return "find what ends the process (os._exit, sys.exit in an async node, a library): see the worker's stderr"
    return "find what ends or blocks the process"


def killed_by(signal: str) -> str:
    """How a process ended that a signal killed, in words."""
    return f"was killed by {signal}"


def record(connection: Connection, claimed: Job, death: Death, *, now: int, actor: str) -> Job:
    """The process of a job ended without settling it: its worker says so, instead of leaving it to the lease.

    Args:
        connection: The write transaction.
        claimed: The job as it was claimed; its claim number is the fence.
        death: What is known of the death.
        now: UTC milliseconds.
        actor: The worker.

    Returns:
        The job: pending, failed, or in review for an effect in doubt.

    Raises:
        LostClaim: The claim is no longer the job's; nothing was written.
    """
    job = _held(connection, claimed)
    if job.cancel_requested_at is not None:
        return end(connection, job, now=now, actor=actor)
    count = _counted(connection, job, death, now, actor, "process")
    if count is None:
        return lock(connection, job.id)
    reason = _told(job, death, "process")
    return transition(connection, job, "pending", now=now, actor=actor, reason=reason, next_run_at=now, **count)


def give_back(connection: Connection, claimed: Job, *, now: int, due: int, actor: str, reason: str) -> Job:
    """The job could not begin, through no fault of its own: it waits, with the attempt not counted.

    Raises:
        LostClaim: The claim is no longer the job's; nothing was written.
    """
    job = _held(connection, claimed)
    if job.cancel_requested_at is not None:
        return end(connection, job, now=now, actor=actor)
    changes = {"attempts": max(job.attempts - 1, 0), "next_run_at": due}
    return transition(connection, job, "pending", now=now, actor=actor, reason=reason, **changes)


def _held(connection: Connection, claimed: Job) -> Job:
    job = lock(connection, claimed.id)
    if job.claim_no != claimed.claim_no or job.status != "running":
        raise LostClaim(f"job {job.public_id}: claim {claimed.claim_no} is no longer its claim")
    return job


def _keep(connection: Connection, job: Job, death: Death, count: dict[str, int], now: int) -> dict[str, Any]:
    """Keep what is known of a death as evidence."""
    known: dict[str, Any] = {**asdict(death), "step": job.step, "node": job.node, "deaths": count["worker_deaths"]}
    known = {name: value for name, value in known.items() if value is not None}
    row = {"job_id": job.id, "claim_no": job.claim_no, "kind": "worker_death", "detail_json": json.dumps(known)}
    connection.execute(insert(evidence).values(**row, at=now))
    return known
